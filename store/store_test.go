package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"hpcc/files"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// The test binary, started again, is a writer that is killed at any moment.
func TestMain(m *testing.M) {
	if dir := os.Getenv("HPCC_TEST_WRITER"); dir != "" {
		write(dir)
	}
	testenv.Run(m)
}

func write(dir string) {
	s, err := Open(dir)
	for n := 0; err == nil; n++ {
		var img v1.Image
		if img, err = random.Image(200<<10, 3); err == nil {
			if _, err = s.Put(context.Background(), fmt.Sprintf("img%d", n%5), img); err == nil {
				_, err = s.Once(context.Background(), fmt.Sprintf("trees/%064d", n), func(d string) error {
					return os.WriteFile(filepath.Join(d, "whole"), []byte("yes"), 0o644)
				})
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	return s
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"debian", "debian"}, {"debian:latest", "debian"}, {"docker.io/library/debian:12", "debian:12"},
		{"me/x", "me/x"}, {"localhost:5000/x:1", "localhost:5000/x:1"}, {"ghcr.io/a/b", "ghcr.io/a/b"},
	} {
		got, err := Canonical(c.in)
		if err != nil || got != c.want {
			t.Errorf("Canonical(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
		if again, err := Canonical(got); err != nil || again != got {
			t.Errorf("Canonical(%q) = %q, %v; not stable", got, again, err)
		}
	}
	for _, bad := range []string{"", "Base", "a b", "../x", "a//b", strings.Repeat("a", 300), "x:y:z"} {
		if got, err := Canonical(bad); err == nil {
			t.Errorf("Canonical(%q) = %q; want an error", bad, got)
		}
	}
}

func TestPutGet(t *testing.T) {
	s := open(t)
	img, err := random.Image(1<<16, 3)
	testenv.Check(t, err)
	d, err := s.Put(context.Background(), "a:1", img)
	testenv.Check(t, err)
	for _, n := range []string{"a:1", "docker.io/library/a:1", d.String(), d.Hex[:12], "a@" + d.String()} {
		got, err := s.Get(n, nil)
		if err != nil {
			t.Errorf("Get(%q): %v", n, err)
			continue
		}
		if err := validate.Image(got); err != nil {
			t.Errorf("Get(%q): %v", n, err)
		}
	}
	var missing *NotFoundError
	if _, err := s.Get("b", nil); !errors.As(err, &missing) {
		t.Errorf("Get of nothing: %v; want NotFoundError", err)
	}
	var flat *NoTreeError
	if _, err := s.TreeOf("a:1"); !errors.As(err, &flat) {
		t.Errorf("TreeOf: %v; want NoTreeError", err)
	}
	testenv.Check(t, s.Remove("a:1"))
	rep, err := s.GC(context.Background(), GCOptions{Age: -1})
	if err != nil || rep.Blobs != 5 {
		t.Errorf("GC: %+v, %v; want 5 blobs gone", rep, err)
	}
}

func TestOpenRefusesForeignDirectories(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("Open: %v; want a refusal that names the file", err)
	}
	s := open(t)
	testenv.Check(t, os.WriteFile(s.path("version"), []byte("99\n"), 0o644))
	if _, err := Open(s.Dir()); err == nil {
		t.Error("a newer format is accepted")
	}
}

func TestLayersAreDeterministic(t *testing.T) {
	data := bytes.Repeat([]byte("some text that packs well "), 200_000)
	for _, mt := range []types.MediaType{types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer} {
		var first LayerInfo
		for range 3 {
			s := open(t)
			info, err := s.PutLayer(context.Background(), mt, func(w io.Writer) error {
				_, err := w.Write(data)
				return err
			})
			testenv.Check(t, err)
			if first.Size != 0 && info != first {
				t.Errorf("%s: %v, then %v", mt, first, info)
			}
			first = info
			l, err := s.Layer(info)
			testenv.Check(t, err)
			r, err := l.Uncompressed()
			testenv.Check(t, err)
			got, err := io.ReadAll(r)
			r.Close()
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: %d bytes come back, %v", mt, len(got), err)
			}
		}
	}
}

// Kill writers at random moments: everything with a name is complete, and GC removes the
// rest.
func TestKilledWriters(t *testing.T) {
	s := open(t)
	for n := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "HPCC_TEST_WRITER="+s.Dir())
		testenv.Check(t, cmd.Start())
		time.Sleep(time.Duration(20+17*n) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		list, err := s.Images()
		testenv.Check(t, err)
		for _, e := range list {
			img, err := s.Get(e.Name, nil)
			testenv.Check(t, err)
			if err := validate.Image(img); err != nil {
				t.Fatalf("after a kill %s is broken: %v", e.Name, err)
			}
		}
	}
	trees, _ := os.ReadDir(s.path("trees"))
	for _, e := range trees {
		if b, err := os.ReadFile(s.path("trees", e.Name(), "whole")); err != nil || string(b) != "yes" {
			t.Errorf("tree %s is not whole: %v", e.Name(), err)
		}
	}
	_, err := s.GC(context.Background(), GCOptions{})
	testenv.Check(t, err)
	if left, _ := os.ReadDir(s.path("tmp")); len(left) > 0 {
		t.Errorf("%d leftovers in tmp/ after GC", len(left))
	}
}

