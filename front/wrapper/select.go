package wrapper

import (
	"cmp"
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

	securejoin "github.com/cyphar/filepath-securejoin"

	"hpcc/runtime"
	"hpcc/runtime/runconf"
	"hpcc/store/ready"
	"hpcc/text"
)

// moduleName matches the name and version of a module.
var moduleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// DefaultModule returns a module's name and version for an image.
func DefaultModule(image string) string {
	base := path.Base(filepath.ToSlash(image))
	if ready.NamesImageFile(image) {
		base = strings.TrimSuffix(base, path.Ext(base))
	}
	base, _, _ = strings.Cut(base, "@")
	name, tag, _ := strings.Cut(base, ":")
	return name + "/" + cmp.Or(tag, "latest")
}

// condaPrefix is the prefix of conda environments in images.
const condaPrefix = "/opt/conda"

// selection returns the selection of programs in the image's directory, whose PATH is list. It decides
// whether the programs run over the host's files.
func (o *Options) selection(tree, list string) (selection, error) {
	s := selection{Tree: tree, Patterns: o.Patterns, All: o.All, Path: filepath.SplitList(cmp.Or(list, runtime.StandardPath))}
	if st, err := os.Stat(filepath.Join(tree, condaPrefix, "conda-meta")); err == nil && st.IsDir() {
		s.Prefix = condaPrefix
	}
	if o.Only == "" && !o.ImageRoot {
		o.Only = s.Prefix
	}
	if o.Only == "" {
		return s, nil
	}
	o.Only = path.Clean(o.Only)
	outside := func(dir string) bool { return dir != o.Only && !strings.HasPrefix(dir, o.Only+"/") }
	s.Path = slices.DeleteFunc(s.Path, outside)
	if bin := path.Join(o.Only, "bin"); !slices.Contains(s.Path, bin) {
		s.Path = append(s.Path, bin)
	}
	for _, p := range o.Patterns {
		if path.IsAbs(p) && outside(p) {
			return s, text.Usagef("%s is outside %s, the only directory of the image that wrappers mount", p, o.Only).
				Hint("--image-root runs programs in all files of the image")
		}
	}
	return s, nil
}

// similar returns the program that the user of a name that the image lacks probably means, or "".
func (s selection) similar() string {
	var dirs []string
	for _, d := range s.Path {
		if dir, err := securejoin.SecureJoin(s.Tree, d); err == nil {
			dirs = append(dirs, dir)
		}
	}
	for _, p := range s.Patterns {
		missing := !slices.ContainsFunc(dirs, func(d string) bool { _, err := os.Lstat(filepath.Join(d, p)); return err == nil })
		if like := text.NearestEntry(p, dirs...); missing && like != "" {
			return like
		}
	}
	return ""
}

// A selection names the programs of an image that get wrappers.
type selection struct {
	Tree     string   // the image's directory
	Path     []string // directories of the image with programs; the first one with a name wins
	Prefix   string   // directory of the conda environment in the image; "" for none
	Patterns []string // names, patterns of path.Match, and paths in the image
	All      bool     // all programs of Path
}

