package conda

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// A judgement is the result of testdata/install/judge.py, which installs packages according
// to conda's documentation, with no code in common with hpcc.
type judgement struct {
	Files   map[string][3]string            // by path below the prefix: kind, mode, link's target or sha256
	Records map[string]map[string][3]string // by package and path: type, sha256 before, sha256 in the prefix
	Lists   map[string]*struct{ Paths []pathEntry }
	Order   []string
}

// judge returns the judgement on packages at /opt/conda. If judge.py cannot run, it skips the
// test, or fails it in CI.
func judge(t testing.TB, packages ...string) *judgement {
	t.Helper()
	err := exec.Command("/usr/bin/python3", "-c", "import conda_package_streaming.extract").Run()
	testenv.Need(t, "python3 with conda_package_streaming (Debian: python3-conda-package-streaming)", err)
	args := append([]string{"testdata/install/judge.py", "/opt/conda", filepath.Join(t.TempDir(), "prefix")}, packages...)
	j := &judgement{}
	testenv.Check(t, json.Unmarshal(condatest.Python(t, "", args...), j))
	return j
}

// A difference is an intended difference between hpcc and the judge. One that does not occur
// fails the test.
type difference struct {
	paths string // a regular expression
	what  string // "hpcc alone", "judge alone", "mode", "content", "record"
	why   string
}

// always lists the differences of every environment.
var always = []difference{
	{`^conda-meta(/.*)?$`, "hpcc alone", "the judge says what it installed in another way; its records are compared"},
}

var notCompiled = difference{`/__pycache__/[^/]+\.cpython-311\.pyc$`, "judge alone", "noarch packages are not compiled: the target's python is not run, which may be another machine's"}

// compare compares the files that hpcc installed with the judgement.
func (j *judgement) compare(t *testing.T, r *result, known ...difference) {
	t.Helper()
	seen := make([]int, len(known))
	differ := func(path, what, text string) {
		t.Helper()
		for i, d := range known {
			if d.what == what && regexp.MustCompile(d.paths).MatchString(path) {
				seen[i]++
				return
			}
		}
		t.Errorf("%s: %s %s", path, what, text)
	}
	ours := map[string][3]string{}
	for name := range r.files {
		if rel, ok := strings.CutPrefix(name, "opt/conda/"); ok {
			ours[rel] = asJudged(r.files, name)
		}
	}
	all := maps.Clone(ours)
	maps.Copy(all, j.Files)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		a, installed := ours[p]
		b, judged := j.Files[p]
		switch {
		case !judged:
			differ(p, "hpcc alone", a[0])
		case !installed:
			differ(p, "judge alone", b[0])
		case a[0] != b[0] || a[2] != b[2]:
			differ(p, "content", fmt.Sprintf("%q; the judge has %q", a, b))
		case a[1] != b[1]:
			differ(p, "mode", fmt.Sprintf("%s; the judge has %s", a[1], b[1]))
		}
	}
	j.compareRecords(t, r, differ)
	for i, d := range known {
		if seen[i] == 0 {
			t.Errorf("a known difference does not occur: %s %s: %s", d.paths, d.what, d.why)
		}
	}
	t.Logf("%d files, directories and links of %d packages were compared", len(all), len(j.Order))
}

// asJudged returns the judge's description of a file in a layer.
func asJudged(files map[string]condatest.Entry, name string) [3]string {
	e := files[name]
	mode := fmt.Sprintf("%o", e.Mode)
	switch e.Typeflag {
	case tar.TypeDir:
		return [3]string{"directory", mode, ""}
	case tar.TypeSymlink:
		return [3]string{"softlink", "777", e.Linkname}
	case tar.TypeLink:
		return asJudged(files, e.Linkname)
	}
	return [3]string{"file", mode, condatest.SHA256([]byte(e.Data))}
}

// compareRecords compares conda-meta, path by path.
func (j *judgement) compareRecords(t *testing.T, r *result, differ func(path, what, text string)) {
	t.Helper()
	for dist, theirs := range j.Records {
		ours := map[string][3]string{}
		for _, x := range record1(t, r, dist).PathsData.Paths {
			ours[x.Path] = [3]string{x.Type, x.SHA256, x.SHA256InPrefix}
		}
		all := maps.Clone(ours)
		maps.Copy(all, theirs)
		for p := range all {
			if ours[p] != theirs[p] {
				differ(p, "record", fmt.Sprintf("%q in %s; the judge has %q", ours[p], dist, theirs[p]))
			}
		}
	}
}

