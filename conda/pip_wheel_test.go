package conda

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
)

// pyTarget is python 3.11 on linux-64 with glibc 2.36.
func pyTarget(change func(t *pipTarget)) pipTarget {
	t := pipTarget{Subdir: "linux-64", Python: "3.11.4", Glibc: "2.36", Prefix: "/opt/conda"}
	if change != nil {
		change(&t)
	}
	return t
}

// pipRows reads rows, one a line.
func pipRows(t testing.TB, text string) []PipRequirement {
	t.Helper()
	var out []PipRequirement
	for i, l := range strings.Split(text, "\n") {
		if l == "" {
			continue
		}
		r, err := parsePipRequirement(l)
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		r.Line = i + 1
		out = append(out, r)
	}
	return out
}

// A pipResult is what rows became.
type pipResult struct {
	plan   *pipPlan
	layers []string // digests
	notes  []string
	files  map[string]tarEntry
}

// pipInstalled resolves and installs rows.
func pipInstalled(t testing.TB, text string, target pipTarget, o pipOptions) (*pipResult, error) {
	t.Helper()
	if o.File == "" {
		o.File = "pip.txt"
	}
	s := newStore(t)
	plan, err := resolvePip(quick(t), s, pipRows(t, text), target, o)
	if err != nil {
		return nil, err
	}
	layers, notes, err := plan.layers(quick(t), s, o)
	if err != nil {
		return nil, err
	}
	r := &pipResult{plan: plan, notes: append(plan.Notes, notes...), files: readLayers(t, layers)}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		r.layers = append(r.layers, d.String())
	}
	return r, nil
}

// fromDir looks for wheels in a directory alone.
func fromDir(dir string) pipOptions {
	return pipOptions{Indexes: PipIndexes{FindLinks: []string{dir}, NoIndex: true}, Closed: true}
}

func TestPipInstall(t *testing.T) {
	r, err := pipInstalled(t, "demo_pkg==1.2.post1", pyTarget(nil), fromDir(wheelDir(t, demoWheel)))
	if err != nil {
		t.Fatal(err)
	}
	site := "opt/conda/lib/python3.11/site-packages/"
	for _, c := range []struct {
		path string
		mode int64
		text string
	}{
		{site + "demo/__init__.py", 0o644, demoWheel.files[0].text},
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
		if f, ok := r.files[c.path]; !ok || f.data != c.text || f.Mode != c.mode {
			t.Errorf("%s: there %v, mode %o, text %q; want mode %o, text %q", c.path, ok, f.Mode, f.data, c.mode, c.text)
		}
	}
	if f := r.files[site+"demo/run.sh"]; !f.ModTime.Equal(wheelTime) {
		t.Errorf("the time of demo/run.sh is %v; want that in the wheel, %v", f.ModTime, wheelTime)
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
	want := "demo-pkg 1.2.post1 needs helper>=1, which nothing brings"
	if len(r.notes) != 1 || r.notes[0] != want {
		t.Errorf("notes = %q; want %q", r.notes, want)
	}
}

// checkRecord holds an installed RECORD to the files that were installed.
func checkRecord(t testing.TB, r *pipResult, record string) {
	t.Helper()
	rows, err := parseRecord([]byte(r.files[record].data))
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
		sum := sha256.Sum256([]byte(f.data))
		if p != record && (row.sum != recordSum("sha256", sum[:]) || row.size != fmt.Sprint(len(f.data))) {
			t.Errorf("%s: %s has %s, %s", record, name, row.sum, row.size)
		}
	}
	for p, f := range r.files {
		if f.Typeflag != tar.TypeDir && !seen[p] {
			t.Errorf("%s does not list %s", record, p)
		}
	}
}

// Two installations of one list give the same layers, on any machine.
func TestPipSame(t *testing.T) {
	other := testWheel{name: "other", version: "1", files: []wheelFile{{name: "other.py", text: "y = 1\n"}}}
	var before []string
	for range 2 {
		r, err := pipInstalled(t, "demo-pkg\nother", pyTarget(nil), fromDir(wheelDir(t, demoWheel, other)))
		if err != nil {
			t.Fatal(err)
		}
		if before != nil && strings.Join(before, " ") != strings.Join(r.layers, " ") {
			t.Errorf("layers %v, then %v", before, r.layers)
		}
		before = r.layers
	}
	r, err := pipInstalled(t, "demo-pkg\nother", pyTarget(func(t *pipTarget) { t.Subdir = "linux-ppc64le" }), fromDir(wheelDir(t, other, demoWheel)))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(before, " ") != strings.Join(r.layers, " ") {
		t.Errorf("layers of pure wheels are %v for one platform, %v for another", before, r.layers)
	}
}

