package fetch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"hpcc/testdata/testenv"
)

func TestRetryAfter(t *testing.T) {
	begun := time.Now()
	asked := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer web.Close()
	r, err := Open(t.Context(), web.URL+"/x", false)
	testenv.Check(t, err)
	r.Close()
	if d := time.Since(begun); d < time.Second {
		t.Errorf("asked again after %v; the server said 1 s", d)
	}
}

func TestFetchEnds(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	defer web.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := Open(ctx, web.URL+"/x", false); err == nil || time.Since(begun) > 20*time.Second {
		t.Errorf("fetch = %v after %v; want an end with the context", err, time.Since(begun))
	}
}

func TestHide(t *testing.T) {
	for _, c := range []struct{ in, want, public string }{
		{"https://c.example/x/linux-64", "https://c.example/x/linux-64", "https://c.example/x/linux-64"},
		{"https://u:p@c.example/x", "https://c.example/x", "https://c.example/x"},
		{"https://c.example/t/TOK/x/a-1-0.conda", "https://c.example/t/xxxxx/x/a-1-0.conda", "https://c.example/x/a-1-0.conda"},
		{"https://c.example/get/t/TOK/x/a-1-0.conda", "https://c.example/get/t/xxxxx/x/a-1-0.conda", "https://c.example/get/x/a-1-0.conda"},
		{"https://c.example/t/TOK", "https://c.example/t/xxxxx", "https://c.example"},
		{"https://c.example/t/linux-64/a-1-0.conda", "https://c.example/t/linux-64/a-1-0.conda", "https://c.example/t/linux-64/a-1-0.conda"},
		{"https://c.example/x?sig=1", "https://c.example/x", "https://c.example/x"},
		{"file:///t/here/a", "file:///t/here/a", ""},
		{"https://u:p@c:bad/x", "(a URL that cannot be read)", ""},
	} {
		if got := Hide(c.in); got != c.want {
			t.Errorf("hide(%q) = %q; want %q", c.in, got, c.want)
		}
		if got := Public(c.in); got != c.public {
			t.Errorf("public(%q) = %q; want %q", c.in, got, c.public)
		}
	}
}

// A login of netrc goes to no server that is spoken to in the clear.
func TestUnheard(t *testing.T) {
	for u, want := range map[string]bool{"https://c.example/x": true, "http://c.example/x": false, "http://127.0.0.1:8/x": true, "http://[::1]/": true, "http://localhost/": true, "http://localhost.example/": false} {
		p, err := url.Parse(u)
		if err != nil || unheard(p) != want {
			t.Errorf("unheard(%s) = %v, %v", u, unheard(p), err)
		}
	}
}

func TestWebLogin(t *testing.T) {
	// netrc is for nobody who is spoken to in the clear.
	w := Web{plain: true, netrc: map[string]*url.Userinfo{"e.org": url.User("me")}}
	for address, want := range map[string]bool{"https://e.org/simple/": true, "http://e.org/simple/": false} {
		if u, err := url.Parse(address); err != nil || (w.login(u) != nil) != want {
			t.Errorf("login for %s: %v, %v", address, w.login(u), err)
		}
	}
}

func TestWebAllowed(t *testing.T) {
	web, err := NewWeb(nil, false)
	testenv.Check(t, err)
	for u, want := range map[string]bool{"https://e.org/": true, "http://e.org/": false, "http://127.0.0.1:1/": true, "http://localhost/": true, "http://[::1]/": true, "ftp://e.org/": false, "http://127.0.0.1.e.org/": false} {
		x, err := url.Parse(u)
		testenv.Check(t, err)
		if err := web.allowed(x); (err == nil) != want {
			t.Errorf("%s: %v; want it allowed: %v", u, err, want)
		}
	}
}