// shapesOf returns packages with all features of packages.
func shapesOf() []*testPkg {
	long := "#!" + holder + "/libexec/" + strings.Repeat("deep/", 30) + "python3.11 -s\nx\n"
	return []*testPkg{python("3.11.4"),
		{name: "shapes", files: []testFile{
			{path: "bin/tool", text: "#!" + holder + "/bin/python -u\n", mode: 0o755, prefix: holder}, {path: "bin/long", text: long, mode: 0o755, prefix: holder}, {path: "bin/su", text: "x", mode: 0o4755},
			{path: "lib/libx.so.1.2", text: "\x7fELF\x00" + holder + "/lib:" + holder + "/lib64\x00rest", prefix: holder, binary: true}, {path: "lib/libx.so", link: "libx.so.1.2"},
			{path: "lib/wide.so", text: "\x7fELF\x00" + wide(holder+"/lib", 0, 1) + "\x00\x00rest" + wide(holder, 0, 3) + "\x00\x00\x00\x00", prefix: holder, binary: true},
			{path: "lib/abs", link: "/etc/hostname"}, {path: "lib/dangling", link: "../nowhere"}, {path: "lib/hard", hard: "lib/libx.so.1.2", text: "\x7fELF\x00" + holder + "/lib:" + holder + "/lib64\x00rest", prefix: holder, binary: true},
			{path: "lib/locked", text: "x", mode: 0o444}, {path: "lib/data", text: "a\x00b"}, {path: "lib/dirlink", link: "sub"}, {path: "lib/sub/f", text: "f"},
			{path: "share/ünïcode " + strings.Repeat("long/", 40) + "x", text: "y"}, {path: "share/empty"}, {path: "share/unlisted", text: "z", unlisted: true}, {path: "share/made", dir: true, absent: true}, {path: "share/kept", dir: true, mode: 0o700},
			{path: "lib/python3.11/site-packages/s.py", text: "p=" + holder, prefix: holder}, {path: "lib/python3.11/site-packages/__pycache__/s.cpython-311.pyc", text: "1"},
		}},
		{name: "old", legacy: true, format: ".tar.bz2", noarch: "generic", subdir: "noarch", files: []testFile{{path: "etc/old name.conf", text: "root=" + holder, prefix: holder}, {path: "etc/old", text: holder + "\x00", prefix: holder, binary: true}, {path: "etc/l", link: "old"}},
			info: map[string]string{"has_prefix": fmt.Sprintf("%q text %q\n%s binary etc/old\n", holder, "etc/old name.conf", holder)}},
		{name: "pure", noarch: "python", subdir: "noarch", depends: []string{"python >=3.8"}, entryPoints: []string{"pure = pure.cli:main", "pure-class=pure.cli : Main.run"}, files: []testFile{
			{path: "site-packages/pure/__init__.py", text: "x = 1\n"}, {path: "site-packages/pure/cli.py", text: "root = '" + holder + "'\n", prefix: holder}, {path: "site-packages/pure/broken.py", text: "print 'python 2'\n"},
			{path: "python-scripts/script", text: "#!" + holder + "/bin/python\n", mode: 0o755, prefix: holder}, {path: "share/pure", text: "s"}, {path: "bin/pure", text: "the package's own"},
		}},
		{name: "clobber-a", files: []testFile{{path: "share/both", text: "a's"}, {path: "share/kind", link: "both"}, {path: "share/third", text: "a's"}}},
		{name: "clobber-b", files: []testFile{{path: "share/both", text: "b's"}, {path: "share/kind", text: "b's"}, {path: "share/third", text: "b's"}}},
		{name: "base-of-all", files: []testFile{{path: "share/third", text: "first"}}},
		{name: "above-all", depends: []string{"clobber-a", "clobber-b >=1", "base-of-all"}, files: []testFile{{path: "share/third", link: "above"}}},
		{name: "scripted", files: []testFile{{path: "bin/.scripted-post-link.sh", text: "echo made >$PREFIX/share/made-by-script\n", mode: 0o755}, {path: "bin/.scripted-pre-unlink.sh", text: "exit 1\n"}, {path: "Menu/scripted.json", text: "{}"}}},
	}
}

