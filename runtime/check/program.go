package check

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/text"
	"hpcc/unpack"
)

// wrappers maps programs that run the command in their arguments to those of their options
// that take a separate argument.
var wrappers = map[string]string{
	"tini": "-p -v -e", "tini-static": "", "dumb-init": "-r --rewrite", "catatonit": "", "env": "-u -C",
	"nice": "-n", "timeout": "-s -k", "nohup": "", "stdbuf": "-i -o -e",
	"time": "", "catchsegv": "", "setsid": "",
}

// isEntry reports whether argv begins with "hpcc entry", and returns the arguments after it.
func isEntry(argv []string) (rest []string, ok bool) {
	if len(argv) < 2 || argv[1] != "entry" || !strings.HasPrefix(path.Base(argv[0]), "hpcc") {
		return nil, false
	}
	if rest = argv[2:]; len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	return rest, true
}

// programs checks all programs that a command line starts.
func (x *examiner) programs(argv []string) {
	for len(argv) > 0 {
		real, f := x.program(argv[0])
		if f == nil {
			return
		}
		if rest, ok := isEntry(argv); ok {
			x.hasEntry, argv = true, rest
			continue
		}
		base := path.Base(argv[0])
		if isShell(path.Base(real)) || isShell(base) {
			x.shell(argv[1:])
			return
		}
		options, wraps := wrappers[base]
		if !wraps {
			break
		}
		argv = wrappedCommand(argv[1:], options, base == "timeout")
	}
	if len(argv) > 1 {
		x.arguments(argv[1:])
	}
}

// wrappedCommand returns the arguments after a wrapper's options and env's variables. Options
// in withValue take a separate argument. With skipFirst it also skips the first operand, such
// as the duration of timeout.
func wrappedCommand(argv []string, withValue string, skipFirst bool) []string {
	for len(argv) > 0 && (strings.HasPrefix(argv[0], "-") || strings.Contains(argv[0], "=")) {
		option := argv[0]
		argv = argv[1:]
		if option == "--" {
			break
		}
		if slices.Contains(strings.Fields(withValue), option) && len(argv) > 0 {
			argv = argv[1:]
		}
	}
	if skipFirst && len(argv) > 0 {
		argv = argv[1:]
	}
	return argv
}

func isShell(name string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "ksh", "zsh"}, name)
}

// shell checks the files among the arguments of a shell, not its commands.
func (x *examiner) shell(args []string) {
	hasCommand := false // -c
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && len(args[0]) > 1 {
		option := args[0]
		args = args[1:]
		if option == "--" {
			break
		}
		hasCommand = hasCommand || (!strings.HasPrefix(option, "--") && strings.Contains(option, "c"))
	}
	switch {
	case len(args) == 0:
	case hasCommand:
		x.unreadScript("the command line")
	default:
		x.unreadScript(x.inWorkdir(args[0]))
		x.arguments(args)
	}
}

// unreadScript notes that the image starts with a shell script, which is not read. It adds
// at most one note for an image.
func (x *examiner) unreadScript(name string) {
	if slices.ContainsFunc(x.found, func(f Finding) bool { return f.Rule == "script" }) {
		return
	}
	x.add(Finding{Level: "note", Rule: "script", Subject: name,
		Reason: "scripts are not read: chown, gosu, apt-get and writes to root's files fail in them, and the programs that they start are not checked"})
}

// inWorkdir returns the absolute path of p, which may be relative to the working directory.
func (x *examiner) inWorkdir(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", x.cfg.WorkingDir, p)
}

// lookPath finds a program as execvp(3) does: the first executable file on PATH, else the
// first existing one. blocked is a directory on the path that the pod's user may not enter.
func (x *examiner) lookPath(name string) (file string, f *unpack.File, blocked string) {
	dirs := []string{""}
	if !strings.Contains(name, "/") {
		dirs = strings.Split(cmp.Or(envfile.Lookup(x.cfg.Env, "PATH"), runtime.StandardPath), ":")
	}
	for _, d := range dirs {
		p := x.inWorkdir(path.Join(d, name))
		_, at, blockedDir, err := x.reach(p)
		if err != nil || at.Kind == fs.ModeDir {
			continue
		}
		if blockedDir == "" && x.may(at, mayExecute) {
			return p, at, ""
		}
		if file == "" {
			file, f, blocked = p, at, blockedDir
		}
	}
	return file, f, blocked
}

