package pip

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// from returns options that use only the index and resolve dependencies.
func from(s *condatest.Index) Options {
	return Options{Indexes: Indexes{URL: s.URL + "/simple"}}
}

// chosen lists a plan as "name version", and wheels that are not pure with their tag.
func chosen(p *Plan) string {
	var out []string
	for _, d := range p.Wheels {
		s := d.Name + " " + d.Version
		if !strings.HasSuffix(d.File, "py3-none-any.whl") {
			s = strings.TrimSuffix(d.File, ".whl")
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestIndex(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		s := condatest.ServeIndex(t, asJSON, condatest.SimpleWheel("Some.Name", "1.0", "dep>=1"), condatest.SimpleWheel("Some.Name", "1.1", "dep>=1"), condatest.SimpleWheel("Some.Name", "2.0rc1"), condatest.SimpleWheel("Some.Name", "3.0"), condatest.SimpleWheel("Some.Name", "4.0"), condatest.SimpleWheel("dep", "1.5"))
		if asJSON {
			s.Attrs["Some.Name-3.0-py3-none-any.whl"] = `, "yanked": "broken"`
			s.Attrs["Some.Name-4.0-py3-none-any.whl"] = `, "requires-python": ">=3.12"`
			s.Attrs["Some.Name-1.1-py3-none-any.whl"] = fmt.Sprintf(`, "core-metadata": {"sha256": %q}, "yanked": false`, condatest.SHA256([]byte(condatest.SimpleWheel("Some.Name", "1.1", "dep>=1").Metadata())))
		} else {
			s.Attrs["Some.Name-3.0-py3-none-any.whl"] = `data-yanked="broken"`
			s.Attrs["Some.Name-4.0-py3-none-any.whl"] = `data-requires-python="&gt;=3.12"`
			s.Attrs["Some.Name-1.1-py3-none-any.whl"] = `data-core-metadata="true"`
		}
		for row, want := range map[string]string{
			"some_name":         "dep 1.5, some-name 1.1",
			"some_name<1.1":     "dep 1.5, some-name 1.0",
			"some_name>=2.0rc1": "some-name 2.0rc1",
			"some_name==3.0":    "some-name 3.0",
		} {
			r, err := installed(t, row, pyTarget(nil), from(s))
			if err != nil {
				t.Errorf("%s: %v", row, err)
			} else if got := chosen(r.plan); got != want {
				t.Errorf("%s: %s; want %s", row, got, want)
			}
		}
		if got := s.Count("/files/Some.Name-1.1-py3-none-any.whl.metadata"); got != 1 {
			t.Errorf("the metadata was asked for %d times; want 1", got)
		}
		for row, want := range map[string]string{
			"some_name==4.0":  "needs python >=3.12",
			"some_name==9":    "available versions: 1.0, 1.1, 2.0rc1, 3.0, 4.0",
			"some_name>2,<4":  "was yanked by its authors (3.0: broken)",
			"none-such":       "there is no package none-such in http://127.0.0.1",
			"some_name===1.x": "available versions:",
		} {
			_, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, row), pyTarget(nil), from(s))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 1: ") {
				t.Errorf("%s: %v; want %q", row, err, want)
			}
		}
	}
}