// TestOpinion installs generated packages: clobbered paths, hard and absolute links, prefixes
// in all encodings, old formats, link scripts.
func TestOpinion(t *testing.T) {
	pkgs := shapesOf()
	dir := newChannel(t, pkgs...)
	r, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: []string{dir}}})
	testenv.Check(t, err)
	j := judge(t, packageFiles(dir, r)...)
	j.compare(t, r, append(slices.Clone(always), notCompiled,
		difference{`^lib/python3.11/site-packages(/pure)?/__pycache__$`, "judge alone", "no compiled files in it"},
		difference{`^bin/su$`, "mode", "setuid bits are removed, with a note"},
		difference{`^lib/python3.11/site-packages/__pycache__/s\.cpython-311\.pyc$`, "record", "compiled from a source that has another content now: left out"},
		difference{`^lib/python3.11/site-packages/pure/__pycache__/.*\.pyc$`, "record", "not compiled"},
		difference{`^share/made-by-script$`, "judge alone", "link scripts are not run, with a note"},
		difference{`^share/(both|kind|third)$`, "record", "a path is only in the record of the package whose file was installed"},
	)...)
	if got, want := strings.Join(r.plan.Names(), " "), strings.Join(j.Order, " "); got != want {
		t.Errorf("installed in the order %s; the judge has %s", got, want)
	}
}

// packageFiles returns the archives in a channel that a plan installed.
func packageFiles(dir string, r *result) (files []string) {
	for _, p := range r.plan.pkgs {
		files = append(files, filepath.Join(dir, p.Subdir, p.FileName))
	}
	return files
}

// TestOpinionChannel installs the environment of real programs from testdata/helpers/channel, for two
// architectures, the second from the export of the first.
func TestOpinionChannel(t *testing.T) {
	testenv.Slow(t)
	dir := os.Getenv("HPCC_TEST_CHANNEL")
	text, err := os.ReadFile(filepath.Join(dir, "requirements.txt"))
	testenv.Need(t, "a conda channel in HPCC_TEST_CHANNEL (go run ./testdata/helpers/channel makes one)", err)
	for _, subdir := range []string{"linux-64", "linux-ppc64le"} {
		t.Run(subdir, func(t *testing.T) {
			r, err := install(t, condatest.NewStore(t), string(text), Options{Request: Request{Channels: []string{dir}}, Subdir: subdir, Libc: func() (Libc, error) { return Libc{Glibc: "2.36"}, nil }})
			testenv.Check(t, err)
			j := judge(t, packageFiles(dir, r)...)
			j.compare(t, r, append(slices.Clone(always), notCompiled,
				difference{`/__pycache__$`, "judge alone", "no compiled files in it"},
				difference{`/__pycache__/[^/]+\.pyc$`, "record", "not compiled"},
			)...)
			if len(j.Files) < 2000 || len(j.Order) < 25 {
				t.Errorf("only %d files of %d packages were compared", len(j.Files), len(j.Order))
			}
		})
	}
}

// TestOpinionReal compares real packages of any architecture with the judgement and, file by
// file, with their own info/paths.json.
func TestOpinionReal(t *testing.T) {
	real := func(pattern string) []string {
		files, err := filepath.Glob("testdata/packages/" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d packages, %v", pattern, len(files), err)
		}
		return files
	}
	linux, mac := real("zlib-*-h7b6447c_3.conda")[0], real("zlib-*-h1de35cc_3.conda")[0]
	for subdir, file := range map[string]string{"linux-64": linux, "osx-64": mac} {
		s := condatest.NewStore(t)
		_, err := install(t, s, explicitOf(t, file), Options{Subdir: subdir})
		refused(t, s, file, err, "link with an empty target")
	}
	py := python("3.11.4")
	pyFile := filepath.Join(newChannel(t, py), py.subdir, py.dist()+py.format)
	for _, c := range []struct {
		subdir string
		files  []string
		least  int // number of files that are compared with info/paths.json
		more   []difference
	}{
		{"linux-64", slices.Concat(real("*_package-*"), real("sample_*"), real("small-*"), real("clobber-*"), real("cph_*"), []string{pyFile, withLinks(t, linux, "libz.so.1.2.11")}), 30, []difference{notCompiled,
			{`/__pycache__$`, "judge alone", "no compiled files in it"}, {`/__pycache__/sample\.cpython-311\.pyc$`, "record", "not compiled"},
			{`^bin/clobber-test-file$`, "record", "a path is only in the record of the package whose file was installed"},
		}},
		{"osx-64", append(real("mock-*.conda"), withLinks(t, mac, "libz.1.2.11.dylib")), 39, nil},
		{"osx-64", real("mock-*.tar.bz2"), 32, nil},
	} {
		r, err := install(t, condatest.NewStore(t), explicitOf(t, c.files...), Options{Subdir: c.subdir})
		testenv.Check(t, err)
		j := judge(t, c.files...)
		j.compare(t, r, append(slices.Clone(always), c.more...)...)
		checked := 0
		for dist, list := range j.Lists {
			checked += ownWord(t, r, dist, list.Paths)
		}
		if checked != c.least {
			t.Errorf("%d files were compared with info/paths.json; want %d", checked, c.least)
		}
	}
}

