package git

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/hostile"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// servedRepository creates a repository and serves it as files.
func servedRepository(t *testing.T) *hostile.Server {
	t.Helper()
	testenv.NeedProgram(t, "git")
	dir := t.TempDir()
	cmd := exec.Command("sh", "-ec", `git init -q -b main work; echo in git >work/f; git -C work add .; git -C work commit -qm first
git clone -q --bare work repo.git; git -C repo.git update-server-info`)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return hostile.Serve(http.FileServer(http.Dir(dir)), false)
}

// TestGitFaults clones from servers with faults.
func TestGitFaults(t *testing.T) {
	for _, fault := range hostile.Faults() {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			server := servedRepository(t)
			defer server.Close()
			messages := &testenv.Messages{}
			ctx := web.With(t.Context(), web.Limits{Idle: time.Second, Attempts: 2, Backoff: time.Millisecond, Notice: messages.Add})
			clone := func() error {
				_, err := Clone(ctx, t.TempDir(), Repository{Address: server.URL + "/repo.git#main"})
				return err
			}
			first := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/info/refs") }
			server.Set(fault, -1, first)
			started := time.Now()
			err := clone()
			if err == nil || strings.Contains(err.Error(), "context") || strings.Contains(err.Error(), "signal") || time.Since(started) > time.Minute {
				t.Errorf("no recovery: %v after %v", err, time.Since(started))
			}
			if !strings.Contains(messages.String(), "attempt 2 of 2") {
				t.Errorf("%v; messages to the user: %q", err, messages)
			}
			server.Set(fault, 1, first)
			if err := clone(); err != nil {
				t.Errorf("after recovery: %v", err)
			}
		})
	}
}

// TestGitSilent stops protocols for which git has no timeout, after the idle limit and when
// the context ends.
func TestGitSilent(t *testing.T) {
	servedRepository(t).Close() // for git itself
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	defer l.Close() // the kernel accepts connections, and nobody answers
	repository := "git://" + l.Addr().String() + "/x.git"
	clone := func(ctx context.Context) error {
		_, err := Clone(ctx, t.TempDir(), Repository{Address: repository + "#main"})
		return err
	}
	ctx := web.With(t.Context(), web.Limits{Idle: 300 * time.Millisecond, Attempts: 2, Backoff: time.Millisecond})
	if err := clone(ctx); err == nil || !strings.Contains(err.Error(), "git reported no progress for 600ms (gave up after 2 attempts)") {
		t.Errorf("silent: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	started := time.Now()
	if err := clone(ended); !errors.Is(err, context.Canceled) || time.Since(started) > 20*time.Second {
		t.Errorf("cancelled: %v after %v", err, time.Since(started))
	}
}

// TestGitMessages removes progress from git's error messages.
func TestGitMessages(t *testing.T) {
	w := &gitOutput{onWrite: func() {}}
	for _, s := range []string{"remote: Counting objects:  50% (1/2)\rremote: Counting objects: 100% (2/2)\rremote: Counting objects: 100% (2/2), done.\n",
		"Receiving objects:  50% (1/2)\rfatal: early EOF\n", "fatal: fetch-pack: invalid index-pack output\n"} {
		_, _ = w.Write([]byte(s))
	}
	if got := w.message(); got != "fatal: early EOF fatal: fetch-pack: invalid index-pack output" {
		t.Errorf("message() = %q", got)
	}
}
