package pip

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/layer"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// pyTarget is python 3.11 on linux-64 with glibc 2.36.
func pyTarget(change func(t *Target)) Target {
	t := Target{Subdir: "linux-64", Python: "3.11.4", Glibc: "2.36", Prefix: "/opt/conda"}
	if change != nil {
		change(&t)
	}
	return t
}

// readRows parses rows, one per line.
func readRows(t testing.TB, text string) []Requirement {
	t.Helper()
	var out []Requirement
	for i, l := range strings.Split(text, "\n") {
		if l == "" {
			continue
		}
		r, err := ParseRequirement(l)
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		r.Line = i + 1
		out = append(out, r)
	}
	return out
}

// A result is an installed plan.
type result struct {
	plan   *Plan
	layers []string // digests
	notes  []string
	files  map[string]condatest.Entry
}

// installed resolves and installs rows.
func installed(t testing.TB, text string, target Target, o Options) (*result, error) {
	t.Helper()
	if o.File == "" {
		o.File = "pip.txt"
	}
	s := condatest.NewStore(t)
	plan, err := Resolve(condatest.Quick(t), s, readRows(t, text), target, o)
	if err != nil {
		return nil, err
	}
	layers, notes, err := plan.Layers(condatest.Quick(t), s, o)
	if err != nil {
		return nil, err
	}
	r := &result{plan: plan, notes: append(plan.Notes, notes...), files: condatest.ReadLayers(t, layers)}
	for _, l := range layers {
		d, err := l.Digest()
		testenv.Check(t, err)
		r.layers = append(r.layers, d.String())
	}
	return r, nil
}

// fromDir returns options that use only a directory of wheels.
func fromDir(dir string) Options {
	return Options{Indexes: Indexes{FindLinks: []string{dir}, NoIndex: true}, Closed: true}
}

func TestInstall(t *testing.T) {
	r, err := installed(t, "demo_pkg==1.2.post1", pyTarget(nil), fromDir(condatest.WheelDir(t, condatest.DemoWheel)))
	testenv.Check(t, err)
	site := "opt/conda/lib/python3.11/site-packages/"
	for _, c := range []struct {
		path string
		mode int64
		text string
	}{
		{site + "demo/__init__.py", 0o644, condatest.DemoWheel.Files[0].Text},
		{site + "demo/run.sh", 0o755, "#!/bin/sh\n"},
		{site + "nspace/part/one.py", 0o644, "x = 1\n"},
		{site + "demo_pure.py", 0o644, "pure = 1\n"},
		{site + "demo_plat.py", 0o644, "plat = 1\n"},
		{"opt/conda/bin/demo-script", 0o755, "#!/opt/conda/bin/python3.11\nprint('script')\n"},
		{"opt/conda/bin/demo-gui.w", 0o755, "#!/opt/conda/bin/python3.11\nprint('gui')\n"},
		{"opt/conda/bin/demo.sh", 0o755, "#!/bin/sh\necho demo\n"},
		{"opt/conda/include/python3.11/Demo-Pkg/demo.h", 0o644, "/* demo */\n"},
		{"opt/conda/share/demo/data.txt", 0o644, "data\n"},
		{site + "Demo_Pkg-1.2.post1.dist-info/INSTALLER", 0o644, "pip\n"},
		{site + "Demo_Pkg-1.2.post1.dist-info/REQUESTED", 0o644, ""},
		{"opt/conda/bin/demo-x", 0o755, "#!/opt/conda/bin/python3.11\n# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom demo.sub import cls\nif __name__ == '__main__':\n    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n    sys.exit(cls.run())\n"},
	} {
		if f, ok := r.files[c.path]; !ok || f.Data != c.text || f.Mode != c.mode {
			t.Errorf("%s: installed %v, mode %o, text %q; want mode %o, text %q", c.path, ok, f.Mode, f.Data, c.mode, c.text)
		}
	}
	if f := r.files[site+"demo/run.sh"]; !f.ModTime.Equal(condatest.WheelTime) {
		t.Errorf("the time of demo/run.sh is %v; want that in the wheel, %v", f.ModTime, condatest.WheelTime)
	}
	for name, f := range r.files {
		if f.Uid != 0 || f.Gid != 0 || !strings.HasPrefix(name, "opt") {
			t.Errorf("%s belongs to %d:%d", name, f.Uid, f.Gid)
		}
	}
	if _, ok := r.files[site+"Demo_Pkg-1.2.post1.dist-info/direct_url.json"]; ok {
		t.Error("a wheel of an index has direct_url.json")
	}
	checkRecord(t, r, site+"Demo_Pkg-1.2.post1.dist-info/RECORD")
	want := "demo-pkg 1.2.post1 needs helper>=1, which no package provides"
	if len(r.notes) != 1 || r.notes[0] != want {
		t.Errorf("notes = %q; want %q", r.notes, want)
	}
}

