package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/runtime"
	"hpcc/runtime/runconf"
	"hpcc/text"
	"hpcc/text/terminal"
)

// An explanation of a run compares its specification with those of runs that have less: no image, no
// lines of run.conf, fewer flags. The source of a value is what first gave it.
type explanation struct {
	steps []explainedStep // the last is the run itself
	job   []fact          // of the job that starts the run, if any
	json  bool
}

type explainedStep struct {
	source string
	args   *runArgs
	image  bool // the image's configuration counts
}

// A fact is a property of a run that its program sees.
type fact struct {
	Kind   string `json:"kind"` // command, directory, user, hostname, namespace, mount, setting or variable
	Name   string `json:"name,omitempty"`
	Value  string `json:"value"`
	Source string `json:"source"`          // caller, hpcc, image, FILE:LINE or a flag
	Unset  bool   `json:"unset,omitempty"` // a variable of the caller that the program does not get
}

// parseExplanation prepares the explanation of the run a with the command line c.
func parseExplanation(c *cli.Context, a *runArgs) (*explanation, error) {
	var lines []runconf.Line
	if !c.Bool("no-config") {
		var err error
		if lines, err = runconf.Read(); err != nil {
			return nil, err
		}
	}
	x := &explanation{json: c.Bool("json")}
	add := func(source string, flags []string, lines []runconf.Line, withImage bool) {
		given, err := parseFlags(runCommandFlags(), slices.Concat(flags, []string{"--"}, c.Args().Slice()))
		var s *runArgs
		if err == nil {
			s, err = parseRunWith(given, func() ([]runconf.Line, error) { return lines, nil })
		}
		if err == nil { // a flag may need a later one
			x.steps = append(x.steps, explainedStep{source, s, withImage})
		}
	}
	add("hpcc", nil, nil, false)
	add("image", nil, nil, true)
	for i, l := range lines {
		add(fmt.Sprintf("%s:%d", l.File, l.Number), nil, lines[:i+1], true)
	}
	var flags []string
	for _, flag := range parseGiven(c, runCommandFlags()) {
		if name, _, _ := strings.Cut(flag, "="); name != "--explain" && name != "--json" {
			flags = append(flags, flag)
			add(name, flags, lines, true)
		}
	}
	own := envOf(c).Sources
	for i, source := range own { // of the command line, which comes after run.conf
		s := *a
		s.env = a.env[:len(a.env)-len(own)+i+1]
		x.steps = append(x.steps, explainedStep{source, &s, true})
	}
	x.steps = append(x.steps, explainedStep{"flags", a, true})
	return x, nil
}

// print prints the facts of the run with their sources.
func (x *explanation) print(root string, img runtime.Image) error {
	facts, notes, err := x.facts(root, img)
	sayNotes(notes)
	if err != nil {
		return err
	}
	return printFacts(append(x.job, facts...), x.json)
}

// printFacts prints facts as a table, or as one JSON object.
func printFacts(facts []fact, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"type": "explanation", "version": 1, "facts": facts})
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tSOURCE\tVALUE")
	for _, f := range facts {
		name := strings.TrimSpace(f.Kind + " " + f.Name)
		if f.Kind == "variable" {
			name, f.Value = f.Kind, f.Name+"="+f.Value
		}
		if f.Unset {
			f.Value = "(not passed) " + f.Name
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", terminal.Cell(name), terminal.Cell(f.Source), terminal.Cell(f.Value))
	}
	return w.Flush()
}

// facts returns the facts of the last step.
func (x *explanation) facts(root string, img runtime.Image) (all []fact, notes []string, err error) {
	known := sources{}
	known.compare("caller", append(callerFacts(), fact{Kind: "command", Value: text.CommandLine(x.steps[0].args.options.Args)}))
	for _, s := range x.steps {
		config, run := img, *s.args
		if !s.image {
			config = runtime.Image{Architecture: img.Architecture}
		}
		if !s.image && len(run.options.Args) == 0 {
			run.options.Args = []string{""} // only the image has a program
		}
		var spec *specs.Spec
		if spec, notes, err = run.spec(root, config); err == nil { // a step may miss the flags of a later one
			all = factsOf(spec)
			known.compare(s.source, all)
		}
	}
	var unset []fact
	for _, f := range known {
		if f.Unset && f.Kind == "variable" {
			unset = append(unset, f)
		}
	}
	slices.SortFunc(unset, func(a, b fact) int { return strings.Compare(a.Name, b.Name) })
	return append(all, unset...), notes, err
}

// sources holds the last value of each fact, by kind and name.
type sources map[string]fact

// compare fills in the sources of facts. A fact keeps its source as long as its value stays the same.
func (s sources) compare(source string, now []fact) {
	seen := map[string]bool{}
	for i, f := range now {
		key := f.Kind + " " + f.Name
		if now[i].Source = source; s[key].Value == f.Value && s[key].Source != "" && !s[key].Unset {
			now[i].Source = s[key].Source
		}
		s[key], seen[key] = now[i], true
	}
	for key, f := range s {
		if !seen[key] && !f.Unset {
			f.Unset, f.Source = true, source
			s[key] = f
		}
	}
}

