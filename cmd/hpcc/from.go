package main

import (
	"cmp"
	"context"
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

	"hpcc/envfile"
	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/field"
	"hpcc/job/translate"
	"hpcc/text"
	"hpcc/text/terminal"
)

// dialects lists the schedulers whose scripts --from reads, for help texts.
const dialects = "slurm, lsf, gridengine, pbs"

// targetNames lists the values of --to.
const targetNames = dialects + ", kubernetes, openshift, argo, local"

// fromFlags are the flags that read a job script of a scheduler.
func fromFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringSliceFlag{Name: "from", Usage: "translate job script or manifest `FILE` (- is stdin)"},
	}, inSection(fromSection,
		&cli.StringFlag{Name: "dialect", Usage: "read --from as `SCHEDULER`: " + dialects},
		&cli.StringFlag{Name: "report", Value: "table", Usage: "report what became of each directive as `FORMAT`: table, json or none"},
		&cli.BoolFlag{Name: "strict", Usage: "fail when a directive cannot be translated (default for submit)"},
	)...)
}

// fromArgs holds the flags that read a job script of a scheduler.
type fromArgs struct {
	files   []string   // scripts or submit commands; - is standard input
	dialect job.Target // "" to detect it by the directives
	report  string     // table, json or none
	strict  bool       // fail if a directive cannot be translated
}

func parseFrom(c *cli.Context) fromArgs {
	return fromArgs{files: c.StringSlice("from"), dialect: job.Target(c.String("dialect")), report: c.String("report"),
		strict: c.Bool("strict") || (c.Command.Name == "submit" && !c.IsSet("strict"))}
}

// checkFrom refuses flags for --from without --from.
func (a *jobArgs) checkFrom() error {
	if name := a.set.first(fromFlags()); name != "" && !a.set["from"] {
		return text.Usagef("--%s needs --from", name).Hint("name a job script with --from FILE")
	}
	return nil
}

// translate translates one script, submit command or manifest.
func (a *jobArgs) translate(ctx context.Context, file string, to *destination) (*translate.Translation, error) {
	dir, home := a.chdir, ""
	if to.remote != nil {
		dir, home = to.remote.Dir(a.chdir), to.remote.Home
	}
	src, err := openSource(file, a.from.dialect, dir, home)
	if err != nil {
		return nil, err
	}
	if to.remote == nil {
		src.AskHost(ctx)
	}
	return dispatch.Translator().Translate(src, to.Target)
}

// takeManifest takes the image of a script or manifest, and the variables and the settings of pods of a manifest,
// before the image is looked up. Flags replace them.
func (a *jobArgs) takeManifest(tr *translate.Translation, to *destination) {
	m, own := tr.Job, &a.inPod.pod
	a.image = cmp.Or(a.image, m.Image)
	if !tr.Dialect.Pods() {
		own.Dir = cmp.Or(own.Dir, m.Pod.Dir)
		return
	}
	a.precede(m.Env)
	m.Env = nil
	m.Pod.Command = m.Pod.Command && !a.more
	if !to.Target.Pods() {
		if m.Pod.Command {
			a.runArgv = append(a.runArgv, "--entrypoint=")
		}
		if m.Pod.Dir != "" && !a.set["cd"] {
			a.runArgv = append(a.runArgv, "--cd="+m.Pod.Dir)
		}
		return
	}
	if m.Pod.UID > 0 && !a.set["uid"] {
		a.inPod.uid, a.set["uid"] = int(m.Pod.UID), true
	}
	for _, v := range m.Pod.Volumes {
		if !slices.ContainsFunc(own.Volumes, func(o job.Volume) bool { return o.Path == v.Path }) {
			own.Volumes = append(own.Volumes, v)
		}
	}
	for _, p := range m.Pod.Ports {
		if !slices.ContainsFunc(own.Ports, func(o job.Port) bool { return o.Name == p.Name }) {
			own.Ports = append(own.Ports, p)
		}
	}
	own.Secrets, own.NodeLabels = append(m.Pod.Secrets, own.Secrets...), append(m.Pod.NodeLabels, own.NodeLabels...)
	own.Dir, own.Pull, own.PullSecret = cmp.Or(own.Dir, m.Pod.Dir), cmp.Or(own.Pull, m.Pod.Pull), cmp.Or(own.PullSecret, m.Pod.PullSecret)
	own.ServiceAccount, own.Scratch, own.Command = cmp.Or(own.ServiceAccount, m.Pod.ServiceAccount), cmp.Or(own.Scratch, m.Pod.Scratch), own.Command || m.Pod.Command
}

// precede adds the variables of a manifest to the changes of the environment, before those of flags.
func (a *jobArgs) precede(vars []string) {
	var list []envfile.Change
	var argv []string
	for _, e := range vars {
		if c, err := envfile.Exact(e); err == nil { // the reader of manifests has checked it
			list, argv = append(list, c), append(argv, "--env="+e)
		}
	}
	a.env.list, a.runArgv = append(list, a.env.list...), append(argv, a.runArgv...)
	a.set["env"] = a.set["env"] || len(vars) > 0
}

