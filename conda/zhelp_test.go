package conda

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
	"hpcc/store/wait"
)

func sha(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func write(t testing.TB, file string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func newStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An entry is a file of the layers.
type tarEntry struct {
	*tar.Header
	data string
}

// readLayers reads all files of layers; each file is in one.
func readLayers(t testing.TB, layers []v1.Layer) map[string]tarEntry {
	t.Helper()
	out := map[string]tarEntry{}
	for _, l := range layers {
		rc, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for name, e := range readTar(t, rc) {
			if before := out[name]; before.Header != nil && (before.Typeflag != tar.TypeDir || e.Typeflag != tar.TypeDir) {
				t.Errorf("%q is in two layers", name)
			}
			out[name] = e
		}
		rc.Close()
	}
	return out
}

// readTar reads a layer and holds it to what layers must be: each name once,
// clean, and after its directory.
func readTar(t testing.TB, r io.Reader) map[string]tarEntry {
	t.Helper()
	out := map[string]tarEntry{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if name != path.Clean(name) || path.IsAbs(name) || strings.HasPrefix(name, "..") {
			t.Fatalf("the layer has the entry %q", h.Name)
		}
		if _, twice := out[name]; twice {
			t.Fatalf("the layer has the entry %q twice", h.Name)
		}
		if d := path.Dir(name); (d != "." && out[d].Header == nil) || (d != "." && out[d].Typeflag != tar.TypeDir) {
			t.Fatalf("the layer has the entry %q, and no directory %q before it", h.Name, d)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Fatalf("the layer's entry %q belongs to %d:%d %q:%q", h.Name, h.Uid, h.Gid, h.Uname, h.Gname)
		}
		out[name] = tarEntry{h, string(b)}
	}
}

// A site is a web server with a channel's files. answer, where it is set, may
// answer instead and then returns true.
type site struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string
	answer func(w http.ResponseWriter, r *http.Request, nth int) bool
}

func serve(t testing.TB, dir string, answer func(w http.ResponseWriter, r *http.Request, nth int) bool) *site {
	t.Helper()
	s := &site{answer: answer}
	count := map[string]int{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.Path)
		count[r.URL.Path]++
		nth := count[r.URL.Path]
		s.mu.Unlock()
		if s.answer == nil || !s.answer(w, r, nth) {
			http.FileServer(http.Dir(dir)).ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) count(path string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.asked {
		if p == path {
			n++
		}
	}
	return n
}

// layerDigests are the digests of layers as one string.
func layerDigests(t testing.TB, layers []v1.Layer) (out string) {
	t.Helper()
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		out += d.Hex + "\n"
	}
	return out
}

// A pipSite is an index of wheels on a web server.
type pipSite struct {
	*site
	json   bool
	wheels map[string][]testWheel // by normal name
	attrs  map[string]string      // attributes of a file's link, or members of its object
	hash   func(w testWheel, b []byte) string
}

// serveIndex serves wheels below /simple/ and /files/, as HTML or JSON.
func serveIndex(t testing.TB, asJSON bool, wheels ...testWheel) *pipSite {
	t.Helper()
	s := &pipSite{json: asJSON, wheels: map[string][]testWheel{}, attrs: map[string]string{}}
	s.hash = func(_ testWheel, b []byte) string { return "sha256=" + sha(b) }
	byFile := map[string][]byte{}
	for _, w := range wheels {
		byFile[w.file()] = w.bytes(t)
		byFile[w.file()+".metadata"] = []byte(w.metadata())
		s.wheels[normal(w.name)] = append(s.wheels[normal(w.name)], w)
	}
	s.site = serve(t, t.TempDir(), func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if f, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
			b := byFile[f]
			if b == nil {
				w.WriteHeader(404)
			}
			w.Write(b)
			return true
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/simple/")
		list := s.wheels[strings.TrimSuffix(name, "/")]
		if !ok || list == nil {
			return false
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, s.page(list, byFile, w))
		return true
	})
	return s
}

func (s *pipSite) page(list []testWheel, files map[string][]byte, w http.ResponseWriter) string {
	var rows []string
	for _, x := range list {
		f, sum := x.file(), s.hash(x, files[x.file()])
		if s.json {
			alg, hex, _ := strings.Cut(sum, "=")
			rows = append(rows, fmt.Sprintf(`{"filename": %q, "url": "../../files/%s", "hashes": {%q: %q}, "size": %d%s}`, f, f, alg, hex, len(files[f]), s.attrs[f]))
		} else {
			rows = append(rows, fmt.Sprintf(`<a %s href="../../files/%s#%s">%s</a><br/>`, s.attrs[f], url.PathEscape(f), sum, f))
		}
	}
	if s.json {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		return `{"meta": {"api-version": "1.1"}, "name": "x", "files": [` + strings.Join(rows, ",") + "]}"
	}
	return `<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"><title>x</title></head><body><!-- <a href="no">no</a> -->` + strings.Join(rows, "\n")
}

// simple is a wheel with nothing in it.
func simple(name, version string, requires ...string) testWheel {
	w := testWheel{name: name, version: version, files: []wheelFile{{name: strings.ReplaceAll(name, "-", "_") + ".py", text: version + "\n"}}}
	for _, r := range requires {
		w.meta += "Requires-Dist: " + r + "\n"
	}
	return w
}

func tagged(w testWheel, tag string) testWheel { w.tag = tag; return w }

// runPython runs a python with pip, which has the second opinion. Without one the
// test is skipped, and fails in CI.
func runPython(t testing.TB, stdin string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("/usr/bin/python3", args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + t.TempDir(), "PIP_DISABLE_PIP_VERSION_CHECK=1"}
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3 %q: %v: %s", args, err, stderr.String())
	}
	return out
}

