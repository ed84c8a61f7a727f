package conda

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/conda/fetch"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

var small = testPkg{name: "small", files: []testFile{{path: "share/small", text: "small\n"}}}

func TestHTTP(t *testing.T) {
	p := small
	dir := newChannel(t, &p)
	web := condatest.Serve(t, dir, func(w http.ResponseWriter, r *http.Request, nth int) bool {
		if busy := strings.HasSuffix(r.URL.Path, ".conda") && nth == 1; busy {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	s := condatest.NewStore(t)
	r, err := install(t, s, export(&p), Options{Request: Request{Channels: []string{web.URL}}})
	testenv.Check(t, err)
	if got := r.files["opt/conda/share/small"].Data; got != "small\n" {
		t.Errorf("share/small = %q", got)
	}
	for path, want := range map[string]int{"/linux-64/repodata.json.zst": 1, "/linux-64/repodata.json": 1, "/noarch/repodata.json": 1, "/linux-64/small-1.0-0.conda": 2} {
		if got := web.Count(path); got != want {
			t.Errorf("%s was requested %d times; want %d", path, got, want)
		}
	}
	// A second time, with the package in the store.
	_, err = install(t, s, export(&p), Options{Request: Request{Channels: []string{web.URL}}})
	testenv.Check(t, err)
	if got := web.Count("/linux-64/small-1.0-0.conda"); got != 2 {
		t.Errorf("the package was requested %d times; want 2", got)
	}
}

func TestHTTPPackedIndex(t *testing.T) {
	p := small
	dir := newChannel(t, &p)
	plain := filepath.Join(dir, "linux-64/repodata.json")
	b, err := os.ReadFile(plain)
	testenv.Check(t, err)
	testenv.Write(t, plain+".zst", zst(b))
	testenv.Write(t, plain, []byte("not to be read"))
	for _, channel := range []string{dir, condatest.Serve(t, dir, nil).URL} {
		if _, err := install(t, condatest.NewStore(t), export(&p), Options{Request: Request{Channels: []string{channel}}}); err != nil {
			t.Errorf("channel %s: %v", channel, err)
		}
	}
}

// answers returns a server's answer for paths with this suffix.
func answers(suffix string, do func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if !strings.HasSuffix(r.URL.Path, suffix) {
			return false
		}
		do(w)
		return true
	}
}

func TestHTTPRefuses(t *testing.T) {
	p := small
	good := p.bytes(t)
	dir := newChannel(t, &p)
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, int) bool
		want   string
	}{
		{"no package", answers(".conda", func(w http.ResponseWriter) { w.WriteHeader(404) }), "the server returned 404"},
		{"no right", answers("repodata.json", func(w http.ResponseWriter) { w.WriteHeader(401) }), "the server returned 401"},
		{"nothing", func(w http.ResponseWriter, _ *http.Request, _ int) bool { w.WriteHeader(404); return true }, "check the URL"},
		{"body cut off", answers(".conda", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(good)))
			w.Write(good[:len(good)/2])
		}), "unexpected EOF"},
		{"body cut off, no length", answers(".conda", func(w http.ResponseWriter) { w.Write(good[:len(good)/2]) }), fmt.Sprintf("size mismatch: %d bytes, expected %d", len(good)/2, len(good))},
		{"body too long", answers(".conda", func(w http.ResponseWriter) { w.Write(append(good[:len(good):len(good)], 0)) }), fmt.Sprintf("response larger than %d bytes", len(good))},
		{"other body", answers(".conda", func(w http.ResponseWriter) { w.Write(make([]byte, len(good))) }), "sha256 mismatch: "},
		{"index cut off", answers("repodata.json", func(w http.ResponseWriter) { fmt.Fprint(w, `{"info":{},"packages":{}`) }), "unexpected EOF"},
		{"index of HTML", answers("repodata.json", func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }), "expected '{', found '<'"},
		{"packed index of HTML", answers(".zst", func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }), "magic number mismatch"},
	} {
		web := condatest.Serve(t, dir, c.answer)
		s := condatest.NewStore(t)
		_, err := install(t, s, export(&p), Options{Request: Request{Channels: []string{web.URL}}})
		refused(t, s, c.name, err, c.want)
		if left := cache(t, s); len(left) > 0 {
			t.Errorf("%s: the cache has %q", c.name, left)
		}
	}
}

