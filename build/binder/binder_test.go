package binder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// repository creates a directory with files. The content "-> TARGET" makes a link.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	testenv.Check(t, os.Mkdir(dir, 0o755))
	for name, text := range files {
		path := filepath.Join(dir, name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			testenv.Check(t, os.Symlink(target, path))
			continue
		}
		testenv.Check(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// TestRead checks which files of a repository are used.
func TestRead(t *testing.T) {
	const environment = "dependencies: [python=3.11]\n"
	for _, c := range []struct {
		name     string
		files    map[string]string
		python   string // of --python
		export   string
		packages string
		steps    string // instructions of the recipes that name files of the repository
		notes    string // parts of the notes, separated by |
	}{
		{name: "environment.yml", files: map[string]string{"environment.yml": environment, "requirements.txt": "six", "setup.py": ""}, export: "environment.yml", packages: "python"},
		{name: "environment.yaml", files: map[string]string{"binder/environment.yaml": environment, "environment.yml": "no"}, export: "binder/environment.yaml", packages: "python"},
		{name: "hidden", files: map[string]string{".binder/environment.yml": environment, "postBuild": "", ".binder/postBuild": ""}, export: ".binder/environment.yml", packages: "python",
			steps: ".binder/postBuild: RUN chmod +x .binder/postBuild && ./.binder/postBuild"},
		{name: "runtime with environment.yml", files: map[string]string{"environment.yml": environment, "runtime.txt": "python-3.9"}, export: "environment.yml", packages: "python", notes: "runtime.txt is not used, as in repo2docker: name python 3.9 in"},
		{name: "requirements", files: map[string]string{"requirements.txt": "six", "runtime.txt": "python-3.9\n"}, export: "requirements.txt", packages: "python=3.9"},
		{name: "patch version", files: map[string]string{"runtime.txt": "python-3.9.7-2024-01-01"}, packages: "python=3.9.7"},
		{name: "flag", files: map[string]string{"requirements.txt": "six", "runtime.txt": "python-3.9\n"}, python: "3.12", export: "requirements.txt", packages: "python=3.12", notes: "because of --python"},
		{name: "nothing", files: map[string]string{"README": ""}, packages: "python", notes: "runtime.txt is missing"},
		{name: "only comments", files: map[string]string{"requirements.txt": "# none\n"}, packages: "python", notes: "runtime.txt is missing"},
		{name: "setup.py", files: map[string]string{"setup.py": "", "requirements.txt": "six", "runtime.txt": "python-3"}, export: "requirements.txt", packages: "python=3", steps: "setup.py: RUN python -m pip install --no-cache-dir ."},
		{name: "setup.py with binder", files: map[string]string{"setup.py": "", "binder/runtime.txt": "python-3.9"}, packages: "python=3.9"},
		{name: "pyproject.toml", files: map[string]string{"pyproject.toml": "[project]\nrequires-python = '>=3.9, <3.12'\n[build-system]\nrequires = []\n"}, packages: "python >=3.9,<3.12", steps: "pyproject.toml: RUN python -m pip install --no-cache-dir ."},
		{name: "pyproject.toml of a tool", files: map[string]string{"pyproject.toml": "[tool.black]\nline-length = 100\n"}, packages: "python", notes: "runtime.txt is missing"},
		{name: "pyproject.toml, odd", files: map[string]string{"pyproject.toml": "[project]\nrequires-python = '>=3; x'\n"}, packages: "python", notes: "runtime.txt is missing"},
		{name: "apt.txt", files: map[string]string{"environment.yml": environment, "apt.txt": "\ufeff# x\r\ng++ # compiler\r\ncurl git\r\ncurl\r\n", "start": ""}, export: "environment.yml", packages: "python",
			steps: "apt.txt:2-4: RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends curl g++ git && rm -rf /var/lib/apt/lists/*|start: RUN chmod +x start"},
		{name: "empty apt.txt", files: map[string]string{"environment.yml": environment, "apt.txt": "\n"}, export: "environment.yml", packages: "python"},
		{name: "other build packs with environment.yml", files: map[string]string{"environment.yml": environment, "install.R": "", "Pipfile": ""}, export: "environment.yml", packages: "python", notes: "install.R is not used|Pipfile is not used"},
		{name: "DESCRIPTION with binder", files: map[string]string{"binder/environment.yml": environment, "DESCRIPTION": ""}, export: "binder/environment.yml", packages: "python"},
		{name: "requirements3.txt", files: map[string]string{"requirements3.txt": "six", "runtime.txt": "python-2.7"}, packages: "python=2.7", notes: "requirements3.txt is not used"},
		{name: "link inside", files: map[string]string{"environment.yml": "-> conda/lab.yml", "conda/lab.yml": environment}, export: "environment.yml", packages: "python"},
	} {
		dir := repository(t, c.files)
		r, err := Read(dir, Options{Python: c.python})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if want := filepath.Join(dir, c.export); r.Export != want || strings.Join(r.Packages, ", ") != c.packages || r.Dockerfile != "" {
			t.Errorf("%s: Read = %s, %q, Dockerfile %q; want %s, %q", c.name, r.Export, r.Packages, r.Dockerfile, want, c.packages)
		}
		if got := strings.Join(steps(r, dir), "|"); got != c.steps {
			t.Errorf("%s: the steps are\n%s; want\n%s", c.name, got, c.steps)
		}
		checkNotes(t, c.name, r.Notes, c.notes)
	}
}

// steps returns the instructions that were generated from files, with these files.
func steps(r *Repository, dir string) (out []string) {
	for _, x := range []*Recipe{r.System("base"), r.Recipe()} {
		if x == nil {
			continue
		}
		for i, l := range strings.Split(string(x.Text), "\n") {
			if at := x.Origin(i + 1); at.File != "" {
				name, _ := filepath.Rel(dir, at.File)
				if at.Line > 0 {
					name += ":" + string(rune('0'+at.Line)) + "-" + string(rune('0'+at.End))
				}
				out = append(out, name+": "+l)
			}
		}
	}
	return out
}

func checkNotes(t *testing.T, name string, notes []string, want string) {
	t.Helper()
	parts := strings.Split(want, "|")
	if want == "" {
		parts = nil
	}
	if len(notes) != len(parts) {
		t.Errorf("%s: the notes are %q; want %q", name, notes, parts)
		return
	}
	for i := range parts {
		if !strings.Contains(notes[i], parts[i]) {
			t.Errorf("%s: note %q; want %q in it", name, notes[i], parts[i])
		}
	}
}

// TestReadDockerfile checks that a Dockerfile replaces the other files, as in repo2docker.
func TestReadDockerfile(t *testing.T) {
	dir := repository(t, map[string]string{"binder/Dockerfile": "FROM base", "binder/apt.txt": "not; read", "Dockerfile": "", "binder/Project.toml": ""})
	r, err := Read(dir, Options{})
	testenv.Check(t, err)
	if want := filepath.Join(dir, "binder/Dockerfile"); r.Dockerfile != want {
		t.Errorf("Dockerfile = %q; want %q", r.Dockerfile, want)
	}
}

// TestIgnoreFile checks which list of ignored files is used.
func TestIgnoreFile(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"none":      {map[string]string{"a": ""}, ""},
		"root":      {map[string]string{".dockerignore": ""}, ".dockerignore"},
		"container": {map[string]string{".containerignore": ""}, ".containerignore"},
		"binder":    {map[string]string{"binder/.dockerignore": "", ".dockerignore": ""}, "binder/.dockerignore"},
	} {
		dir := repository(t, c.files)
		r, err := Read(dir, Options{})
		testenv.Check(t, err)
		if got := strings.TrimPrefix(strings.TrimPrefix(r.IgnoreFile, dir), "/"); got != c.want {
			t.Errorf("%s: IgnoreFile = %q; want %q", name, got, c.want)
		}
	}
}

// TestReadRefuses checks that files which cannot be used are named with the reason.
func TestReadRefuses(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{"binder/a": "", ".binder/a": ""}, ": it has both binder and .binder"},
		{map[string]string{"apt.txt": "foo; rm -rf\n"}, `apt.txt:1: "foo;" is not the name of a package; "-rf" is not`},
		{map[string]string{"apt.txt": "-o\n"}, `apt.txt:1: "-o" is not`},
		{map[string]string{"apt.txt": "bash-\n"}, `apt.txt:1: "bash-" is not`},
		{map[string]string{"apt.txt": "\n$HOME\n"}, `apt.txt:2: "$HOME" is not`},
		{map[string]string{"apt.txt": "a=~root\n"}, `apt.txt:1: "a=~root" is not`},
		{map[string]string{"apt.txt": strings.Repeat("a", maxFile+1)}, "reading "},
		{map[string]string{"apt.txt": "-> ../../outside"}, "apt.txt: it is a link that leads out of the repository"},
		{map[string]string{"binder": "-> .."}, "binder: it is a link that leads out of the repository"},
		{map[string]string{"environment.yml": "-> /etc/passwd"}, "environment.yml: it is a link that leads out of the repository"},
		{map[string]string{"postBuild": "-> /bin/sh"}, "postBuild: it is a link that leads out of the repository"},
		{map[string]string{"start": "-> nothing"}, "start: it is a link to a missing file"},
		{map[string]string{"postBuild/x": ""}, "postBuild: not a regular file"},
		{map[string]string{"runtime.txt": "r-4.3-2024-01-01"}, "runtime.txt:1: packages of R are not installed"},
		{map[string]string{"runtime.txt": "python"}, `runtime.txt:1: "python" is not a runtime; write python-X.Y`},
		{map[string]string{"runtime.txt": "python-3.11; rm"}, `runtime.txt:1: "python-3.11; rm" is not a runtime`},
		{map[string]string{"runtime.txt": "python-latest"}, `runtime.txt:1: "latest" is not a version of python`},
		{map[string]string{"runtime.txt": "pypy-3.9"}, `runtime.txt:1: runtime "pypy" is not supported`},
		{map[string]string{"runtime.txt": "python-2024-01-01"}, `runtime.txt:1: "" is not a version of python`},
		{map[string]string{"pyproject.toml": "[project]\nname = \n"}, "pyproject.toml:2: reading TOML: "},
		{map[string]string{"Project.toml": ""}, "Project.toml: packages of Julia are not installed"},
		{map[string]string{"default.nix": "", "environment.yml": ""}, "default.nix: packages of nix are not installed"},
		{map[string]string{"DESCRIPTION": "", "environment.yml": ""}, "DESCRIPTION: packages of R are not installed"},
		{map[string]string{"install.R": ""}, "install.R: packages of R are not installed"},
		{map[string]string{"binder/Pipfile.lock": ""}, "Pipfile.lock: pipenv is not supported"},
		{map[string]string{".dockerignore": "", ".containerignore": ""}, ".containerignore: there is a .dockerignore too"},
	} {
		if _, err := Read(repository(t, c.files), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Read(%v) = %v; want %q", c.files, err, c.want)
		}
	}
}

// TestReadPython checks that --python does not replace the version of an environment.yml.
func TestReadPython(t *testing.T) {
	_, err := Read(repository(t, map[string]string{"environment.yml": ""}), Options{Python: "3.11"})
	if want := "environment.yml: add python=3.11 to it instead of --python"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Read = %v; want %q", err, want)
	}
}

// FuzzFiles checks that no content of a file adds an instruction or a shell command.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("# tools\ng++ # compiler\nlibc6:i386=2.36-9+deb12u1~x\n"))
	f.Add([]byte("python-3.11-2024-01-01\n"))
	f.Add([]byte("[project]\nrequires-python = '>=3.9,<3.12'\n[build-system]\n"))
	f.Add([]byte("foo; rm -rf /\\\nRUN x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if names, at, err := parseAPT(text); err == nil {
			r := &Repository{apt: names, aptLines: at}
			if x := r.System("base"); x != nil && (strings.Count(string(x.Text), "\n") != 3 || strings.Count(string(x.Text), "&&") != 2 || strings.ContainsAny(strings.Join(names, " "), "\\;$`'\"|<>(){}*?#!\n")) {
				t.Errorf("%q", x.Text)
			}
			if at[0] > at[1] {
				t.Errorf("lines %v", at)
			}
		}
		if v, err := parseRuntime(text); err == nil && !pythonVersion().MatchString(v) {
			t.Errorf("version %q", v)
		}
		if _, v, err := parseProject(text); err == nil && strings.ContainsAny(v, " \n[]:/") {
			t.Errorf("python %q", v)
		}
	})
}
