package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/store/wait"
)

// dialects are the schedulers whose scripts --from reads, for help texts.
const dialects = "slurm, lsf, gridengine, pbs"

// targetNames are the values of --to.
const targetNames = dialects + ", kubernetes, openshift, argo, local"

// fromFlags read a job that was written for a scheduler.
func fromFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "from", Usage: "translate job script `FILE` (- is standard input)"},
	}, inSection(fromSection,
		&cli.StringFlag{Name: "dialect", Usage: "read --from as `SCHEDULER`: " + dialects},
		&cli.StringFlag{Name: "report", Value: "table", Usage: "report what became of each directive as `FORMAT`: table, json or none"},
		&cli.BoolFlag{Name: "strict", Usage: "fail when a directive cannot be translated (default for submit)"},
	)...)
}

// fromArgs are the flags of a job that somebody wrote for a scheduler.
type fromArgs struct {
	files   []string   // scripts or submit commands; - is standard input
	dialect job.Target // "": by the directives
	report  string     // table, json or none
	strict  bool       // a directive that is refused is an error
}

func parseFrom(c *cli.Context) fromArgs {
	return fromArgs{files: c.StringSlice("from"), dialect: job.Target(c.String("dialect")), report: c.String("report"),
		strict: c.Bool("strict") || (c.Command.Name == "submit" && !c.IsSet("strict"))}
}

// checkFrom refuses flags about a script where there is none.
func (a *jobArgs) checkFrom() error {
	if name := a.set.first(fromFlags()); name != "" && !a.set["from"] {
		return usagef("--%s describes the script of --from, which is missing", name)
	}
	return nil
}

// readFrom translates what --from names; flags of the command line replace its directives.
func (a *jobArgs) readFrom(flags *job.Job, to *destination) (*job.Job, error) {
	if len(a.from.files) > 1 {
		return a.readSteps(flags, to)
	}
	tr, name, err := a.translate(a.from.files[0], to)
	if err != nil {
		return nil, err
	}
	a.overrule(tr, flags)
	return a.fit(tr, flags, to, name)
}

// translate reads one script or submit command, and returns its name too.
func (a *jobArgs) translate(file string, to *destination) (*translate.Translation, string, error) {
	dir, home := a.chdir, ""
	if to.remote != nil {
		dir, home = to.dir(a.chdir), to.remote.Home
	}
	src, err := openSource(file, a.from.dialect, dir, home)
	if err != nil {
		return nil, "", err
	}
	tr, err := dispatch.Translator().Translate(src, to.Target)
	return tr, src.Name, err
}

// fit completes a translated job by the flags, and reduces it to what the target can do.
func (a *jobArgs) fit(tr *translate.Translation, flags *job.Job, to *destination, name string) (*job.Job, error) {
	j := tr.Job
	j.Program, j.Store, j.Run, j.Image, j.Ray, j.Measure, j.Pod = flags.Program, flags.Store, flags.Run, flags.Image, flags.Ray, flags.Measure, flags.Pod
	j.Artifacts = flags.Artifacts
	if j.OnHost = j.OnHost && j.Image == ""; a.more && j.Script != nil {
		j.Script.Args = flags.Args
	}
	tr.Fit()
	if err := printFates(os.Stderr, tr, a.from.report); err != nil {
		return nil, err
	}
	if n := tr.Lost(); n > 0 && a.from.strict {
		return nil, (&message{err: fmt.Errorf("translating %s for %s: %s refused", name, to.Target, counted(n, "directive is", "directives are"))}).
			hint("change them in the script, say them with flags, or take the job without them with --strict=false")
	}
	return j, nil
}