// checkRecord compares an installed RECORD with the installed files.
func checkRecord(t testing.TB, r *result, record string) {
	t.Helper()
	rows, err := parseRecord([]byte(r.files[record].Data))
	if err != nil {
		t.Fatalf("%s: %v", record, err)
	}
	site := filepath.Dir(filepath.Dir(record))
	seen := map[string]bool{}
	for name, row := range rows {
		p := filepath.Join(site, name)
		f, ok := r.files[p]
		if seen[p] = true; !ok {
			t.Errorf("%s lists %s, which is not installed", record, name)
		}
		sum := sha256.Sum256([]byte(f.Data))
		if p != record && (row.sum != recordSum("sha256", sum[:]) || row.size != fmt.Sprint(len(f.Data))) {
			t.Errorf("%s: %s has %s, %s", record, name, row.sum, row.size)
		}
	}
	for p, f := range r.files {
		if f.Typeflag != tar.TypeDir && !seen[p] {
			t.Errorf("%s does not list %s", record, p)
		}
	}
}

// TestSame checks that two installations of one list give the same layers, on any machine.
func TestSame(t *testing.T) {
	other := condatest.Wheel{Name: "other", Version: "1", Files: []condatest.WheelFile{{Name: "other.py", Text: "y = 1\n"}}}
	var before []string
	for range 2 {
		r, err := installed(t, "demo-pkg\nother", pyTarget(nil), fromDir(condatest.WheelDir(t, condatest.DemoWheel, other)))
		testenv.Check(t, err)
		if before != nil && strings.Join(before, " ") != strings.Join(r.layers, " ") {
			t.Errorf("layers %v, then %v", before, r.layers)
		}
		before = r.layers
	}
	r, err := installed(t, "demo-pkg\nother", pyTarget(func(t *Target) { t.Subdir = "linux-ppc64le" }), fromDir(condatest.WheelDir(t, other, condatest.DemoWheel)))
	testenv.Check(t, err)
	if strings.Join(before, " ") != strings.Join(r.layers, " ") {
		t.Errorf("layers of pure wheels are %v for one platform, %v for another", before, r.layers)
	}
}

