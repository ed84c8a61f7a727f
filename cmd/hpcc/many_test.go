package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hpcc/testdata/helpers/bigstore"
	"hpcc/testdata/helpers/testenv"
)

// crowdSize returns the number of simultaneous commands: HPCC_TEST_CROWD, or else 100.
func crowdSize() int {
	if n, err := strconv.Atoi(os.Getenv("HPCC_TEST_CROWD")); err == nil && n > 0 {
		return n
	}
	return 100
}

// runAtOnce runs n commands at the same time and returns the output of those that failed.
func runAtOnce(n int, command func(i int) *exec.Cmd) (failed []string) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cmd := command(i)
			if out, err := cmd.CombinedOutput(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Sprintf("%v: %v: %s", cmd.Args[1:], err, out))
			}
		}()
	}
	wg.Wait()
	return failed
}

// many returns a store with an image "bb" and the archive of its root file system.
func many(t *testing.T) (store, root string) {
	t.Helper()
	needs(t, "busybox", "userns")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	top := t.TempDir()
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", top).Run() })
	store, root = filepath.Join(top, "store"), filepath.Join(top, "root.tar")
	script := `mkdir -p "$1/r/bin" && cp "$0" "$1/r/bin/busybox" && for n in sh true cat sleep ls; do ln -s busybox "$1/r/bin/$n"; done
for i in $(seq 200); do echo $i >"$1/r/$i"; done; tar cf "$1/root.tar" -C "$1/r" . && exec "$2" load "$1/root.tar" bb`
	cmd := exec.Command("sh", "-c", script, busy, top, filepath.Join(bin, "hpcc"))
	cmd.Env = withStore(store)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return store, root
}

// hpcc returns a command of hpcc with a store.
func hpcc(store string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, "hpcc"), args...)
	cmd.Env = withStore(store)
	return cmd
}

// withStore returns the environment of a command with a store.
func withStore(store string) []string { return append(os.Environ(), "HPCC_STORE="+store) }

// TestManyRuns starts many runs of one image at once. For the first ones the tree does not exist yet,
// and for the third ones the store is read-only.
func TestManyRuns(t *testing.T) {
	testenv.Slow(t)
	store, _ := many(t)
	trees := filepath.Join(store, "trees")
	exec.Command("chmod", "-R", "u+rwX", trees).Run()
	testenv.Check(t, os.RemoveAll(trees))
	testenv.Check(t, os.Mkdir(trees, 0o755))
	for _, when := range []string{"without a tree", "with a tree", "of a read-only store"} {
		if when == "of a read-only store" {
			exec.Command("chmod", "-R", "a-w", store).Run()
		}
		begun := time.Now()
		failed := runAtOnce(crowdSize(), func(int) *exec.Cmd { return hpcc(store, "run", "bb", "--", "cat", "/7") })
		t.Logf("%d runs %s in %v", crowdSize(), when, time.Since(begun))
		if len(failed) > 0 {
			t.Errorf("%s %d of %d fail: %s", when, len(failed), crowdSize(), failed[0])
		}
	}
	exec.Command("chmod", "-R", "u+w", store).Run()
	if left, _ := os.ReadDir(filepath.Join(store, "tmp")); len(left) > 0 {
		t.Errorf("left in tmp: %v", left)
	}
	if list, _ := os.ReadDir(trees); len(list) != 1 {
		t.Errorf("%d trees; want 1", len(list))
	}
}

