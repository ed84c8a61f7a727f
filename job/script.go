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
}
