package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hpcc/testdata/helpers/testenv"
)

// TestKilledAtAnyMoment kills a pull, a build and an unpack at random moments. The same command must
// work afterwards, and gc must remove all debris.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "busybox", "userns")
	k := newKiller(t)
	k.must("load", k.root, "bb")
	other := filepath.Join(k.dir, "fresh")
	k.must("load", "--store", other, k.root, "bb")
	for _, a := range []struct {
		name  string
		times int
		args  func(n int) []string
		undo  func(n int) // makes the command repeat all of its work
	}{
		{"pull", 17, func(int) []string { return []string{"pull", k.ref, "pulled"} }, func(int) {
			k.must("rm", "pulled")
			k.must("gc", "--age", "0s")
		}},
		{"build", 100, func(n int) []string {
			return []string{"build", "--reproducible", "--build-arg", fmt.Sprint("N=", n), "-t", "built", k.context}
		}, func(int) {}},
		{"unpack", 16, func(n int) []string { return []string{"unpack", "pulled", filepath.Join(k.dir, fmt.Sprint("tree", n))} }, func(n int) {
			exec.Command("chmod", "-R", "u+rwX", filepath.Join(k.dir, fmt.Sprint("tree", n))).Run()
			os.RemoveAll(filepath.Join(k.dir, fmt.Sprint("tree", n)))
		}},
	} {
		k.must(a.args(1000)...) // the first run takes longer
		a.undo(1000)
		begun := time.Now()
		k.must(a.args(1001)...)
		maxDelay, killed, n := time.Since(begun), 0, 0
		a.undo(1001)
		for ; killed < a.times && n < 10*a.times; n++ {
			args := a.args(n)
			delay := time.Duration(k.random.Int63n(int64(maxDelay)))
			if k.kill(delay, args) {
				killed++
				maxDelay += maxDelay / 20 // to reach the end of a run where the machine becomes slower
			} else {
				maxDelay = min(maxDelay, max(delay*5/4, time.Millisecond)) // the run took less
			}
			if tree := filepath.Join(k.dir, fmt.Sprint("tree", n)); exists(tree) { // the command was killed after its work, or not at all
				if !exists(filepath.Join(tree, ".hpcc", "image.json")) {
					t.Errorf("%s was killed and left an incomplete tree", a.name)
				}
				a.undo(n)
			}
			out := k.must(args...)
			if a.name == "build" && n%10 == 0 {
				if want := k.must(slices.Insert(args, 1, "--store", other)...); !strings.HasSuffix(want, lastLine(out)) {
					t.Errorf("the build after a killed one prints %q; want %q", out, want)
				}
			}
			a.undo(n)
		}
		t.Logf("%s: killed %d of %d times (within %v)", a.name, killed, n, maxDelay)
		if killed < a.times {
			t.Errorf("%s was killed only %d of %d times, so the test checks too little", a.name, killed, n)
		}
		if a.name == "pull" {
			k.must("pull", k.ref, "pulled")
		}
	}
	k.must("run", "built", "--", "cat", "/n")
	k.clean()
}

// lastLine returns the last line of an output. For a build it is the image's digest.
func lastLine(out string) string {
	out = strings.TrimSuffix(out, "\n")
	return out[strings.LastIndexByte(out, '\n')+1:] + "\n"
}

// A killer runs hpcc and kills it.
type killer struct {
	t                              *testing.T
	random                         *rand.Rand
	dir, store, root, context, ref string
}

func newKiller(t *testing.T) *killer {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	k := &killer{t: t, random: rand.New(rand.NewSource(seed)), dir: t.TempDir()}
	k.store = filepath.Join(k.dir, "store")
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", k.dir).Run() })

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	k.ref = strings.TrimPrefix(server.URL, "http://") + "/random:1"
	img, err := random.Image(1<<20, 6)
	testenv.Check(t, err)
	ref, err := name.ParseReference(k.ref, name.Insecure)
	testenv.Check(t, err)
	testenv.Check(t, remote.Write(ref, img, remote.WithContext(context.Background())))

	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	k.root, k.context = filepath.Join(k.dir, "root.tar"), filepath.Join(k.dir, "context")
	for _, c := range [][]string{
		{"sh", "-c", `mkdir -p r/bin context && cp "$0" r/bin/busybox && for n in sh cat seq; do ln -s busybox r/bin/$n; done && tar cf root.tar -C r . && seq 20000 >context/data`, busy},
	} {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Dir = k.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	dockerfile := "FROM bb\nARG N\nCOPY data /data\nRUN cat /data /data >/more; echo $N >/n\nRUN for i in $(seq 50); do echo $i >/f$i; done\n"
	testenv.Check(t, os.WriteFile(filepath.Join(k.context, "Dockerfile"), []byte(dockerfile), 0o644))
	return k
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// must runs hpcc, which must succeed, and returns its output.
func (k *killer) must(args ...string) string {
	k.t.Helper()
	out, err := hpcc(k.store, args...).CombinedOutput()
	if err != nil {
		k.t.Fatalf("hpcc %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// kill runs hpcc and kills it with all its children after a while. It returns false if hpcc ended
// earlier.
func (k *killer) kill(after time.Duration, args []string) bool {
	cmd := hpcc(k.store, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	time.Sleep(after)
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return cmd.Wait() != nil
}

// clean checks that gc removes all debris, and that a second gc finds none.
func (k *killer) clean() {
	if left, _ := filepath.Glob(filepath.Join(k.dir, ".*")); len(left) > 0 {
		k.t.Errorf("unpack left %v", left)
	}
	k.must("gc", "--age", "0s")
	left, err := os.ReadDir(filepath.Join(k.store, "tmp"))
	if err != nil || len(left) > 0 {
		k.t.Errorf("gc left %v in tmp (%v)", left, err)
	}
	trees, err := os.ReadDir(filepath.Join(k.store, "trees"))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, tree := range trees { // every tree must be complete
		if _, err := os.Stat(filepath.Join(k.store, "trees", tree.Name(), ".hpcc", "image.json")); err != nil {
			k.t.Errorf("incomplete tree: %v", err)
		}
	}
	if out := k.must("gc", "--age", "0s"); !strings.Contains(out, "0 blobs, 0 trees, 0 cache entries, 0 leftovers") {
		k.t.Errorf("the second gc still finds debris: %s", out)
	}
	for _, name := range []string{"bb", "pulled", "built"} { // every blob of every image must exist and have its digest
		k.must("save", name, filepath.Join(k.dir, name+".tar"))
		k.must("load", "--store", filepath.Join(k.dir, "other"), filepath.Join(k.dir, name+".tar"))
	}
	k.must("rm", "pulled")
	k.must("rm", "built")
	k.must("rm", "bb")
	k.must("gc", "--age", "0s")
	for _, d := range []string{"blobs/sha256", "trees", "tmp"} {
		if left, err := os.ReadDir(filepath.Join(k.store, d)); err != nil || len(left) > 0 {
			k.t.Errorf("after everything was removed, gc leaves %d entries in %s (%v)", len(left), d, err)
		}
	}
}
