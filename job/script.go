package job

// A Script is a job script for any scheduler.
type Script struct {
	Name  string   `json:"name"`
	From  Target   `json:"from"`
	Body  string   `json:"body"`            // ends with a line break
	Shell []string `json:"shell"`           // argv of the interpreter
	Login string   `json:"login,omitempty"` // absolute: login shell that starts the interpreter; "": none
	Args  []string `json:"args,omitempty"`  // arguments of the script
	Dir   string   `json:"dir"`             // absolute: the directory of the submission
	Start string   `json:"start,omitempty"` // absolute: working directory; "": the job's
	Host  bool     `json:"host,omitempty"`  // run outside the image: the script starts programs in it

	// Variables that From sets for its jobs. They are not recorded; the registry of batch systems
	// fills them in before the script is rendered.
	FromTitle string     `json:"-"` // name of From in messages
	Sets      []Variable `json:"-"`
}

// A Variable is an environment variable that a batch system sets for its jobs. The values are for
// bash in double quotes; {…} are properties of the job, and "" leaves the variable unset.
type Variable struct {
	Name   string
	Value  string // in a task of an array, and in other jobs if Single is ""
	Single string // in a job that is not an array
	Array  bool   // only set in arrays
	Hosts  bool   // derived from the list of hosts
	Always bool   // also read by programs, not only by the script
}