func TestHostile(t *testing.T) {
	evil := func(change func(w *condatest.Wheel)) condatest.Wheel {
		w := condatest.Wheel{Name: "evil", Version: "1.0", Files: []condatest.WheelFile{{Name: "evil.py", Text: "x\n"}}}
		change(&w)
		return w
	}
	added := func(f ...condatest.WheelFile) condatest.Wheel {
		return evil(func(w *condatest.Wheel) { w.Files = append(w.Files, f...) })
	}
	archive := func(change func(list []condatest.WheelFile) []condatest.WheelFile) condatest.Wheel {
		return evil(func(w *condatest.Wheel) { w.Zip = change })
	}
	record := func(from, to string) condatest.Wheel {
		return evil(func(w *condatest.Wheel) {
			w.Record = func(rows string) string { return strings.Replace(rows, from, to, 1) }
		})
	}
	for _, c := range []struct {
		name  string
		wheel condatest.Wheel
		want  string
	}{
		{"path up", added(condatest.WheelFile{Name: "../x", Text: "x"}), "path leaves the prefix"},
		{"path up in the middle", added(condatest.WheelFile{Name: "a/../../x", Text: "x"}), "path leaves the prefix"},
		{"path not plain", added(condatest.WheelFile{Name: "a/../x", Text: "x"}), "not a plain file path"},
		{"path absolute", added(condatest.WheelFile{Name: "/etc/passwd", Text: "x"}), "path leaves the prefix"},
		{"path with a backslash", added(condatest.WheelFile{Name: `..\x`, Text: "x"}), "backslash"},
		{"path with a newline", added(condatest.WheelFile{Name: "a\nb", Text: "x"}), "control characters"},
		{"data up", added(condatest.WheelFile{Name: "evil-1.0.data/data/../../../x", Text: "x"}), "path leaves the prefix"},
		{"data of the record", added(condatest.WheelFile{Name: "evil-1.0.data/data/conda-meta/python-3.json", Text: "x"}), "the environment's conda-meta"},
		{"data of an unknown kind", added(condatest.WheelFile{Name: "evil-1.0.data/etc/x", Text: "x"}), "unknown scheme"},
		{"data of nothing", added(condatest.WheelFile{Name: "evil-1.0.data/x", Text: "x"}), "directly in the .data directory"},
		{"data of another", added(condatest.WheelFile{Name: "other-1.0.data/data/x", Text: "x"}), "belongs to a distribution other than"},
		{"link", added(condatest.WheelFile{Name: "l", Text: "/etc/passwd", Mode: fs.ModeSymlink | 0o777}), "wheels cannot contain links or special files"},
		{"fifo", added(condatest.WheelFile{Name: "f", Mode: fs.ModeNamedPipe | 0o644}), "wheels cannot contain links or special files"},
		{"encrypted", added(condatest.WheelFile{Name: "f", Text: "x", Header: func(h *zip.FileHeader) { h.Flags |= 1 }}), "it is encrypted"},
		{"two for one destination", added(condatest.WheelFile{Name: "evil-1.0.data/purelib/evil.py", Text: "x"}), "have the same destination"},
		{"twice in the archive", archive(func(l []condatest.WheelFile) []condatest.WheelFile { return append(l, l[0]) }), "duplicate entry"},
		{"below a file", added(condatest.WheelFile{Name: "evil.py/x", Text: "x"}), "which is not a directory in evil-1.0"},
		{"two of dist-info", added(condatest.WheelFile{Name: "other-1.0.dist-info/METADATA", Text: "x"}), "more than one *.dist-info directory"},
		{"no dist-info", archive(func(l []condatest.WheelFile) []condatest.WheelFile { return l[:1] }), "no *.dist-info directory"},
		{"no RECORD", archive(func(l []condatest.WheelFile) []condatest.WheelFile { return l[:len(l)-1] }), "missing RECORD"},
		{"not in RECORD", archive(func(l []condatest.WheelFile) []condatest.WheelFile {
			return append(l, condatest.WheelFile{Name: "more.py", Text: "x"})
		}), `entry "more.py": RECORD does not list it`},
		{"not in the archive", record("evil.py,", "evil2.py,"), "RECORD lists \"evil2.py\", which is not in the wheel"},
		{"other content", archive(func(l []condatest.WheelFile) []condatest.WheelFile { l[0].Text = "y\n"; return l }), "digest mismatch: sha256="},
		{"other content of a script", evil(func(w *condatest.Wheel) {
			w.Files = append(w.Files, condatest.WheelFile{Name: "evil-1.0.data/scripts/s", Text: "#!python\n1"})
			w.Zip = func(l []condatest.WheelFile) []condatest.WheelFile { l[1].Text = "#!python\n2"; return l }
		}), "digest mismatch: sha256="},
		{"other size", record(",2\n", ",3\n"), "size mismatch: 2 bytes, RECORD lists 3"},
		{"invalid size", record(",2\n", ",-2\n"), "invalid size"},
		{"no digest", record("evil.py,sha256=", "evil.py,,2\nx,sha256="), "RECORD"},
		{"weak digest", record("evil.py,sha256=", "evil.py,md5="), `unsupported digest "md5" in RECORD`},
		{"RECORD of two fields", record("evil.py,", "evil.py\nx,"), "row with 1 fields"},
		{"RECORD twice", record("evil.py,", "evil.py,,\nevil.py,"), "duplicate row"},
		{"METADATA of another", archive(func(l []condatest.WheelFile) []condatest.WheelFile {
			l[1].Text = strings.Replace(l[1].Text, "evil", "good", 1)
			return l
		}), "it contains good 1.0"},
		{"METADATA of another version", archive(func(l []condatest.WheelFile) []condatest.WheelFile {
			l[1].Text = "Metadata-Version: 2.1\nName: evil\nVersion: 2\n"
			return l
		}), "it contains evil 2"},
		{"METADATA of the future", archive(func(l []condatest.WheelFile) []condatest.WheelFile {
			l[1].Text = "Metadata-Version: 3.0\nName: evil\nVersion: 1.0\n"
			return l
		}), "Metadata-Version"},
		{"invalid METADATA", archive(func(l []condatest.WheelFile) []condatest.WheelFile { l[1].Text = "<html>"; return l }), `unsupported Metadata-Version ""`},
		{"invalid dependency", evil(func(w *condatest.Wheel) { w.Meta = "Requires-Dist: a b c\n" }), "Requires-Dist"},
		{"format of the future", archive(func(l []condatest.WheelFile) []condatest.WheelFile { l[2].Text = "Wheel-Version: 2.0\n"; return l }), "unsupported Wheel-Version"},
		{"entry point with a path", evil(func(w *condatest.Wheel) { w.Points = "[console_scripts]\n../x = a:b\n" }), "invalid command, module or function name"},
		{"entry point with code", evil(func(w *condatest.Wheel) { w.Points = "[console_scripts]\nx = a:b; import os\n" }), "invalid command, module or function name"},
		{"entry point without a function", evil(func(w *condatest.Wheel) { w.Points = "[gui_scripts]\nx = a\n" }), "not of the form"},
		{"many entry points", evil(func(w *condatest.Wheel) {
			w.Points = "[console_scripts]\n"
			for i := range 10_000 + 1 {
				w.Points += fmt.Sprintf("x%d=a:b\n", i)
			}
		}), "more than 10000 programs"},
		{"other python", evil(func(w *condatest.Wheel) { w.Meta = "Requires-Python: <3.11.4\n" }), "it needs python <3.11.4, but the environment has 3.11.4"},
		{"long dependency", evil(func(w *condatest.Wheel) { w.Meta = "Requires-Dist: a" + strings.Repeat(" ", maxRow) + "b\n" }), "the row has more than"},
		{"no zip", archive(nil), "opening the wheel"},
	} {
		dir := condatest.WheelDir(t, c.wheel)
		if c.name == "no zip" {
			testenv.Write(t, filepath.Join(dir, c.wheel.File()), []byte("<html>"))
		}
		_, err := installed(t, "evil==1.0", pyTarget(nil), fromDir(dir))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "evil-1.0-py3-none-any.whl") {
			t.Errorf("%s: %v; want %q and the wheel's name", c.name, err, c.want)
		}
	}
}

