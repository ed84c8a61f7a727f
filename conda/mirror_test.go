package conda

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

func TestMirrors(t *testing.T) {
	a, b := &testPkg{name: "a", files: []testFile{{path: "share/a", text: "A"}}}, &testPkg{name: "b", files: []testFile{{path: "share/b", text: "B"}}}
	text := export(a, b)
	good := newChannel(t, a, b)
	file := "linux-64/" + a.dist() + a.format

	outdated, wrong := newChannel(t, a, b), newChannel(t, a, b)
	testenv.Check(t, os.Remove(filepath.Join(outdated, file)))
	testenv.Write(t, filepath.Join(wrong, file), []byte(strings.Repeat("x", 100)))
	var asked atomic.Int32
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer broken.Close()

	missing := filepath.Join(t.TempDir(), "missing")
	digests := ""
	for _, c := range []struct {
		name, first string
	}{{"all valid", good}, {"missing", missing}, {"outdated", outdated}, {"other bytes", wrong}} {
		first := condatest.FileURL(c.first)
		s := condatest.NewStore(t)
		r, err := install(t, s, text, Options{Request: Request{Channels: []string{first}}, Host: Host{Mirrors: [][]string{{"https://other.example", "https://other.example/2"}, {first, condatest.FileURL(good)}}}})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		clean(t, s)
		// The record does not name the mirror that answered.
		if got := condatest.LayerDigests(t, r.layers); digests != "" && got != digests {
			t.Errorf("%s: layers %s, without mirrors %s", c.name, got, digests)
		} else {
			digests = got
		}
		if l := r.plan.Lock(nil); len(l.Channels) != 1 || l.Channels[0] != first {
			t.Errorf("%s: the lock has the channels %q; want %q", c.name, l.Channels, first)
		}
	}

	o := Options{Request: Request{Channels: []string{broken.URL}}, Host: Host{Mirrors: [][]string{{broken.URL, condatest.FileURL(good)}}}}
	r, err := install(t, condatest.NewStore(t), text, o)
	testenv.Check(t, err)
	if n := asked.Load(); n < 1 || n > 4 { // at most once for each concurrent request
		t.Errorf("a failing server was asked %d times", n)
	}
	if l := r.plan.Lock(nil); l.Channels[0] != broken.URL || !strings.HasPrefix(l.Packages[0].URL, broken.URL) {
		t.Errorf("the lock has %q %q", l.Channels, l.Packages[0].URL)
	}

	_, err = install(t, condatest.NewStore(t), text, Options{Request: Request{Channels: []string{condatest.FileURL(missing)}}, Host: Host{Mirrors: [][]string{{condatest.FileURL(missing), condatest.FileURL(missing) + "2"}}}})
	refused(t, nil, "no mirror has it", err, "has no index for linux-64")
	_, err = install(t, condatest.NewStore(t), text, Options{Request: Request{Channels: []string{broken.URL}}, Host: Host{Mirrors: [][]string{{broken.URL, broken.URL + "/other"}}}})
	refused(t, nil, "no mirror answers", err, "/other/")
	s := condatest.NewStore(t)
	_, err = install(t, s, text, Options{Request: Request{Channels: []string{condatest.FileURL(wrong)}}, Host: Host{Mirrors: [][]string{{condatest.FileURL(wrong), condatest.FileURL(outdated)}}}})
	refused(t, s, "no mirror has the bytes", err, "size mismatch: 100 bytes, expected")
}

// TestMirrorsOfLists downloads URLs with digests, as in lock files, from the other mirrors of
// their channel.
func TestMirrorsOfLists(t *testing.T) {
	a := &testPkg{name: "a", files: []testFile{{path: "share/a", text: "A"}}}
	good, missing, wrong := newChannel(t, a), filepath.Join(t.TempDir(), "missing"), newChannel(t, a)
	file := "/linux-64/" + a.dist() + a.format
	b, err := os.ReadFile(good + file)
	testenv.Check(t, err)
	testenv.Write(t, wrong+file, []byte(strings.Repeat("x", len(b))))
	for _, c := range []struct {
		name, mirror string
		digest       string
		mirrors      []string
		err          string
	}{
		{"the first is missing", missing, "#sha256:" + condatest.SHA256(b), []string{missing, good}, ""},
		{"the second is missing", missing, "#sha256:" + condatest.SHA256(b), []string{good, missing}, ""},
		{"other bytes", wrong, "#sha256:" + condatest.SHA256(b), []string{good, missing, wrong}, ""},
		{"a label", missing + "/label/x", "#sha256:" + condatest.SHA256(b), []string{filepath.Dir(good), missing + "/label"}, "no such file"},
		{"of another channel", missing, "#sha256:" + condatest.SHA256(b), []string{good, missing + "2"}, "no such file"},
		{"without a digest", missing, "", []string{missing, good}, "no such file"},
		{"no mirror has the bytes", wrong, "#sha256:" + condatest.SHA256(b), []string{wrong, missing}, "sha256 mismatch: "},
	} {
		var group []string
		for _, m := range c.mirrors {
			group = append(group, condatest.FileURL(m))
		}
		s := condatest.NewStore(t)
		r, err := install(t, s, "@EXPLICIT\n"+condatest.FileURL(c.mirror)+file+c.digest+"\n", Options{Host: Host{Mirrors: [][]string{group}}})
		if c.err != "" {
			refused(t, s, c.name, err, c.err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if l := r.plan.Lock(nil); l.Packages[0].URL != condatest.FileURL(c.mirror)+file {
			t.Errorf("%s: the lock has %s", c.name, l.Packages[0].URL)
		}
	}
}

func TestMirrorsOf(t *testing.T) {
	o := Options{Host: Host{Mirrors: [][]string{{"https://a/c"}, {"https://b/c", "https://m/b"}}}}
	for u, want := range map[string]string{"https://a/c": "", "https://b/c": "https://b/c https://m/b", "https://b/c/label/x": "https://b/c/label/x https://m/b/label/x", "https://b/cc": "", "https://m/b": ""} {
		got := ""
		if m := o.mirrorsOf(u); m != nil {
			got = strings.Join(m.URLs, " ")
		}
		if got != want {
			t.Errorf("mirrorsOf(%s) = %q; want %q", u, got, want)
		}
	}
}
