// Package scripts runs programs with the scripts of Apptainer's images.
//
//	Prepare ─► program and directory ─► runtime.Spec ─► Wrap ─► environment
//
// The scripts are in the directory /.singularity.d. Images without them keep the meaning of OCI
// images. The front for apptainer asks for an action by hidden flags of "hpcc run".
package scripts

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/envfile"
	"hpcc/runtime"
)

// actionScript sources the environment scripts of an image of Apptainer, sets variables, and
// executes its arguments.
//
//go:embed action.sh
var actionScript string

// scriptsDir holds the scripts of images of Apptainer.
const scriptsDir = ".singularity.d"

// An Action is a command of Apptainer that uses an image.
type Action struct {
	Name   string   // exec, run, shell, test, or "inspect:" and the parts to print
	Inject []string // variables that override the scripts', NAME=VALUE
	NoEval bool     // do not evaluate the values of Inject as the shell would in double quotes
}

// Prepare selects the program and the working directory. It returns done if it has printed the
// description, or the image has no tests, so that no program has to run.
func (a *Action) Prepare(dir string, img *runtime.Image, o *runtime.Options) (done bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, fmt.Errorf("opening the image: %w", err)
	}
	defer root.Close()
	if parts, ok := strings.CutPrefix(a.Name, "inspect:"); ok {
		return true, inspect(root, strings.Split(parts, ","))
	}
	c := &img.Config
	program := map[string]string{"run": scriptsDir + "/runscript", "test": scriptsDir + "/test"}[a.Name]
	switch {
	case program != "" && inImage(root, program) && (inImage(root, "bin/sh") || len(c.Entrypoint)+len(c.Cmd) == 0):
		o.Args = append([]string{"/" + program}, o.Args...)
		c.Entrypoint, c.Cmd = nil, nil
	case a.Name == "test":
		return true, nil // as apptainer does
	case a.Name == "run" && img.Architecture == "": // a directory without configuration
		o.Args = append([]string{"/bin/sh"}, o.Args...)
	case a.Name == "run" && len(o.Args)+len(c.Entrypoint)+len(c.Cmd) == 0:
		o.Args = []string{"/bin/sh"}
	case a.Name == "exec":
		c.Entrypoint, c.Cmd = nil, nil
	case a.Name == "shell":
		c.Entrypoint, c.Cmd = nil, nil
		shell := []string{"/bin/sh"}
		if inImage(root, "bin/bash") {
			shell = []string{"/bin/bash", "--norc"}
		}
		o.Args = append(shell, o.Args...)
	}
	if c.WorkingDir = os.Getenv("HOME"); o.NoHome {
		c.WorkingDir = "/"
	}
	if cwd, err := os.Getwd(); err == nil && inImage(root, strings.TrimPrefix(cwd, "/")) {
		c.WorkingDir = cwd
	}
	if !slices.ContainsFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }) {
		c.Env = append(slices.Clone(c.Env), "PATH="+runtime.StandardPath)
	}
	return false, nil
}

// inImage reports whether the image has a file.
func inImage(root *os.Root, path string) bool {
	_, err := root.Lstat(filepath.Clean(path))
	return err == nil && path != ""
}

// keptNames are variables that scripts of the image see. They see no other variables of the
// caller.
var keptNames = strings.Fields("HOME PATH PWD LD_LIBRARY_PATH IFS OPTIND HPCC_RUNNING")