// TestBomb limits a zip bomb to the size in the archive's directory, which must match RECORD.
func TestBomb(t *testing.T) {
	w := condatest.Wheel{Name: "bomb", Version: "1", Files: []condatest.WheelFile{{Name: "bomb.bin", Text: strings.Repeat("\x00", 8<<20)}}}
	w.Record = func(rows string) string { return strings.Replace(rows, fmt.Sprint(8<<20), "5", 1) }
	_, err := installed(t, "bomb", pyTarget(nil), fromDir(condatest.WheelDir(t, w)))
	if want := "size mismatch: 8388608 bytes, RECORD lists 5"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a wheel with a wrong size: %v; want %q", err, want)
	}
	w.Zip = func(l []condatest.WheelFile) []condatest.WheelFile {
		l[len(l)-1].Text = strings.Repeat("x", maxRecordFile+1) // RECORD itself
		return l
	}
	_, err = installed(t, "bomb", pyTarget(nil), fromDir(condatest.WheelDir(t, w)))
	if want := "reading RECORD: larger than"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a wheel with a large RECORD: %v; want %q", err, want)
	}
	// The archive's directory has the same wrong size as RECORD.
	w.Zip = nil
	raw := w.Bytes(t)
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	testenv.Check(t, err)
	var buf bytes.Buffer
	lying := zip.NewWriter(&buf)
	for _, f := range z.File {
		h := f.FileHeader
		if h.Name == "bomb.bin" {
			h.UncompressedSize64 = 5
		}
		to, err := lying.CreateRaw(&h)
		testenv.Check(t, err)
		from, err := f.OpenRaw()
		testenv.Check(t, err)
		_, err = io.Copy(to, from)
		testenv.Check(t, err)
	}
	testenv.Check(t, lying.Close())
	dir := t.TempDir()
	testenv.Write(t, filepath.Join(dir, w.File()), buf.Bytes())
	if _, err = installed(t, "bomb", pyTarget(nil), fromDir(dir)); err == nil || !strings.Contains(err.Error(), `entry "bomb.bin": `) {
		t.Errorf("a wheel whose directory has a wrong size: %v; want bomb.bin refused", err)
	}
}

