package source

import (
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/build/git"
	"hpcc/store"
	"hpcc/testdata/helpers/hostile"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// TestFetchFaults downloads from servers with permanent faults, and from servers that
// recover.
func TestFetchFaults(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 80<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "f"), content, 0o600))
	any := func(*http.Request) bool { return true }
	for _, fault := range hostile.Faults() {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			server := hostile.Serve(http.FileServer(http.Dir(dir)), false)
			defer server.Close()
			messages := &testenv.Messages{}
			p := web.Limits{Header: fault.Limit(), Idle: fault.Limit(), Attempts: 3, Backoff: time.Millisecond, Notice: messages.Add}
			ctx := web.With(t.Context(), p)
			fetch := func() (string, error) {
				to := filepath.Join(t.TempDir(), "to")
				_, err := Fetch(ctx, server.URL+"/f", to, false, func(int64, int64) {})
				b, _ := os.ReadFile(to)
				return string(b), err
			}
			server.Set(fault, -1, any)
			started := time.Now()
			if _, err := fetch(); err == nil || strings.Contains(err.Error(), "context") || time.Since(started) > 30*time.Second {
				t.Errorf("no recovery: %v after %v", err, time.Since(started))
			}
			if met := server.Set(fault, 2, any); met != 3 {
				t.Errorf("no recovery: the server was asked %d times; want 3", met)
			}
			p.Attempts = 20 // for slow machines
			ctx = web.With(t.Context(), p)
			if got, err := fetch(); err != nil || got != string(content) {
				t.Errorf("after recovery: %d bytes, %v", len(got), err)
			}
			if !strings.Contains(messages.String(), "attempt 2 of 3") {
				t.Errorf("messages to the user: %q", messages)
			}
		})
	}
}

func TestIsRemote(t *testing.T) {
	for word, want := range map[string][2]bool{"a": {}, "./a.git": {}, "https://h/x": {true, false}, "http://h/x.tar.gz": {true, false}, "https://h/x.git": {true, true},
		"https://h/x.git#main:dir": {true, true}, "git@h:x": {true, true}, "https://h/x.git?ref=main": {true, true}, "https://h/x.git?no=1": {true, true}, "https://h/x.git/f": {true, false}, "github.com/a/b": {}, "a:b": {}, "git://h/x": {true, true}, "ssh://h/x": {true, true}, "ftp://h/x": {}} {
		if IsRemote(word) != want[0] || git.IsAddress(word) != want[1] {
			t.Errorf("IsRemote(%q), git.IsAddress = %v, %v; want %v", word, IsRemote(word), git.IsAddress(word), want)
		}
	}
}

// newStore creates an empty store.
func newStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	return s
}