func TestPipHostile(t *testing.T) {
	evil := func(change func(w *testWheel)) testWheel {
		w := testWheel{name: "evil", version: "1.0", files: []wheelFile{{name: "evil.py", text: "x\n"}}}
		change(&w)
		return w
	}
	added := func(f ...wheelFile) testWheel {
		return evil(func(w *testWheel) { w.files = append(w.files, f...) })
	}
	archive := func(change func(list []wheelFile) []wheelFile) testWheel {
		return evil(func(w *testWheel) { w.zip = change })
	}
	record := func(from, to string) testWheel {
		return evil(func(w *testWheel) {
			w.record = func(rows string) string { return strings.Replace(rows, from, to, 1) }
		})
	}
	for _, c := range []struct {
		name  string
		wheel testWheel
		want  string
	}{
		{"path up", added(wheelFile{name: "../x", text: "x"}), "path leaves the prefix"},
		{"path up in the middle", added(wheelFile{name: "a/../../x", text: "x"}), "path leaves the prefix"},
		{"path not plain", added(wheelFile{name: "a/../x", text: "x"}), "not the plain path"},
		{"path absolute", added(wheelFile{name: "/etc/passwd", text: "x"}), "path leaves the prefix"},
		{"path with a backslash", added(wheelFile{name: `..\x`, text: "x"}), "backslash"},
		{"path with a newline", added(wheelFile{name: "a\nb", text: "x"}), "control characters"},
		{"data up", added(wheelFile{name: "evil-1.0.data/data/../../../x", text: "x"}), "path leaves the prefix"},
		{"data of the record", added(wheelFile{name: "evil-1.0.data/data/conda-meta/python-3.json", text: "x"}), "where the record of the environment is kept"},
		{"data of an unknown kind", added(wheelFile{name: "evil-1.0.data/etc/x", text: "x"}), "none of purelib"},
		{"data of nothing", added(wheelFile{name: "evil-1.0.data/x", text: "x"}), "stands in no directory"},
		{"data of another", added(wheelFile{name: "other-1.0.data/data/x", text: "x"}), "of another distribution"},
		{"link", added(wheelFile{name: "l", text: "/etc/passwd", mode: fs.ModeSymlink | 0o777}), "it is a link or something special"},
		{"fifo", added(wheelFile{name: "f", mode: fs.ModeNamedPipe | 0o644}), "it is a link or something special"},
		{"encrypted", added(wheelFile{name: "f", text: "x", header: func(h *zip.FileHeader) { h.Flags |= 1 }}), "it is encrypted"},
		{"two for one place", added(wheelFile{name: "evil-1.0.data/purelib/evil.py", text: "x"}), "both go to"},
		{"twice in the archive", archive(func(l []wheelFile) []wheelFile { return append(l, l[0]) }), "twice"},
		{"below a file", added(wheelFile{name: "evil.py/x", text: "x"}), "which is no directory in evil-1.0"},
		{"two of dist-info", added(wheelFile{name: "other-1.0.dist-info/METADATA", text: "x"}), "two of *.dist-info"},
		{"no dist-info", archive(func(l []wheelFile) []wheelFile { return l[:1] }), `its *.dist-info is ""`},
		{"no RECORD", archive(func(l []wheelFile) []wheelFile { return l[:len(l)-1] }), "it has no RECORD"},
		{"not in RECORD", archive(func(l []wheelFile) []wheelFile { return append(l, wheelFile{name: "more.py", text: "x"}) }), `entry "more.py": RECORD does not list it`},
		{"not in the archive", record("evil.py,", "evil2.py,"), "RECORD lists \"evil2.py\", which the wheel does not hold"},
		{"other content", archive(func(l []wheelFile) []wheelFile { l[0].text = "y\n"; return l }), "its digest is sha256="},
		{"other content of a script", evil(func(w *testWheel) {
			w.files = append(w.files, wheelFile{name: "evil-1.0.data/scripts/s", text: "#!python\n1"})
			w.zip = func(l []wheelFile) []wheelFile { l[1].text = "#!python\n2"; return l }
		}), "its digest is sha256="},
		{"other size", record(",2\n", ",3\n"), "it has 2 bytes, RECORD says 3"},
		{"size that is none", record(",2\n", ",-2\n"), "its size in RECORD"},
		{"no digest", record("evil.py,sha256=", "evil.py,,2\nx,sha256="), "RECORD"},
		{"weak digest", record("evil.py,sha256=", "evil.py,md5="), `its digest in RECORD is "md5"`},
		{"RECORD of two fields", record("evil.py,", "evil.py\nx,"), "a row of 1 fields"},
		{"RECORD twice", record("evil.py,", "evil.py,,\nevil.py,"), "stands there twice"},
		{"METADATA of another", archive(func(l []wheelFile) []wheelFile {
			l[1].text = strings.Replace(l[1].text, "evil", "good", 1)
			return l
		}), "it holds good 1.0"},
		{"METADATA of another version", archive(func(l []wheelFile) []wheelFile {
			l[1].text = "Metadata-Version: 2.1\nName: evil\nVersion: 2\n"
			return l
		}), "it holds evil 2"},
		{"METADATA of the future", archive(func(l []wheelFile) []wheelFile {
			l[1].text = "Metadata-Version: 3.0\nName: evil\nVersion: 1.0\n"
			return l
		}), "Metadata-Version"},
		{"METADATA that is none", archive(func(l []wheelFile) []wheelFile { l[1].text = "<html>"; return l }), `Metadata-Version is ""`},
		{"dependency that is none", evil(func(w *testWheel) { w.meta = "Requires-Dist: a b c\n" }), "Requires-Dist"},
		{"format of the future", archive(func(l []wheelFile) []wheelFile { l[2].text = "Wheel-Version: 2.0\n"; return l }), "its Wheel-Version"},
		{"entry point with a path", evil(func(w *testWheel) { w.points = "[console_scripts]\n../x = a:b\n" }), "no plain name"},
		{"entry point with code", evil(func(w *testWheel) { w.points = "[console_scripts]\nx = a:b; import os\n" }), "no plain name"},
		{"entry point without a function", evil(func(w *testWheel) { w.points = "[gui_scripts]\nx = a\n" }), "not of the form"},
		{"many entry points", evil(func(w *testWheel) {
			w.points = "[console_scripts]\n"
			for i := range 10_000 + 1 {
				w.points += fmt.Sprintf("x%d=a:b\n", i)
			}
		}), "more than 10000 programs"},
		{"other python", evil(func(w *testWheel) { w.meta = "Requires-Python: <3.11.4\n" }), "it needs python <3.11.4, the environment has 3.11.4"},
		{"long dependency", evil(func(w *testWheel) { w.meta = "Requires-Dist: a" + strings.Repeat(" ", maxLine) + "b\n" }), "the row has more than"},
		{"no zip", archive(nil), "opening the wheel"},
	} {
		dir := wheelDir(t, c.wheel)
		if c.name == "no zip" {
			write(t, filepath.Join(dir, c.wheel.file()), []byte("<html>"))
		}
		_, err := pipInstalled(t, "evil==1.0", pyTarget(nil), fromDir(dir))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "evil-1.0-py3-none-any.whl") {
			t.Errorf("%s: %v; want %q and the wheel's name", c.name, err, c.want)
		}
	}
}