// program checks a program that the image starts, its interpreter and the rest of its
// installation. f is nil if the program does not exist.
func (x *examiner) program(name string) (real string, f *unpack.File) {
	p, f, blocked := x.lookPath(name)
	if f == nil {
		x.add(Finding{Level: "error", Rule: "program", Subject: name, Reason: "the image starts it, but it does not exist"})
		return "", nil
	}
	x.programNames = append(x.programNames, path.Base(name))
	if x.ran[p] {
		return p, f
	}
	if x.ran == nil {
		x.ran = map[string]bool{}
	}
	x.ran[p] = true
	real, _, err := x.files.Resolve(p, nil)
	if err != nil {
		return p, f
	}
	x.access(p, real, f, blocked)
	x.prefix(real)
	if !f.Script {
		return real, f
	}
	if !x.may(f, mayRead) {
		x.add(Finding{Level: "error", Rule: "program", Subject: p,
			Reason: "it is a script, and the pod's user may not read it", Cure: []string{"RUN chmod a+rx " + text.Quote(real)}})
	}
	interpreter := interpreterOf(x.text(real))
	if len(interpreter) > 1 && path.Base(interpreter[0]) == "env" {
		interpreter = wrappedCommand(interpreter[1:], "", false)
	}
	if len(interpreter) > 0 {
		x.program(interpreter[0])
		if isShell(path.Base(interpreter[0])) {
			x.unreadScript(p)
		}
	}
	return real, f
}

// access checks whether a program can be executed.
func (x *examiner) access(p, real string, f *unpack.File, blocked string) {
	switch {
	case blocked != "":
		x.add(Finding{Level: "error", Rule: "program", Subject: p,
			Reason: fmt.Sprintf("the pod's user may not enter %s", blocked), Cure: x.makeReadable(blocked, prefixOf(real))})
	case !x.may(f, mayExecute):
		x.add(Finding{Level: "error", Rule: "program", Subject: p,
			Reason: fmt.Sprintf("the pod's user may not execute it (mode %04o of user %d, group %d)",
				f.Perm, f.UID, f.GID), Cure: []string{"RUN chmod a+rx " + text.Quote(real)}})
	}
	if f.Caps {
		x.add(Finding{Level: "error", Rule: "capability", Subject: p,
			Reason: "it has file capabilities, which the pod does not allow: the kernel refuses to execute it",
			Cure:   []string{fmt.Sprintf("RUN cp %[1]s %[1]s.plain && mv %[1]s.plain %[1]s", text.Quote(real))}})
	}
	if f.Perm&0o4000 != 0 && f.UID == 0 {
		x.add(Finding{Level: "warning", Rule: "setuid", Subject: p, Reason: "its set-user-id bit has no effect in the pod"})
	}
}

// prefixOf returns the installation directory of a program and its libraries.
func prefixOf(real string) string {
	dir := path.Dir(real)
	if b := path.Base(dir); b == "bin" || b == "sbin" {
		dir = path.Dir(dir)
	}
	return dir
}

// prefix checks the other files of a program's installation.
func (x *examiner) prefix(real string) {
	if d := prefixOf(real); !IsSystemDir(d) && d != "/usr/local" {
		x.unreadable(d)
	}
}

// arguments checks the files among the arguments of a command.
func (x *examiner) arguments(args []string) {
	for _, arg := range args {
		x.argument(arg)
	}
}

// argument checks that an argument which names an existing file is readable.
func (x *examiner) argument(arg string) {
	if arg == "" || strings.HasPrefix(arg, "-") || strings.ContainsAny(arg, " \n$*") {
		return
	}
	p := x.inWorkdir(arg)
	real, f, blocked, err := x.reach(p)
	switch {
	case (err != nil && !errors.Is(err, fs.ErrNotExist)) || f == nil || f.Kind != 0:
	case blocked != "":
		x.add(Finding{Level: "error", Rule: "unreadable", Subject: p,
			Reason: fmt.Sprintf("the pod's user may not enter %s", blocked), Cure: x.makeReadable(blocked, path.Dir(real))})
	case !x.may(f, mayRead):
		x.add(Finding{Level: "error", Rule: "unreadable", Subject: p, Reason: "the pod's user may not read it",
			Cure: []string{"RUN chmod a+r " + text.Quote(real)}})
	}
}
