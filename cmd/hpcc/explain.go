package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/prepare"
	"hpcc/runtime"
	"hpcc/runtime/explain"
	"hpcc/runtime/runconf"
	"hpcc/text"
)

// An explanation of a run compares its specification with those of runs that have less: no image, no
// lines of run.conf, fewer flags. The source of a value is what first gave it.
type explanation struct {
	steps []explainedStep // the last is the run itself
	job   []explain.Fact  // of the job that starts the run, if any
	json  bool
}

type explainedStep struct {
	source string
	args   *runArgs
	image  bool // the image's configuration counts
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
	return explain.Write(os.Stdout, append(x.job, facts...), x.json)
}

// facts returns the facts of the last step.
func (x *explanation) facts(root string, img runtime.Image) (all []explain.Fact, notes []string, err error) {
	known := explain.Sources{}
	known.Compare("caller", explain.Caller(x.steps[0].args.options.Args))
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
			all = explain.Run(spec)
			known.Compare(s.source, all)
		}
	}
	return append(all, known.Unset()...), notes, err
}

// explainJob prints the settings of a job with their sources, and what its first task would see if it
// had the variables of this process, too.
func (a *submitArgs) explainJob(ctx context.Context, j *job.Job, to *prepare.Destination) error {
	settings := a.Explain(j, to)
	if j.Image == "" || to.Target.Pods() || to.Remote != nil {
		say("note: hpcc run does not start this program, or not on this machine: --explain shows the settings of the job only")
		return explain.Write(os.Stdout, settings, a.json)
	}
	argv, err := prepare.EnterTask(j)
	if err != nil {
		return fmt.Errorf("explaining the job: %w", err)
	}
	c, err := parseFlags(runCommandFlags(), append([]string{"--explain", "--store=" + j.Store}, argv...))
	if err != nil {
		return text.Usagef("explaining the job: %w", err)
	}
	run, err := parseRun(c)
	if err != nil {
		return err
	}
	run.explains.job, run.explains.json = settings, a.json
	return run.run(ctx)
}