// openSource opens a script or a submit command. Its job starts in dir or in home, which default
// to the current directory and the user's home.
func openSource(name string, dialect job.Target, dir, home string) (translate.Source, error) {
	s := translate.Source{Name: name, Dialect: dialect, Home: home}
	var err error
	if s.Dir, err = filepath.Abs(dir); err != nil {
		return s, err
	}
	if home == "" {
		if s.Home, err = os.UserHomeDir(); err != nil {
			return s, fmt.Errorf("finding the home directory, where some schedulers start jobs: %w", err)
		}
	}
	if u, err := user.Current(); err == nil {
		s.User = u.Username
	}
	s.Open = readBounded
	switch _, serr := os.Stat(name); {
	case name == "-":
		s.Name = "stdin"
		s.Text, err = io.ReadAll(io.LimitReader(wait.Stdin(), maxInput))
	case serr != nil && dispatch.Translator().IsSubmitCommand(name):
		s.Name, s.Command = "job", name
	default:
		s.Text, err = readBounded(name)
	}
	if err != nil {
		return s, (&message{err: fmt.Errorf("--from: %w", err)}).hint("name a job script, - for standard input, or a whole command line: --from 'sbatch -n 4 job.sh'")
	}
	return s, nil
}

// maxInput bounds scripts and other files that a job takes with it, in bytes.
const maxInput = 16 << 20

func readBounded(file string) ([]byte, error) {
	f, err := wait.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxInput))
}

// overrule replaces directives of the script by flags, except those named in except.
func (a *jobArgs) overrule(tr *translate.Translation, flags *job.Job, except ...string) {
	j := tr.Job
	sweep := func() { j.Params, j.Array, j.ArraySize = flags.Params, flags.Array, flags.ArraySize }
	for name, take := range map[string]func(){
		"name":  func() { j.Name = flags.Name },
		"array": func() { j.Array = flags.Array }, "nodes": func() { j.Nodes = flags.Nodes }, "tasks": func() { j.Tasks = flags.Tasks },
		"tasks-per-node": func() { j.TasksPerNode = flags.TasksPerNode }, "cpus": func() { j.CPUs = flags.CPUs },
		"mem": func() { j.Memory, j.MemoryPerCPU = flags.Memory, 0 }, "gpus": func() { j.GPUs, j.GPUType = flags.GPUs, flags.GPUType }, "gpu-type": func() { j.GPUType = flags.GPUType },
		"time": func() { j.Time = flags.Time }, "queue": func() { j.Queue = flags.Queue }, "account": func() { j.Account = flags.Account },
		"exclusive": func() { j.Exclusive = flags.Exclusive }, "after": func() { j.After = flags.After },
		"output": func() { j.Output = flags.Output }, "error": func() { j.Error = flags.Error }, "mail": func() { j.Mail = flags.Mail },
		"chdir": func() { j.Dir = flags.Dir }, "env": func() { j.Env = append(j.Env, flags.Env...) },
		"signal": func() { j.Warning = flags.Warning }, "retry": func() { j.Retry = flags.Retry }, "sweep": sweep, "params": sweep, "native": func() { j.Native = append(j.Native, flags.Native...) }, "interactive": func() { j.Interactive = flags.Interactive }, "tensorboard": func() { j.Tensorboard = flags.Tensorboard },
	} {
		if !a.set[name] || slices.Contains(except, name) {
			continue
		}
		if take(); name != "env" && name != "native" && name != "interactive" {
			tr.Overrule(name)
		}
	}
}

// printFates prints what became of each directive.
func printFates(w io.Writer, tr *translate.Translation, form string) error {
	switch form {
	case "none":
	case "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for _, r := range tr.Rows {
			if err := enc.Encode(struct {
				Type string `json:"type"`
				*field.Row
			}{"directive", r}); err != nil {
				return err
			}
		}
	case "table":
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintf(t, "LINE\tOF %s\tFOR %s\tHOW\n", strings.ToUpper(string(tr.Dialect)), strings.ToUpper(string(tr.To)))
		for _, r := range tr.Rows {
			line := ""
			if r.Line > 0 {
				line = fmt.Sprint(r.Line)
			}
			rowf(t, "%s\t%s\t%s\t%s\n", line, oneLine(r.Text), r.Fate, oneLine(r.How))
		}
		return t.Flush()
	default:
		return usagef("--report %q: give table, json or none", form)
	}
	return nil
}

// oneLine makes text of a script fit for a row of a table.
func oneLine(s string) string {
	s = cell(s)
	if r := []rune(s); len(r) > 100 {
		s = string(r[:99]) + "…"
	}
	return s
}

// counted puts a number before its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + many
}