// explicitOf returns an export of files.
func explicitOf(t *testing.T, files ...string) string {
	t.Helper()
	out := "@EXPLICIT\n"
	for _, f := range files {
		p, err := filepath.Abs(f)
		testenv.Check(t, err)
		out += p + "\n"
	}
	return out
}

// withLinks restores the lost link targets of a package.
func withLinks(t *testing.T, file, to string) string {
	t.Helper()
	z, err := zip.OpenReader(file)
	testenv.Check(t, err)
	defer z.Close()
	parts, err := condaParts(z.File)
	testenv.Check(t, err)
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i, part := range parts {
		r, err := part.Open()
		testenv.Check(t, err)
		b, err := io.ReadAll(r)
		testenv.Check(t, err)
		if i == 2 {
			b = zst(tarOf(func(tw *tar.Writer) error {
				return walkPart(part, 1<<20, func(h *tar.Header, r io.Reader) error {
					if h.Typeflag == tar.TypeSymlink {
						h.Linkname = to
					}
					if err := tw.WriteHeader(h); err != nil {
						return err
					}
					_, err := io.Copy(tw, r)
					return err
				})
			}))
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: part.Name, Method: zip.Store})
		if err == nil {
			_, err = f.Write(b)
		}
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	mended := filepath.Join(t.TempDir(), filepath.Base(file))
	testenv.Write(t, mended, out.Bytes())
	return mended
}

// ownWord compares the files of one package with its info/paths.json: types, sizes and
// digests. Files with a placeholder are compared before its replacement (from conda-meta)
// and after it. It returns the number of files.
func ownWord(t *testing.T, r *result, dist string, paths []pathEntry) (n int) {
	t.Helper()
	recorded := map[string]installed{}
	for _, x := range record1(t, r, dist).PathsData.Paths {
		recorded[x.Path] = x
	}
	for _, e := range paths {
		dst := e.Path
		if rest, ok := strings.CutPrefix(dst, "site-packages/"); ok {
			dst = "lib/python3.11/site-packages/" + rest
		}
		f := r.files["opt/conda/"+dst]
		x, ok := recorded[dst]
		if !ok && dst == "bin/clobber-test-file" && dist == "clobber-a-1.0-0" {
			continue // replaced by clobber-b's
		}
		if f.Header == nil || !ok || x.Type != e.Type || x.SHA256 != e.SHA256 || *x.Size != *e.Size {
			t.Errorf("%s of %s is recorded as %+v; info/paths.json has %+v", dst, dist, x, e)
			continue
		}
		n++
		switch now := condatest.SHA256([]byte(f.Data)); {
		case e.Type == "softlink": // size and digest are those of the target
			if to := recorded[filepath.Join(filepath.Dir(dst), f.Linkname)]; f.Typeflag != tar.TypeSymlink || (to.Type == "hardlink" && to.SHA256 != e.SHA256) {
				t.Errorf("%s of %s is %q -> %q", dst, dist, f.Typeflag, f.Linkname)
			}
		case now != x.SHA256InPrefix:
			t.Errorf("%s of %s has sha256 %s; its record has %s", dst, dist, now, x.SHA256InPrefix)
		case e.Placeholder == "" && (now != e.SHA256 || int64(len(f.Data)) != *e.Size):
			t.Errorf("%s of %s has sha256 %s; info/paths.json has %s", dst, dist, now, e.SHA256)
		case e.Placeholder != "" && (now == e.SHA256 || strings.Contains(f.Data, e.Placeholder) || !strings.Contains(f.Data, "/opt/conda")):
			t.Errorf("%s of %s has the placeholder, or not the prefix", dst, dist)
		}
	}
	return n
}
