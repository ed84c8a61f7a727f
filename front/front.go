// Package front reads command lines of other container programs.
//
// They are commands of hpcc, when hpcc is called by the names of these programs, or parts of job
// scripts.
//
// A front is a translation and nothing more. It keeps the meaning of each option or refuses the
// command line with the reason; it never ignores an option that changes the result.
package front

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Request is the meaning of a command line of another program.
type Request struct {
	Output   string    // text for standard output; "" for none
	Commands []Command // run in this order until one fails

	Env   []string // NAME=VALUE sets a variable of the commands, NAME removes one
	Dir   string   // working directory of the commands; "" for the current one
	Make  []string // missing directories to create, with a "/" at the end, and missing empty files
	Notes []string // warnings
	Umask int      // file mode mask of the commands; 0 for the current one

	NoStdin bool // the commands have no standard input
	Failed  int  // exit status if the last command cannot start; 0 for that of the failure
}

// A Command is a command line of hpcc.
type Command struct {
	Args     []string // without "hpcc"
	Missing  string   // run the command only if the store does not have this image; "" to run it always
	Platform string   // of the image Missing; "" for any
	Stdin    string   // standard input; "" for that of hpcc
	Quiet    bool     // show the messages of the command only if it fails
	Wrote    string   // file that the command wrote, which becomes Final; "" for none
	Final    string
}

// A Refusal is a command line that hpcc cannot execute as the other program would.
type Refusal struct {
	Program string // as called, such as "singularity exec"
	Text    string // the part of the command line; "" for all of it
	Why     string
	Advice  string // what to do instead; may be ""
	Status  int    // exit status of the program for its own failures; 0 if it has no special one
}

func (r *Refusal) Error() string {
	if r.Text == "" {
		return r.Program + ": " + r.Why
	}
	return fmt.Sprintf("%s: %s: %s", r.Program, r.Text, r.Why)
}

// fronts holds the reader of each program that hpcc replaces, by name.
var fronts = map[string]func(args, environ []string) (*Request, error){
	"apptainer": readApptainer, "singularity": readApptainer,
	"docker": readDocker, "ch-run": readChRun, "ch-image": readChImage, "ch-convert": readChConvert,
}

// Names returns the names of the programs that hpcc replaces, sorted.
func Names() []string { return slices.Sorted(maps.Keys(fronts)) }

// Read returns the meaning of a command line of the program with this name, which is one of
// [Names]. environ is the caller's environment. The error is a [Refusal] or an invalid command
// line.
func Read(program string, args, environ []string) (*Request, error) {
	return fronts[program](args, environ)
}

// arguments returns those of a process as words of no script.
func arguments(args []string) []Word {
	out := make([]Word, len(args))
	for i, a := range args {
		out[i] = Word{Text: a, Source: a}
	}
	return out
}

// ownFailures are the exit statuses by which programs distinguish their own failures from those of
// the programs that they run.
var ownFailures = map[string]int{"ch-run": 31, "docker": 125}

// refusal returns the refusal of a part of a command line of program.
func refusal(program, text, why, advice string) error {
	name, _, _ := strings.Cut(program, " ")
	return &Refusal{Program: program, Text: strings.TrimSpace(text), Why: why, Advice: advice, Status: ownFailures[name]}
}