// A bomb is held to the size that its directory names, and that to RECORD's.
func TestPipBomb(t *testing.T) {
	w := testWheel{name: "bomb", version: "1", files: []wheelFile{{name: "bomb.bin", text: strings.Repeat("\x00", 8<<20)}}}
	w.record = func(rows string) string { return strings.Replace(rows, fmt.Sprint(8<<20), "5", 1) }
	_, err := pipInstalled(t, "bomb", pyTarget(nil), fromDir(wheelDir(t, w)))
	if want := "it has 8388608 bytes, RECORD says 5"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a wheel that lies of its size: %v; want %q", err, want)
	}
	w.zip = func(l []wheelFile) []wheelFile {
		l[len(l)-1].text = strings.Repeat("x", maxRecordFile+1) // RECORD itself
		return l
	}
	_, err = pipInstalled(t, "bomb", pyTarget(nil), fromDir(wheelDir(t, w)))
	if want := "reading RECORD: it is larger than"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a wheel with a large RECORD: %v; want %q", err, want)
	}
	// The archive's directory lies, as RECORD does.
	w.zip = nil
	raw := w.bytes(t)
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	lying := zip.NewWriter(&buf)
	for _, f := range z.File {
		h := f.FileHeader
		if h.Name == "bomb.bin" {
			h.UncompressedSize64 = 5
		}
		to, err := lying.CreateRaw(&h)
		if err != nil {
			t.Fatal(err)
		}
		from, err := f.OpenRaw()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(to, from); err != nil {
			t.Fatal(err)
		}
	}
	if err := lying.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, w.file()), buf.Bytes())
	if _, err = pipInstalled(t, "bomb", pyTarget(nil), fromDir(dir)); err == nil || !strings.Contains(err.Error(), `entry "bomb.bin": `) {
		t.Errorf("a wheel whose directory lies of a size: %v; want bomb.bin refused", err)
	}
}