func TestWrongDigests(t *testing.T) {
	for _, c := range []struct {
		name   string
		record map[string]any
		want   string
	}{
		{"sha256", map[string]any{"sha256": shaA}, "expected " + shaA},
		{"md5", map[string]any{"md5": md5A, "sha256": nil}, "expected " + md5A},
		{"wrong md5 with a correct sha256", map[string]any{"md5": md5A}, "expected " + md5A},
		{"size", map[string]any{"size": 10}, "response larger than 10 bytes"},
		{"larger size", map[string]any{"size": 1 << 40}, "expected 1099511627776"},
		{"sha256 that is a path", map[string]any{"sha256": "../../../etc"}, "invalid md5 "},
		{"invalid md5", map[string]any{"md5": strings.Repeat("x", 32)}, "invalid md5 "},
	} {
		p := small
		p.record = c.record
		s := condatest.NewStore(t)
		_, err := install(t, s, export(&p), Options{Request: Request{Channels: []string{newChannel(t, &p)}}})
		refused(t, s, c.name, err, c.want)
		if left := cache(t, s); len(left) > 0 {
			t.Errorf("%s: the cache has %q", c.name, left)
		}
	}
	p := small
	p.record = map[string]any{"sha256": nil, "md5": nil, "size": nil}
	r := mustInstall(t, &p)
	if !strings.Contains(r.notes(), "env.txt: 1 of 1 package is not verified (small): no digest in the channel's index") {
		t.Errorf("a record without digest is not noted: %q", r.notes())
	}
}

// TestCache reuses a package in the cache, but not a truncated one.
func TestCache(t *testing.T) {
	md5of := func(r *result) string { return r.plan.pkgs[0].MD5 }
	p := small
	dir := newChannel(t, &p)
	first, err := install(t, condatest.NewStore(t), export(&p), Options{Request: Request{Channels: []string{dir}}})
	testenv.Check(t, err)
	url := "@EXPLICIT\nCHANNEL/linux-64/small-1.0-0.conda"
	for _, c := range []struct {
		name, in string
		fetches  int // in three installations, one of them with a damaged file
	}{
		{"list", export(&p), 2},
		{"explicit, sha256", url + "#" + first.plan.pkgs[0].SHA256, 2},
		{"explicit, md5", url + "#" + md5of(first), 2},
		{"explicit, no digest", url, 3},
	} {
		for _, spoil := range []struct {
			name string
			do   func(string) error
		}{
			{"cut off", func(f string) error { return os.Truncate(f, 100) }},
			{"emptied", func(f string) error { return os.Truncate(f, 0) }},
			{"removed", os.Remove},
		} {
			web := condatest.Serve(t, dir, nil)
			s := condatest.NewStore(t)
			var digests []string
			for n := range 3 {
				r, err := install(t, s, c.in, Options{Request: Request{Channels: []string{web.URL}}})
				if err != nil {
					t.Fatalf("%s, %s, %d: %v", c.name, spoil.name, n, err)
				}
				digests = append(digests, condatest.LayerDigests(t, r.layers))
				have := cache(t, s)
				if n == 1 {
					if fi, err := os.Stat(have[0]); err != nil || time.Since(fi.ModTime()) > time.Minute {
						t.Errorf("%s: the cached file was not touched: %v", c.name, err)
					}
					testenv.Check(t, spoil.do(have[0]))
				} else if n == 0 {
					old := time.Now().Add(-48 * time.Hour)
					testenv.Check(t, os.Chtimes(have[0], old, old))
				}
			}
			if got := web.Count("/linux-64/small-1.0-0.conda"); got != c.fetches {
				t.Errorf("%s, %s: fetched %d times; want %d", c.name, spoil.name, got, c.fetches)
			}
			if digests[0] != digests[1] || digests[0] != digests[2] {
				t.Errorf("%s, %s: the layers are not the same: %q", c.name, spoil.name, digests)
			}
		}
	}
}

