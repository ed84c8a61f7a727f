package fetch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

func TestRetryAfter(t *testing.T) {
	begun := time.Now()
	requests := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer web.Close()
	r, err := Open(t.Context(), web.URL+"/x", false)
	testenv.Check(t, err)
	r.Close()
	if d := time.Since(begun); d < time.Second {
		t.Errorf("second request after %v; want at least Retry-After, 1 s", d)
	}
}

func TestOpenEndsWithContext(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	defer web.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := Open(ctx, web.URL+"/x", false); err == nil || time.Since(begun) > 20*time.Second {
		t.Errorf("Open = %v after %v; want an error soon after the context ends", err, time.Since(begun))
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
		{"https://u:p@c:bad/x", "(an invalid URL)", ""},
	} {
		if got := Hide(c.in); got != c.want {
			t.Errorf("Hide(%q) = %q; want %q", c.in, got, c.want)
		}
		if got := Public(c.in); got != c.public {
			t.Errorf("Public(%q) = %q; want %q", c.in, got, c.public)
		}
	}
}

// TestOpenFileHides checks that errors for file URLs contain no credentials.
func TestOpenFileHides(t *testing.T) {
	for u, want := range map[string]string{"file://me:secret@host/x": "file://host/x: not of the form file:///directory", "file://me:secret@[/x": "parsing a file URL: "} {
		if _, err := Open(t.Context(), u, false); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%s) = %v; want an error that begins with %q and has no credentials", u, err, want)
		}
	}
}

// TestIsPrivate lists the servers that may receive credentials of netrc.
func TestIsPrivate(t *testing.T) {
	for u, want := range map[string]bool{"https://c.example/x": true, "http://c.example/x": false, "http://127.0.0.1:8/x": true, "http://[::1]/": true, "http://localhost/": true, "http://localhost.example/": false} {
		p, err := url.Parse(u)
		if err != nil || isPrivate(p) != want {
			t.Errorf("isPrivate(%s) = %v, error %v; want %v", u, isPrivate(p), err, want)
		}
	}
}

func TestWebLogin(t *testing.T) {
	// A server without TLS does not get the credentials of netrc, even if plain HTTP is allowed.
	w := Web{plain: true, netrc: map[string]*url.Userinfo{"e.org": url.User("me")}}
	for address, want := range map[string]bool{"https://e.org/simple/": true, "http://e.org/simple/": false} {
		if u, err := url.Parse(address); err != nil || (w.login(u) != nil) != want {
			t.Errorf("login(%s) = %v, error %v; want credentials: %v", address, w.login(u), err, want)
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
			t.Errorf("allowed(%s) = %v; want nil: %v", u, err, want)
		}
	}
}