// needsImage refuses flags that have no effect on a script that runs without an image.
func (a *jobArgs) needsImage() error {
	for _, f := range runFlags(new(envChanges)) {
		if name := f.Names()[0]; a.set[name] && name != "no-config" && !job.ChangesEnv("--"+name) {
			return text.Usagef("--%s needs an image, but the script runs on the host", name).Hint("name IMAGE after the flags, or leave out --%s", name)
		}
	}
	return nil
}

// fit completes a translated job with the flags, and reduces it to what the target supports.
func (a *jobArgs) fit(tr *translate.Translation, flags *job.Job, to *destination) (*job.Job, error) {
	j := tr.Job
	if a.set["cd"] {
		j.Run = slices.DeleteFunc(j.Run, func(f string) bool { return strings.HasPrefix(f, "--cd=") })
	}
	if j.Image = cmp.Or(flags.Image, j.Image); j.Image != "" && !to.Target.Pods() {
		// The script exports the variables of directives, and those of the image do not replace them.
		for _, e := range j.Env {
			name, _, _ := strings.Cut(e, "=")
			j.Run = append(j.Run, "--env="+name)
		}
		for _, name := range j.ExportedNames() {
			if _, set := os.LookupEnv(name); set {
				j.Run = append(j.Run, "--env="+name)
			}
		}
	}
	j.Run = append(j.Run, flags.Run...)
	j.Program, j.Store, j.Ray, j.Measure, j.Pod = flags.Program, flags.Store, flags.Ray, flags.Measure, flags.Pod
	j.ImageVersion, j.Artifacts, j.Env = flags.ImageVersion, flags.Artifacts, append(j.Env, flags.Env...)
	if j.OnHost = j.OnHost && j.Image == ""; j.Image == "" {
		if err := a.needsImage(); err != nil {
			return nil, err
		}
	}
	switch {
	case a.more && j.Script != nil:
		j.Script.Args = flags.Args
	case a.more && tr.Dialect.Pods():
		j.Args = flags.Args
	}
	if a.set["gpu"] && to.Target.Pods() && j.GPUs == 0 {
		return nil, text.Usagef("--gpu cannot be used for pods of %s, and the script requests no GPUs", to.Target).Hint("%s", inPods["gpu"])
	}
	tr.Fit()
	if err := printFates(os.Stderr, tr, a.from.report); err != nil {
		return nil, err
	}
	if n := tr.Lost(); n > 0 && a.from.strict {
		return nil, text.Hint(fmt.Errorf("translating %s for %s: %s refused%s", tr.Source, to.Target, text.Count(n, "directive is", "directives are"), a.unreported(tr)), "change them in the script, replace them with flags, or leave them out with --strict=false")
	}
	return j, nil
}

// unreported lists the refused directives if --report does not show them.
func (a *jobArgs) unreported(tr *translate.Translation) (list string) {
	for _, r := range tr.Rows {
		if a.from.report == "none" && r.Fate == field.Refused {
			list += fmt.Sprintf("; %s: %s", terminal.ShortCell(r.Text), r.How)
		}
	}
	return list
}

// openSource opens a script or a submit command. The job starts in dir or in home, which
// default to the current directory and the user's home directory.
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
		s.Text, err = io.ReadAll(io.LimitReader(files.Stdin(), maxInput))
	case serr != nil && dispatch.Translator().IsSubmitCommand(name):
		s.Name, s.Command = "job", name
	default:
		s.Text, err = readBounded(name)
	}
	if err != nil {
		return s, text.Hint(fmt.Errorf("--from: %w", err), "name a job script, - for standard input, or a submit command: --from 'sbatch -n 4 job.sh'")
	}
	return s, nil
}

// maxInput is the maximum size of scripts and other files of a job, in bytes.
const maxInput = 16 << 20

func readBounded(file string) ([]byte, error) {
	f, err := files.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxInput))
}

// overrule replaces directives of the script with flags, except those named in except.
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
		"chdir":  func() { j.Dir = flags.Dir },
		"signal": func() { j.Warning = flags.Warning }, "retry": func() { j.Retry.Times, j.Retry.Endings = flags.Retry.Times, flags.Retry.Endings },
		"retry-mem": func() { j.Retry.Memory = flags.Retry.Memory }, "retry-time": func() { j.Retry.Time = flags.Retry.Time },
		"sweep": sweep, "params": sweep, "native": func() { j.Native = append(j.Native, flags.Native...) }, "interactive": func() { j.Interactive = flags.Interactive }, "tensorboard": func() { j.Tensorboard = flags.Tensorboard },
	} {
		if !a.set[name] || slices.Contains(except, name) {
			continue
		}
		if take(); name != "native" && name != "interactive" {
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
			terminal.Rowf(t, "%s\t%s\t%s\t%s\n", line, terminal.ShortCell(r.Text), r.Fate, terminal.Cell(r.How)) // which names the next action
		}
		return t.Flush()
	default:
		return text.Usagef("--report %q is not table, json or none", form)
	}
	return nil
}