// Wrap sets the variables of Inject. Images with environment scripts, and values that the shell
// evaluates, need a shell of the image.
func (a *Action) Wrap(dir string, img runtime.Image, s *specs.Spec) {
	hasScripts, shell := false, "/bin/sh"
	if root, err := os.OpenRoot(dir); err == nil {
		hasScripts = inImage(root, "bin/sh") && (inImage(root, scriptsDir+"/env") || inImage(root, "environment"))
		if inImage(root, "bin/bash") {
			shell = "/bin/bash"
		}
		root.Close()
	}
	set, needsShell := map[string]string{}, hasScripts
	for _, kv := range a.Inject {
		name, value, _ := strings.Cut(kv, "=")
		set[name] = value
		needsShell = needsShell || (!a.NoEval && strings.ContainsAny(value, "$`\\"))
	}
	if !needsShell {
		s.Process.Env = withVariables(s.Process.Env, set)
		return
	}
	if hasScripts {
		s.Process.Env = hide(s.Process.Env, img.Config.Env)
	}
	names := slices.SortedFunc(maps.Keys(set), func(a, b string) int { return strings.Compare(pendOrder(a), pendOrder(b)) })
	var list []string
	for _, name := range names {
		value := set[name]
		if !isShellName(name) {
			s.Process.Env = withVariables(s.Process.Env, map[string]string{name: value})
			continue
		}
		if !a.NoEval {
			value = inDoubleQuotes(value)
		}
		s.Process.Env, list = append(s.Process.Env, "HPCC_SET_"+name+"="+value), append(list, name)
	}
	s.Process.Env = append(s.Process.Env, "HPCC_SET="+strings.Join(list, " "), "HPCC_UID="+strconv.Itoa(os.Getuid()))
	if !a.NoEval {
		s.Process.Env = append(s.Process.Env, "HPCC_EVAL=1")
	}
	s.Process.Args = append([]string{shell, "-c", actionScript, "apptainer"}, s.Process.Args...)
}

// pendOrder orders names of variables: PREPEND_PATH and APPEND_PATH before PATH, which overrides
// them.
func pendOrder(name string) string {
	if strings.HasPrefix(name, "PREPEND_") || strings.HasPrefix(name, "APPEND_") {
		return " " + name
	}
	return name
}

// withVariables returns an environment with variables set, and lists with PREPEND_ and APPEND_
// extended.
func withVariables(env []string, set map[string]string) []string {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		value := set[name]
		before, prepends := strings.CutPrefix(name, "PREPEND_")
		after, appends := strings.CutPrefix(name, "APPEND_")
		switch {
		case (prepends && isList(before) && set[before] != "") || (appends && isList(after) && set[after] != ""):
			continue // it replaces the list
		case prepends && isList(before):
			name, value = before, strings.TrimSuffix(value+":"+envfile.Lookup(env, before), ":")
		case appends && isList(after):
			name, value = after, strings.TrimPrefix(envfile.Lookup(env, after)+":"+value, ":")
		}
		env = append(slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }), name+"="+value)
	}
	return env
}

// isList reports whether a variable is a list that Apptainer extends.
func isList(name string) bool { return name == "PATH" || name == "LD_LIBRARY_PATH" }

// hide renames the variables of the caller, so that the image's scripts do not see them. The
// script restores those that the scripts do not set.
func hide(env, image []string) []string {
	var out, names []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		isImage := slices.ContainsFunc(image, func(i string) bool { return strings.HasPrefix(i, name+"=") })
		if isImage || slices.Contains(keptNames, name) || !isShellName(name) ||
			strings.HasPrefix(name, "APPTAINER_") || strings.HasPrefix(name, "SINGULARITY_") {
			out = append(out, kv)
			continue
		}
		out, names = append(out, "HPCC_HOST_"+kv), append(names, name)
	}
	return append(out, "HPCC_HOST="+strings.Join(names, " "))
}

// isShellName reports whether the shell can assign to a variable.
func isShellName(name string) bool {
	for i, c := range []byte(name) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// inDoubleQuotes escapes the double quotes of a text that the shell evaluates in double quotes.
func inDoubleQuotes(s string) string {
	s = strings.NewReplacer(`\\`, `\\`, `\"`, `\\\"`, `"`, `\"`).Replace(s)
	if n := len(s) - len(strings.TrimRight(s, `\`)); n%2 == 1 {
		s += `\`
	}
	return s
}
