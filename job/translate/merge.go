package translate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"hpcc/job"
	"hpcc/job/field"
	"hpcc/text"
	"hpcc/text/terminal"
)

// Flags are the flags of hpcc that complete a translated job.
type Flags struct {
	Job     *job.Job        // the values of the flags, the paths of hpcc and the image
	Set     map[string]bool // names of the given flags
	HasArgs bool            // the job's arguments replace those of the script
}

// Merge replaces directives with flags, except those named in except, and adds to the job what only flags set. Fit
// comes after it.
func (t *Translation) Merge(f Flags, except ...string) {
	t.overrule(f, except)
	j, flags := t.Job, f.Job
	if f.Set["cd"] {
		j.Run = slices.DeleteFunc(j.Run, func(f string) bool { return strings.HasPrefix(f, "--cd=") })
	}
	if j.Image = cmp.Or(flags.Image, j.Image); j.Image != "" && !t.To.Pods() {
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
	j.Program, j.Store, j.Measure, j.Pod = flags.Program, flags.Store, flags.Measure, flags.Pod
	j.ImageVersion, j.Artifacts, j.Env = flags.ImageVersion, flags.Artifacts, append(j.Env, flags.Env...)
	j.OnHost = j.OnHost && j.Image == ""
	switch {
	case f.HasArgs && j.Script != nil:
		j.Script.Args = flags.Args
	case f.HasArgs && t.Dialect.Pods():
		j.Args = flags.Args
	}
}

// overrule replaces directives of the script with flags, except those named in except.
func (t *Translation) overrule(f Flags, except []string) {
	j, flags := t.Job, f.Job
	sweep := func() { j.Params, j.Array, j.ArraySize = flags.Params, flags.Array, flags.ArraySize }
	own := map[string]func(){
		"array": func() { j.Array = flags.Array }, "sweep": sweep, "params": sweep,
		"output": func() { j.Output = flags.Output }, "chdir": func() { j.Dir = flags.Dir },
		"gpu-type":    func() { j.GPUType = flags.GPUType },
		"retry":       func() { j.Retry.Times, j.Retry.Endings = flags.Retry.Times, flags.Retry.Endings },
		"retry-mem":   func() { j.Retry.Memory = flags.Retry.Memory },
		"retry-time":  func() { j.Retry.Time = flags.Retry.Time },
		"tensorboard": func() { j.Tensorboard = flags.Tensorboard },
	}
	for name, given := range f.Set {
		at := field.Field(name)
		take := own[name]
		switch {
		case !given || slices.Contains(except, name):
			continue
		case at == field.Native: // a script keeps its own options
			j.Native = append(j.Native, flags.Native...)
			continue
		case at == field.Interactive:
			j.Interactive = flags.Interactive
			continue
		case take != nil:
			take()
		case !at.Copy(j, flags): // not a setting of scripts
			continue
		}
		t.overruled = append(t.overruled, at)
		for _, r := range t.Rows {
			r.Overrule(at, "--"+name+" overrides it")
		}
	}
}

// Report writes what became of each directive, as a table or as JSON; format none writes nothing.
func (t *Translation) Report(w io.Writer, format string) error {
	switch format {
	case "none":
	case "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for _, r := range t.Rows {
			if err := enc.Encode(struct {
				Type string `json:"type"`
				*field.Row
			}{"directive", r}); err != nil {
				return err
			}
		}
	case "table":
		tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintf(tab, "LINE\tOF %s\tFOR %s\tHOW\n", strings.ToUpper(string(t.Dialect)), strings.ToUpper(string(t.To)))
		for _, r := range t.Rows {
			line := ""
			if r.Line > 0 {
				line = fmt.Sprint(r.Line)
			}
			// HOW is complete, because it names the next action.
			terminal.Rowf(tab, "%s\t%s\t%s\t%s\n", line, terminal.ShortCell(r.Text), r.Fate, terminal.Cell(r.How))
		}
		return tab.Flush()
	default:
		return text.Usagef("--report %q is not table, json or none", format)
	}
	return nil
}

// Refused returns an error with the number of refused rows, and with their text if listed; nil if no row is refused.
func (t *Translation) Refused(listed bool) error {
	n := t.Lost()
	if n == 0 {
		return nil
	}
	list := ""
	for _, r := range t.Rows {
		if listed && r.Fate == field.Refused {
			list += fmt.Sprintf("; %s: %s", terminal.ShortCell(r.Text), r.How)
		}
	}
	err := fmt.Errorf("translating %s for %s: %s refused%s", t.Source, t.To, text.Count(n, "directive is", "directives are"), list)
	return text.Hint(err, "change them in the script, replace them with flags, or leave them out with --strict=false")
}