// note compares the settings of a job. It does nothing without --explain.
func (s *sources) note(source string, j *job.Job) {
	if s == nil {
		return
	}
	if *s == nil {
		*s = sources{}
	}
	s.compare(source, jobFacts(j))
}

// jobFacts returns the settings of a job, except its program and the flags of its run.
func jobFacts(j *job.Job) (out []fact) {
	var fields map[string]json.RawMessage
	text, err := json.Marshal(j)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		return []fact{{Kind: "job", Value: err.Error()}}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := string(fields[name])
		if text := ""; json.Unmarshal(fields[name], &text) == nil {
			value = text
		}
		if name != "args" && name != "run" && value != "" {
			out = append(out, fact{Kind: "job", Name: name, Value: value})
		}
	}
	return out
}

// explainJob prints the settings of a job with their sources, and what its first task would see if it
// had the variables of this process, too.
func (a *submitArgs) explainJob(ctx context.Context, j *job.Job, to *destination) error {
	all := append([]fact{{Kind: "job", Name: "target", Value: string(to.Target), Source: "hpcc"}}, jobFacts(j)...)
	if a.at.to != "" || a.at.on != "" {
		all[0].Source = "flag"
	}
	a.known.compare("hpcc", all[1:])
	if j.Image == "" || to.Target.Pods() || to.remote != nil {
		say("note: hpcc run does not start this program, or not on this machine: --explain shows the settings of the job only")
		return printFacts(all, a.json)
	}
	task := &job.Task{}
	for task.Index = range j.Array.All() {
		break
	}
	task.Params = j.Params.Row(task.Index)
	err := os.Chdir(j.Dir)
	// The script of the job changes the directory, and sets these variables.
	for _, kv := range append([]string{"PWD=" + j.Dir, fmt.Sprint("HPCC_TASK_ID=", task.Index),
		fmt.Sprint("HPCC_TASK_COUNT=", j.FullCount())}, j.Env...) {
		name, value, _ := strings.Cut(kv, "=")
		if err == nil {
			err = os.Setenv(name, value)
		}
	}
	if err != nil {
		return fmt.Errorf("explaining the job: %w", err)
	}
	argv := j.Argv()
	if j.Script != nil { // each of its launchers starts hpcc run
		argv = append(j.RunPrefix(), j.Args...)
	}
	c, err := parseFlags(runCommandFlags(), append([]string{"--explain", "--store=" + j.Store}, task.Fill(argv[2:])...))
	if err != nil {
		return text.Usagef("explaining the job: %w", err)
	}
	run, err := parseRun(c)
	if err != nil {
		return err
	}
	run.explains.job, run.explains.json = all, a.json
	return run.run(ctx)
}

// callerFacts returns the facts of this process.
func callerFacts() []fact {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	return append(variableFacts(os.Environ()), fact{Kind: "directory", Value: dir},
		fact{Kind: "hostname", Value: host}, fact{Kind: "user", Value: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())})
}

func variableFacts(env []string) (out []fact) {
	for _, kv := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(kv, "=")
		out = append(out, fact{Kind: "variable", Name: name, Value: value})
	}
	return out
}

// factsOf returns the facts of a specification.
func factsOf(s *specs.Spec) []fact {
	host := s.Hostname
	if host == "" {
		host, _ = os.Hostname()
	}
	out := []fact{
		{Kind: "command", Value: text.CommandLine(s.Process.Args)}, {Kind: "directory", Value: s.Process.Cwd},
		{Kind: "hostname", Value: host},
		{Kind: "user", Value: fmt.Sprintf("%d:%d", s.Linux.UIDMappings[0].ContainerID, s.Linux.GIDMappings[0].ContainerID)},
	}
	for _, n := range s.Linux.Namespaces {
		if n.Type != specs.UserNamespace && n.Type != specs.MountNamespace {
			out = append(out, fact{Kind: "namespace", Name: string(n.Type), Value: "of the program"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Annotations)) {
		if short, ok := strings.CutPrefix(name, "hpcc."); ok && name != runtime.Architecture {
			out = append(out, fact{Kind: "setting", Name: short, Value: s.Annotations[name]})
		}
	}
	access := "rw"
	if s.Root.Readonly {
		access = "ro"
	}
	out = append(out, fact{Kind: "mount", Name: "/", Value: s.Root.Path + " (" + access + ")"})
	for _, m := range s.Mounts {
		out = append(out, fact{Kind: "mount", Name: m.Destination,
			Value: strings.TrimSuffix(m.Source+" ("+strings.Join(m.Options, ",")+")", " ()")})
	}
	return append(out, variableFacts(s.Process.Env)...)
}
