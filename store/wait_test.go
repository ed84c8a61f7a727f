package store

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/testdata/helpers/hostile"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// tokenRegistry returns a registry that requires a token from its own token server.
func tokenRegistry() http.Handler {
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			_, _ = io.WriteString(w, `{"token":"abcdef"}`)
		case r.Header.Get("Authorization") != "Bearer abcdef":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			reg.ServeHTTP(w, r)
		}
	})
}

// TestRegistryFaults applies server faults to every kind of request in a pull and a push.
// Permanent faults must result in an error with a reason; after temporary ones, the command
// must succeed.
func TestRegistryFaults(t *testing.T) {
	all := hostile.Faults()
	bodiless := []hostile.Fault{hostile.Silent, hostile.Reset, hostile.Busy, hostile.Down}
	for _, c := range []struct {
		name, method, path string
		push               bool
		faults             []hostile.Fault
	}{
		{"ping", "GET", "/v2/", false, bodiless},
		{"token", "GET", "/token", false, all},
		{"manifest", "GET", "/manifests/", false, all},
		{"blob", "GET", "/blobs/sha256:", false, all},
		{"look for a blob", "HEAD", "/blobs/sha256:", true, bodiless},
		{"begin an upload", "POST", "/blobs/uploads/", true, bodiless},
		{"upload", "PATCH", "/blobs/uploads/", true, append(bodiless, hostile.Stall, hostile.Drop)},
		{"end an upload", "PUT", "/blobs/uploads/", true, bodiless},
		{"send a manifest", "PUT", "/manifests/", true, append(bodiless, hostile.Stall, hostile.Drop)},
	} {
		for _, fault := range c.faults {
			t.Run(c.name+" "+string(fault), func(t *testing.T) {
				t.Parallel()
				server := hostile.Serve(tokenRegistry(), false)
				defer server.Close()
				host := strings.TrimPrefix(server.URL, "http://")
				s := open(t)
				img, err := random.Image(100<<10, 2)
				testenv.Check(t, err)
				var mu sync.Mutex
				notices := ""
				p := web.Limits{Header: fault.Limit(), Commit: fault.Limit(), Idle: fault.Limit(),
					Attempts: 3, Backoff: time.Millisecond, Notice: func(line string) { mu.Lock(); defer mu.Unlock(); notices += line + "\n" }}
				ctx := web.With(t.Context(), p)
				_, err = s.Put(ctx, "x", img)
				testenv.Check(t, err)
				do := func() error {
					_, err := s.Push(ctx, "x", host+"/x:1", Remote{})
					return err
				}
				if !c.push {
					testenv.Check(t, do())
					do = func() error {
						_, err := open(t).Pull(ctx, host+"/x:1", Remote{})
						return err
					}
				}
				match := func(r *http.Request) bool {
					return r.Method == c.method && ((strings.Contains(r.URL.Path, c.path) && c.path != "/v2/") || r.URL.Path == c.path)
				}
				server.Set(fault, -1, match)
				begun := time.Now()
				err = do()
				if err == nil || strings.Contains(err.Error(), "context") || time.Since(begun) > 30*time.Second {
					t.Errorf("permanent fault: %v after %v", err, time.Since(begun))
				}
				if faults := server.Set(fault, 2, match); faults < 3 {
					t.Errorf("permanent fault: %d requests; want at least 3 (error %v)", faults, err)
				}
				p.Attempts = 20 // on a slow machine, further attempts may fail
				ctx = web.With(t.Context(), p)
				if err := do(); err != nil {
					t.Errorf("after recovery: %v", err)
				}
				if faults := server.Set("", 0, nil); faults != 2 {
					t.Errorf("the server failed %d times; want 2", faults)
				}
				mu.Lock()
				defer mu.Unlock()
				want := ", attempt 2 of 3"
				if fault == hostile.Busy {
					want = host + " asks to wait 1s (429), attempt 2 of 3"
				}
				if !strings.Contains(notices, want) {
					t.Errorf("the notices are %q; want %q", notices, want)
				}
			})
		}
	}
}

// TestPushCancel checks that cancelling the context ends a push that waits before its next
// attempt.
func TestPushCancel(t *testing.T) {
	server := hostile.Serve(tokenRegistry(), false)
	defer server.Close()
	s := open(t)
	img, err := random.Image(1000, 1)
	testenv.Check(t, err)
	ctx, cancel := context.WithCancel(web.With(t.Context(), web.Limits{Backoff: time.Hour}))
	_, err = s.Put(ctx, "x", img)
	testenv.Check(t, err)
	server.Set(hostile.Down, -1, func(r *http.Request) bool { return r.Method == "PATCH" })
	time.AfterFunc(300*time.Millisecond, cancel)
	begun := time.Now()
	if _, err := s.Push(ctx, "x", strings.TrimPrefix(server.URL, "http://")+"/x", Remote{}); !errors.Is(err, context.Canceled) || time.Since(begun) > 20*time.Second {
		t.Errorf("Push: %v after %v", err, time.Since(begun))
	}
}

// TestCredentialHelper checks that a credential helper that hangs is reported and killed.
func TestCredentialHelper(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", dir)
	alive := filepath.Join(dir, "alive")
	for name, text := range map[string]string{
		"config.json":             `{"credsStore":"hangs"}`,
		"docker-credential-hangs": "#!/bin/sh\necho $$ >'" + alive + "'\nexec 0<&- 1>&- 2>&-\nwhile :; do sleep 0.1; done\n",
	} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	ctx := web.With(t.Context(), web.Limits{Header: time.Second})
	_, err := open(t).Pull(ctx, "127.0.0.1:1/x", Remote{})
	if err == nil || !strings.Contains(err.Error(), "the credential helper of 127.0.0.1:1 (credHelpers or credsStore in docker's config.json) did not answer within 1s") {
		t.Errorf("Pull: %v", err)
	}
	pid, err := os.ReadFile(alive)
	testenv.Check(t, err)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the helper still runs: %s", stat)
		}
	}
}
