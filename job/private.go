package job

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/files"
	"hpcc/text"
)

// Other users of a cluster can read the command lines of all processes and, with most
// schedulers, every job script. The values of variables are therefore in files of the job's
// directory that only the owner can read. The script names these files.
const (
	envFileName    = "env"     // shell commands: export NAME=VALUE
	setEnvFileName = "set-env" // prefix of files with NUL-terminated records for --env0 and --set-env0
)

// CarriesValues reports whether the job contains the values of environment variables.
func (j *Job) CarriesValues() bool {
	return len(j.Env) > 0 || len(j.Pod.Env) > 0 || j.Workflow != nil ||
		slices.ContainsFunc(j.Run, func(w string) bool { _, v := literal(w); return v != "" }) ||
		slices.ContainsFunc(j.Steps, (*Job).CarriesValues)
}

// fileFlags maps the flags that set one variable to those that set variables from a file of
// NUL-terminated records in the same way.
var fileFlags = map[string]string{"--env": "--env0", "--set-env": "--set-env0", "--set-env0": "--set-env0"}

// literal returns the NAME=VALUE of an argument --env=NAME=VALUE or --set-env=NAME=VALUE, and
// its flag. It returns "" for any other argument.
func literal(arg string) (flag, assignment string) {
	flag, v, _ := strings.Cut(arg, "=")
	if fileFlags[flag] != "" && strings.Contains(v, "=") {
		return flag, v
	}
	return "", ""
}

// ChangesEnv reports whether an argument is a flag of "hpcc run" that changes the environment.
func ChangesEnv(arg string) bool {
	flag, _, _ := strings.Cut(arg, "=")
	return fileFlags[flag] != "" || flag == "--env0" || flag == "--unset-env" || flag == "--env-no-expand"
}

// HideValues writes the values of variables to files in dir that only the owner can read, and
// returns a copy of the job that names these files instead. It returns a job for pods
// unchanged, because the manifest has to contain the values.
func (j *Job) HideValues(dir string, t Target) (*Job, error) {
	c := *j
	if t.Pods() {
		return &c, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if len(j.Env) > 0 {
		c.EnvFile, c.Env = filepath.Join(dir, envFileName), nil
		if err := files.WritePrivate(c.EnvFile, text.Exports(j.Env)); err != nil {
			return nil, err
		}
	}
	if c.Run, c.Filled, err = j.hideSetEnv(dir); err != nil {
		return nil, err
	}
	if j.Script != nil && j.Image != "" { // launchers in the script start their program with "hpcc run"
		s := *j.Script
		s.Body = strings.ReplaceAll(s.Body, j.runLine(), c.runLine())
		c.Script = &s
	}
	return &c, nil
}

// runLine returns the start of the commands in a script that run programs in the image.
func (j *Job) runLine() string {
	return text.CommandLine(slices.Concat([]string{j.Program, "run"}, j.Run)) + " "
}

// hideSetEnv moves each --env=NAME=VALUE and --set-env=NAME=VALUE to a file. Adjacent flags of
// one kind share a file, because the order of all changes of the environment matters. A value
// with {task} or a parameter becomes a template, a file whose name ends with {task}; see
// [Task.FillValues]. filled lists the parameters in the templates.
func (j *Job) hideSetEnv(dir string) (args, filled []string, err error) {
	values, name, kind := "", "", ""
	flush := func() error {
		if values == "" {
			return nil
		}
		file := filepath.Join(dir, name)
		args = append(args, kind+"="+file)
		text := values
		values = ""
		return files.WritePrivate(file, text)
	}
	for n, arg := range j.Run {
		flag, v := literal(arg)
		if v == "" {
			if err := flush(); err != nil {
				return nil, nil, err
			}
			args = append(args, arg)
			continue
		}
		next := fmt.Sprintf("%s.%d", setEnvFileName, n)
		used := j.placeholders(v)
		if len(used) > 0 {
			next += "." + Placeholder
		}
		if kind != fileFlags[flag] || len(used) > 0 || strings.HasSuffix(name, Placeholder) {
			if err := flush(); err != nil {
				return nil, nil, err
			}
		}
		if values == "" {
			name, kind = next, fileFlags[flag]
		}
		filled = append(filled, used...)
		values += v + "\n\x00" // --set-env0 strips one line break
	}
	return args, filled, flush()
}

// placeholders returns the {task} and {NAME} that "hpcc task" replaces in a value.
func (j *Job) placeholders(v string) (used []string) {
	for _, n := range append([]string{strings.Trim(Placeholder, "{}")}, j.Params.Names...) {
		if p := "{" + n + "}"; strings.Contains(v, p) && !j.Array.IsZero() {
			used = append(used, p)
		}
	}
	return used
}

// ValueFiles returns the private files of the job.
func (j *Job) ValueFiles() []string {
	var files []string
	for _, f := range []string{j.EnvFile, j.CallerFile} {
		if f != "" {
			files = append(files, f)
		}
	}
	for _, arg := range j.Run {
		if flag, f, _ := strings.Cut(arg, "="); (flag == "--env0" || flag == "--set-env0") &&
			strings.HasPrefix(filepath.Base(f), setEnvFileName+".") {
			files = append(files, f)
		}
	}
	return files
}

// FillValues creates the task's own copies of the value files whose names end with {task}, and
// returns a function that removes them.
func (t *Task) FillValues(dir string) (remove func(), err error) {
	var created []string
	remove = func() {
		for _, f := range created {
			os.Remove(f)
		}
	}
	templates, err := filepath.Glob(filepath.Join(globLiteral(dir), setEnvFileName+".*."+Placeholder))
	if err != nil {
		return remove, err
	}
	for _, file := range templates {
		b, err := files.Read(file)
		if err == nil {
			own := t.Fill([]string{file, string(b)})
			created = append(created, own[0])
			err = files.WritePrivate(own[0], own[1])
		}
		if err != nil {
			remove()
			return func() {}, fmt.Errorf("filling in the variables of task %d: %w", t.Index, err)
		}
	}
	return remove, nil
}

// globLiteral quotes the characters of a path that are special to filepath.Glob.
func globLiteral(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// hiddenValue replaces a private value in output.
const hiddenValue = "(hidden)"

// Redacted returns a copy of the job without the values of variables, for output that may be
// shared.
func (j *Job) Redacted() *Job {
	c := *j
	redact := func(list []string) []string {
		out := slices.Clone(list)
		for i, e := range out {
			k, _, _ := strings.Cut(e, "=")
			out[i] = k + "=" + hiddenValue
		}
		return out
	}
	c.Env, c.Pod.Env = redact(j.Env), redact(j.Pod.Env)
	c.Run = slices.Clone(j.Run)
	for i, arg := range c.Run {
		if flag, v := literal(arg); v != "" {
			c.Run[i] = flag + "=" + redact([]string{v})[0]
		}
	}
	c.Steps = slices.Clone(j.Steps)
	for i, s := range c.Steps {
		c.Steps[i] = s.Redacted()
	}
	return &c
}
