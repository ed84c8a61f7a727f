// Package condatest has what the tests of conda and conda/pip share: wheels, indexes,
// servers, and the files in layers.
package condatest

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
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

func SHA256(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func NewStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	return s
}

// An Entry is a file of the layers.
type Entry struct {
	*tar.Header
	Data string
}

// ReadLayers reads all files of layers; each file is in one.
func ReadLayers(t testing.TB, layers []v1.Layer) map[string]Entry {
	t.Helper()
	out := map[string]Entry{}
	for _, l := range layers {
		rc, err := l.Uncompressed()
		testenv.Check(t, err)
		for name, e := range ReadTar(t, rc) {
			if before := out[name]; before.Header != nil && (before.Typeflag != tar.TypeDir || e.Typeflag != tar.TypeDir) {
				t.Errorf("%q is in two layers", name)
			}
			out[name] = e
		}
		rc.Close()
	}
	return out
}

// ReadTar reads a layer and holds it to what layers must be: each name once,
// clean, and after its directory.
func ReadTar(t testing.TB, r io.Reader) map[string]Entry {
	t.Helper()
	out := map[string]Entry{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		testenv.Check(t, err)
		b, err := io.ReadAll(tr)
		testenv.Check(t, err)
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
		out[name] = Entry{h, string(b)}
	}
}

// A Site is a web server with a channel's files, or with a registry.
type Site struct {
	*httptest.Server
	Mu     sync.Mutex
	Asked  []string
	answer Answer
}

// An Answer may answer a request, the nth with its path, instead of the site, and then returns true.
type Answer func(w http.ResponseWriter, r *http.Request, nth int) bool

// Serve starts a site with the files of a directory. answer may be nil.
func Serve(t testing.TB, dir string, answer Answer) *Site {
	t.Helper()
	return startSite(t, http.FileServer(http.Dir(dir)), answer)
}

func startSite(t testing.TB, files http.Handler, answer Answer) *Site {
	s := &Site{answer: answer}
	count := map[string]int{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Mu.Lock()
		s.Asked = append(s.Asked, r.URL.Path)
		count[r.URL.Path]++
		nth, answer := count[r.URL.Path], s.answer
		s.Mu.Unlock()
		if answer == nil || !answer(w, r, nth) {
			files.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// SetAnswer replaces the answer of a site, and returns the old one. Earlier requests may still be
// served.
func (s *Site) SetAnswer(answer Answer) (old Answer) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	old, s.answer = s.answer, answer
	return old
}

func (s *Site) Count(path string) (n int) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, p := range s.Asked {
		if p == path {
			n++
		}
	}
	return n
}

// LayerDigests are the digests of layers as one string.
func LayerDigests(t testing.TB, layers []v1.Layer) (out string) {
	t.Helper()
	for _, l := range layers {
		d, err := l.Digest()
		testenv.Check(t, err)
		out += d.Hex + "\n"
	}
	return out
}

// A Index is an index of wheels on a web server.
type Index struct {
	*Site
	json   bool
	Wheels map[string][]Wheel // by normal name
	Attrs  map[string]string  // attributes of a file's link, or members of its object
	Hash   func(w Wheel, b []byte) string
}

// ServeIndex serves wheels below /simple/ and /files/, as HTML or JSON.
func ServeIndex(t testing.TB, asJSON bool, wheels ...Wheel) *Index {
	t.Helper()
	s := &Index{json: asJSON, Wheels: map[string][]Wheel{}, Attrs: map[string]string{}}
	s.Hash = func(_ Wheel, b []byte) string { return "sha256=" + SHA256(b) }
	byFile := map[string][]byte{}
	for _, w := range wheels {
		byFile[w.File()] = w.Bytes(t)
		byFile[w.File()+".metadata"] = []byte(w.Metadata())
		s.Wheels[normal(w.Name)] = append(s.Wheels[normal(w.Name)], w)
	}
	s.Site = Serve(t, t.TempDir(), func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if f, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
			b := byFile[f]
			if b == nil {
				w.WriteHeader(404)
			}
			w.Write(b)
			return true
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/simple/")
		list := s.Wheels[strings.TrimSuffix(name, "/")]
		if !ok || list == nil {
			return false
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, s.page(list, byFile, w))
		return true
	})
	return s
}

