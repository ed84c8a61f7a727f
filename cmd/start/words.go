package main

import (
	"cmp"
	"math"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/store/ready"
)

// configFile is where a tree keeps its image's configuration (unpack.ConfigFile).
const configFile = ".hpcc/image.json"

// words are what a command line of "hpcc run" says.
type words struct {
	image    string
	store    string
	env      [][2]string // set-env, set-env0 and unset-env with their arguments, in order
	noExpand bool
	options  runtime.Options
	home     bool
	entry    *string // in the place of the image's entry point
	join     bool    // with those of options.JoinTag, where that is given
}

// A flag is one spelling of a flag of "hpcc run".
type flag struct {
	spelling, name string
	argument       bool
}

// parse reads the words behind "run", and below them those of the files of
// defaults, as the rest of hpcc does; not ok where it would say something about
// them, or where a flag is none of start's.
func parse(args []string, defaults []runtime.DefaultLine) (w words, ok bool) {
	var used []flag
	for _, l := range defaults {
		rest, ok := w.flags(l.Words, &used)
		if !ok || len(rest) > 0 || l.Words[len(l.Words)-1] == "--" {
			return w, false
		}
	}
	if w.options.Write || w.store != "" || w.join || w.entry != nil {
		return w, false // they may stand on the command line only
	}
	// On the command line --home silences --no-home of a file, --write its --write-fake.
	below := w.options
	w.home, w.options.NoHome, w.options.WriteFake, used = false, false, "", nil
	args, ok = w.flags(args, &used)
	if !ok || len(args) == 0 || w.home && w.options.NoHome || w.options.Write && w.options.WriteFake != "" {
		return w, false
	}
	w.options.NoHome = w.options.NoHome || below.NoHome && !w.home
	if w.options.WriteFake == "" && !w.options.Write {
		w.options.WriteFake = below.WriteFake
	}
	w.image, args = args[0], args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	w.options.Args = args
	if w.options.FakeRoot { // root, unless something else is said
		root := 0
		w.options.UID, w.options.GID = cmp.Or(w.options.UID, &root), cmp.Or(w.options.GID, &root)
	}
	return w, w.peers()
}

// flags notes the flags at the head of args, of which some were used before,
// and returns what follows.
func (w *words) flags(args []string, used *[]flag) (rest []string, ok bool) {
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		spelling, value, joined := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		i := slices.IndexFunc(flags, func(f flag) bool { return f.spelling == spelling })
		if i < 0 || joined && !flags[i].argument && (flags[i].name != "write-fake" || value == "") {
			return nil, false
		}
		if slices.ContainsFunc(*used, func(f flag) bool { return f.name == flags[i].name && f.spelling != spelling }) {
			return nil, false // two spellings of one flag are a mistake
		}
		*used = append(*used, flags[i])
		if flags[i].argument && !joined {
			// Before "IMAGE --" and before a flag, --set-env stands bare (joinBareSetEnv of cmd/hpcc).
			if len(args) == 0 || strings.HasPrefix(flags[i].name, "set-env") && (len(args) > 1 && args[1] == "--" || strings.HasPrefix(args[0], "-")) {
				return nil, false
			}
			value, args = args[0], args[1:]
		}
		if !w.set(flags[i].name, value) {
			return nil, false
		}
	}
	return args, true
}

// peers fills in which tasks share namespaces, as the launcher says it.
func (w *words) peers() bool {
	if !w.join {
		return true
	}
	if w.options.OwnPIDs {
		return false // they contradict each other, or --pid of a file gives way
	}
	tag, count, err := runtime.Peers(os.Getenv)
	if w.options.JoinCount == 0 {
		if err != nil {
			return false
		}
		w.options.JoinCount = count
	}
	if w.options.JoinTag == "" {
		w.options.JoinTag = tag
	}
	return true
}

