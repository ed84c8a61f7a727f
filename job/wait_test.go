package job

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/store/wait"
)

// TestSilentCommand: a command of a scheduler that hangs is ended with a message.
func TestSilentCommand(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "scancel"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	begun := time.Now()
	err := slurm{}.cancel(wait.With(t.Context(), wait.Patience{Header: 100 * time.Millisecond}), "7")
	if err == nil || !strings.Contains(err.Error(), "scancel did not answer within 300ms and was ended") || time.Since(begun) > 20*time.Second {
		t.Errorf("cancel: %v after %v", err, time.Since(begun))
	}
}

// TestArgoBusy: an Argo server that is busy is asked again, but not to do something twice.
func TestArgoBusy(t *testing.T) {
	t.Setenv(argoToken, "sesame")
	asked := map[string]int{}
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked[r.Method]++; asked[r.Method] == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		say(200, `{"metadata":{"name":"a"}}`)(w, r)
	}))
	defer here.Close()
	s, err := argoAt(t, map[string]string{ArgoServer: here.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx := wait.With(t.Context(), wait.Patience{Backoff: time.Millisecond})
	if _, err := s.get(ctx, "a"); err != nil || asked["GET"] != 2 {
		t.Errorf("get: %v after %d requests", err, asked["GET"])
	}
	if _, err := s.create(ctx, &item{}, false); err == nil || asked["POST"] != 1 {
		t.Errorf("create: %v after %d requests; want an error after 1", err, asked["POST"])
	}
}