// What several wheels or conda's packages have.
func TestPipClashes(t *testing.T) {
	a := testWheel{name: "a", version: "1", meta: "Requires-Dist: b\n", files: []wheelFile{{name: "ns/__init__.py", text: "a"}, {name: "a.py", text: "a"}}}
	b := testWheel{name: "b", version: "1", files: []wheelFile{{name: "ns/__init__.py", text: "b"}, {name: "b-1.data/data/bin/tool", text: "b"}}}
	site := "opt/conda/lib/python3.11/site-packages/"
	target := pyTarget(func(t *pipTarget) {
		t.Paths = map[string]pipOwner{"bin/tool": {Package: "tools"}, "lib": {Package: "base", Dir: true}}
	})
	r, err := pipInstalled(t, "a\nb", target, fromDir(wheelDir(t, a, b)))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.files[site+"ns/__init__.py"].data; got != "a" { // a needs b, so it is installed after it
		t.Errorf("ns/__init__.py is %q; want that of a", got)
	}
	want := []string{"1 paths are in b and in a, and the latter's are taken: lib/python3.11/site-packages/ns/__init__.py", "1 paths are in conda's tools and in b, and the latter's are taken: bin/tool"}
	if strings.Join(r.notes, "\n") != strings.Join(want, "\n") {
		t.Errorf("notes = %q; want %q", r.notes, want)
	}
	for _, c := range []struct {
		below pipOwner
		path  string
		want  string
	}{
		{pipOwner{Package: "base"}, "lib/python3.11", "lies below \"lib/python3.11\", which is no directory in conda's base"},
		{pipOwner{Package: "base", Dir: true}, "bin/tool", "is a directory in conda's base"},
	} {
		target.Paths = map[string]pipOwner{c.path: c.below}
		if _, err := pipInstalled(t, "a\nb", target, fromDir(wheelDir(t, a, b))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.path, err, c.want)
		}
	}
}

// What older tools made for an entry point is left out, in the record too, and
// what the installer writes itself is the installer's.
func TestPipOwnFiles(t *testing.T) {
	w := testWheel{name: "old", version: "1", points: "[console_scripts]\nold = old:main\n", files: []wheelFile{
		{name: "old.py", text: "x"},
		{name: "old-1.data/scripts/old", text: "#!python\nold wrapper\n"},
		{name: "old-1.data/scripts/old-script.py", text: "#!python\n"},
		{name: "old-1.data/scripts/plain", text: "#!python\n"},
		{name: "old-1.dist-info/INSTALLER", text: "other\n"},
		{name: "old-1.dist-info/RECORD.jws", text: "{}"},
		{name: "old-1.dist-info/direct_url.json", text: "{}"},
	}}
	r, err := pipInstalled(t, "old", pyTarget(nil), fromDir(wheelDir(t, w)))
	if err != nil {
		t.Fatal(err)
	}
	info := "opt/conda/lib/python3.11/site-packages/old-1.dist-info/"
	if got := r.files["opt/conda/bin/old"].data; !strings.Contains(got, "from old import main") {
		t.Errorf("bin/old is %q", got)
	}
	if got := r.files["opt/conda/bin/plain"]; got.Mode != 0o755 {
		t.Errorf("the mode of a script is %o; want 755, whatever the wheel says", got.Mode)
	}
	if _, ok := r.files["opt/conda/bin/old-script.py"]; ok {
		t.Error("bin/old-script.py was installed")
	}
	if got := r.files[info+"INSTALLER"].data; got != "pip\n" {
		t.Errorf("INSTALLER = %q", got)
	}
	if _, ok := r.files[info+"direct_url.json"]; ok {
		t.Error("the wheel's direct_url.json was installed")
	}
	rec := r.files[info+"RECORD"].data
	if !strings.Contains(rec, "old-1.dist-info/RECORD.jws,,\r\n") || strings.Contains(rec, "scripts") || !strings.Contains(rec, "../../../bin/plain,sha256=") {
		t.Errorf("RECORD = %s", rec)
	}
}