func (s *Index) page(list []Wheel, files map[string][]byte, w http.ResponseWriter) string {
	var rows []string
	for _, x := range list {
		f, sum := x.File(), s.Hash(x, files[x.File()])
		if s.json {
			alg, hex, _ := strings.Cut(sum, "=")
			rows = append(rows, fmt.Sprintf(`{"filename": %q, "url": "../../files/%s", "hashes": {%q: %q}, "size": %d%s}`, f, f, alg, hex, len(files[f]), s.Attrs[f]))
		} else {
			rows = append(rows, fmt.Sprintf(`<a %s href="../../files/%s#%s">%s</a><br/>`, s.Attrs[f], url.PathEscape(f), sum, f))
		}
	}
	if s.json {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		return `{"meta": {"api-version": "1.1"}, "name": "x", "files": [` + strings.Join(rows, ",") + "]}"
	}
	return `<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"><title>x</title></head><body><!-- <a href="no">no</a> -->` + strings.Join(rows, "\n")
}

// SimpleWheel is a wheel with nothing in it.
func SimpleWheel(name, version string, requires ...string) Wheel {
	w := Wheel{Name: name, Version: version, Files: []WheelFile{{Name: strings.ReplaceAll(name, "-", "_") + ".py", Text: version + "\n"}}}
	for _, r := range requires {
		w.Meta += "Requires-Dist: " + r + "\n"
	}
	return w
}

func Tagged(w Wheel, tag string) Wheel { w.Tag = tag; return w }

// Python runs a python with pip, which has the second opinion. Without one the
// test is skipped, and fails in CI.
func Python(t testing.TB, stdin string, args ...string) []byte {
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

// A Wheel is a wheel that a test makes.
type Wheel struct {
	Name, Version string
	Tag           string // "" is py3-none-any
	Build         string
	Files         []WheelFile
	Meta          string // more lines of METADATA
	Points        string // entry_points.txt
	Record        func(rows string) string
	Zip           func(list []WheelFile) []WheelFile // changes the archive, RECORD included
}

type WheelFile struct {
	Name, Text string
	Mode       fs.FileMode // 0 is 0644
	Header     func(h *zip.FileHeader)
}

func (w Wheel) stem() string { return strings.ReplaceAll(w.Name, "-", "_") + "-" + w.Version }

func (w Wheel) File() string {
	tag := w.Tag
	if tag == "" {
		tag = "py3-none-any"
	}
	if w.Build != "" {
		tag = w.Build + "-" + tag
	}
	return w.stem() + "-" + tag + ".whl"
}

// Metadata is the wheel's METADATA.
func (w Wheel) Metadata() string {
	return "Metadata-Version: 2.1\nName: " + w.Name + "\nVersion: " + w.Version + "\n" + w.Meta + "\nA description: of it.\n"
}

// WheelTime is when all files of the wheels were made.
var WheelTime = time.Date(2023, 4, 5, 6, 7, 8, 0, time.UTC)

func (w Wheel) Bytes(t testing.TB) []byte {
	t.Helper()
	info := w.stem() + ".dist-info/"
	list := append([]WheelFile(nil), w.Files...)
	list = append(list, WheelFile{Name: info + "METADATA", Text: w.Metadata()},
		WheelFile{Name: info + "WHEEL", Text: "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: " + fmt.Sprint(w.Tag == "") + "\nTag: py3-none-any\n"})
	if w.Points != "" {
		list = append(list, WheelFile{Name: info + "entry_points.txt", Text: w.Points})
	}
	rows := ""
	for _, f := range list {
		if !strings.HasSuffix(f.Name, "/") {
			sum := sha256.Sum256([]byte(f.Text))
			rows += fmt.Sprintf("%s,%s,%d\n", csvField(f.Name), "sha256="+base64.RawURLEncoding.EncodeToString(sum[:]), len(f.Text))
		}
	}
	rows += info + "RECORD,,\n"
	if w.Record != nil {
		rows = w.Record(rows)
	}
	list = append(list, WheelFile{Name: info + "RECORD", Text: rows})
	if w.Zip != nil {
		list = w.Zip(list)
	}
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, f := range list {
		h := &zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: WheelTime}
		if f.Mode == 0 {
			f.Mode = 0o644
		}
		h.SetMode(f.Mode)
		if f.Header != nil {
			f.Header(h)
		}
		to, err := z.CreateHeader(h)
		testenv.Check(t, err)
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		_, err = to.Write([]byte(f.Text))
		testenv.Check(t, err)
	}
	testenv.Check(t, z.Close())
	return buf.Bytes()
}

