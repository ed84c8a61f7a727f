package conda

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/input"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// evil returns a package with one file, after a change.
func evil(change func(p *testPkg)) *testPkg {
	p := &testPkg{name: "evil", files: []testFile{{path: "share/x", text: "x"}}}
	change(p)
	return p
}

// filesOf returns a package with these files.
func filesOf(f ...testFile) *testPkg { return evil(func(p *testPkg) { p.files = f }) }

// members returns a package with changed archive members.
func members(change func(m []zipMember) []zipMember) *testPkg {
	return evil(func(p *testPkg) { p.members = change })
}

// info returns a package with one changed file below info/.
func info(name, text string) *testPkg {
	return evil(func(p *testPkg) { p.info = map[string]string{name: text} })
}

// named returns a package with a file whose name in the archive differs from info/paths.json.
func named(listed, stored string) *testPkg {
	return filesOf(testFile{path: listed, text: "x", header: func(h *tar.Header) { h.Name = stored }})
}

// typed returns a package with a file of this type.
func typed(kind byte, dir bool) *testPkg {
	return filesOf(testFile{path: "share/x", dir: dir, header: func(h *tar.Header) {
		if h.Typeflag, h.Size = kind, 0; kind == tar.TypeSymlink {
			h.Linkname = "/etc"
		}
	}})
}

