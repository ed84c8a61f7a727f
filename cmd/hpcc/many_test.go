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

	"hpcc/testdata/testenv"
)

// crowd is how many start at the same moment: HPCC_TEST_CROWD, else a hundred.
func crowd() int {
	if n, err := strconv.Atoi(os.Getenv("HPCC_TEST_CROWD")); err == nil && n > 0 {
		return n
	}
	return 100
}

// meet starts n commands and returns what those that failed have said.
func meet(n int, command func(i int) *exec.Cmd) (failed []string) {
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

// many is a store with an image "bb" and a root archive to load it from.
func many(t *testing.T) (store, root string) {
	t.Helper()
	needs(t, "busybox", "userns")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	top := t.TempDir()
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", top).Run() })
	store, root = filepath.Join(top, "store"), filepath.Join(top, "root.tar")
	t.Setenv("HPCC_STORE", store)
	script := `mkdir -p "$1/r/bin" && cp "$0" "$1/r/bin/busybox" && for n in sh true cat sleep ls; do ln -s busybox "$1/r/bin/$n"; done
for i in $(seq 200); do echo $i >"$1/r/$i"; done; tar cf "$1/root.tar" -C "$1/r" . && exec "$2" load "$1/root.tar" bb`
	if out, err := exec.Command("sh", "-c", script, busy, top, filepath.Join(bin, "hpcc")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return store, root
}

func hpcc(args ...string) *exec.Cmd { return exec.Command(filepath.Join(bin, "hpcc"), args...) }

// A crowd runs one image; the first time its tree is not there yet, and the
// third time the store cannot be written.
func TestManyRuns(t *testing.T) {
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
		failed := meet(crowd(), func(int) *exec.Cmd { return hpcc("run", "bb", "--", "cat", "/7") })
		t.Logf("%d runs %s in %v", crowd(), when, time.Since(begun))
		if len(failed) > 0 {
			t.Errorf("%s %d of %d fail: %s", when, len(failed), crowd(), failed[0])
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

// Pulls of the same and of different images, with rm and gc between them: what
// was pulled and not removed is whole.
func TestManyPulls(t *testing.T) {
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
	failed := meet(crowd(), func(i int) *exec.Cmd {
		ref := fmt.Sprintf("%s/img%d", host, i%10)
		switch i % 20 {
		case 7:
			return hpcc("gc")
		case 13:
			return exec.Command("sh", "-c", `"$0" pull "$1" gone; "$0" rm gone || true; "$0" gc`, filepath.Join(bin, "hpcc"), ref)
		}
		return hpcc("pull", ref, fmt.Sprintf("img%d-%d", i%10, i))
	})
	for _, f := range failed {
		t.Error(f)
	}
	kept := 0
	for i := range crowd() {
		if i%20 == 7 || i%20 == 13 {
			continue
		}
		n := fmt.Sprintf("img%d-%d", i%10, i)
		if out, err := hpcc("save", n, filepath.Join(t.TempDir(), "x.tar")).CombinedOutput(); err != nil {
			t.Errorf("image %s was lost: %s", n, out)
		}
		kept++
	}
	t.Logf("%d images pulled", kept)
	if left, _ := os.ReadDir(filepath.Join(store, "tmp")); len(left) > 0 {
		t.Errorf("left in tmp: %v", left)
	}
}

// A tree that a program runs in survives "rm" and "gc --age 0", and goes when the
// program has ended.
func TestTreeInUse(t *testing.T) {
	store, _ := many(t)
	cmd := hpcc("run", "bb", "--", "sh", "-c", "echo started; read line; cat /7")
	in, err := cmd.StdinPipe()
	testenv.Check(t, err)
	out, err := cmd.StdoutPipe()
	testenv.Check(t, err)
	testenv.Check(t, cmd.Start())
	b := make([]byte, 100)
	if n, err := out.Read(b); err != nil || string(b[:n]) != "started\n" {
		t.Fatalf("the program says %q, %v", b[:n], err)
	}
	for _, args := range [][]string{{"rm", "bb"}, {"gc", "--age", "0"}} {
		if said, err := hpcc(args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, said)
		}
	}
	fmt.Fprintln(in)
	text, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil || string(text) != "7\n" {
		t.Errorf("the program whose image was removed says %q, %v; want 7", text, err)
	}
	if said, err := hpcc("gc", "--age", "0").CombinedOutput(); err != nil {
		t.Errorf("gc: %v: %s", err, said)
	}
	if left, _ := os.ReadDir(filepath.Join(store, "trees")); len(left) > 0 {
		t.Errorf("gc leaves %v when nobody uses them", left)
	}
}