// A testWheel is a wheel that a test makes.
type testWheel struct {
	name, version string
	tag           string // "" is py3-none-any
	build         string
	files         []wheelFile
	meta          string // more lines of METADATA
	points        string // entry_points.txt
	record        func(rows string) string
	zip           func(list []wheelFile) []wheelFile // changes the archive, RECORD included
}

type wheelFile struct {
	name, text string
	mode       fs.FileMode // 0 is 0644
	header     func(h *zip.FileHeader)
}

func (w testWheel) stem() string { return strings.ReplaceAll(w.name, "-", "_") + "-" + w.version }

func (w testWheel) file() string {
	tag := w.tag
	if tag == "" {
		tag = "py3-none-any"
	}
	if w.build != "" {
		tag = w.build + "-" + tag
	}
	return w.stem() + "-" + tag + ".whl"
}

// metadata is the wheel's METADATA.
func (w testWheel) metadata() string {
	return "Metadata-Version: 2.1\nName: " + w.name + "\nVersion: " + w.version + "\n" + w.meta + "\nA description: of it.\n"
}

// wheelTime is when all files of the wheels were made.
var wheelTime = time.Date(2023, 4, 5, 6, 7, 8, 0, time.UTC)

func (w testWheel) bytes(t testing.TB) []byte {
	t.Helper()
	info := w.stem() + ".dist-info/"
	list := append([]wheelFile(nil), w.files...)
	list = append(list, wheelFile{name: info + "METADATA", text: w.metadata()},
		wheelFile{name: info + "WHEEL", text: "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: " + fmt.Sprint(w.tag == "") + "\nTag: py3-none-any\n"})
	if w.points != "" {
		list = append(list, wheelFile{name: info + "entry_points.txt", text: w.points})
	}
	rows := ""
	for _, f := range list {
		if !strings.HasSuffix(f.name, "/") {
			sum := sha256.Sum256([]byte(f.text))
			rows += fmt.Sprintf("%s,%s,%d\n", csvField(f.name), "sha256="+base64.RawURLEncoding.EncodeToString(sum[:]), len(f.text))
		}
	}
	rows += info + "RECORD,,\n"
	if w.record != nil {
		rows = w.record(rows)
	}
	list = append(list, wheelFile{name: info + "RECORD", text: rows})
	if w.zip != nil {
		list = w.zip(list)
	}
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, f := range list {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: wheelTime}
		if f.mode == 0 {
			f.mode = 0o644
		}
		h.SetMode(f.mode)
		if f.header != nil {
			f.header(h)
		}
		to, err := z.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f.name, "/") {
			continue
		}
		if _, err := to.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func csvField(s string) string {
	if strings.ContainsAny(s, ",\"") {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// wheelDir makes a directory of wheels.
func wheelDir(t testing.TB, wheels ...testWheel) string {
	t.Helper()
	dir := t.TempDir()
	for _, w := range wheels {
		write(t, filepath.Join(dir, w.file()), w.bytes(t))
	}
	return dir
}

// demoWheel has one of everything that wheels have.
var demoWheel = testWheel{
	name: "Demo-Pkg", version: "1.2.post1",
	meta: "License: one\n  of many\nRequires-Dist: helper (>=1)\nRequires-Dist: colours; sys_platform == 'win32'\nRequires-Dist: big; extra == 'all'\nProvides-Extra: all\n",
	files: []wheelFile{
		{name: "demo/__init__.py", text: "def main():\n    print('demo', __name__)\n    return 0\n"},
		{name: "demo/a, b.txt", text: "comma\n"},
		{name: "demo/ünï.txt", text: "names\n"},
		{name: "demo/run.sh", text: "#!/bin/sh\n", mode: 0o755},
		{name: "demo/empty.txt"},
		{name: "demo/sub/"},
		{name: "nspace/part/one.py", text: "x = 1\n"},
		{name: "Demo_Pkg-1.2.post1.data/scripts/demo-script", text: "#!python\nprint('script')\n", mode: 0o755},
		{name: "Demo_Pkg-1.2.post1.data/scripts/demo-gui.w", text: "#!pythonw -E\nprint('gui')\n", mode: 0o755},
		{name: "Demo_Pkg-1.2.post1.data/scripts/demo.sh", text: "#!/bin/sh\necho demo\n", mode: 0o755},
		{name: "Demo_Pkg-1.2.post1.data/headers/demo.h", text: "/* demo */\n"},
		{name: "Demo_Pkg-1.2.post1.data/data/share/demo/data.txt", text: "data\n"},
		{name: "Demo_Pkg-1.2.post1.data/purelib/demo_pure.py", text: "pure = 1\n"},
		{name: "Demo_Pkg-1.2.post1.data/platlib/demo_plat.py", text: "plat = 1\n"},
	},
	points: "[console_scripts]\ndemo = demo:main\ndemo-x = demo.sub:cls.run [all]\n\n[gui_scripts]\ndemo-g=demo:main\n\n[other.group]\nany thing = goes\n",
}

// A teeLog keeps what layers were told of.
type teeLog struct {
	mu    sync.Mutex
	begun int
	tars  map[v1.Hash]string
	none  int // ended as nothing
}

func (l *teeLog) tee(context.Context) (io.Writer, func(v1.Hash)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	var b bytes.Buffer
	return &b, func(id v1.Hash) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if id == (v1.Hash{}) {
			l.none++
			return
		}
		l.tars[id] = b.String()
	}
}

// quick is a context whose transfers do not pause for long between attempts.
func quick(t testing.TB) context.Context {
	return wait.With(t.Context(), wait.Patience{Backoff: time.Millisecond})
}

// normal is the normal name of a distribution (PEP 503).
func normal(name string) string {
	return strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name))
}