// TestWrongHash refuses a wrong digest in an index or a list, for every kind of digest.
func TestWrongHash(t *testing.T) {
	w := condatest.SimpleWheel("x", "1")
	good := condatest.SHA256(w.Bytes(t))
	zero := strings.Repeat("0", 64)
	for _, c := range []struct {
		name, hash, row, want string
	}{
		{"right", "sha256=" + good, "x", ""},
		{"index lies", "sha256=" + zero, "x", "sha256 mismatch: " + good + ", expected " + zero},
		{"index lies in md5", "md5=" + zero[:32], "x", "digest mismatch: the index lists md5:000"},
		{"index lies in sha512", "sha512=" + zero + zero, "x", "digest mismatch: the index lists sha512:" + zero},
		{"list and index agree", "sha256=" + good, "x==1 --hash=sha256:" + zero + " --hash=sha256:" + good, ""},
		{"list and index differ", "sha256=" + good, "x==1 --hash=sha256:" + zero, "a digest other than sha256:" + zero},
		{"list lies", "md5=", "x==1 --hash=sha256:" + zero, "is not a md5"},
		{"wrong list, no index digest", "none=", "x==1 --hash=sha256:" + zero, "sha256 mismatch: " + good},
		{"wrong list with two digests", "none=", "x==1 --hash=sha256:" + zero + " --hash=sha512:" + zero + zero, "digest mismatch: the list has"},
		{"list is right", "none=", "x==1 --hash=sha256:" + good, ""},
		{"a row without", "sha256=" + good, "x==1 --hash=sha256:" + good + "\ny==1", "line 2: y==1: other rows have a --hash"},
		{"a row that is open", "sha256=" + good, "x>=1 --hash=sha256:" + good, "needs == and a --hash"},
	} {
		for _, asJSON := range []bool{false, true} {
			s := condatest.ServeIndex(t, asJSON, w)
			s.Hash = func(condatest.Wheel, []byte) string { return c.hash }
			_, err := installed(t, c.row, pyTarget(nil), from(s))
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%s: %v", c.name, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%s: %v; want %q", c.name, err, c.want)
			}
		}
	}
	// The digest of the .metadata file is verified too.
	s := condatest.ServeIndex(t, false, w)
	s.Attrs[w.File()] = `data-dist-info-metadata="sha256=` + zero + `"`
	if _, err := installed(t, "x", pyTarget(nil), from(s)); err == nil || !strings.Contains(err.Error(), "the index lists "+zero) {
		t.Errorf("wrong digest of metadata: %v", err)
	}
	// With --hash rows, dependencies must have rows too.
	s = condatest.ServeIndex(t, false, condatest.SimpleWheel("a", "1", "x"), w)
	if _, err := installed(t, "a==1 --hash=sha256:"+condatest.SHA256(condatest.SimpleWheel("a", "1", "x").Bytes(t)), pyTarget(nil), from(s)); err == nil || !strings.Contains(err.Error(), "a 1 needs x, which has no row") {
		t.Errorf("a dependency without a row: %v", err)
	}
}

// TestLogin sends credentials only to their own host, and keeps them out of messages.
func TestLogin(t *testing.T) {
	s := condatest.ServeIndex(t, false, condatest.SimpleWheel("x", "1"))
	var seen []string
	var inner condatest.Answer
	inner = s.SetAnswer(func(w http.ResponseWriter, r *http.Request, nth int) bool {
		user, password, _ := r.BasicAuth()
		if seen = append(seen, user+":"+password); password != "s3cret" {
			w.WriteHeader(401)
			return true
		}
		return inner(w, r, nth)
	})
	u, err := url.Parse(s.URL)
	testenv.Check(t, err)
	file := filepath.Join(t.TempDir(), "netrc")
	t.Setenv("NETRC", file)
	for _, c := range []struct{ login, netrc, want string }{
		{"me:s3cret@", "", ""},
		{"", "machine other login a password b\nmacdef init\n machine 127.0.0.1\n\nmachine " + u.Hostname() + "\n login me\n password s3cret\n", ""},
		{"", "default login me password s3cret", ""},
		{"me:s3cret@", "machine " + u.Hostname() + " login me password other", ""},
		{"me:wr0ng@", "", "401 Unauthorized; add credentials for the host to ~/.netrc"},
		{"", "machine other login me password s3cret", "401 Unauthorized"},
		{"", "# machine 127.0.0.1 login me password s3cret", "401 Unauthorized"},
	} {
		testenv.Write(t, file, []byte(c.netrc))
		o := Options{Indexes: Indexes{URL: "http://" + c.login + u.Host + "/simple/"}}
		r, err := installed(t, "x", pyTarget(nil), o)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("login %q, netrc %q: %v; want %q", c.login, c.netrc, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("the message contains the password: %v", err)
		}
		if err == nil && (strings.Contains(fmt.Sprint(r.plan.Wheels, r.notes), "s3cret") || strings.Contains(r.plan.Wheels[0].URL, "@")) {
			t.Errorf("the plan contains the password: %+v", r.plan.Wheels)
		}
	}
	// Other hosts do not receive the credentials.
	seen = nil
	other := condatest.Serve(t, t.TempDir(), func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if _, _, ok := r.BasicAuth(); ok {
			t.Error("credentials were sent to another host")
		}
		http.Redirect(w, r, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)+r.URL.Path, http.StatusFound)
		return true
	})
	testenv.Write(t, file, "")
	o := Options{Indexes: Indexes{URL: strings.Replace(other.URL, "127.0.0.1", "localhost", 1) + "/simple/", Extra: []string{"http://me:s3cret@" + u.Host + "/simple/"}}}
	if _, err := installed(t, "x", pyTarget(nil), o); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a redirection: %v; want 401", err)
	}
}

