package exports

import (
	"os"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// prefixA holds the files of an environment as conda, mamba and pip write them.
var prefixA = map[string]string{
	"conda-meta/history": "==> 2024-01-01 00:00:00 <==\n",
	"conda-meta/state":   `{"env_vars": {"A": "1", "GONE": "***unset***"}}`,
	"conda-meta/xz-5.4.6-h5eee18b_1.json": `{"name": "xz", "version": "5.4.6", "build": "h5eee18b_1", "subdir": "linux-64", "channel": "https://c.example/t/secret/lab/linux-64",
		"url": "https://c.example/lab/linux-64/xz-5.4.6-h5eee18b_1.conda", "md5": "` + md5A + `", "sha256": "` + shaA + `", "size": 10, "files": [], "requested_spec": "xz"}`,
	"conda-meta/six-1.16.0-pyh_0.json": `{"name": "six", "version": "1.16.0", "build": "pyh_0", "build_string": "pyh_0", "subdir": "noarch", "noarch": "python", "channel": "https://c.example/lab",
		"url": "https://c.example/lab/noarch/six-1.16.0-pyh_0.conda", "requested_specs": ["six >=1"], "requested_spec": "None", "files": ["lib/python3.11/site-packages/six-1.16.0.dist-info/METADATA"]}`,
	"lib/python3.11/site-packages/six-1.16.0.dist-info/METADATA":        "Name: six\nVersion: 1.16.0\n",
	"lib/python3.11/site-packages/torch-2.1.2+cu118.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.1.2+cu118\n\nName: no\n",
	"lib/python3.11/site-packages/tool-1.dist-info/METADATA":            "Name: tool\nVersion: 1\n",
	"lib/python3.11/site-packages/tool-1.dist-info/direct_url.json":     `{"url": "https://git.example/tool", "vcs_info": {"vcs": "git", "commit_id": "abc"}}`,
	"lib/python3.11/site-packages/edit-0.9.dist-info/METADATA":          "Name: edit\nVersion: 0.9\n",
	"lib/python3.11/site-packages/edit-0.9.dist-info/direct_url.json":   `{"url": "file:///home/me/edit", "dir_info": {"editable": true}}`,
	"lib/python3.11/site-packages/whl-1.dist-info/METADATA":             "Name: whl\nVersion: 1\n",
	"lib/python3.11/site-packages/whl-1.dist-info/direct_url.json":      `{"url": "https://h.example/whl-1-py3-none-any.whl", "archive_info": {"hash": "sha256=` + shaA + `"}}`,
	"lib/python3.11/site-packages/old-2.egg-info/PKG-INFO":              "Name: old\nVersion: 2\n",
	"lib/python3.11/site-packages/broken.dist-info/METADATA":            "\n",
	"bin/xz": "no record",
}

const wantPrefixA = `environment, written on "linux-64", explicit true
0 entry six 1.16.0 pyh_0 https://c.example/lab https://c.example/lab/noarch/six-1.16.0-pyh_0.conda 0
0 entry xz 5.4.6 h5eee18b_1 https://c.example/lab/linux-64 https://c.example/lab/linux-64/xz-5.4.6-h5eee18b_1.conda ` + md5A + " " + shaA + ` 10
0 spec six >=1 true
0 spec xz true
0 pip -e file:///home/me/edit []  true
0 pip old==2 []  false
0 pip tool @ git+https://git.example/tool@abc []  false
0 pip torch==2.1.2+cu118 []  false
0 pip whl @ https://h.example/whl-1-py3-none-any.whl [sha256:` + shaA + `]  false
variable A="1"
note env: variable "GONE" is ignored
note env: site-packages/"broken.dist-info" has no valid name and version and is left out
note env: edit was installed from file:///home/me/edit, a directory on the machine of the environment
`

func TestReadPrefix(t *testing.T) {
	dir := testenv.Tree(t, prefixA)
	e, err := ReadPrefix(dir, ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	if got := strings.ReplaceAll(describe(e), dir, "env"); got != wantPrefixA {
		t.Errorf("ReadPrefix = %s\nwant %s", got, wantPrefixA)
	}
	// For another platform the packages are looked up by name.
	e, err = ReadPrefix(dir, ReadOptions{Subdir: "linux-ppc64le"})
	if err != nil || e.Explicit || e.Entries[1].URL != "" || e.Entries[1].String() != "xz=5.4.6=h5eee18b_1" {
		t.Errorf("ReadPrefix for another platform = %+v, %v", e, err)
	}
}

func TestReadPrefixRefuses(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"no environment", "bin/x", "", "no conda-meta"},
		{"no JSON", "conda-meta/a.json", "{", "unexpected end of JSON"},
		{"no build", "conda-meta/a.json", `{"name": "a", "version": "1"}`, "no build"},
		{"a path", "conda-meta/a.json", `{"name": "../a", "version": "1", "build": "0"}`, "is not a package name"},
		{"a digest", "conda-meta/a.json", `{"name": "a", "version": "1", "build": "0", "md5": "x"}`, "invalid md5 or sha256"},
		{"no packages", "conda-meta/history", "", "lists no package"},
		{"state", "conda-meta/state", "[]", "cannot unmarshal"},
	} {
		e, err := ReadPrefix(testenv.Tree(t, map[string]string{c.file: c.text}), ReadOptions{})
		if e != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: ReadPrefix = %v, %v; want %q", c.name, e, err, c.want)
		}
	}
	two := testenv.Tree(t, map[string]string{"conda-meta/lib-1.0-0.json": `{"name":"lib","version":"1.0","build":"0"}`, "conda-meta/lib-2.0-0.json": `{"name":"Lib","version":"2.0","build":"0"}`})
	if _, err := ReadPrefix(two, ReadOptions{}); err == nil || !strings.Contains(err.Error(), "conda-meta/lib-2.0-0.json: second record of lib, after lib-1.0-0.json") {
		t.Errorf("ReadPrefix with two records of a package = %v", err)
	}
	dir := t.TempDir()
	testenv.Check(t, os.Mkdir(dir+"/conda-meta", 0o755))
	testenv.Check(t, os.Symlink("/etc/passwd", dir+"/conda-meta/a.json"))
	if _, err := ReadPrefix(dir, ReadOptions{}); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("ReadPrefix with a symlink that leaves the prefix = %v; want an error", err)
	}
	if _, err := ReadPrefix(dir+"/none", ReadOptions{}); err == nil {
		t.Error("ReadPrefix of a missing directory returned no error")
	}
}