// TestClashes installs paths that several wheels or conda packages have.
func TestClashes(t *testing.T) {
	a := condatest.Wheel{Name: "a", Version: "1", Meta: "Requires-Dist: b\n", Files: []condatest.WheelFile{{Name: "ns/__init__.py", Text: "a"}, {Name: "a.py", Text: "a"}}}
	b := condatest.Wheel{Name: "b", Version: "1", Files: []condatest.WheelFile{{Name: "ns/__init__.py", Text: "b"}, {Name: "b-1.data/data/bin/tool", Text: "b"}}}
	site := "opt/conda/lib/python3.11/site-packages/"
	target := pyTarget(func(t *Target) {
		t.Paths = map[string]Owner{"bin/tool": {Package: "tools"}, "lib": {Package: "base", Dir: true}}
	})
	r, err := installed(t, "a\nb", target, fromDir(condatest.WheelDir(t, a, b)))
	testenv.Check(t, err)
	if got := r.files[site+"ns/__init__.py"].Data; got != "a" { // a needs b, so it is installed after it
		t.Errorf("ns/__init__.py is %q; want that of a", got)
	}
	want := []string{"1 path is in both b and a; the latter's are used: lib/python3.11/site-packages/ns/__init__.py", "1 path is in both the conda package tools and b; the latter's are used: bin/tool"}
	if strings.Join(r.notes, "\n") != strings.Join(want, "\n") {
		t.Errorf("notes = %q; want %q", r.notes, want)
	}
	for _, c := range []struct {
		below Owner
		path  string
		want  string
	}{
		{Owner{Package: "base"}, "lib/python3.11", "lies below \"lib/python3.11\", which is not a directory in the conda package base"},
		{Owner{Package: "base", Dir: true}, "bin/tool", "is a directory in the conda package base"},
	} {
		target.Paths = map[string]Owner{c.path: c.below}
		if _, err := installed(t, "a\nb", target, fromDir(condatest.WheelDir(t, a, b))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.path, err, c.want)
		}
	}
}

// TestOwnFiles omits scripts that older tools generated for an entry point, also from RECORD.
// The installer writes its own files itself.
func TestOwnFiles(t *testing.T) {
	w := condatest.Wheel{Name: "old", Version: "1", Points: "[console_scripts]\nold = old:main\n", Files: []condatest.WheelFile{
		{Name: "old.py", Text: "x"},
		{Name: "old-1.data/scripts/old", Text: "#!python\nold wrapper\n"},
		{Name: "old-1.data/scripts/old-script.py", Text: "#!python\n"},
		{Name: "old-1.data/scripts/plain", Text: "#!python\n"},
		{Name: "old-1.dist-info/INSTALLER", Text: "other\n"},
		{Name: "old-1.dist-info/RECORD.jws", Text: "{}"},
		{Name: "old-1.dist-info/direct_url.json", Text: "{}"},
	}}
	r, err := installed(t, "old", pyTarget(nil), fromDir(condatest.WheelDir(t, w)))
	testenv.Check(t, err)
	info := "opt/conda/lib/python3.11/site-packages/old-1.dist-info/"
	if got := r.files["opt/conda/bin/old"].Data; !strings.Contains(got, "from old import main") {
		t.Errorf("bin/old is %q", got)
	}
	if got := r.files["opt/conda/bin/plain"]; got.Mode != 0o755 {
		t.Errorf("the mode of a script is %o; want 755, whatever the wheel says", got.Mode)
	}
	if _, ok := r.files["opt/conda/bin/old-script.py"]; ok {
		t.Error("bin/old-script.py was installed")
	}
	if got := r.files[info+"INSTALLER"].Data; got != "pip\n" {
		t.Errorf("INSTALLER = %q", got)
	}
	if _, ok := r.files[info+"direct_url.json"]; ok {
		t.Error("the wheel's direct_url.json was installed")
	}
	rec := r.files[info+"RECORD"].Data
	if !strings.Contains(rec, "old-1.dist-info/RECORD.jws,,\r\n") || strings.Contains(rec, "scripts") || !strings.Contains(rec, "../../../bin/plain,sha256=") {
		t.Errorf("RECORD = %s", rec)
	}
}

