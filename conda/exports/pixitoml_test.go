package exports

import (
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/solve"
	"hpcc/testdata/helpers/testenv"
)

// A pixiCase is a manifest, read for linux-64, with the lines of its description that must be there.
type pixiCase struct {
	name, environment, machine string
	text                       string
	want                       []string
}

const pixiHead = "[workspace]\nchannels = [\"c\"]\nplatforms = [\"linux-64\"]\n"

func TestPixi(t *testing.T) {
	for _, c := range []pixiCase{
		{"specs", "", "", pixiHead + `[dependencies]
a = "1.2"
b = ">=1, <2 | 3.*"
c = { version = "*", build = "cuda*", channel = "https://h/other" }
d = { build-number = ">=1", subdir = "noarch", md5 = "` + md5A + `" }
E_e = "*"
f.version = "~=1.2.0"
`, []string{"5 spec a 1.2 false", "6 spec b >=1,<2|3.* false", `7 spec https://h/other::c[build="cuda*"] false`, `8 spec d[build_number=">=1",subdir="noarch",md5="` + md5A + `"] false`, "9 spec E_e false", "10 spec f ~=1.2.0 false"}},
		{"kinds of dependencies", "", "", pixiHead + "[dependencies]\na = \"1\"\nb = \"1\"\n[host-dependencies]\na = \"2\"\n[build-dependencies]\nc = \"3\"\n[constraints]\nd = \">=3\"\n",
			[]string{"8 spec a 2 false\n6 spec b 1 false\n10 spec c 3 false\n", "12 limit d >=3"}},
		{"pool of the workspace", "", "", pixiHead + "[workspace.dependencies]\na = \"1.*\"\nb = { version = \"2\", channel = \"x\" }\n[dependencies]\na = { workspace = true }\nb = { workspace = true, version = \"3\" }\n",
			[]string{"8 spec a 1.* false", "9 spec x::b 3 false"}},
		{"targets", "", "", pixiHead + "[dependencies]\na = \"1\"\nb = \"1\"\n[target.unix.dependencies]\na = \"2\"\n[target.linux-64.dependencies]\na = \"3\"\n[target.win-64.dependencies]\na = \"4\"\n[target.\"linux-*\".dependencies]\nc = \"5\"\n[target.osx.dependencies]\nd = \"6\"\n[target.macos.dependencies]\nd = \"7\"\n[target.linux-64.activation.env]\nX = \"y\"\n",
			[]string{"10 spec a 3 false\n6 spec b 1 false\n14 spec c 5 false\nvariable"}},
		{"features", "e", "", pixiHead + "channel-priority = \"flexible\"\n[dependencies]\na = \">=1\"\n[feature.x]\nchannels = [\"x\", {channel = \"y\", priority = 1}, {channel = \"z\", priority = -1}]\n[feature.x.dependencies]\na = \"<3\"\nb = \"1\"\n[environments]\ne = [\"x\"]\n",
			[]string{"channel y\nchannel x\nchannel c\nchannel z\n", "10 spec a <3 false\n11 spec b 1 false\n6 spec a >=1 false", "flexible order", "the file has the environments default, e; e is read"}},
		{"no default feature", "lint", "", pixiHead + "[dependencies]\na = \"1\"\n[feature.lint.dependencies]\nb = \"1\"\n[environments]\nlint = { features = [\"lint\"], no-default-feature = true, solve-group = \"g\" }\nprod = { solve-group = \"g\" }\n",
			[]string{"channel c\n7 spec b 1 false\n", `solve-group "g": environment lint is solved alone, so its versions can differ from those of prod`}},
		{"content of an environment", "dev", "", pixiHead + "[dependencies]\na = \"1\"\n[activation.env]\nX = \"1\"\nY = \"2\"\n[environments.dev]\ndependencies = { git = \"*\" }\nactivation = { env = { X = \"3\" } }\n",
			[]string{"10 spec git false\n5 spec a 1 false\n", "variable X=\"3\"\nvariable Y=\"2\"\n"}},
		{"pip", "", "", pixiHead + `[pypi-options]
index-url = "https://i/simple"
extra-index-urls = ["https://j/simple"]
find-links = [{path = "./links"}, {url = "https://k"}]
no-build = true
[pypi-dependencies]
a = "*"
b = { version = ">=1,<2", extras = ["x", "y"] }
c = { git = "https://h/c.git", tag = "v1", subdirectory = "sub" }
d = { git = "ssh://git@h/d" }
e = { url = "https://h/e.tar.gz" }
f = { path = "./f", editable = true }
g = { version = "*", index = "https://l/simple" }
h = { version = "==1", env-markers = "sys_platform == 'win32'" }
[target.linux.pypi-dependencies]
A = "==2"
`, []string{"19 pip A==2 []  false", "11 pip b[x,y]>=1,<2 []  false", "12 pip c @ git+https://h/c.git@v1#subdirectory=sub []  false", "13 pip d @ git+ssh://git@h/d []  false", "14 pip e @ https://h/e.tar.gz []  false", "15 pip -e ./f []  true", "16 pip g []  false",
			"pip index https://i/simple [https://l/simple https://j/simple] [./links https://k] false", `pixi.toml:8: key "no-build" of pypi-options is not used`, "the index of g is searched for all pip packages", "h==1 is not for linux-64"}},
		{"system requirements", "gpu", "", pixiHead + "[system-requirements]\nlinux = \"4.12\"\nlibc = { family = \"glibc\", version = \"2.17\" }\n[feature.gpu.system-requirements]\ncuda = \"12.0\"\nlibc = \"2.28\"\n[dependencies]\na = \"*\"\n[environments]\ngpu = [\"gpu\"]\n",
			[]string{"8 virtual __cuda=12.0\n9 virtual __glibc=2.28\n5 virtual __linux=4.12\n"}},
		{"the only platform", "", "", "[workspace]\nchannels = []\nplatforms = [{ platform = \"linux-64\", cuda = { driver = \"12\", arch = \"8.6\" }, archspec = \"x86_64_v3\", __x = \"1\" }]\n[target.linux-64-cuda-12-archspec-x86-64-v3-x-1.dependencies]\na = \"*\"\n",
			[]string{"5 spec a false", "virtual __cuda=12\n3 virtual __cuda_arch=8.6\n3 virtual __archspec=1=x86_64_v3\n3 virtual __x=1\n"}},
		{"a platform that fits", "", "__cuda=12.4", "[workspace]\nchannels = []\nplatforms = [{ name = \"gpu\", platform = \"linux-64\", cuda = \"12\" }, \"linux-64\"]\n[target.gpu.dependencies]\na = \"1\"\n[target.linux-64.dependencies]\na = \"2\"\n",
			[]string{"7 spec a 2 false", "3 virtual __cuda=12\n", "the file has the platforms gpu (__cuda=12) and linux-64 for linux-64; gpu is read"}},
		{"a platform without cuda", "", "", "[workspace]\nchannels = []\nplatforms = [{ name = \"gpu\", platform = \"linux-64\", cuda = \"12\" }, \"linux-64\"]\n[dependencies]\na = \"1\"\n[target.gpu.dependencies]\na = \"2\"\n",
			[]string{"5 spec a 1 false", "linux-64 is read"}},
		{"platforms of a feature", "gpu", "", "[workspace]\nchannels = []\nplatforms = [{ name = \"gpu\", platform = \"linux-64\", cuda = \"12\" }, \"linux-64\", \"osx-64\"]\n[dependencies]\na = \"1\"\n[feature.gpu]\nplatforms = [\"gpu\"]\n[environments]\ngpu = [\"gpu\"]\n",
			[]string{"3 virtual __cuda=12\n"}},
		{"other platforms", "", "", "[workspace]\nchannels = []\nplatforms = [\"osx-64\", \"linux-aarch64\"]\n[dependencies]\na = \"1\"\n", []string{"environment default is for linux-aarch64, osx-64, but is read for linux-64"}},
		{"notes", "", "", "\"$schema\" = \"x\"\n[project]\nname = \"x\"\nchannels = [\"c\"]\nplatforms = [\"linux-64\"]\nexclude-newer = \"2025-01-01\"\n[tasks]\nx = \"y\"\n[colour]\n[dependencies]\na = \"*\"\n[activation]\nscripts = [\"a.sh\"]\nenv = { A = \"$B/c\", D = \"e\" }\nfoo = 1\n[target.linux]\nbar = 1\n[target.lynx]\n",
			[]string{`pixi.toml:6: key "exclude-newer" of [workspace] is not used`, `pixi.toml:9: key "colour" of the manifest is not used`, "pixi.toml:13: activation script a.sh is not run", `variable A is left out: "$B/c" is expanded only when pixi activates`, `pixi.toml:15: key "foo" of [activation] is not used`, `pixi.toml:17: key "bar" of target linux is not used`, `pixi.toml:18: target "lynx" is not a platform of the workspace, linux, unix, osx or win; it is not used`, "variable D=\"e\"\n"}},
	} {
		e, err := Read(strings.NewReader(c.text), "pixi.toml", ReadOptions{Subdir: "linux-64", Environment: c.environment, Virtual: machineOf(c.machine)})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, w := range c.want {
			if got := describe(e); !strings.Contains(got, w) {
				t.Errorf("%s: %q is missing in\n%s", c.name, w, got)
			}
		}
	}
}