func TestCacheModes(t *testing.T) {
	p := small
	s := condatest.NewStore(t)
	_, err := install(t, s, export(&p), Options{Request: Request{Channels: []string{newChannel(t, &p)}}})
	testenv.Check(t, err)
	for _, f := range cache(t, s) {
		if fi, err := os.Stat(f); err != nil || fi.Mode().Perm() != 0o644 {
			t.Errorf("%s has mode %v, %v; want 0644, for others who share the store", f, fi.Mode(), err)
		}
	}
}

// TestCredentials sends credentials only to the server.
func TestCredentials(t *testing.T) {
	p := small
	dir := newChannel(t, &p)
	web := condatest.Serve(t, dir, func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if u, pw, _ := r.BasicAuth(); u != "me" || pw != "s3cret" || !strings.HasPrefix(r.URL.Path, "/t/tok-en/") {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		http.StripPrefix("/t/tok-en", http.FileServer(http.Dir(dir))).ServeHTTP(w, r)
		return true
	})
	channel := strings.Replace(web.URL, "http://", "http://me:s3cret@", 1) + "/t/tok-en"
	r, err := install(t, condatest.NewStore(t), export(&p), Options{Request: Request{Channels: []string{channel}}})
	testenv.Check(t, err)
	all := r.notes()
	for name, e := range r.files {
		all += name + e.Data
	}
	_, err = install(t, condatest.NewStore(t), "small=2.0=0", Options{Request: Request{Channels: []string{channel}}})
	all += fmt.Sprint(err)
	_, err = install(t, condatest.NewStore(t), "@EXPLICIT\nCHANNEL/linux-64/none-1-0.conda", Options{Request: Request{Channels: []string{channel}}})
	all += fmt.Sprint(err)
	_, err = install(t, condatest.NewStore(t), "small=2.0=0", Options{Request: Request{Channels: []string{"http://me:s3cret@bad host/t/tok-en/x"}}})
	all += fmt.Sprint(err)
	_, err = install(t, condatest.NewStore(t), "@EXPLICIT\nhttp://me:s3cret@bad host/t/tok-en/noarch/none-1-0.conda", Options{})
	all += fmt.Sprint(err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = fetch.Open(gone, channel+"/x", false)
	all += fmt.Sprint(err)
	if !strings.Contains(all, web.URL+"/linux-64/small-1.0-0.conda") {
		t.Error("the record lacks the URL")
	}
	for _, secret := range []string{"s3cret", "tok-en"} {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("%q is disclosed: …%s…", secret, all[max(0, i-100):min(len(all), i+100)])
		}
	}
}

// TestChannelLogin logs in to a private channel with the login in its URL, or else in netrc
// for its host.
func TestChannelLogin(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "a", version: "1"})
	web := condatest.Serve(t, dir, func(w http.ResponseWriter, r *http.Request, _ int) bool {
		user, password, _ := r.BasicAuth()
		if user == "me" && password == "s3cret" {
			return false
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	file := filepath.Join(t.TempDir(), "netrc")
	t.Setenv("NETRC", file)
	for _, c := range []struct{ login, netrc, want string }{
		{"", "", "401 Unauthorized; add credentials for the host to ~/.netrc"},
		{"", "machine other login me password s3cret\ndefault login me password s3cret\n", "401"}, // a default login is not sent
		{"", "machine 127.0.0.1 login me password s3cret\n", ""},
		{"me:s3cret@", "machine 127.0.0.1 login me password wrong\n", ""},
		{"me:wr0ng@", "", "401"},
	} {
		testenv.Write(t, file, []byte(c.netrc))
		o := Options{Request: Request{Channels: []string{strings.Replace(web.URL, "://", "://"+c.login, 1)}}, Subdir: "linux-64"}
		p, err := Resolve(t.Context(), read(t, "# platform: linux-64\na=1=0"), o)
		if err == nil {
			_, _, err = p.Layers(t.Context(), condatest.NewStore(t), o)
		}
		if text := fmt.Sprint(err); (c.want == "" && err != nil) || !strings.Contains(text, c.want) || strings.Contains(text, "wr0ng") || strings.Contains(text, "s3cret") {
			t.Errorf("login %q, netrc %q: %v; want %q", c.login, c.netrc, err, c.want)
		}
	}
}

const (
	md5A = "2af107b2e8f36bb0fcf3a9cde2b54225"
	shaA = "84f28e19394e6834ba811bcb3c1a55ed84f28e19394e6834ba811bcb3c1a55ed"
)