func TestHostile(t *testing.T) {
	for _, c := range []struct {
		name string
		pkg  *testPkg
		want string
	}{
		{"archive path up", named("share/x", "../x"), "path leaves the prefix"},
		{"archive path up in the middle", named("share/x", "share/../../x"), "path leaves the prefix"},
		{"archive path absolute", named("share/x", "/etc/passwd"), "path leaves the prefix"},
		{"archive path with a newline", named("share/x", "share/x\n"), "control characters"},
		{"archive path long", named("share/x", strings.Repeat("x/", 3000)+"x"), "too long"},
		{"listed path up", filesOf(testFile{path: "../x", text: "x", header: func(h *tar.Header) { h.Name = "x" }}), `path "../x": path leaves the prefix`},
		{"listed path absolute", filesOf(testFile{path: "/etc/passwd", text: "x", header: func(h *tar.Header) { h.Name = "x" }}), "path leaves the prefix"},
		{"listed path is the prefix", filesOf(testFile{path: "share/..", dir: true, absent: true}), "is the prefix itself"},
		{"listed path twice", filesOf(testFile{path: "share/x", text: "x"}, testFile{path: "./share//x", text: "x", absent: true}), "duplicate path"},
		{"record planted", filesOf(testFile{path: "conda-meta/other-1-0.json", text: "{}"}), "the environment's conda-meta"},
		{"record as a link", filesOf(testFile{path: "conda-meta", link: "/tmp"}), "the environment's conda-meta"},
		{"archive member twice", filesOf(testFile{path: "share/x", text: "x"}, testFile{path: "./share/x", text: "x", unlisted: true}), "duplicate entry"},
		{"listed and not there", filesOf(testFile{path: "share/x", text: "x", absent: true}), `path "share/x" is listed, but not in the package`},
		{"wrong sha256", filesOf(testFile{path: "share/x", text: "x", list: map[string]any{"sha256": shaA}}), "info/paths.json lists " + shaA},
		{"wrong sha256 of a file with a placeholder", filesOf(testFile{path: "share/x", text: holder, prefix: holder, list: map[string]any{"sha256": shaA}}), "info/paths.json lists " + shaA},
		{"wrong size", filesOf(testFile{path: "share/x", text: "x", list: map[string]any{"size_in_bytes": 2}}), "size mismatch: 1 bytes, info/paths.json lists 2"},

		{"hard link out", filesOf(testFile{path: "share/x", hard: "../../../etc/passwd"}), "path leaves the prefix"},
		{"hard link absolute", filesOf(testFile{path: "share/x", hard: "/etc/passwd"}), "path leaves the prefix"},
		{"hard link to nothing", filesOf(testFile{path: "share/x", hard: "share/none"}), "target was not installed before"},
		{"hard link to itself", filesOf(testFile{path: "share/x", hard: "share/x"}), "target was not installed before"},
		{"hard link to what follows", filesOf(testFile{path: "share/x", hard: "share/y", text: "y"}, testFile{path: "share/y", text: "y"}), "target was not installed before"},
		{"hard link to a link", filesOf(testFile{path: "share/l", link: "/etc/passwd"}, testFile{path: "share/x", hard: "share/l"}), "target was not installed before"},
		{"hard link with another digest", filesOf(testFile{path: "share/x", text: "x"}, testFile{path: "share/y", text: "y", hard: "share/x"}), "info/paths.json lists " + condatest.SHA256([]byte("y"))},
		{"hard link with another placeholder", filesOf(testFile{path: "share/x", text: holder, prefix: holder}, testFile{path: "share/y", text: holder, hard: "share/x"}), "different placeholder"},
		{"below a link", filesOf(testFile{path: "share/l", link: "/etc"}, testFile{path: "share/l/passwd", text: "x"}), `path "share/l/passwd" lies below "share/l", which is not a directory`},
		{"below a link that is listed as a directory", filesOf(testFile{path: "share/l", link: "/etc", list: map[string]any{"path_type": "directory"}}), `"directory" in info/paths.json`},
		{"below a link, old format", evil(func(p *testPkg) {
			p.legacy, p.files = true, []testFile{{path: "share/l", link: "/etc"}, {path: "share/l/passwd", text: "x"}}
		}), `lies below "share/l"`},
		{"link to nothing", filesOf(testFile{path: "share/l", link: "x", header: func(h *tar.Header) { h.Linkname = "" }}), "link with an empty target"},
		{"fifo", typed(tar.TypeFifo, false), "unsupported file type"},
		{"device", typed(tar.TypeChar, false), "unsupported file type"},
		{"directory listed as a file", typed(tar.TypeDir, false), "type mismatch: '5' in the archive"},
		{"file listed as a directory", typed(tar.TypeReg, true), "type mismatch: '0' in the archive"},

		{"index of another name", info("index.json", `{"name":"other","version":"1.0","build":"0"}`), "it contains other-1.0-0"},
		{"index of another version", info("index.json", `{"name":"evil","version":"2.0","build":"0"}`), "it contains evil-2.0-0"},
		{"index of another build", info("index.json", `{"name":"evil","version":"1.0","build":"1"}`), "it contains evil-1.0-1"},
		{"index with a path for a name", info("index.json", `{"name":"../evil","version":"1.0","build":"0"}`), "info/index.json: invalid name"},
		{"index cut off", info("index.json", `{"name":`), "reading info/index.json"},
		{"no index", info("index.json", "-"), "reading info/index.json"},
		{"no paths", info("paths.json", "-"), "missing info/paths.json and info/files"},
		{"paths without paths", info("paths.json", "{}"), "missing list of paths"},
		{"paths with null", info("paths.json", `{"paths":[null]}`), "entry is null"},
		{"paths of a newer version", info("paths.json", `{"paths":[],"paths_version":2}`), "unsupported version 2"},
		{"paths nested", info("paths.json", strings.Repeat("[", 1<<20)), "reading info/paths.json"},
		{"mode unknown", filesOf(testFile{path: "share/x", text: "x", prefix: holder, list: map[string]any{"file_mode": "odd"}}), "neither text nor binary"},
		{"placeholder with NUL", filesOf(testFile{path: "share/x", text: "\x00aaaaaaaaaaaa", prefix: "\x00aaaaaaaaaaaa", binary: true}), "is not a path"},
		{"has_prefix up", evil(func(p *testPkg) { p.legacy, p.info = true, map[string]string{"has_prefix": "../x\n"} }), "path leaves the prefix"},
		{"has_prefix of four fields", evil(func(p *testPkg) { p.legacy, p.info = true, map[string]string{"has_prefix": "/p odd share/x\n"} }), "not PLACEHOLDER text|binary PATH"},
		{"files up", evil(func(p *testPkg) { p.legacy, p.info = true, map[string]string{"files": "share/x\n../y\n"} }), "path leaves the prefix"},

		{"zip with a stray member", members(func(m []zipMember) []zipMember { return append(m, zipMember{"README", nil, zip.Store}) }), `unknown member "README"`},
		{"zip with a member twice", members(func(m []zipMember) []zipMember { return append(m, m[1]) }), "contains a second member"},
		{"zip with metadata twice", members(func(m []zipMember) []zipMember { return append(m, m[0]) }), "contains a second member"},
		{"zip with two pkg parts", members(func(m []zipMember) []zipMember {
			m[1].name = "pkg-a.tar.zst"
			return append(m, zipMember{"pkg-b.tar.zst", m[1].data, zip.Store})
		}), "contains a second member"},
		{"zip with a compressed member", members(func(m []zipMember) []zipMember { m[1].method = zip.Deflate; return m }), "compressed twice"},
		{"zip with compressed metadata", members(func(m []zipMember) []zipMember { m[0].method = zip.Deflate; return m }), "compressed twice"},
		{"zip without info", members(func(m []zipMember) []zipMember { return m[:2] }), "has no metadata.json, info or pkg member"},
		{"zip without metadata", members(func(m []zipMember) []zipMember { return m[1:] }), "has no metadata.json, info or pkg member"},
		{"zip of format 3", members(func(m []zipMember) []zipMember { m[0].data = []byte(`{"conda_pkg_format_version":3}`); return m }), "version 3"},
		{"zip with invalid metadata", members(func(m []zipMember) []zipMember { m[0].data = []byte("<"); return m }), "reading metadata.json"},
		{"pkg part cut off", members(func(m []zipMember) []zipMember { m[1].data = m[1].data[:len(m[1].data)-8]; return m }), "pkg-evil-1.0-0.tar.zst: "},
		{"pkg part that is not zstd", members(func(m []zipMember) []zipMember { m[1].data = []byte("plain text"); return m }), "pkg-evil-1.0-0.tar.zst: "},
		{"info twice", members(func(m []zipMember) []zipMember {
			p := &testPkg{name: "evil"}
			p.fill()
			m[2].data = zst(tarOf(p.tarInfo, p.tarInfo))
			return m
		}), "info/about.json"},

		{"entry point with a path", evil(func(p *testPkg) { p.noarch, p.entryPoints = "python", []string{"../../x = a:b"} }), "invalid command, module or function name"},
		{"entry point that is hidden", evil(func(p *testPkg) { p.noarch, p.entryPoints = "python", []string{".x = a:b"} }), "invalid command, module or function name"},
		{"entry point with code", evil(func(p *testPkg) { p.noarch, p.entryPoints = "python", []string{"x = a:b\nimport os"} }), "invalid command, module or function name"},
		{"entry point with code for a module", evil(func(p *testPkg) { p.noarch, p.entryPoints = "python", []string{"x = a import b; c:d"} }), "invalid command, module or function name"},
		{"entry point without a function", evil(func(p *testPkg) { p.noarch, p.entryPoints = "python", []string{"x"} }), "not of the form command = module:function"},
		{"entry point without a command", evil(func(p *testPkg) { p.noarch, p.entryPoints = "python", []string{"x:y"} }), "not of the form command = module:function"},
		{"link.json cut off", info("link.json", "{"), "reading info/link.json"},
		{"two files for one place", evil(func(p *testPkg) {
			p.noarch, p.files = "python", []testFile{{path: "site-packages/x", text: "1"}, {path: "lib/python3.11/site-packages/x", text: "2"}}
		}), "have the same destination"},
	} {
		s := condatest.NewStore(t)
		pkgs := []*testPkg{c.pkg, python("3.11.4")}
		if c.name == "info twice" {
			c.want = "duplicate entry"
		}
		_, err := install(t, s, export(pkgs...), Options{Request: Request{Channels: []string{newChannel(t, pkgs...)}}})
		refused(t, s, c.name, err, c.want)
	}
}

