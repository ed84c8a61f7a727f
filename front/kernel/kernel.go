// Package kernel writes kernelspecs that start the Jupyter kernels of images.
package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"

	"hpcc/files"
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

	Name string `json:"-"` // of its directory
	dir  string // with its files
}

// Find returns the kernelspecs of an image, by name. tree is the image's directory, and dirs is
// its PATH.
func Find(tree string, dirs []string) ([]Spec, error) {
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
			if slices.ContainsFunc(found, func(s Spec) bool { return s.Name == e.Name() }) {
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
	slices.SortFunc(found, func(a, b Spec) int { return strings.Compare(a.Name, b.Name) })
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
	s := Spec{Name: path.Base(dir)}
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
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return b, err
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
		return fmt.Errorf("%q is not a name for a kernelspec", name)
	}
	return nil
}

// An OccupiedError reports a kernelspec that hpcc has not written.
type OccupiedError struct{ Dir string }

func (e *OccupiedError) Error() string {
	return e.Dir + " is a kernelspec that hpcc has not written"
}

// Write writes the kernelspec s below the directory dir of kernelspecs, with the logos of the image's
// kernelspec. It replaces only files that hpcc wrote. image names the image in the metadata. Unless the
// kernelspec is shared, only the user can read it, because its arguments may be values of variables.
func (s Spec) Write(dir, image string, shared bool) (string, error) {
	own := filepath.Join(dir, s.Name)
	if err := checkOwn(own); err != nil {
		return "", err
	}
	if s.Metadata == nil {
		s.Metadata = map[string]any{}
	}
	s.Metadata[mark] = map[string]string{"image": image}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return "", err
	}
	if err := os.MkdirAll(own, 0o777); err != nil {
		return "", err
	}
	for _, name := range logos {
		if b, err := readFile(s.dir, name); s.dir != "" && err == nil {
			if err := files.Replace(filepath.Join(own, name), b, 0o644); err != nil {
				return "", err
			}
		}
	}
	mode := fs.FileMode(0o600)
	if shared {
		mode = 0o644
	}
	return own, files.Replace(filepath.Join(own, specFile), text.Bytes(), mode)
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
		return &OccupiedError{dir}
	}
	return nil
}