// selectPrograms returns the selected programs, sorted by name. Without patterns, these are the programs of a
// conda environment that its user asked for: the interpreters, the entry points of Python packages,
// and the programs of packages that no other package needs.
func selectPrograms(s selection, dir string) ([]program, error) {
	found, err := s.list()
	if err != nil {
		return nil, err
	}
	chosen := map[string]string{}
	switch {
	case s.All:
		chosen = found
	case len(s.Patterns) > 0:
		if err := s.match(found, chosen); err != nil {
			return nil, err
		}
	case s.Prefix == "":
		return nil, errors.New("the image has no conda environment; name the programs, or use --all")
	default:
		if err := s.chooseDefault(found, chosen); err != nil {
			return nil, err
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("the image has no programs in %s", strings.Join(s.Path, ", "))
	}
	var out []program
	for name, file := range chosen {
		out = append(out, s.describe(name, file))
	}
	for _, p := range out { // sys.executable of an entry point must be a wrapper
		if name := path.Base(p.python); p.python != "" && chosen[name] == "" {
			chosen[name] = p.python
			out = append(out, s.describe(name, p.python))
		}
	}
	for i, p := range out {
		if name := path.Base(p.python); p.python != "" && chosen[name] == p.python {
			out[i].argv0 = filepath.Join(dir, "bin", name)
		}
	}
	slices.SortFunc(out, func(a, b program) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// list returns the paths of all programs in Path by name.
func (s selection) list() (map[string]string, error) {
	found := map[string]string{}
	for _, dir := range s.Path {
		real, err := resolve(s.Tree, dir)
		if err != nil {
			continue // a PATH may name directories that do not exist
		}
		entries, err := os.ReadDir(real)
		if err != nil {
			return nil, fmt.Errorf("listing the image's programs: %w", err)
		}
		for _, e := range entries {
			file := path.Join(dir, e.Name())
			if _, have := found[e.Name()]; !have && isProgram(s.Tree, file) {
				found[e.Name()] = file
			}
		}
	}
	return found, nil
}

// match adds the programs that Patterns select to chosen.
func (s selection) match(found, chosen map[string]string) error {
	for _, p := range s.Patterns {
		if strings.HasPrefix(p, "/") {
			if !isProgram(s.Tree, p) {
				return fmt.Errorf("the image has no program %s", p)
			}
			chosen[path.Base(p)] = path.Clean(p)
			continue
		}
		matched := false
		for name, file := range found {
			ok, err := path.Match(p, name)
			if err != nil {
				return fmt.Errorf("%q is not a valid pattern: %w", p, err)
			}
			if ok {
				chosen[name], matched = file, true
			}
		}
		if !matched {
			return fmt.Errorf("the image has no program %q in %s", p, strings.Join(s.Path, ", "))
		}
	}
	return nil
}

// always are conda packages whose programs get wrappers even if other packages need them.
var always = []string{"python", "pip", "r-base", "julia"}

// chooseDefault adds the programs of the environment that its user asked for to chosen.
func (s selection) chooseDefault(found, chosen map[string]string) error {
	packages, err := s.packages()
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for _, p := range packages {
		for _, d := range p.Depends {
			name, _, _ := strings.Cut(d, " ")
			needed[name] = true
		}
	}
	for _, p := range packages {
		if needed[p.Name] && p.Requested == "" && !slices.Contains(always, p.Name) {
			continue
		}
		for _, f := range p.Files {
			file := path.Join(s.Prefix, f)
			if name := path.Base(f); path.Dir(f) == "bin" && found[name] == file {
				chosen[name] = file
			}
		}
	}
	for name, file := range found {
		if s.describe(name, file).python != "" && path.Dir(file) == path.Join(s.Prefix, "bin") {
			chosen[name] = file
		}
	}
	return nil
}

// A record is a file of conda-meta (CEP 32).
type record struct {
	Name      string   `json:"name"`
	Depends   []string `json:"depends"`
	Files     []string `json:"files"`
	Requested string   `json:"requested_spec"`
}

// Limits of conda-meta.
const (
	maxRecord  = 64 << 20
	maxRecords = 20000
)

// packages reads the records of the conda environment.
func (s selection) packages() ([]record, error) {
	dir, err := resolve(s.Tree, path.Join(s.Prefix, "conda-meta"))
	if err != nil {
		return nil, fmt.Errorf("reading the environment's packages: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) > maxRecords {
		return nil, fmt.Errorf("reading the environment's packages: %d packages are more than %d", len(files), maxRecords)
	}
	var out []record
	for _, file := range files {
		var r record
		f, err := openRegular(file)
		if err == nil {
			err = json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r)
			f.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("reading the environment's package %s: %w", filepath.Base(file), err)
		}
		out = append(out, r)
	}
	return out, nil
}

// pythons matches the file names of Python interpreters.
var pythons = regexp.MustCompile(`^(python|pypy)[0-9.]*t?$`)

// describe returns the program with a name and a path in the image.
func (s selection) describe(name, file string) program {
	p := program{Name: name, argv: []string{file}, argv0: runconf.OwnName}
	real, err := resolve(s.Tree, file)
	if err != nil {
		return p
	}
	head, err := readHead(real)
	if err != nil {
		return p
	}
	line, isScript := strings.CutPrefix(string(head), "#!")
	if !isScript {
		if pythons.MatchString(name) {
			p.argv0 = runconf.WrapperName
		}
		return p
	}
	line, _, _ = strings.Cut(line, "\n")
	interpreter, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	if pythons.MatchString(path.Base(interpreter)) && path.IsAbs(interpreter) && isProgram(s.Tree, interpreter) {
		p.python, p.argv = path.Clean(interpreter), []string{path.Clean(interpreter)}
		if arg = strings.TrimSpace(arg); arg != "" {
			p.argv = append(p.argv, arg)
		}
		p.argv = append(p.argv, file)
	}
	return p
}

// isProgram reports whether a path in the image is an executable file.
func isProgram(tree, file string) bool {
	real, err := resolve(tree, file)
	if err != nil {
		return false
	}
	st, err := os.Lstat(real)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// readHead returns the first bytes of a regular file, where a script names its interpreter.
func readHead(file string) ([]byte, error) {
	f, err := openRegular(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 1024)
	n, err := io.ReadFull(f, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return b[:n], err
}

// openRegular opens a regular file. Other files of an image might block.
func openRegular(file string) (*os.File, error) {
	st, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: file, Err: errors.New("not a regular file")}
	}
	return os.Open(file)
}

// resolve returns the file of the host for a path in the image, without links. Links lead to paths in
// the image.
func resolve(tree, file string) (string, error) {
	real, err := securejoin.SecureJoin(tree, file)
	if err == nil {
		_, err = os.Lstat(real)
	}
	return real, err
}
