// Package kernel writes kernelspecs that start the Jupyter kernels of images.
package kernel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"

	"hpcc/envfile"
	"hpcc/files"
	"hpcc/runtime"
	"hpcc/text"
	"hpcc/unpack"
)

// Dir is the directory of kernelspecs below a prefix such as /usr or ~/.local.
const Dir = "share/jupyter/kernels"

// ConnectionFile is the argument that Jupyter replaces with the path of the connection file.
const ConnectionFile = "{connection_file}"

// specFile is the file of a kernelspec in its directory.
const specFile = "kernel.json"

// maxFile limits the files of a kernelspec, in bytes.
const maxFile = 1 << 20

// logos are the files of a kernelspec that Write copies. It leaves out kernel.js, which would run in
// the pages of the user's Jupyter.
var logos = []string{"logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}

// A Spec is a kernelspec: how Jupyter starts a kernel.
type Spec struct {
	Argv          []string          `json:"argv"`
	DisplayName   string            `json:"display_name"`
	Language      string            `json:"language"`
	InterruptMode string            `json:"interrupt_mode,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Metadata      map[string]any    `json:"metadata,omitempty"`

	name string // of its directory
	dir  string // with its files
}

// Command returns the kernelspec of a kernel that argv starts. It refuses an argv without
// [ConnectionFile].
func Command(argv []string) (Spec, error) {
	if !slices.ContainsFunc(argv, func(a string) bool { return strings.Contains(a, ConnectionFile) }) {
		return Spec{}, text.Usagef("CMD has no argument %s, from which the kernel reads its addresses", ConnectionFile).
			Hint("write it as in a kernel.json: -- python -m ipykernel_launcher -f %s", ConnectionFile)
	}
	return Spec{Argv: argv, DisplayName: filepath.Base(argv[0])}, nil
}

// defaultSpec is the name of ipykernel's kernelspec.
const defaultSpec = "python3"

// Choose returns the kernelspec of an image with a name, or for "" the only one or that of Python.
// tree is the image's directory.
func Choose(tree, image, name string) (Spec, error) {
	img, err := runtime.ReadImage(tree, unpack.ConfigFile)
	if err != nil {
		return Spec{}, err
	}
	found, err := find(tree, filepath.SplitList(cmp.Or(envfile.Lookup(img.Config.Env, "PATH"), runtime.StandardPath)))
	if err != nil {
		return Spec{}, fmt.Errorf("reading the kernels of %s: %w", image, err)
	}
	var names []string
	for _, s := range found {
		if s.name == name || (name == "" && (len(found) == 1 || s.name == defaultSpec)) {
			return s, nil
		}
		names = append(names, s.name)
	}
	switch {
	case len(found) == 0:
		return Spec{}, text.Hint(fmt.Errorf("image %s has no Jupyter kernel", image),
			"add ipykernel to its environment and build it again (for R: r-irkernel); "+
				"a kernel without a kernelspec: hpcc kernel %s -- CMD %s", image, ConnectionFile)
	case name == "":
		return Spec{}, text.Usagef("image %s has several kernels", image).Hint("choose one with --spec: %s", strings.Join(names, ", "))
	}
	m := text.Usagef("image %s has no kernelspec %q", image, name)
	if like := text.Nearest(name, names); like != "" {
		return Spec{}, m.Hint("did you mean %q?", like)
	}
	return Spec{}, m.Hint("it has %s", strings.Join(names, ", "))
}

// find returns the kernelspecs of an image, by name. tree is the image's directory, and dirs is
// its PATH.
func find(tree string, dirs []string) ([]Spec, error) {
	var found []Spec
	for _, prefix := range prefixes(dirs) {
		inside := path.Join(prefix, Dir)
		dir, err := securejoin.SecureJoin(tree, inside)
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // most prefixes have no kernels
		}
		for _, e := range entries {
			if slices.ContainsFunc(found, func(s Spec) bool { return s.name == e.Name() }) {
				continue
			}
			s, err := read(tree, path.Join(inside, e.Name()))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if s.Argv[0], err = program(tree, s.Argv[0], dirs); err != nil {
				return nil, fmt.Errorf("kernelspec %s: %w", path.Join(inside, e.Name()), err)
			}
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b Spec) int { return strings.Compare(a.name, b.name) })
	return found, nil
}

// prefixes returns the parents of the directories in PATH, and those in which Jupyter looks.
func prefixes(dirs []string) []string {
	var out []string
	for _, d := range append(slices.Clone(dirs), "/usr/local/bin", "/usr/bin") {
		if p := path.Dir(path.Clean("/" + d)); path.Base(d) == "bin" && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// read reads the kernelspec in a directory of the image.
func read(tree, dir string) (Spec, error) {
	s := Spec{name: path.Base(dir)}
	var err error
	if s.dir, err = securejoin.SecureJoin(tree, dir); err != nil {
		return s, err
	}
	b, err := readFile(tree, path.Join(dir, specFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("kernelspec %s: %w", path.Join(dir, specFile), err)
	}
	if len(s.Argv) == 0 || !slices.ContainsFunc(s.Argv, func(a string) bool { return strings.Contains(a, ConnectionFile) }) {
		return s, fmt.Errorf("kernelspec %s: argv does not name %s", path.Join(dir, specFile), ConnectionFile)
	}
	for i, a := range s.Argv {
		s.Argv[i] = strings.ReplaceAll(a, "{resource_dir}", dir)
	}
	return s, nil
}

// readFile reads a small file of the image.
func readFile(tree, name string) ([]byte, error) {
	name, err := securejoin.SecureJoin(tree, name)
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() { // a FIFO would block
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return files.ReadFile(name, maxFile)
}

// program returns the program of a kernelspec. Wheels name "python", which Debian's images do not
// have.
func program(tree, name string, dirs []string) (string, error) {
	has := func(name string) bool {
		places := []string{name}
		if !path.IsAbs(name) {
			places = nil
			for _, d := range append(slices.Clone(dirs), "/usr/local/bin", "/usr/bin", "/bin") {
				places = append(places, path.Join(d, name))
			}
		}
		return slices.ContainsFunc(places, func(p string) bool {
			file, err := securejoin.SecureJoin(tree, p)
			if err != nil {
				return false
			}
			_, err = os.Stat(file)
			return err == nil
		})
	}
	for _, n := range []string{name, name + "3"} {
		if has(n) {
			return n, nil
		}
	}
	return "", fmt.Errorf("its program %q is not in the image", name)
}

// mark is the member of a kernelspec's metadata by which hpcc knows its own.
const mark = "hpcc"

// validName matches the names of kernelspecs that Jupyter accepts.
var validName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// CheckName returns an error if Jupyter does not accept the name of a kernelspec.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return text.Usagef("%q is not a name for a kernelspec", name).Hint("use letters, digits and . _ -: --name NAME")
	}
	return nil
}

// DataDir returns the directory of the user's data for Jupyter.
func DataDir() (string, error) {
	if d := os.Getenv("JUPYTER_DATA_DIR"); d != "" {
		return filepath.Abs(d)
	}
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "jupyter"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding Jupyter's directory: %w", err)
	}
	return filepath.Join(home, ".local/share/jupyter"), nil
}

// An Installation is how hpcc starts the kernel of an image.
type Installation struct {
	Name    string   // of the kernelspec; see [CheckName]
	Title   string   // in Jupyter; "" for one that the image's kernelspec and Name suggest
	Prefix  string   // of the kernelspecs, such as ~/.local, which other users may read; "" for the user's own
	Command []string // the program hpcc and its subcommand
	Flags   []string // flags of the subcommand
	Store   string   // of the image; "" for none
	Image   string
}

// Install writes the kernelspec with hpcc before the kernel's argv, and the logos of the image's
// kernelspec. It returns the directory, and replaces only one that hpcc wrote.
func (s Spec) Install(i Installation) (dir string, err error) {
	flags := slices.Clone(i.Flags)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) { // for the kernel, not for hpcc
		flags = append([]string{"--env=" + name + "=" + s.Env[name]}, flags...)
	}
	s.Env = hideValues(flags)
	if i.Store != "" {
		flags = append([]string{"--store=" + i.Store}, flags...)
	}
	s.Argv = slices.Concat(i.Command, flags, []string{i.Image, "--"}, s.Argv)
	s.DisplayName = cmp.Or(i.Title, i.Name+" ("+s.DisplayName+")")
	if i.Prefix != "" {
		dir, err = filepath.Abs(filepath.Join(i.Prefix, Dir))
	} else if dir, err = DataDir(); err == nil {
		dir = filepath.Join(dir, "kernels")
	}
	if err != nil {
		return "", err
	}
	own := filepath.Join(dir, i.Name)
	err = s.write(own, i.Image, i.Prefix != "")
	if errors.As(err, new(*occupiedError)) {
		return "", text.Hint(err, "use another name: --name NAME; or remove it: jupyter kernelspec remove %s", i.Name)
	}
	if err != nil {
		return "", fmt.Errorf("writing the kernelspec: %w", err)
	}
	return own, nil
}

// hideValues moves values of --env from arguments, which all users can see while the kernel runs, to
// the variables with which Jupyter starts hpcc. It keeps variables that change hpcc itself, and values
// that Jupyter would expand.
func hideValues(argv []string) map[string]string {
	env := map[string]string{}
	for i, arg := range argv {
		v, isEnv := strings.CutPrefix(arg, "--env=")
		name, value, hasValue := strings.Cut(v, "=")
		own := name == "PATH" || name == "HOME" || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "HPCC_")
		if isEnv && hasValue && !own && !strings.Contains(value, "$") {
			env[name], argv[i] = value, "--env="+name
		}
	}
	return env
}

// An occupiedError reports a kernelspec that hpcc has not written.
type occupiedError struct{ dir string }

func (e *occupiedError) Error() string {
	return e.dir + " is a kernelspec that hpcc has not written"
}

// write writes the kernelspec to the directory own, with the logos of the image's kernelspec. It
// replaces only files that hpcc wrote. image names the image in the metadata. Unless the kernelspec is
// shared, only the user can read it, because its arguments may be values of variables.
func (s Spec) write(own, image string, shared bool) error {
	if err := checkOwn(own); err != nil {
		return err
	}
	if s.Metadata == nil {
		s.Metadata = map[string]any{}
	}
	s.Metadata[mark] = map[string]string{"image": image}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	if err := os.MkdirAll(own, 0o777); err != nil {
		return err
	}
	for _, name := range logos {
		if b, err := readFile(s.dir, name); s.dir != "" && err == nil {
			if err := files.Replace(filepath.Join(own, name), b, 0o644); err != nil {
				return err
			}
		}
	}
	mode := fs.FileMode(0o600)
	if shared {
		mode = 0o644
	}
	return files.Replace(filepath.Join(own, specFile), out.Bytes(), mode)
}

// checkOwn returns an error if a directory exists and is not a kernelspec of hpcc.
func checkOwn(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, specFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var old Spec
	if json.Unmarshal(b, &old) != nil || old.Metadata[mark] == nil {
		return &occupiedError{dir}
	}
	return nil
}
