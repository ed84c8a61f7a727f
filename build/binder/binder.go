// Package binder reads the configuration files of a repository for Binder, as repo2docker does.
// It generates the Dockerfiles that build the repository's image.
//
//	Read ─► Repository ─► System ─► image with the packages of apt.txt
//	                   ├► Export ─► environment on that image
//	                   └► Recipe ─► files of the repository, postBuild and start
//
// A Dockerfile of the repository replaces all of these. Files that would need another tool,
// such as install.R, are refused, because an image without their packages would not work.
// Links that lead out of the repository are refused too.
package binder

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"hpcc/conda/input"
)

// maxFile limits the size of a configuration file, in bytes.
const maxFile = 1 << 20

// A Repository is the content of the configuration files of a directory.
type Repository struct {
	Dir string
	// Dockerfile is the path of a Dockerfile of the repository, or "". It replaces all other
	// configuration files.
	Dockerfile string
	// Export is the path of environment.yml or requirements.txt; without them, it is Dir, and
	// the environment has only Packages.
	Export string
	// Packages is the MatchSpec of python, which repo2docker adds to each environment.
	Packages []string
	// IgnoreFile is the path of a file with the format of .dockerignore that replaces
	// Dir/.dockerignore; "" if there is none.
	IgnoreFile string
	Notes      []string // about files that are not used, and choices that no file makes

	config    string   // "binder/", ".binder/" or ""
	apt       []string // packages of apt.txt
	aptText   []byte   // content of apt.txt
	aptLines  [2]int   // first and last line of apt.txt with a package
	postBuild string   // path in the repository, or ""
	start     string   // path in the repository, or ""
	project   string   // file that makes the repository a python project, or ""
}

// Options of Read. The zero value leaves all choices to the files.
type Options struct {
	Python string // version of python instead of that of runtime.txt
}

// Read reads the configuration files of a directory. They are in one of its subdirectories
// binder and .binder if it exists, or else in the directory itself.
func Read(dir string, o Options) (*Repository, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the repository: %w", err)
	}
	defer root.Close()
	r := &reader{Repository: Repository{Dir: dir}, root: root, options: o}
	if err := r.read(); err != nil {
		return nil, err
	}
	return &r.Repository, nil
}

// A reader reads the files of a repository.
type reader struct {
	Repository
	root    *os.Root
	options Options
}

func (r *reader) read() error {
	if err := r.findConfig(); err != nil {
		return err
	}
	if ok, err := r.has(r.config + "Dockerfile"); ok || err != nil {
		r.Dockerfile = r.path(r.config + "Dockerfile")
		return err
	}
	if err := r.findIgnoreFile(); err != nil {
		return err
	}
	environment, err := r.first(r.config+"environment.yml", r.config+"environment.yaml")
	if err == nil {
		err = r.refuseOthers(environment != "")
	}
	if err == nil {
		err = r.readAPT()
	}
	if err != nil {
		return err
	}
	version, err := r.readRuntime(environment)
	if err != nil {
		return err
	}
	if environment != "" && r.options.Python != "" {
		return fmt.Errorf("%s: add python=%s to it instead of --python", r.path(environment), r.options.Python)
	} else if environment != "" {
		r.Export, r.Packages = r.path(environment), []string{"python"}
	} else if err := r.readPython(version); err != nil {
		return err
	}
	if r.postBuild, err = r.first(r.config + "postBuild"); err != nil {
		return err
	}
	r.start, err = r.first(r.config + "start")
	return err
}

// findConfig sets the directory of the configuration files.
func (r *reader) findConfig() error {
	var found []string
	for _, name := range []string{"binder", ".binder"} {
		fi, err := r.root.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return r.unreadable(name, err)
		case fi.IsDir():
			found = append(found, name)
		}
	}
	switch len(found) {
	case 1:
		r.config = found[0] + "/"
	case 2:
		return fmt.Errorf("%s: it has both binder and .binder, and only one can hold the configuration files; remove one of them", r.Dir)
	}
	return nil
}

// findIgnoreFile finds the list of files that stay out of the image. It refuses two of them,
// since a build uses one.
func (r *reader) findIgnoreFile() error {
	docker, err := r.first(r.config + ".dockerignore")
	if err != nil {
		return err
	}
	container, err := r.first(r.config + ".containerignore")
	if err != nil {
		return err
	}
	if docker != "" && container != "" {
		return fmt.Errorf("%s: there is a .dockerignore too; put the lines of both into one of them", r.path(container))
	}
	if name := cmp.Or(docker, container); name != "" {
		r.IgnoreFile = r.path(name)
	}
	return nil
}

// An unsupported is a configuration file of which hpcc cannot install the packages.
type unsupported struct {
	name, cure string
	optional   bool // repo2docker ignores the file if there is an environment.yml
}

// unsupportedFiles are the files of repo2docker's other build packs.
var unsupportedFiles = []unsupported{
	{"Project.toml", "packages of Julia are not installed; name julia in environment.yml, and add the packages in postBuild", false},
	{"JuliaProject.toml", "packages of Julia are not installed; name julia in environment.yml, and add the packages in postBuild", false},
	{"REQUIRE", "packages of Julia are not installed; name julia in environment.yml, and add the packages in postBuild", false},
	{"default.nix", "packages of nix are not installed; name those of conda in environment.yml", false},
	{"DESCRIPTION", "packages of R are not installed; name r-base and r-NAME packages in environment.yml", false},
	{"install.R", "packages of R are not installed; name r-base and r-NAME packages in environment.yml", true},
	{"Pipfile", "pipenv is not supported; write a requirements.txt with \"pipenv requirements\"", true},
	{"Pipfile.lock", "pipenv is not supported; write a requirements.txt with \"pipenv requirements\"", true},
}