// TestHostileOldFormat does the same with the old format, which other code reads.
func TestHostileOldFormat(t *testing.T) {
	for _, c := range []struct {
		name string
		pkg  *testPkg
		want string
	}{
		{"path up", named("share/x", "../x"), "path leaves the prefix"},
		{"member twice", filesOf(testFile{path: "share/x", text: "x"}, testFile{path: "./share/x", text: "x", unlisted: true}), "duplicate entry"},
		{"wrong sha256", filesOf(testFile{path: "share/x", text: "x", list: map[string]any{"sha256": shaA}}), "info/paths.json lists " + shaA},
		{"no index", info("index.json", "-"), "reading info/index.json"},
	} {
		c.pkg.format = ".tar.bz2"
		s := condatest.NewStore(t)
		_, err := install(t, s, export(c.pkg), Options{Request: Request{Channels: []string{newChannel(t, c.pkg)}}})
		refused(t, s, c.name, err, c.want)
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"cut off", nil, "unexpected EOF"}, {"no bzip2", []byte("PK\x03\x04 not at all"), "bzip2 data invalid"}, {"empty", []byte{}, "EOF"},
	} {
		p := &testPkg{name: "p", format: ".tar.bz2"}
		data := c.data
		if data == nil {
			data = p.bytes(t)
			data = data[:len(data)/2]
		}
		file := filepath.Join(t.TempDir(), "p-1.0-0.tar.bz2")
		testenv.Write(t, file, data)
		s := condatest.NewStore(t)
		_, err := install(t, s, "@EXPLICIT\n"+file, Options{})
		refused(t, s, c.name, err, c.want)
	}
}