// machineOf returns a machine with the given virtual packages.
func machineOf(list string) func() ([]*solve.Record, error) {
	var out []*solve.Record
	for _, f := range strings.Fields(list) {
		name, version, _ := strings.Cut(f, "=")
		out = append(out, &solve.Record{Name: name, Version: version, Build: "0"})
	}
	return func() ([]*solve.Record, error) { return out, nil }
}

func TestPyproject(t *testing.T) {
	const text = `[project]
name = "My_Project"
requires-python = ">=3.9"
dependencies = ["numpy", "pandas>=2 ; sys_platform == 'linux'"]
[project.optional-dependencies]
test = ["pytest"]
all = ["package2", "my-project[test]"]
[dependency-groups]
docs = ["sphinx"]
dev = [{include-group = "docs"}, "ruff"]
[tool.pixi.workspace]
channels = ["conda-forge"]
platforms = ["linux-64"]
[tool.pixi.dependencies]
compilers = "*"
[tool.pixi.feature.docs.dependencies]
make = "*"
[tool.pixi.environments]
test = ["test"]
all = { features = ["all"], no-default-feature = true }
dev = ["dev"]
docs = ["docs"]
`
	for _, c := range []pixiCase{
		{environment: "", want: []string{"pyproject.toml of pixi", "3 spec python >=3.9 false\n15 spec compilers false\n4 pip numpy []  false\n4 pip pandas>=2 []  false\nnote"}},
		{environment: "test", want: []string{"6 pip pytest []  false\n4 pip numpy"}},
		{environment: "all", want: []string{"explicit false\nchannel conda-forge\n7 pip package2 []  false\n6 pip pytest []  false\nnote"}},
		{environment: "dev", want: []string{"9 pip sphinx []  false\n10 pip ruff []  false\n"}},
		{environment: "docs", want: []string{"17 spec make false\n", "9 pip sphinx []  false\n"}},
	} {
		e, err := Read(strings.NewReader(text), "pyproject.toml", ReadOptions{Subdir: "linux-64", Environment: c.environment})
		if err != nil {
			t.Errorf("%s: %v", c.environment, err)
			continue
		}
		for _, w := range c.want {
			if got := describe(e); !strings.Contains(got, w) {
				t.Errorf("environment %q: %q is missing in\n%s", c.environment, w, got)
			}
		}
	}
	dir := testenv.Files(t, "pyproject.toml", text, "pixi.lock", "version: 6\n")
	if e, err := ReadFile(filepath.Join(dir, "pyproject.toml"), ReadOptions{}); err != nil || !strings.Contains(describe(e), "use --conda "+dir+"/pixi.lock") {
		t.Errorf("ReadFile = %v, %v; want a note about the lock file", e, err)
	}
	override := strings.Replace(text, "compilers = \"*\"", "python = \"3.11.*\"", 1)
	if e, err := Read(strings.NewReader(override), "pyproject.toml", ReadOptions{}); err != nil || !strings.Contains(describe(e), "15 spec python 3.11.* false") || strings.Contains(describe(e), ">=3.9") {
		t.Errorf("Read = %v, %v; want python of [tool.pixi.dependencies]", e, err)
	}
}

func TestPixiRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[package]\nname = \"x\"\n", "pixi.toml:1: no [workspace] table: a manifest of a package has no environments; name the pixi.toml of its workspace"},
		{pixiHead + "[environments]\na = []\n", `pixi.toml:4: there is no environment "e"; choose one with --environment: the file has default and a`},
		{pixiHead + "[environments]\ne = [\"x\"]\n[feature.y]\n", `pixi.toml:5: there is no feature "x"; the file has y`},
		{pixiHead + "[environments]\ne = { features = \"x\" }\n", "pixi.toml:5: features is not a list"},
		{pixiHead + "[environments]\ne = []\n[dependencies]\na = { path = \"./a\" }\n", "pixi.toml:7: a: path: pixi builds or fetches this package itself; upload its archive to a channel and depend on that"},
		{pixiHead + "[environments]\ne = []\n[dependencies]\na = { version = \"1\", when = \"__cuda\" }\nb = \"1 h_0\"\nc = []\nd = { workspace = true }\n\"e f\" = \"*\"\ng = { license = \"MIT\" }\nh = \"=>1\"\n",
			`pixi.toml:7: a: the condition "when" is not supported; remove it; line 8: b: "1 h_0" is not a version; line 9: c: neither a version nor a table; line 10: d: [workspace.dependencies] has no such package; line 11: e f: `},
		{pixiHead + "[environments]\ne = []\n[dev]\na = { path = \".\" }\n", "pixi.toml:6: dev: a: pixi builds packages from source"},
		{pixiHead + "[environments]\ne = []\n[pypi-dependencies]\na = \"1.2\"\n\"b c\" = \"*\"\n", `pixi.toml:7: a: "a1.2" is not a requirement of pip`},
		{pixiHead + "[environments]\ne = []\n[system-requirements]\ncuda = \"x y\"\n", `pixi.toml:7: "__cuda=x y" is not a virtual package`},
		{pixiHead + "[environments]\ne = []\n[activation.env]\n\"A B\" = \"1\"\n", `pixi.toml:7: "A B": invalid variable name or value`},
		{strings.Replace(pixiHead, `"linux-64"`, `{name = "a", platform = "linux-64", cuda = "12"}, {name = "b", platform = "linux-64", cuda = "13"}`, 1) + "[environments]\ne = []\n",
			"pixi.toml:3: environment e has the platforms a (__cuda=12) and b (__cuda=13) for linux-64, but the target machine has the virtual packages of none: add --with-cuda 12 for a or --with-cuda 13 for b"},
		{strings.Replace(pixiHead, `["c"]`, `[{channel = "c", priority = "high"}]`, 1) + "[environments]\ne = []\n", `pixi.toml:2: channel is neither a string nor {channel = "NAME", priority = NUMBER}`},
		{pixiHead + "channel-priority = \"high\"\n[environments]\ne = []\n", `pixi.toml:4: channel-priority "high" is not strict, flexible or disabled`},
		{"[tool.uv]\n", "pixi.toml:1: no [workspace] table"},
	} {
		_, err := Read(strings.NewReader(c.text), "pixi.toml", ReadOptions{Subdir: "linux-64", Environment: "e", Virtual: machineOf("")})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Read(%q) = %v; want %s", c.text, err, c.want)
		}
	}
	if _, err := Read(strings.NewReader("[project]\nname = \"x\"\n"), "pyproject.toml", ReadOptions{}); err == nil || !strings.Contains(err.Error(), "pyproject.toml:1: the file has no [tool.pixi]") {
		t.Errorf("Read = %v; want the missing [tool.pixi]", err)
	}
}