// A registry that breaks every transfer of a blob and is sometimes busy: the pull must
// succeed with ranges.
func TestPullResumes(t *testing.T) {
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var broken, busy, ranges atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			if busy.Add(1)%4 == 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if r.Header.Get("Range") != "" {
				ranges.Add(1)
			} else {
				broken.Add(1)
				rec := httptest.NewRecorder()
				reg.ServeHTTP(rec, r)
				body := rec.Body.Bytes()
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				if len(body) > 4096 {
					_, _ = w.Write(body[:len(body)/2])
					panic(http.ErrAbortHandler)
				}
				_, _ = w.Write(body)
				return
			}
		}
		reg.ServeHTTP(w, r)
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	img, err := random.Image(300<<10, 3)
	testenv.Check(t, err)
	from := open(t)
	d, err := from.Put(context.Background(), "a", img)
	testenv.Check(t, err)
	_, err = from.Push(context.Background(), "a", host+"/x:1", Remote{})
	testenv.Check(t, err)
	to := open(t)
	got, err := to.Pull(web.With(context.Background(), web.Limits{Backoff: time.Millisecond}), host+"/x:1", Remote{Name: "b"})
	testenv.Check(t, err)
	if h, _ := got.Digest(); h != d {
		t.Errorf("pulled %s; want %s", h, d)
	}
	if err := validate.Image(got); err != nil {
		t.Error(err)
	}
	if broken.Load() == 0 || ranges.Load() == 0 {
		t.Errorf("%d transfers broke, %d were resumed; want both", broken.Load(), ranges.Load())
	}
}

func TestPullRefusesLies(t *testing.T) {
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			rec := httptest.NewRecorder()
			reg.ServeHTTP(rec, r)
			body := rec.Body.Bytes()
			if len(body) > 4096 {
				body[len(body)/2] ^= 1
			}
			_, _ = w.Write(body)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	img, err := random.Image(100<<10, 1)
	testenv.Check(t, err)
	s := open(t)
	_, err = s.Put(context.Background(), "a", img)
	testenv.Check(t, err)
	_, err = s.Push(context.Background(), "a", host+"/x", Remote{})
	testenv.Check(t, err)
	to := open(t)
	if _, err := to.Pull(context.Background(), host+"/x", Remote{}); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("Pull: %v; want a digest error", err)
	}
	if blobs, _ := os.ReadDir(to.path("blobs/sha256")); len(blobs) != 0 {
		t.Errorf("%d blobs were kept", len(blobs))
	}
}