// TestBelowLinkOfOther refuses files below the link of another package.
func TestBelowLinkOfOther(t *testing.T) {
	a := &testPkg{name: "a", files: []testFile{{path: "lib64", link: "/etc"}}}
	b := &testPkg{name: "b", files: []testFile{{path: "lib64/passwd", text: "x"}}}
	c := &testPkg{name: "c", files: []testFile{{path: "lib64", text: "file"}}}
	for _, pkgs := range [][]*testPkg{{a, b}, {b, c}} {
		s := condatest.NewStore(t)
		_, err := install(t, s, export(pkgs...), Options{Request: Request{Channels: []string{newChannel(t, pkgs...)}}})
		refused(t, s, "below a link", err, `path "lib64/passwd" lies below "lib64", which is not a directory in`)
	}
}

// TestSitePackagesOutside ignores a directory for modules outside the prefix.
func TestSitePackagesOutside(t *testing.T) {
	for _, site := range []string{"../../etc", "/etc"} {
		py := python("3.11.4")
		py.site = site
		p := &testPkg{name: "p", noarch: "python", files: []testFile{{path: "site-packages/x", text: "x"}}}
		r := mustInstall(t, py, p)
		if _, ok := r.files["opt/conda/lib/python3.11/site-packages/x"]; !ok {
			t.Errorf("site %q: the module is not in lib/python3.11", site)
		}
	}
}

func TestBombs(t *testing.T) {
	zeros := strings.Repeat("\x00", 8<<20)
	file := func(p *testPkg) string {
		f := filepath.Join(t.TempDir(), "evil-1.0-0.conda")
		testenv.Write(t, f, p.bytes(t))
		return f
	}
	bomb := file(filesOf(testFile{path: "share/x", text: zeros}))
	if fi, err := os.Stat(bomb); err != nil || fi.Size() > 64<<10 {
		t.Fatalf("the bomb has %d bytes, %v", fi.Size(), err)
	}
	for _, c := range []struct {
		name, file string
		limit      int64
		want       string
	}{
		{"within", bomb, 9 << 20, ""},
		{"beyond", bomb, 7 << 20, "unpacks to more than 7340032 bytes"},
		{"many small ones", file(evil(func(p *testPkg) {
			for i := range 3000 {
				p.files = append(p.files, testFile{path: fmt.Sprintf("share/%d", i), unlisted: true})
			}
		})), 1 << 20, "unpacks to more than 1048576 bytes"},
		{"info", file(info("about.json", zeros)), 7 << 20, "unpacks to more than 7340032 bytes"},
	} {
		in := infoFiles{}
		err := walk(c.file, c.limit, in.take, func(*tar.Header, io.Reader) error { return nil })
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if c.want != "" {
			refused(t, nil, c.name, err, c.want)
		}
	}
}

// TestBombsBound limits packages without sizes, or with wrong sizes in both the list and the
// archive. The limit depends on the archive's size, so that a bomb takes at most minutes.
func TestBombsBound(t *testing.T) {
	huge := int64(60 << 30)
	legacy := &meta{paths: map[string]*pathEntry{"share/x": {}}}
	lying := &meta{paths: map[string]*pathEntry{"share/x": {Size: &huge}}}
	for _, c := range []struct{ size, want int64 }{{20_000, slack + 20_000*maxRatio}, {1 << 30, maxUnpacked}, {maxPackage, maxUnpacked}} {
		if got := legacy.unpacked(c.size); got != c.want {
			t.Errorf("unpacked(%d) without sizes = %d; want %d", c.size, got, c.want)
		}
		if got, most := lying.unpacked(c.size), min(c.want, huge+slack+4096); got > most {
			t.Errorf("unpacked(%d) of a list with 60 GB = %d; want at most %d", c.size, got, most)
		}
	}
	small := int64(10)
	honest := &meta{paths: map[string]*pathEntry{"share/x": {Size: &small}}}
	if got := honest.unpacked(20_000); got != slack+small+4096 {
		t.Errorf("unpacked of a small package = %d", got)
	}
}

// TestZipDirectory refuses a zip file whose directory fills it.
func TestZipDirectory(t *testing.T) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := range 10_000 {
		_, err := w.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("pkg-%d.tar.zst", i)})
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	file := filepath.Join(t.TempDir(), "evil-1.0-0.conda")
	testenv.Write(t, file, b.Bytes())
	s := condatest.NewStore(t)
	_, err := install(t, s, "@EXPLICIT\n"+file, Options{})
	refused(t, s, "directory", err, "zip directory larger than 65536 bytes")
	if z, err := input.OpenZip(file, 1<<20); err != nil || len(z.Reader.File) != 10_000 {
		t.Errorf("openZip with more room: %v", err)
	} else {
		z.Close()
	}
}

// block returns one entry of a tar archive. Go's writer does not support sparse files.
func block(name string, kind byte, body string) string {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], fmt.Sprintf("%07o\x00%07o\x00%07o\x00%011o\x00%011o\x00        %c", 0o644, 0, 0, len(body), 0, kind))
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return string(h) + body + strings.Repeat("\x00", -len(body)&511)
}

// TestSparseBomb refuses sparse files: their holes take no space in an archive, but could
// fill a disk.
func TestSparseBomb(t *testing.T) {
	const size = "99511627776"
	pax := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=share/x", "GNU.sparse.realsize=" + size} {
		pax += fmt.Sprintf("%d %s\n", len(kv)+4, kv)
	}
	b := []byte(block("pax", 'x', pax) + block("share/x", '0', "0\n"+strings.Repeat("\x00", 510)) + strings.Repeat("\x00", 1024))
	if h, err := tar.NewReader(bytes.NewReader(b)).Next(); err != nil || fmt.Sprint(h.Size) != size {
		t.Fatalf("the sparse file is %+v, %v", h, err)
	}
	p := evil(func(p *testPkg) { p.legacy = true })
	p.members = func(m []zipMember) []zipMember { m[1].data = zst(b); return m }
	s := condatest.NewStore(t)
	_, err := install(t, s, export(p), Options{Request: Request{Channels: []string{newChannel(t, p)}}})
	refused(t, s, "sparse", err, "unpacks to more than")
}

func TestHostileIndex(t *testing.T) {
	const record = `{"name":"a","version":"1.0","build":"0","sha256":"` + shaA + `","size":1}`
	for _, c := range []struct{ name, in, want string }{
		{"nested record", `{"packages":{"a-1.0-0.conda":` + strings.Repeat(`{"a":`, 1<<20), "nested more than 10000 levels deep"},
		{"nested elsewhere", `{"x":` + strings.Repeat("[", 1<<24), "nested more than 10000 levels deep"},
		{"nested within what is allowed", `{"x":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `,"packages.conda":{"a-1.0-0.conda":` + record + `}}`, ""},
		{"large record", `{"packages":{"a-1.0-0.conda":"` + strings.Repeat("x", maxRecord), "record larger than"},
		{"base_url of files", `{"info":{"base_url":"file:///etc/"},"packages":{}}`, "points to local files"},
		{"record that is another", `{"packages":{"a-1.0-0.conda":{"name":"b"}}}`, `record of a-1.0-0.conda: name mismatch: "b"`},
		{"record of another type", `{"packages":{"a-1.0-0.conda":{"name":"a","depends":7}}}`, "record of a-1.0-0.conda: json"},
		{"two records of one package", `{"packages.conda":{"a-1.0-0.conda":` + record + `,"b-1-0.conda":{},"a-1.0-0.conda":{"name":"a","version":"1.0","build":"0","sha256":"` + strings.Repeat("0", 64) + `"}}}`, "duplicate record of a-1.0-0.conda"},
		{"two records, one in the old list", `{"packages":{"a-1.0-0.conda":` + record + `},"packages.conda":{"a-1.0-0.conda":` + record + `}}`, "duplicate record of a-1.0-0.conda"},
		{"packages of another type", `{"packages":[]}`, "expected an object"},
		{"a list", `[]`, `expected '{', found '['`},
		{"nothing", ``, "unexpected EOF"},
		{"cut off before a key", `{"packages":{},`, "unexpected EOF"},
		{"cut off before a colon", `{"packages"`, "unexpected EOF"},
		{"cut off in a word", `{"packages":nul`, "unexpected EOF"},
		{"no key", `{7:1}`, "expected a key, found '7'"},
		{"no colon", `{"a" 1}`, "expected ':', found '1'"},
		{"no value", `{"a":}`, "expected a value, found '}'"},
		{"no comma", `{"a":1 "b":2}`, `expected ',' or '}', found '"'`},
	} {
		web := condatest.Serve(t, t.TempDir(), answers("linux-64/repodata.json", func(w http.ResponseWriter) { io.WriteString(w, c.in) }))
		plan, err := Resolve(t.Context(), read(t, "a=1.0=0"), Options{Request: Request{Channels: []string{web.URL}}, Subdir: "linux-64"})
		if c.want == "" {
			if err != nil || len(plan.pkgs) != 1 {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		refused(t, nil, c.name, err, c.want)
	}
}

func TestIndex(t *testing.T) {
	rec := func(more string) string {
		return `{"name":"a","version":"1.0","build":"0","sha256":"` + strings.ToUpper(shaA) + `"` + more + `}`
	}
	for _, c := range []struct{ name, in, url string }{
		{"packages.conda", `{"packages.conda":{"a-1.0-0.conda":` + rec("") + `}}`, "CH/linux-64/a-1.0-0.conda"},
		{"packages", `{"packages":{"b-1-0.tar.bz2":{},"a-1.0-0.tar.bz2":` + rec(`,"noarch":true,"depends":null`) + `},"removed":["x"]}`, "CH/linux-64/a-1.0-0.tar.bz2"},
		{"null lists and records", `{"packages":null,"info":null,"packages.conda":{"a-1.0-0.conda":` + rec("") + `,"a-1.1-0.conda":null}}`, "CH/linux-64/a-1.0-0.conda"},
		{"base_url elsewhere, said later", `{"packages":{"a-1.0-0.conda":` + rec("") + `},"info":{"base_url":"https://e.example/x"}}`, "https://e.example/x/a-1.0-0.conda"},
		{"base_url of a sibling", `{"info":{"base_url":"../other/"},"packages":{"a-1.0-0.conda":` + rec("") + `}}`, "CH/other/a-1.0-0.conda"},
		{"escaped names", `{"p\u0061ckages":{"\u0061-1.0-0.conda":` + rec("") + `}}`, "CH/linux-64/a-1.0-0.conda"},
		{"names that are paths, or empty", `{"packages":{"../a-1.0-0.conda":` + rec("") + `,"x/a-1.0-0.conda":{},"a-1.0":{},"-":0,"":1,"a-1.0-0.conda":` + rec("") + `}}`, "CH/linux-64/a-1.0-0.conda"},
		{"a subdir of its own", `{"packages":{"a-1.0-0.conda":` + rec(`,"subdir":"x\ny"`) + `}}`, "CH/linux-64/a-1.0-0.conda"},
		{"blanks", " {\n\t\"packages\" :\r\n{ \"a-1.0-0.conda\" : " + rec("") + " } , \"x\" : [ 1 , \"]}\\\"\" , { } ] , \"y\": -1.5e3 }", "CH/linux-64/a-1.0-0.conda"},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			got, err := (channel{url: "https://c.example/ch"}).scan(&pieces{[]byte(c.in), piece}, "linux-64", "https://c.example/ch/linux-64/", map[string]bool{"a": true})
			if err != nil || len(got) != 1 {
				t.Errorf("%s: scan = %+v, %v", c.name, got, err)
				continue
			}
			if want := strings.Replace(c.url, "CH", "https://c.example/ch", 1); got[0].URL != want || got[0].SHA256 != shaA || got[0].Subdir != "linux-64" {
				t.Errorf("%s: scan = %+v; want %s", c.name, got[0], want)
			}
		}
	}
}

// pieces is a reader that returns n bytes at a time.
type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(to[:min(len(to), p.n)], p.b)
	p.b = p.b[n:]
	return n, nil
}