func TestServers(t *testing.T) {
	good := condatest.SimpleWheel("x", "1")
	busy := func(header string) func(http.ResponseWriter, *http.Request, int) bool {
		return func(w http.ResponseWriter, r *http.Request, nth int) bool {
			if nth == 1 {
				w.Header().Set("Retry-After", header)
				w.WriteHeader(http.StatusTooManyRequests)
			}
			return nth == 1
		}
	}
	always := func(do func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request, int) bool {
		return func(w http.ResponseWriter, _ *http.Request, _ int) bool { do(w); return true }
	}
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, int) bool
		want   string
	}{
		{"busy", busy("0"), ""},
		{"busy until a date", busy(time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)), ""},
		{"teapot", always(func(w http.ResponseWriter) { w.WriteHeader(418) }), "the server returned 418"},
		{"not an index", always(func(w http.ResponseWriter) { w.Header().Set("Content-Type", "image/png") }), `content type "image/png": not a package index`},
		{"JSON cut off", always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			fmt.Fprint(w, `{"meta": {"api-version": "1.0"}, "files": [`)
		}), "unexpected EOF"},
		{"JSON of the future", always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			fmt.Fprint(w, `{"meta": {"api-version": "2.0"}, "files": []}`)
		}), `index version "2.0"`},
		{"HTML of the future", always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<meta name="pypi:repository-version" content="2.0">`)
		}), `index version "2.0"`},
		{"this machine's files", always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<a href="file:///etc/x-1-py3-none-any.whl">x</a>`)
		}), "points to local files"},
		{"this machine's files below a base", always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<base href="file:///etc/"><a href="x-1-py3-none-any.whl">x</a>`)
		}), "points to local files"},
		{"no TLS elsewhere", always(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<a href="http://192.0.2.1/x-1-py3-none-any.whl">x</a>`)
		}), "has no TLS"},
		{"a redirection to no TLS", always(func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://192.0.2.1/")
			w.WriteHeader(302)
		}), "has no TLS"},
	} {
		s := condatest.ServeIndex(t, false, good)
		var inner condatest.Answer
		inner = s.SetAnswer(func(w http.ResponseWriter, r *http.Request, nth int) bool {
			return c.answer(w, r, nth) || inner(w, r, nth)
		})
		_, err := installed(t, "x", pyTarget(nil), from(s))
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Resolve(ctx, condatest.NewStore(t), readRows(t, "x"), pyTarget(nil), from(condatest.ServeIndex(t, false, good))); err == nil {
		t.Error("Resolve succeeded with a canceled context")
	}
}