// A configuration that would fill the memory is refused before it is fetched.
func TestPullRefusesHugeConfiguration(t *testing.T) {
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"size":%d,"digest":"sha256:%064d"},"layers":[]}`,
		types.OCIManifestSchema1, types.OCIConfigJSON, int64(1)<<40, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			t.Errorf("%s is fetched", r.URL.Path)
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		_, _ = w.Write([]byte(manifest))
	}))
	defer srv.Close()
	ref := strings.TrimPrefix(srv.URL, "http://") + "/x"
	s := open(t)
	_, perr := s.Pull(context.Background(), ref, Remote{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}})
	_, kerr := s.Peek(context.Background(), ref, Remote{})
	for _, err := range []error{perr, kerr} {
		if err == nil || !strings.Contains(err.Error(), "the configuration has 1099511627776 bytes") {
			t.Errorf("a configuration of 1 TB: %v; want a refusal that says its size", err)
		}
	}
}

func TestIndexChoosesPlatform(t *testing.T) {
	s := open(t)
	idx := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, a := range []string{"amd64", "ppc64le"} {
		img, err := random.Image(1000, 1)
		testenv.Check(t, err)
		cfg, _ := img.ConfigFile()
		cfg.OS, cfg.Architecture = "linux", a
		img, err = mutate.ConfigFile(img, cfg)
		testenv.Check(t, err)
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: a}}})
	}
	_, err := s.PutIndex(context.Background(), "multi", idx)
	testenv.Check(t, err)
	img, err := s.Get("multi", &v1.Platform{OS: "linux", Architecture: "ppc64le"})
	testenv.Check(t, err)
	if cfg, _ := img.ConfigFile(); cfg.Architecture != "ppc64le" {
		t.Errorf("got %s", cfg.Architecture)
	}
	_, err = s.Get("multi", &v1.Platform{OS: "linux", Architecture: "s390x"})
	var pe *PlatformError
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), "linux/amd64, linux/ppc64le") {
		t.Errorf("Get: %v; want a PlatformError that lists what there is", err)
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add("debian:12")
	f.Add("localhost:5000/a/b@sha256:" + strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, n string) {
		c, err := Canonical(n)
		if err != nil {
			return
		}
		if again, err := Canonical(c); err != nil || again != c {
			t.Errorf("Canonical(%q) = %q, whose own is %q, %v", n, c, again, err)
		}
		if e := escape(c); strings.ContainsAny(e, "/\x00") || e == "." || e == ".." {
			t.Errorf("escape(%q) = %q is not a file name", c, e)
		}
	})
}

// TestOwner checks that a name keeps its owner, and of which owners a process knows whether they live.
func TestOwner(t *testing.T) {
	me, err := thisProcess()
	testenv.Check(t, err)
	for _, c := range []struct {
		name         string
		change       func(o *owner)
		alive, known bool
	}{
		{"this process", func(*owner) {}, true, true},
		{"a process that had this pid", func(o *owner) { o.start-- }, false, true},
		{"a process of another host", func(o *owner) { o.host = "other" }, false, false},
		{"before the restart, or a host of the same name", func(o *owner) { o.boot = "other" }, false, false},
		{"a container with this host name", func(o *owner) { o.space++ }, false, false},
		{"a name of an older hpcc", func(o *owner) { *o = parseOwner(fmt.Sprintf("%s.%d.%d.123", o.host, o.pid, o.start)) }, false, false},
	} {
		o := me
		c.change(&o)
		if o != (owner{}) && parseOwner(o.String()+"123") != o {
			t.Errorf("%s: %q is read as another owner", c.name, o)
		}
		if alive, known := o.alive(me); alive != c.alive || known != c.known {
			t.Errorf("%s: alive %v, known %v", c.name, alive, known)
		}
		if new, old := o.abandoned(me, time.Now()), o.abandoned(me, time.Now().Add(-25*time.Hour)); new != (c.known && !c.alive) || old != !c.alive {
			t.Errorf("%s: a new file is a leftover: %v; an old one: %v", c.name, new, old)
		}
	}
}

// The temporary files of a killed process can be removed at once, before its parent waits
// for it.
func TestStartedOfTheDead(t *testing.T) {
	cmd := exec.Command("sleep", "1h")
	testenv.Check(t, cmd.Start())
	pid := cmd.Process.Pid
	if started(pid) == 0 {
		t.Errorf("process %d runs and is not seen", pid)
	}
	testenv.Check(t, cmd.Process.Kill())
	for end := time.Now().Add(10 * time.Second); started(pid) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d was killed and counts as running", pid)
		}
	}
	_ = cmd.Wait()
}

// TestGCReport checks the size of what is removed and until when the rest stays.
func TestGCReport(t *testing.T) {
	s := open(t)
	img, err := random.Image(1<<20, 2)
	testenv.Check(t, err)
	_, err = s.Put(t.Context(), "a", img)
	testenv.Check(t, err)
	tree := s.path("trees", strings.Repeat("a", 64))
	testenv.Check(t, os.MkdirAll(tree, 0o755))
	testenv.Check(t, os.WriteFile(filepath.Join(tree, "file"), make([]byte, 5000), 0o644))
	testenv.Check(t, os.Link(filepath.Join(tree, "file"), filepath.Join(tree, "again")))
	second := s.path("trees", strings.Repeat("b", 64))
	testenv.Check(t, os.MkdirAll(second, 0o755))
	for file, other := range map[string]string{"kept": t.TempDir(), "shared": second} { // trees share files
		testenv.Check(t, os.WriteFile(filepath.Join(tree, file), make([]byte, 7000), 0o644))
		testenv.Check(t, os.Link(filepath.Join(tree, file), filepath.Join(second, file+"2")))
		testenv.Check(t, os.Link(filepath.Join(tree, file), filepath.Join(other, file)))
	}
	if rep, err := s.GC(t.Context(), GCOptions{}); err != nil || rep.Bytes != 0 || rep.Kept != 0 || rep.KeptTrees != 2 {
		t.Errorf("with a name: %+v, %v", rep, err)
	}
	testenv.Check(t, s.Remove("a"))
	var freed files.Freed
	blobs := freed.Count(s.path("blobs"))
	rep, err := s.GC(t.Context(), GCOptions{Age: 24 * time.Hour})
	if left := time.Until(rep.Until); err != nil || rep.Bytes != 0 || rep.Kept != blobs || rep.KeptTrees != 2 || left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("recent: %+v, %v; want %d bytes kept for a day", rep, err, blobs)
	}
	for _, dry := range []bool{true, false} {
		rep, err := s.GC(t.Context(), GCOptions{Age: -1, DryRun: dry})
		if err != nil || rep.Bytes != blobs+12000 || rep.Trees != 2 || rep.Kept != 0 || !rep.Until.IsZero() {
			t.Errorf("dry %v: %+v, %v; want %d bytes", dry, rep, err, blobs+12000)
		}
	}
	var sum GCReport
	sum.Add(GCReport{Bytes: 1, Until: time.Unix(20, 0)})
	sum.Add(GCReport{Bytes: 2, Until: time.Unix(10, 0)})
	sum.Add(GCReport{Bytes: 3})
	if sum.Bytes != 6 || !sum.Until.Equal(time.Unix(10, 0)) {
		t.Errorf("%+v", sum)
	}
}