// FuzzPixi reads manifests of pixi.
func FuzzPixi(f *testing.F) {
	for _, s := range []string{
		pixiHead + "[dependencies]\na = {version = \"1.*\", build = \"x\", channel = \"c\"}\n[target.linux.dependencies]\nb = \"*\"\n[feature.f]\nplatforms = [\"linux-64\"]\nchannels = [{channel = \"x\", priority = 1}]\n[environments]\ndefault = [\"f\"]\n",
		pixiHead + "[pypi-dependencies]\na = {git = \"https://h/a\", rev = \"1\", extras = [\"x\"]}\nb = {path = \".\", editable = true}\n[pypi-options]\nindex-url = \"i\"\n[activation.env]\nA = \"b\"\n[system-requirements]\nlibc = {family = \"glibc\", version = \"2.17\"}\ncuda = \"12\"\n",
		"[project]\nname = \"p\"\ndependencies = [\"a>=1 ; os_name == 'posix'\"]\nrequires-python = \">=3.9\"\n[dependency-groups]\nd = [{include-group = \"d\"}]\n[project.optional-dependencies]\nt = [\"p[t]\"]\n[tool.pixi.workspace]\nchannels = []\nplatforms = [{platform = \"linux-ppc64le\", cuda = {driver = \"12\", arch = \"8\"}}, \"linux-ppc64le\"]\n[tool.pixi.environments]\ndefault = {features = [\"d\", \"t\"], solve-group = \"g\"}\n",
		"workspace = []\n[dependencies]\n", "[[workspace]]\n", "[workspace]\nchannels = {}\nplatforms = 1\n[environments]\ndefault = {target = [], platforms = {}}\n[target]\nlinux = []\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) { checkRead(t, in, "pixi.toml") })
}