// TestManyPulls pulls the same and different images, with rm and gc at the same time. Images that
// were not removed must be complete.
func TestManyPulls(t *testing.T) {
	testenv.Slow(t)
	store, _ := many(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for i := range 10 {
		img, err := random.Image(20_000, 3)
		testenv.Check(t, err)
		r, err := name.ParseReference(fmt.Sprintf("%s/img%d", host, i), name.Insecure)
		testenv.Check(t, err)
		testenv.Check(t, remote.Write(r, img, remote.WithContext(context.Background())))
	}
	failed := runAtOnce(crowdSize(), func(i int) *exec.Cmd {
		ref := fmt.Sprintf("%s/img%d", host, i%10)
		switch i % 20 {
		case 7:
			return hpcc(store, "gc")
		case 13:
			cmd := exec.Command("sh", "-c", `"$0" pull "$1" gone; "$0" rm gone || true; "$0" gc`, filepath.Join(bin, "hpcc"), ref)
			cmd.Env = withStore(store)
			return cmd
		}
		return hpcc(store, "pull", ref, fmt.Sprintf("img%d-%d", i%10, i))
	})
	for _, f := range failed {
		t.Error(f)
	}
	kept := 0
	for i := range crowdSize() {
		if i%20 == 7 || i%20 == 13 {
			continue
		}
		n := fmt.Sprintf("img%d-%d", i%10, i)
		if out, err := hpcc(store, "save", n, filepath.Join(t.TempDir(), "x.tar")).CombinedOutput(); err != nil {
			t.Errorf("image %s was lost: %s", n, out)
		}
		kept++
	}
	t.Logf("%d images pulled", kept)
	if left, _ := os.ReadDir(filepath.Join(store, "tmp")); len(left) > 0 {
		t.Errorf("left in tmp: %v", left)
	}
}

// TestTreeInUse checks that "rm" and "gc --age 0" keep the tree of a running program, and that gc
// removes it after the program has ended.
func TestTreeInUse(t *testing.T) {
	t.Parallel()
	store, _ := many(t)
	cmd := hpcc(store, "run", "bb", "--", "sh", "-c", "echo started; read line; cat /7")
	in, err := cmd.StdinPipe()
	testenv.Check(t, err)
	out, err := cmd.StdoutPipe()
	testenv.Check(t, err)
	testenv.Check(t, cmd.Start())
	b := make([]byte, 100)
	if n, err := out.Read(b); err != nil || string(b[:n]) != "started\n" {
		t.Fatalf("the program prints %q, %v", b[:n], err)
	}
	for _, args := range [][]string{{"rm", "bb"}, {"gc", "--age", "0"}} {
		if said, err := hpcc(store, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, said)
		}
	}
	fmt.Fprintln(in)
	text, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil || string(text) != "7\n" {
		t.Errorf("the program whose image was removed prints %q, %v; want 7", text, err)
	}
	if said, err := hpcc(store, "gc", "--age", "0").CombinedOutput(); err != nil {
		t.Errorf("gc: %v: %s", err, said)
	}
	if left, _ := os.ReadDir(filepath.Join(store, "trees")); len(left) > 0 {
		t.Errorf("gc leaves unused trees %v", left)
	}
}

// TestStatusOfManyJobs checks that a list of jobs shows the open and the newest ones, and the number of
// the others.
func TestStatusOfManyJobs(t *testing.T) {
	const jobs = 150
	store := filepath.Join(t.TempDir(), "store")
	testenv.Check(t, bigstore.Make(store, bigstore.Size{Jobs: jobs}, time.Now()))
	last := bigstore.Native(jobs - 1)
	squeue := "#!/bin/sh\necho '" + last + "|1|RUNNING|None'\n"
	testenv.Check(t, os.WriteFile(filepath.Join(store, "squeue"), []byte(squeue), 0o755))
	t.Setenv("PATH", store+":"+os.Getenv("PATH"))
	status := func(args ...string) (lines int, stderr string) {
		cmd := hpcc(store, append([]string{"status"}, args...)...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("status %q: %v: %s", args, err, errs.String())
		}
		return strings.Count(string(out), "\n"), errs.String()
	}
	const (
		scripts    = 1 // without job.json
		shownEnded = 100
	)
	for _, when := range []string{"without", "with"} {
		if n, stderr := status(); n != 1+1+shownEnded || !strings.Contains(stderr, `48 older jobs that have ended are not shown: "hpcc status --all" shows them`) {
			t.Errorf("%s a cache: %d lines, and %q", when, n, stderr)
		}
		if n, stderr := status("--all"); n != 1+jobs-scripts || stderr != "" {
			t.Errorf("%s a cache, --all: %d lines, and %q", when, n, stderr)
		}
	}
	if n, stderr := status("--json"); n != 1+shownEnded || !strings.Contains(stderr, "48 older jobs that have ended are not shown") {
		t.Errorf("--json: %d lines, and %q", n, stderr)
	}
	if n, stderr := status("--json", "--all"); n != jobs-scripts || stderr != "" {
		t.Errorf("--json --all: %d lines, and %q", n, stderr)
	}
	if n, stderr := status("--running"); n != 2 || stderr != "" {
		t.Errorf("--running: %d lines, and %q", n, stderr)
	}
	out, err := hpcc(store, "status", "--all", "main").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--all cannot be used with JOB") {
		t.Errorf("--all with a job: %v, %s", err, out)
	}
}