func csvField(s string) string {
	if strings.ContainsAny(s, ",\"") {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// WheelDir makes a directory of wheels.
func WheelDir(t testing.TB, wheels ...Wheel) string {
	t.Helper()
	dir := t.TempDir()
	for _, w := range wheels {
		testenv.Write(t, filepath.Join(dir, w.File()), w.Bytes(t))
	}
	return dir
}

// DemoWheel has one of everything that wheels have.
var DemoWheel = Wheel{
	Name: "Demo-Pkg", Version: "1.2.post1",
	Meta: "License: one\n  of many\nRequires-Dist: helper (>=1)\nRequires-Dist: colours; sys_platform == 'win32'\nRequires-Dist: big; extra == 'all'\nProvides-Extra: all\n",
	Files: []WheelFile{
		{Name: "demo/__init__.py", Text: "def main():\n    print('demo', __name__)\n    return 0\n"},
		{Name: "demo/a, b.txt", Text: "comma\n"},
		{Name: "demo/ünï.txt", Text: "names\n"},
		{Name: "demo/run.sh", Text: "#!/bin/sh\n", Mode: 0o755},
		{Name: "demo/empty.txt"},
		{Name: "demo/sub/"},
		{Name: "nspace/part/one.py", Text: "x = 1\n"},
		{Name: "Demo_Pkg-1.2.post1.data/scripts/demo-script", Text: "#!python\nprint('script')\n", Mode: 0o755},
		{Name: "Demo_Pkg-1.2.post1.data/scripts/demo-gui.w", Text: "#!pythonw -E\nprint('gui')\n", Mode: 0o755},
		{Name: "Demo_Pkg-1.2.post1.data/scripts/demo.sh", Text: "#!/bin/sh\necho demo\n", Mode: 0o755},
		{Name: "Demo_Pkg-1.2.post1.data/headers/demo.h", Text: "/* demo */\n"},
		{Name: "Demo_Pkg-1.2.post1.data/data/share/demo/data.txt", Text: "data\n"},
		{Name: "Demo_Pkg-1.2.post1.data/purelib/demo_pure.py", Text: "pure = 1\n"},
		{Name: "Demo_Pkg-1.2.post1.data/platlib/demo_plat.py", Text: "plat = 1\n"},
	},
	Points: "[console_scripts]\ndemo = demo:main\ndemo-x = demo.sub:cls.run [all]\n\n[gui_scripts]\ndemo-g=demo:main\n\n[other.group]\nany thing = goes\n",
}

// A TeeLog is a tee that records the layers it receives.
type TeeLog struct {
	mu      sync.Mutex
	Begun   int
	Tars    map[v1.Hash]string // complete layers, by diff ID
	Dropped int                // layers that ended with a zero diff ID
}

func (l *TeeLog) Tee(context.Context) (io.Writer, func(v1.Hash)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Begun++
	var b bytes.Buffer
	return &b, func(id v1.Hash) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if id == (v1.Hash{}) {
			l.Dropped++
			return
		}
		l.Tars[id] = b.String()
	}
}

// Quick is a context whose transfers do not pause for long between attempts.
func Quick(t testing.TB) context.Context {
	return web.With(t.Context(), web.Limits{Backoff: time.Millisecond})
}

// normal is the normal name of a distribution (PEP 503).
func normal(name string) string {
	return strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(name))
}

// FileURL is the URL of a file or directory of this machine.
func FileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }
