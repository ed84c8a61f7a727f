package conda

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// keptFiles lists the indexes in a cache.
func keptFiles(t testing.TB, dir string) []string {
	t.Helper()
	out, err := filepath.Glob(filepath.Join(dir, "*"))
	testenv.Check(t, err)
	return out
}

// TestIndexCache fetches an index once, then with conditional requests. It fetches it again
// if it changed, or if its file in the cache is damaged.
func TestIndexCache(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "a", version: "1"})
	var mu sync.Mutex
	sent := map[string]int{}
	tag := "one"
	web := condatest.Serve(t, dir, func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if !strings.HasSuffix(r.URL.Path, "linux-64/repodata.json") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("ETag", `"`+tag+`"`)
		if r.Header.Get("If-None-Match") == `"`+tag+`"` {
			sent["unchanged"]++
			w.WriteHeader(http.StatusNotModified)
			return true
		}
		sent["full"]++
		b, _ := os.ReadFile(filepath.Join(dir, "linux-64/repodata.json"))
		_, _ = w.Write(b)
		return true
	})
	keep := filepath.Join(t.TempDir(), "conda")
	resolve := func(version string) error {
		_, err := Resolve(t.Context(), read(t, "# platform: linux-64\na="+version+"=0"), Options{Request: Request{Channels: []string{web.URL}}, Subdir: "linux-64", Host: Host{Cache: keep}})
		return err
	}
	check := func(what string, err error, full, unchanged int) {
		t.Helper()
		if err != nil || sent["full"] != full || sent["unchanged"] != unchanged {
			t.Errorf("%s: %v, sent %v; want %d full, %d unchanged", what, err, sent, full, unchanged)
		}
	}
	check("first", resolve("1"), 1, 0)
	check("again", resolve("1"), 1, 1)
	if fi, err := os.Stat(keptFiles(t, keep)[0]); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("the index has mode %v, %v; want 0644, for others who share the store", fi.Mode(), err)
	}
	channelAt(t, dir, &testPkg{name: "a", version: "2"})
	tag = "two"
	check("changed", resolve("2"), 2, 1)
	for n, spoil := range []func(string) error{
		func(f string) error { return os.Truncate(f, 60) }, func(f string) error { return os.Truncate(f, 0) }, os.Remove,
		func(f string) error { return os.WriteFile(f, []byte("{}\n"), 0o644) },
	} {
		for _, f := range keptFiles(t, keep) {
			testenv.Check(t, spoil(f))
		}
		check(fmt.Sprint("spoiled ", n), resolve("2"), 3+n, 1)
	}
	// An unreadable index is not cached.
	testenv.Write(t, filepath.Join(dir, "linux-64/repodata.json"), []byte(`{"packages": {`))
	tag = "three"
	if err := resolve("2"); err == nil {
		t.Error("a truncated index was accepted")
	}
	channelAt(t, dir, &testPkg{name: "a", version: "2"})
	check("mended", resolve("2"), 8, 1)
}

// TestIndexAskedOnce requests an index once, even if the solver needs several rounds of names.
func TestIndexAskedOnce(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "a", version: "2", depends: []string{"b"}}, &testPkg{name: "b", depends: []string{"c"}}, &testPkg{name: "c", depends: []string{"d"}}, &testPkg{name: "d"})
	web := condatest.Serve(t, dir, nil)
	o := Options{Request: Request{Channels: []string{web.URL}}, Subdir: "linux-64", Host: Host{Cache: t.TempDir()}}
	p, err := Resolve(t.Context(), read(t, "# platform: linux-64\na=1=0"), o)
	if err != nil || len(p.Names()) != 4 {
		t.Fatalf("Resolve = %v, %v", p, err)
	}
	for _, f := range []string{"/linux-64/repodata.json", "/linux-64/repodata.json.zst", "/noarch/repodata.json"} {
		if n := web.Count(f); n > 1 {
			t.Errorf("%s was requested %d times", f, n)
		}
	}
}

// TestIndexCacheTogether shares a cache between concurrent resolutions.
func TestIndexCacheTogether(t *testing.T) {
	web := condatest.Serve(t, newChannel(t, &testPkg{name: "a"}), nil)
	keep := t.TempDir()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := Resolve(t.Context(), read(t, "a=1.0=0"), Options{Request: Request{Channels: []string{web.URL}}, Subdir: "linux-64", Host: Host{Cache: keep}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, f := range keptFiles(t, keep) {
		if !strings.HasPrefix(filepath.Base(f), "index-") {
			t.Errorf("%s was left", f)
		}
	}
}

// TestIndexCacheEnds checks that an interrupted download of an index leaves no files.
func TestIndexCacheEnds(t *testing.T) {
	hold := make(chan struct{})
	web := condatest.Serve(t, t.TempDir(), func(w http.ResponseWriter, r *http.Request, _ int) bool {
		w.Header().Set("ETag", "x")
		_, _ = w.Write([]byte("{"))
		w.(http.Flusher).Flush()
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		return true
	})
	defer close(hold)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	keep := t.TempDir()
	_, err := Resolve(ctx, read(t, "a=1.0=0"), Options{Request: Request{Channels: []string{web.URL}}, Subdir: "linux-64", Host: Host{Cache: keep}})
	if err == nil || len(keptFiles(t, keep)) != 0 {
		t.Errorf("Resolve = %v; the cache has %v", err, keptFiles(t, keep))
	}
}
