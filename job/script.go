package job

// A Script is a job script that was written for some scheduler.
type Script struct {
	Name  string   `json:"name"`
	From  Target   `json:"from"`
	Body  string   `json:"body"`            // ends with a line break
	Shell []string `json:"shell"`           // what runs it, with options
	Args  []string `json:"args,omitempty"`  // of the script
	Dir   string   `json:"dir"`             // absolute: where it was to be handed in from
	Start string   `json:"start,omitempty"` // absolute: where it starts; "": where the job does
	Host  bool     `json:"host,omitempty"`  // runs outside of the image: it starts programs there itself

	// What From sets for its jobs. It is not recorded; the registry of batch systems
	// fills it in before the script is rendered.
	FromTitle string     `json:"-"` // name of From in text
	Sets      []Variable `json:"-"`
}

// A Variable is one that a batch system sets for its jobs. The values are for bash in
// double quotes; {…} are figures of the job, and "" leaves the variable unset.
type Variable struct {
	Name   string
	Value  string // in a task of an array; in any job if Single is ""
	Single string // in a job that is not an array
	Array  bool   // it exists only in arrays
	Hosts  bool   // it is made from the list of hosts
	Always bool   // programs read it, not only the script
}