func TestDirect(t *testing.T) {
	w := condatest.Wheel{Name: "direct", Version: "1", Files: []condatest.WheelFile{{Name: "direct.py", Text: "x"}}}
	dir := condatest.WheelDir(t, w)
	web := condatest.Serve(t, dir, nil)
	sum := condatest.SHA256(w.Bytes(t))
	info := "opt/conda/lib/python3.11/site-packages/direct-1.dist-info/"
	for _, c := range []struct{ row, url string }{
		{"direct @ " + web.URL + "/" + w.File(), web.URL + "/" + w.File()},
		{strings.Replace(web.URL, "//", "//user:secret@", 1) + "/" + w.File() + "#sha256=" + sum, web.URL + "/" + w.File()},
		{"./" + w.File() + " --hash=sha256:" + sum, ""},
		{filepath.Join(dir, w.File()), ""},
		{"direct @ file://" + filepath.Join(dir, w.File()), ""},
		{"file:" + filepath.Join(dir, w.File()), ""},
	} {
		r, err := installed(t, c.row, pyTarget(nil), Options{Dir: dir, Indexes: Indexes{NoIndex: true}})
		if err != nil {
			t.Errorf("%s: %v", c.row, err)
			continue
		}
		want := ""
		if c.url != "" {
			want = fmt.Sprintf(`{"archive_info": {"hash": "sha256=%s", "hashes": {"sha256": "%s"}}, "url": "%s"}`, sum, sum, c.url)
		}
		if got := r.files[info+"direct_url.json"].Data; got != want {
			t.Errorf("%s: direct_url.json = %s; want %s", c.row, got, want)
		}
		for name, f := range r.files {
			if strings.Contains(f.Data, "secret") || strings.Contains(f.Data, dir) {
				t.Errorf("%s: %s contains local paths or credentials: %q", c.row, name, f.Data)
			}
		}
	}
	wrong := strings.Repeat("0", 64)
	for _, row := range []string{"direct @ " + web.URL + "/" + w.File() + "#sha256=" + wrong, "./" + w.File() + " --hash=sha256:" + wrong} {
		if _, err := installed(t, row, pyTarget(nil), Options{Dir: dir, Indexes: Indexes{NoIndex: true}}); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v; want the digest", row, err)
		}
	}
}

// FuzzWheel installs arbitrary wheels: one file of any name, and RECORD, METADATA and
// entry_points.txt of any content.
func FuzzWheel(f *testing.F) {
	sum := sha256.Sum256([]byte("#!python\nx"))
	row := "," + recordSum("sha256", sum[:]) + ",10\n"
	f.Add("x-1.data/scripts/a", "x-1.data/scripts/a"+row, "Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: y\n", "[console_scripts]\nb=c:d\n")
	f.Add("../x", "../x"+row, "Name: x\n x\n\n", "[gui_scripts]\n../b=c:d\n")
	f.Add("x-1.data/data/conda-meta/x", "\"x\"\"\",,", "", "")
	name, err := parseWheelName("x-1-py3-none-any.whl")
	testenv.Check(f, err)
	target := pyTarget(nil)
	f.Fuzz(func(t *testing.T, file, rows, metadata, points string) {
		members := []condatest.WheelFile{
			{Name: file, Text: "#!python\nx"}, {Name: "x-1.dist-info/METADATA", Text: metadata}, {Name: "x-1.dist-info/WHEEL", Text: "Wheel-Version: 1.0\n"},
			{Name: "x-1.dist-info/entry_points.txt", Text: points},
		}
		for _, m := range members[1:] { // of these RECORD is valid
			sum := sha256.Sum256([]byte(m.Text))
			rows += fmt.Sprintf("\n%s,%s,%d", m.Name, recordSum("sha256", sum[:]), len(m.Text))
		}
		var buf bytes.Buffer
		z := zip.NewWriter(&buf)
		for _, m := range append(members, condatest.WheelFile{Name: "x-1.dist-info/RECORD", Text: rows}) {
			if to, err := z.Create(m.Name); err == nil {
				_, _ = io.WriteString(to, m.Text)
			}
		}
		if err := z.Close(); err != nil {
			return
		}
		r, err := zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
		if err != nil {
			return
		}
		w := &wheel{zip: r, name: name}
		files, err := w.contents()
		if err == nil {
			err = w.read(files, &target)
		}
		if err != nil {
			return
		}
		in := &installation{wheel: w, pick: &pick{name: "x", file: &indexFile{}}, lost: map[string]bool{}}
		if _, err := (&Plan{target: target}).settle([]*installation{in}); err != nil {
			return
		}
		var out bytes.Buffer
		lw := layer.NewWriter(&out, "/opt/conda")
		if err := in.install(t.Context(), lw, &target); err != nil {
			return
		}
		testenv.Check(t, lw.Close())
		got := condatest.ReadTar(t, &out)
		for name := range got {
			if strings.HasPrefix(name, "opt/conda/conda-meta") || (name != "opt" && name != "opt/conda" && !strings.HasPrefix(name, "opt/conda/")) {
				t.Fatalf("%q was installed", name)
			}
		}
		checkRecord(t, &result{files: got}, "opt/conda/lib/python3.11/site-packages/x-1.dist-info/RECORD")
	})
}
