package translate

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"hpcc/job"
	"hpcc/job/shellword"
)

// A submitCommand is a command line that hands a job in: sbatch, bsub or qsub
// with options, and a script or a program.
type submitCommand struct {
	name  string
	text  string
	words []shellword.Word // behind the name
	input string           // the script, of "bsub < script" or by name
}

// submitNames are the commands and, where the name says it, their schedulers.
var submitNames = map[string]job.Target{"sbatch": job.Slurm, "bsub": job.LSF, "qsub": ""}

// loneCommand is the submit command of a text that holds nothing else, "" of
// any other text. A here-document or several commands are no lone command.
func loneCommand(text string) string {
	var kept []string
	for _, l := range strings.Split(text, "\n") {
		if t := strings.TrimSpace(l); t != "" && t[0] != '#' {
			kept = append(kept, strings.TrimRight(l, "\r"))
		}
	}
	line := strings.Join(kept, "\n")
	first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	if _, ok := submitNames[path.Base(first)]; !ok {
		return ""
	}
	for i, l := range kept {
		if i < len(kept)-1 && !strings.HasSuffix(l, "\\") && strings.Count(line, "'")%2 == 0 && strings.Count(line, `"`)%2 == 0 {
			return ""
		}
	}
	return line
}

// IsSubmitCommand says whether a text begins as a command line that hands jobs in.
func IsSubmitCommand(text string) bool {
	first, _, more := strings.Cut(strings.TrimSpace(text), " ")
	_, ok := submitNames[path.Base(first)]
	return ok && more
}

// parseSubmit splits a submit command. The only redirection that it may have is
// that of a script into bsub.
func parseSubmit(line string) (*submitCommand, error) {
	c := &submitCommand{text: line}
	words, err := shellword.Split(line, true)
	if errors.Is(err, shellword.ErrOperator) && len(words) > 0 {
		rest := strings.TrimSpace(line[words[len(words)-1].End:])
		file, ok := strings.CutPrefix(rest, "<")
		if !ok || strings.HasPrefix(file, "<") {
			return nil, fmt.Errorf("it is more than one command; give the submit command alone")
		}
		in, ierr := shellword.Split(file, true)
		if ierr != nil || len(in) != 1 || in[0].Live {
			return nil, fmt.Errorf("behind < there has to be one file")
		}
		c.input, err = in[0].Text, nil
	}
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, errors.New("it is empty")
	}
	c.name = path.Base(words[0].Text)
	if _, ok := submitNames[c.name]; !ok {
		return nil, fmt.Errorf("%q is none of sbatch, bsub and qsub", c.name)
	}
	c.words = words[1:]
	return c, nil
}

// guess tells whose command it is. Of qsub the options decide.
func (c *submitCommand) guess() (job.Target, error) {
	if t := submitNames[c.name]; t != "" {
		return t, nil
	}
	ge, pbs := c.fits(gridEngineDialect), c.fits(pbsDialect)
	switch {
	case ge && !pbs:
		return job.GridEngine, nil
	case pbs && !ge:
		return job.PBS, nil
	}
	return "", errors.New("qsub is Grid Engine's and PBS's, and neither the options nor the script say whose this is; say it with --dialect gridengine or --dialect pbs")
}

// fits says whether a dialect knows all options of the command. Resources tell
// apart what the options do not.
func (c *submitCommand) fits(d *dialect) bool {
	for words := c.words; len(words) > 0; {
		w := words[0].Text
		if w == "--" {
			return d == pbsDialect
		}
		if !strings.HasPrefix(w, "-") || w == "-" {
			break // the script
		}
		o, name, value, glued := d.split(w)
		if o == nil || (d == pbsDialect && len(w) > 2 && gridEngineDialect.index[w] != nil) { // -pe is no -p of value e
			return false
		}
		n := 1
		if !glued && o.args > 0 && len(words) > 1 {
			n += min(o.args, len(words)-1)
			value = words[1].Text
		}
		if words = words[n:]; name == "-l" && !resourceFits(d, value) {
			return false
		}
	}
	return true
}

// resourceFits says whether a resource may be the dialect's: h_rt is Grid
// Engine's, walltime PBS's, others are the site's.
func resourceFits(d *dialect, v string) bool {
	first, _, _ := strings.Cut(v, ",")
	name, _, _ := strings.Cut(first, "=")
	if d == pbsDialect {
		return gridEngineResource[name] == nil || pbsResource[name] != nil
	}
	return pbsResource[name] == nil || gridEngineResource[name] != nil
}

// script is the file that the command names, "" when it has a program instead.
func (c *submitCommand) script(d *dialect) string {
	if d == nil || d == lsfDialect { // bsub takes its words for a program
		return ""
	}
	probe := &reader{dialect: d, t: &Translation{To: d.target}, job: &job.Job{Script: &job.Script{}}}
	rest := probe.read(0, c.text, c.words)
	if len(rest) == 0 || rest[0].Text == "--" || rest[0].Text == "-" || rest[0].Live || probe.wrap != "" || c.binary() {
		return ""
	}
	return rest[0].Text
}

// binary says whether qsub of Grid Engine is given a program (-b y).
func (c *submitCommand) binary() bool {
	for i, w := range c.words[:max(len(c.words)-1, 0)] {
		if w.Text == "-b" && strings.HasPrefix(c.words[i+1].Text, "y") {
			return true
		}
	}
	return false
}

// command reads the options of a submit command; they overrule those of the
// script. What follows them is the script with its arguments, or a program.
func (r *reader) command(c *submitCommand) {
	rest := r.read(0, c.text, c.words)
	var words []string
	live := false
	for _, w := range rest {
		words, live = append(words, w.Text), live || w.Live
	}
	switch {
	case live:
		r.add(0, strings.Join(words, " ")).become(Refused, "the shell would have put a value in here, which hpcc does not know: write it out")
	case len(words) == 0:
	case c.input != "" && c.name != "bsub":
		r.job.Script.Args = words[1:]
	default:
		r.program(c, words)
	}
}

// program makes a script, or an interactive job, of a program's words.
func (r *reader) program(c *submitCommand, words []string) {
	exact := words[0] == "--" // PBS: no shell reads the words
	if exact {
		words = words[1:]
	}
	if r.job.Interactive {
		r.job.Args = words
		return
	}
	r.wrap = strings.Join(words, " ") // as schedulers do
	if exact || (len(words) > 1 && c.name == "bsub") {
		r.wrap = shellword.Join(words)
	}
	if r.job.Name == "" {
		r.job.Name = job.CleanName(path.Base(words[0]))
	}
}