// set notes one flag.
func (w *words) set(name, value string) bool {
	switch name {
	case "set-env", "set-env0", "unset-env":
		w.env = append(w.env, [2]string{name, value})
	case "env-no-expand":
		w.noExpand = true
	case "cd":
		w.options.Dir = value
	case "bind":
		w.options.Binds = append(w.options.Binds, value)
	case "write":
		w.options.Write = true
	case "write-fake":
		if w.options.WriteFake = value; value == "" {
			w.options.WriteFake = runtime.DefaultFake
		}
	case "mount":
		w.options.Mounts = append(w.options.Mounts, value)
	case "private-tmp":
		w.options.PrivateTmp = true
	case "clean-env":
		w.options.CleanEnv = true
	case "no-passwd":
		w.options.NoPasswd = true
	case "entrypoint":
		w.entry = &value
	case "uid":
		return decimal(value, &w.options.UID)
	case "gid":
		return decimal(value, &w.options.GID)
	case "seccomp":
		w.options.FakeRoot = true
	case "network":
		w.options.NoNetwork = value == "none"
		return value == "none" || value == "host"
	case "hostname":
		w.options.Hostname = value
		return value != "" && len(value) <= 64 && !strings.ContainsAny(value, "/ \t\n")
	case "pid":
		w.options.OwnPIDs = true
	case "join":
		w.join = true
	case "join-tag":
		w.join, w.options.JoinTag = true, value
		return value != ""
	case "join-ct":
		n, err := strconv.Atoi(value)
		w.join, w.options.JoinCount = true, n
		return err == nil && n > 0
	case "home":
		w.home = true
	case "no-home":
		w.options.NoHome = true
	case "store":
		w.store = value
		return value != ""
	default:
		return false
	}
	return true
}

// decimal reads an id. What else flags take for numbers, such as 0x10, is for
// the rest of hpcc.
func decimal(value string, to **int) bool {
	n, err := strconv.ParseUint(value, 10, 32)
	if id := int(n); err == nil && strconv.Itoa(id) == value && id != math.MaxUint32 {
		*to = &id
		return true
	}
	return false
}

// spec states the run; not ok when something is missing or wrong. The image
// comes first: files of variables may be such as can be read only once.
func (w *words) spec() (*specs.Spec, bool) {
	root, ok := w.image, isPath(w.image)
	if !ok {
		if root, ok = w.named(); !ok {
			return nil, false
		}
	}
	img, err := runtime.ReadImage(root, configFile)
	if err != nil || img.Architecture != "" && img.Architecture != goruntime.GOARCH {
		return nil, false
	}
	if w.entry != nil {
		img.Config.Entrypoint = nil
		if *w.entry != "" {
			img.Config.Entrypoint, img.Config.Cmd = []string{*w.entry}, nil
		}
	}
	changes, err := w.changes()
	if err != nil {
		return nil, false
	}
	w.options.Architecture = img.Architecture
	s, err := runtime.Spec(root, img.Config, w.options)
	if err != nil {
		return nil, false
	}
	env := slices.DeleteFunc(s.Process.Env, func(v string) bool { return strings.HasPrefix(v, "HPCC_RUNNING=") })
	if env, err = envfile.Apply(env, changes, !w.noExpand); err != nil {
		return nil, false
	}
	s.Process.Env = append(env, "HPCC_RUNNING=1")
	return s, true
}

// named finds the tree of a name; where there is no such image, the directory
// of that name.
func (w *words) named() (root string, ok bool) {
	if root, ok = ready.Tree(w.store, w.image); ok {
		return root, !w.options.Write
	}
	st, err := os.Stat(w.image)
	return w.image, err == nil && st.IsDir() && ready.Absent(w.store, w.image)
}

// changes reads the variables that the command line sets and removes.
func (w *words) changes() ([]envfile.Change, error) {
	var out []envfile.Change
	for _, e := range w.env {
		var more []envfile.Change
		var one envfile.Change
		var err error
		switch {
		case e[0] == "unset-env":
			one, err = envfile.Unset(e[1])
			more = []envfile.Change{one}
		case strings.Contains(e[1], "="):
			one, err = envfile.Literal(e[1])
			more = []envfile.Change{one}
		default:
			more, err = readFile(e[1], e[0] == "set-env0")
		}
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// readFile reads a file of variables. Only regular files: of others, such as
// pipes, the rest of hpcc could not read again what was read here.
func readFile(name string, nul bool) ([]envfile.Change, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, os.ErrInvalid
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return envfile.Read(f, name, envfile.Options{NUL: nul})
}

// isPath says whether IMAGE is a path and no name, as in cmd/hpcc.
func isPath(image string) bool {
	return strings.HasPrefix(image, "/") || image == "." || image == ".." ||
		strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../")
}