// TestSources uses wheels from several sources: for one version, the first source wins.
func TestSources(t *testing.T) {
	main, extra := condatest.ServeIndex(t, false, condatest.SimpleWheel("x", "1"), condatest.SimpleWheel("y", "1")), condatest.ServeIndex(t, true, condatest.SimpleWheel("x", "2"), condatest.SimpleWheel("z", "1"))
	dir := condatest.WheelDir(t, condatest.SimpleWheel("x", "1.5"), condatest.SimpleWheel("y", "1"))
	o := from(main)
	o.Indexes.Extra = []string{extra.URL + "/simple/"}
	o.Indexes.FindLinks = []string{dir}
	r, err := installed(t, "x\ny\nz", pyTarget(nil), o)
	testenv.Check(t, err)
	if got, want := chosen(r.plan), "x 2, y 1, z 1"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if got := r.plan.Wheels[1].URL; got != "" {
		t.Errorf("y is from %s; want the directory", got)
	}
	// A page of links, without an index.
	page := condatest.Serve(t, dir, nil)
	if r, err = installed(t, "x", pyTarget(nil), Options{Indexes: Indexes{NoIndex: true, FindLinks: []string{page.URL + "/"}}}); err != nil || chosen(r.plan) != "x 1.5" {
		t.Errorf("a page of links: %v", err)
	}
	if _, err = installed(t, "x", pyTarget(nil), Options{Indexes: Indexes{NoIndex: true, FindLinks: []string{filepath.Join(dir, "none")}}}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing directory: %v", err)
	}
}

// FuzzIndex parses index pages.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`<a href="x-1-py3-none-any.whl#sha256=`+strings.Repeat("0", 64)+`" data-yanked data-requires-python="&gt;=3">x</a>`), false)
	f.Add([]byte(`<base href="//e.org/"><a href='../x-1.tar.gz'>`), false)
	f.Add([]byte(`{"meta":{"api-version":"1.0"},"files":[{"filename":"x-1-py3-none-any.whl","url":"x","hashes":{"sha256":"00"},"yanked":"r","core-metadata":{"sha256":"00"}}]}`), true)
	base, err := url.Parse("https://u:p@e.org/simple/x/")
	testenv.Check(f, err)
	f.Fuzz(func(t *testing.T, data []byte, asJSON bool) {
		read := parseIndexHTML
		if asJSON {
			read = parseIndexJSON
		}
		list, err := read(bytes.NewReader(data), base)
		if err != nil {
			return
		}
		for _, x := range list {
			u, err := url.Parse(x.url)
			if err != nil || u.Scheme == "file" || u.Fragment != "" {
				t.Fatalf("%q: %v", x.url, err)
			}
			for _, h := range x.hashes {
				alg, sum, _ := strings.Cut(h, ":")
				if n := hashSizes[alg]; n == 0 || len(sum) != 2*n {
					t.Fatalf("digest %q", h)
				}
			}
			x.sort("x")
		}
	})
}

// TestIndexesBefore prefers the user's index to the file's. It finds wheels next to the file
// from any working directory.
func TestIndexesBefore(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.Mkdir(filepath.Join(dir, "wheels"), 0o755))
	file := Indexes{URL: "https://f/", Extra: []string{"https://fx/"}, FindLinks: []string{"wheels", "elsewhere", "https://l/"}, NoIndex: true}
	for _, c := range []struct {
		user Indexes
		want string
	}{
		{Indexes{}, fmt.Sprintf("{https://f/ [https://fx/] [%s/wheels elsewhere https://l/] true false}", dir)},
		{Indexes{URL: "https://u/", Extra: []string{"https://ux/"}, FindLinks: []string{"w"}, PlainHTTP: true}, fmt.Sprintf("{https://u/ [https://ux/ https://fx/] [w %s/wheels elsewhere https://l/] false true}", dir)},
	} {
		if got := fmt.Sprint(c.user.Before(file, dir)); got != c.want {
			t.Errorf("%+v before the file's: %s; want %s", c.user, got, c.want)
		}
	}
}