func TestPipDirect(t *testing.T) {
	w := testWheel{name: "direct", version: "1", files: []wheelFile{{name: "direct.py", text: "x"}}}
	dir := wheelDir(t, w)
	web := serve(t, dir, nil)
	sum := sha(w.bytes(t))
	info := "opt/conda/lib/python3.11/site-packages/direct-1.dist-info/"
	for _, c := range []struct{ row, url string }{
		{"direct @ " + web.URL + "/" + w.file(), web.URL + "/" + w.file()},
		{strings.Replace(web.URL, "//", "//user:secret@", 1) + "/" + w.file() + "#sha256=" + sum, web.URL + "/" + w.file()},
		{"./" + w.file() + " --hash=sha256:" + sum, ""},
		{filepath.Join(dir, w.file()), ""},
		{"direct @ file://" + filepath.Join(dir, w.file()), ""},
		{"file:" + filepath.Join(dir, w.file()), ""},
	} {
		r, err := pipInstalled(t, c.row, pyTarget(nil), pipOptions{Dir: dir, Indexes: PipIndexes{NoIndex: true}})
		if err != nil {
			t.Errorf("%s: %v", c.row, err)
			continue
		}
		want := ""
		if c.url != "" {
			want = fmt.Sprintf(`{"archive_info": {"hash": "sha256=%s", "hashes": {"sha256": "%s"}}, "url": "%s"}`, sum, sum, c.url)
		}
		if got := r.files[info+"direct_url.json"].data; got != want {
			t.Errorf("%s: direct_url.json = %s; want %s", c.row, got, want)
		}
		for name, f := range r.files {
			if strings.Contains(f.data, "secret") || strings.Contains(f.data, dir) {
				t.Errorf("%s: %s tells what it should not: %q", c.row, name, f.data)
			}
		}
	}
	wrong := strings.Repeat("0", 64)
	for _, row := range []string{"direct @ " + web.URL + "/" + w.file() + "#sha256=" + wrong, "./" + w.file() + " --hash=sha256:" + wrong} {
		if _, err := pipInstalled(t, row, pyTarget(nil), pipOptions{Dir: dir, Indexes: PipIndexes{NoIndex: true}}); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v; want the digest", row, err)
		}
	}
}

// FuzzWheel installs what claims to be a wheel: one file of any name, and
// RECORD, METADATA and entry_points.txt of any content.
func FuzzWheel(f *testing.F) {
	sum := sha256.Sum256([]byte("#!python\nx"))
	row := "," + recordSum("sha256", sum[:]) + ",10\n"
	f.Add("x-1.data/scripts/a", "x-1.data/scripts/a"+row, "Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: y\n", "[console_scripts]\nb=c:d\n")
	f.Add("../x", "../x"+row, "Name: x\n x\n\n", "[gui_scripts]\n../b=c:d\n")
	f.Add("x-1.data/data/conda-meta/x", "\"x\"\"\",,", "", "")
	name, err := parseWheelName("x-1-py3-none-any.whl")
	if err != nil {
		f.Fatal(err)
	}
	target := pyTarget(nil)
	f.Fuzz(func(t *testing.T, file, rows, metadata, points string) {
		members := []wheelFile{
			{name: file, text: "#!python\nx"}, {name: "x-1.dist-info/METADATA", text: metadata}, {name: "x-1.dist-info/WHEEL", text: "Wheel-Version: 1.0\n"},
			{name: "x-1.dist-info/entry_points.txt", text: points},
		}
		for _, m := range members[1:] { // of these RECORD is right
			sum := sha256.Sum256([]byte(m.text))
			rows += fmt.Sprintf("\n%s,%s,%d", m.name, recordSum("sha256", sum[:]), len(m.text))
		}
		var buf bytes.Buffer
		z := zip.NewWriter(&buf)
		for _, m := range append(members, wheelFile{name: "x-1.dist-info/RECORD", text: rows}) {
			if to, err := z.Create(m.name); err == nil {
				_, _ = io.WriteString(to, m.text)
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
		in := &pipInstall{wheel: w, pick: &pipPick{name: "x", file: &pipFile{}}, lost: map[string]bool{}}
		if _, err := (&pipPlan{target: target}).settle([]*pipInstall{in}); err != nil {
			return
		}
		var out bytes.Buffer
		lw := layer.NewWriter(&out, "/opt/conda")
		if err := in.install(t.Context(), lw, &target); err != nil {
			return
		}
		if err := lw.Close(); err != nil {
			t.Fatal(err)
		}
		got := readTar(t, &out)
		for name := range got {
			if strings.HasPrefix(name, "opt/conda/conda-meta") || (name != "opt" && name != "opt/conda" && !strings.HasPrefix(name, "opt/conda/")) {
				t.Fatalf("%q was installed", name)
			}
		}
		checkRecord(t, &pipResult{files: got}, "opt/conda/lib/python3.11/site-packages/x-1.dist-info/RECORD")
	})
}