// refuseOthers refuses the files of other build packs. It notes those that repo2docker ignores
// because of an environment.yml.
func (r *reader) refuseOthers(environment bool) error {
	for _, u := range unsupportedFiles {
		if u.name == "DESCRIPTION" && r.config != "" {
			continue // repo2docker reads it only without a directory for configuration files
		}
		name := r.config + u.name
		ok, err := r.has(name)
		switch {
		case err != nil:
			return err
		case ok && u.optional && environment:
			r.note("%s is not used, because there is an environment.yml", r.path(name))
		case ok:
			return fmt.Errorf("%s: %s, and remove this file; or write a %s", r.path(name), u.cure, r.path(r.config+"Dockerfile"))
		}
	}
	return nil
}

// readPython finds the packages of a repository without environment.yml: python of the given
// version, and those of requirements.txt.
func (r *reader) readPython(version string) error {
	name, text, err := r.readFile("requirements.txt")
	if err != nil {
		return err
	}
	r.Export = r.Dir
	if hasRows(text) {
		r.Export = r.path(name)
	}
	if ok, err := r.has(r.config + "requirements3.txt"); ok || err != nil {
		r.note("%s is not used: it is for Jupyter next to Python 2", r.path(r.config+"requirements3.txt"))
		if err != nil {
			return err
		}
	}
	required, err := r.readProject()
	if err != nil {
		return err
	}
	python := "python"
	switch {
	case version != "":
		python += "=" + version
	case required != "":
		python += " " + required
	default:
		r.note("%s is missing, so python is the newest of the channels; write the version to the file, as python-3.12",
			r.path(r.config+"runtime.txt"))
	}
	r.Packages = []string{python}
	return nil
}

// readProject sets the file that makes the repository a python project, which pip installs. It
// returns the versions of python that the project requires, or "".
func (r *reader) readProject() (python string, err error) {
	if r.config != "" {
		return "", nil // as in repo2docker
	}
	if r.project, err = r.first("setup.py"); err != nil {
		return "", err
	}
	name, text, err := r.readFile("pyproject.toml")
	if err != nil || name == "" {
		return "", err
	}
	isProject, python, err := parseProject(text)
	if err != nil {
		return "", fmt.Errorf("%s:%w", r.path(name), err)
	}
	if isProject && r.project == "" {
		r.project = name
	}
	return python, nil
}

// readAPT reads apt.txt.
func (r *reader) readAPT() error {
	name, text, err := r.readFile("apt.txt")
	if err != nil || name == "" {
		return err
	}
	r.aptText = text
	if r.apt, r.aptLines, err = parseAPT(text); err != nil {
		return fmt.Errorf("%s:%w", r.path(name), err)
	}
	return nil
}

// readRuntime reads runtime.txt and returns the version of python, or "". environment is the
// name of environment.yml, which replaces runtime.txt.
func (r *reader) readRuntime(environment string) (python string, err error) {
	name, text, err := r.readFile("runtime.txt")
	if err != nil || name == "" {
		return r.options.Python, err
	}
	python, err = parseRuntime(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s:1: %w", r.path(name), err)
	case environment != "":
		r.note("%s is not used, as in repo2docker: name python %s in %s", r.path(name), python, r.path(environment))
	case r.options.Python != "":
		r.note("%s is not used, because of --python", r.path(name))
	}
	return cmp.Or(r.options.Python, python), nil
}

// note adds a note.
func (r *reader) note(format string, a ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, a...))
}

// path returns the path of a file of the repository.
func (r *Repository) path(name string) string { return filepath.Join(r.Dir, filepath.FromSlash(name)) }

// has reports whether the repository has a file. It refuses names that are not files, and links
// that lead out of the repository.
func (r *reader) has(name string) (bool, error) {
	fi, err := r.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, lerr := r.root.Lstat(name); lerr == nil {
			return false, fmt.Errorf("%s: it is a link to a missing file; correct or remove it", r.path(name))
		}
		return false, nil
	case err != nil:
		return false, r.unreadable(name, err)
	case !fi.Mode().IsRegular():
		return false, fmt.Errorf("%s: not a regular file; rename it", r.path(name))
	}
	return true, nil
}

// unreadable returns the error for a name that cannot be opened within the repository.
func (r *reader) unreadable(name string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	if strings.Contains(err.Error(), "escapes") {
		return fmt.Errorf("%s: it is a link that leads out of the repository; replace it by a copy", r.path(name))
	}
	return fmt.Errorf("reading %s: %w", r.path(name), err)
}

// first returns the first name that exists, or "".
func (r *reader) first(names ...string) (string, error) {
	for _, name := range names {
		if ok, err := r.has(name); ok || err != nil {
			return name, err
		}
	}
	return "", nil
}

// readFile reads a configuration file. name is "" if there is none.
func (r *reader) readFile(base string) (name string, text []byte, err error) {
	name = path.Join(r.config, base)
	if ok, err := r.has(name); !ok {
		return "", nil, err
	}
	f, err := r.root.Open(name)
	if err != nil {
		return "", nil, r.unreadable(name, err)
	}
	defer f.Close()
	if text, err = input.ReadAll(io.Reader(f), maxFile); err != nil {
		err = fmt.Errorf("reading %s: %w", r.path(name), err)
	}
	return name, text, err
}
