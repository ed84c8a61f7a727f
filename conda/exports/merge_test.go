package exports

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// mergedFiles is a directory with exports to merge.
var mergedFiles = map[string]string{
	"base.yml":         "channels: [conda-forge]\ndependencies:\n- python=3.11\n- zlib=1.2=h0\n- pip:\n  - ./w/a.whl\nvariables: {A: one, B: one}\n",
	"dev/dev.yml":      "channels: [bioconda, conda-forge, pytorch]\ndependencies:\n- python<3.12\n- zlib=1.2=h0\n- pip:\n  - -r more.txt\n  - ./b.whl\n  - -f wheels\nvariables: {A: two}\n",
	"dev/more.txt":     "c==1\n",
	"requirements.txt": "d==1\n",
	"swap.yml":         "channels: [conda-forge, bioconda]\ndependencies: [x]\n",
	"zlib.yml":         "dependencies:\n- zlib=1.2=h1\n",
	"index.txt":        "-i https://one/simple\nd==1\n",
	"index2.txt":       "-i https://two/simple\nd==1\n",
	"lock.txt":         "@EXPLICIT\nhttps://h/c/linux-64/x-1-0.conda\n",
	"lock2.txt":        "@EXPLICIT\nhttps://h/c/linux-64/x-1-0.conda\nhttps://h/c/noarch/y-1-0.conda\n",
	"pylock.toml":      "lock-version = \"1.0\"\nrequires-python = \">=3.11\"\n[[packages]]\nname = \"p\"\nversion = \"1\"\nwheels = [{path = \"p-1-py3-none-any.whl\", hashes = {sha256 = \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}]\n",
	"dev/pylock.toml":  "lock-version = \"1.0\"\nrequires-python = \"<3.13\"\n[[packages]]\nname = \"q\"\nversion = \"1\"\nwheels = [{path = \"w/q-1-py3-none-any.whl\", hashes = {sha256 = \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}]\n",
	"amd.txt":          "# platform: linux-64\nx=1=0\n",
	"arm.txt":          "# platform: linux-aarch64\ny=1=0\n",
}

// TestReadFiles merges files that describe one environment.
func TestReadFiles(t *testing.T) {
	dir := testenv.Tree(t, mergedFiles)
	e, err := ReadFiles([]string{filepath.Join(dir, "base.yml"), filepath.Join(dir, "dev/dev.yml"), filepath.Join(dir, "requirements.txt")}, ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	var got []string
	for _, x := range e.Entries {
		got = append(got, fmt.Sprint(x, " ", x.File, ":", x.Line))
	}
	for _, s := range e.Specs {
		got = append(got, fmt.Sprint(s.Text, " ", s.File, ":", s.Line))
	}
	for _, p := range e.Pip {
		got = append(got, fmt.Sprint(p, " ", p.Within))
	}
	got = append(got, strings.Join(e.Channels, " "), strings.Join(e.PipIndexes.FindLinks, " "), fmt.Sprint(e.Variables), strings.Join(e.Notes, "\n"))
	want := `zlib=1.2=h0 DIR/base.yml:4
python=3.11 DIR/base.yml:3
python<3.12 DIR/dev/dev.yml:3
./w/a.whl DIR/base.yml:6
c==1 DIR/dev/more.txt:1
./dev/b.whl DIR/dev/dev.yml:7
d==1 DIR/requirements.txt:1
bioconda conda-forge pytorch
./dev/wheels
map[A:two B:one]
DIR/dev/dev.yml: variable A replaces that of an earlier file`
	if text := strings.ReplaceAll(strings.Join(got, "\n"), dir, "DIR"); text != want {
		t.Errorf("ReadFiles =\n%s\nwant\n%s", text, want)
	}
	e, err = ReadFiles([]string{filepath.Join(dir, "lock.txt"), filepath.Join(dir, "lock2.txt"), filepath.Join(dir, "requirements.txt")}, ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	if !e.Explicit || len(e.Entries) != 2 || len(e.Pip) != 1 {
		t.Errorf("locks and a list of pip: Explicit = %v with %v and %v; want true, 2 entries and 1 row", e.Explicit, e.Entries, e.Pip)
	}
	e, err = ReadFiles([]string{filepath.Join(dir, "base.yml"), filepath.Join(dir, "dev/pylock.toml")}, ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	if got := specTexts(e.Specs); got != "python=3.11,python<3.13" || e.Pip[1].Files[0].URL != "./dev/w/q-1-py3-none-any.whl" {
		t.Errorf("with a lock of pip packages: Specs = %s, Files = %v", got, e.Pip[1].Files)
	}
	e, err = ReadFiles([]string{filepath.Join(dir, "pylock.toml"), filepath.Join(dir, "dev/pylock.toml")}, ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	if got := specTexts(e.Python); got != "python>=3.11,python<3.13" || len(e.Specs) != 0 {
		t.Errorf("locks of pip packages: Python = %s; want both", got)
	}
	e, err = ReadFiles([]string{filepath.Join(dir, "dev/dev.yml"), filepath.Join(dir, "swap.yml")}, ReadOptions{Subdir: "linux-64", Channels: []string{"x"}})
	testenv.Check(t, err)
	if len(e.Specs) != 2 {
		t.Errorf("with the user's channels: Specs = %v; want those of both files", e.Specs)
	}
}

// TestReadFilesRefuses names both files and the reason.
func TestReadFilesRefuses(t *testing.T) {
	dir := testenv.Tree(t, mergedFiles)
	for files, want := range map[string]string{
		"base.yml zlib.yml":               "merging DIR/base.yml and DIR/zlib.yml: DIR/zlib.yml:2: zlib=1.2=h1 contradicts zlib=1.2=h0 in DIR/base.yml:4; remove one of them",
		"dev/dev.yml swap.yml":            "they order their channels differently (bioconda conda-forge pytorch; conda-forge bioconda); set the order with --channel",
		"index.txt index2.txt":            "they name different package indexes; write one of them as --extra-index-url",
		"requirements.txt lock.txt z.yml": "no such file",
		"lock.txt base.yml":               "DIR/lock.txt is the lock of a complete environment, to which no conda packages can be added",
		"swap.yml lock.txt":               "DIR/lock.txt is the lock of a complete environment",
		"amd.txt arm.txt":                 "one is for linux-64 and the other for linux-aarch64",
	} {
		var names []string
		for _, f := range strings.Fields(files) {
			names = append(names, filepath.Join(dir, f))
		}
		_, err := ReadFiles(names, ReadOptions{Subdir: "linux-64"})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), dir, "DIR"), want) {
			t.Errorf("%s: error %v; want %q", files, err, want)
		}
	}
}
