package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// faults describe a file system that fails: the system calls, as strace names them, and the error
// that they return from the N-th call of a thread on. N 0 means every call.
type faults struct {
	calls, err string
	from       int
	once       bool // fail only the N-th call
}

// under runs hpcc on such a file system. met are the calls that failed, as strace prints them:
// with the paths of descriptors in angle brackets.
func (f faults) under(t *testing.T, env []string, args ...string) (out string, status int, met []string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	inject := "inject=" + f.calls + ":error=" + f.err
	if f.from > 0 {
		inject += fmt.Sprintf(":when=%d", f.from)
		if !f.once {
			inject += "+"
		}
	}
	cmd := exec.Command("strace", append([]string{"-f", "-y", "--seccomp-bpf", "-qq", "-o", log, "-e", "trace=" + f.calls, "-e", inject, filepath.Join(bin, "hpcc")}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("strace: %v", err)
	}
	seen, err := os.ReadFile(log)
	if err != nil {
		t.Fatalf("strace wrote nothing: %v: %s", err, &text)
	}
	for _, call := range strings.Split(string(seen), "\n") {
		if strings.Contains(call, "(INJECTED)") {
			met = append(met, call)
		}
	}
	return text.String(), cmd.ProcessState.ExitCode(), met
}

// debris lists files that must never be in a store: incomplete files and trees, and temporary files
// that no process uses.
func debris(store string) (found []string) {
	temps, _ := filepath.Glob(filepath.Join(store, "tmp", "*"))
	hidden, _ := filepath.Glob(filepath.Join(store, ".*"))
	found = append(temps, hidden...)
	trees, _ := filepath.Glob(filepath.Join(store, "trees", "*"))
	for _, d := range trees {
		if !exists(filepath.Join(d, ".hpcc", "image.json")) {
			found = append(found, d)
		}
	}
	blobs, _ := filepath.Glob(filepath.Join(store, "blobs/sha256", "*"))
	for _, b := range blobs {
		h := sha256.New()
		f, err := os.Open(b)
		if err == nil {
			_, err = io.Copy(h, f)
			f.Close()
		}
		if err != nil || fmt.Sprintf("%x", h.Sum(nil)) != filepath.Base(b) {
			found = append(found, b)
		}
	}
	return found
}

// copyOf copies a store.
func copyOf(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestQuota lets each write of a command exceed the user's quota. Network file systems report that
// only when a file is synced or closed. The error must name the quota, and the command must leave
// no incomplete files and work when there is space again.
func TestQuota(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "busybox", "userns", "strace")
	top := t.TempDir()
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", top).Run() })
	ref := fillPlaces(t, top)
	for _, c := range []struct {
		name, before string
		calls        []string
		args         []string
	}{
		{"pull", "empty", []string{"write", "fsync", "pwrite64", "mkdirat", "renameat", "symlinkat"}, []string{"pull", ref, "img"}},
		{"load", "empty", []string{"write", "fsync", "pwrite64", "mkdirat"}, []string{"load", top + "/oci.tar", "img"}},
		{"unpack", "full", []string{"pwrite64", "mkdirat", "symlinkat"}, []string{"unpack", "base", "S/made"}},
		{"first run", "flat", []string{"pwrite64"}, []string{"run", "base", "--", "true"}},
		{"save", "full", []string{"write"}, []string{"save", "base", "S/saved.tar"}},
		{"build", "full", []string{"fsync", "pwrite64", "mkdirat"}, []string{"build", "--progress=plain", "-t", "made", top + "/context"}},
	} {
		for _, call := range c.calls {
			t.Run(c.name+" "+call, func(t *testing.T) {
				failed := 0
				for _, n := range []int{1, 2, 3, 5, 8, 13, 21, 34, 55} {
					store := filepath.Join(t.TempDir(), "store")
					copyOf(t, filepath.Join(top, c.before), store)
					env := []string{"HPCC_STORE=" + store, "TMPDIR=" + filepath.Join(store, "tmp")}
					var args []string
					for _, a := range c.args {
						args = append(args, strings.ReplaceAll(a, "S/", store+"/"))
					}
					f := faults{calls: call, err: "EDQUOT", from: n, once: call == "write"} // only once, because hpcc writes messages too
					out, status, met := f.under(t, env, args...)
					if len(met) == 0 {
						break
					}
					if call == "write" && slices.ContainsFunc(met, func(m string) bool { return !strings.Contains(m, "<"+store+"/") }) {
						continue // a write to a pipe or connection, or of a message
					}
					if status != 0 {
						failed++
						if (status != 1 && status != 125) || !strings.Contains(out, "disk quota exceeded") || !strings.Contains(out, store) || !strings.Contains(out, "free space") {
							t.Errorf("call %d: status %d: %s", n, status, out)
						}
					}
					if found := debris(store); len(found) > 0 {
						t.Errorf("call %d, %q: left %v", n, out, found)
					}
					cmd := hpcc(store, args...)
					cmd.Env = append(cmd.Env, env...)
					if again, err := cmd.CombinedOutput(); err != nil && status != 0 {
						t.Errorf("call %d, %q: with space again: %v: %s", n, out, err, again)
					}
				}
				if failed == 0 {
					t.Errorf("no %s failed the command, so the test is void", call)
				}
				t.Logf("failed %d times", failed)
			})
		}
	}
}

// TestNoHardLinks checks that a file is copied with owner, mode and time if the file system refuses
// a hard link.
func TestNoHardLinks(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns", "strace")
	store, _ := many(t)
	dir := t.TempDir()
	script := `mkdir -p r/a r/b; seq 9 >r/a/one; chmod 640 r/a/one; touch -d 2020-02-03T04:05:06 r/a/one; ln r/a/one r/b/two; ln -s one r/a/link; ln r/a/link r/b/link2
tar cf root.tar -C r --owner=7 --group=8 a b && hpcc load root.tar linked >/dev/null`
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir, cmd.Env = dir, append(withStore(store), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, errno := range []string{"EPERM", "EOPNOTSUPP", "ENOSYS", "EXDEV", "EMLINK"} {
		fresh := filepath.Join(t.TempDir(), "store")
		for _, args := range [][]string{
			{"unpack", "linked", filepath.Join(dir, errno)},
			{"load", "--store", fresh, filepath.Join(dir, "root.tar"), "linked"}, // a new store also links its version file
		} {
			out, status, met := faults{calls: "linkat", err: errno}.under(t, withStore(store), args...)
			if status != 0 || len(met) == 0 || !strings.Contains(out, "copied 2 files instead of making hard links, which the file system does not support") {
				t.Errorf("%s, hpcc %v: status %d, met %v: %s", errno, args, status, met, out)
			}
		}
		trees, _ := filepath.Glob(filepath.Join(fresh, "trees", "*"))
		if len(trees) != 1 || len(debris(fresh)) > 0 {
			t.Fatalf("%s: trees %v; left %v", errno, trees, debris(fresh))
		}
		for _, tree := range []string{filepath.Join(dir, errno), trees[0]} {
			see := `cd "$1"; stat -c '%n %h %a %Y' a/one b/two; cmp a/one b/two; readlink b/link2; stat -c '%Y' a/link b/link2 | uniq | wc -l`
			out, err := exec.Command("sh", "-ec", see, "sh", tree).CombinedOutput()
			if want := "a/one 1 640 1580702706\nb/two 1 640 1580702706\none\n1\n"; err != nil || string(out) != want {
				t.Errorf("%s: %v: the tree has %q; want %q", errno, err, out, want)
			}
			if one, two := ownerNote(t, tree, "a/one"), ownerNote(t, tree, "b/two"); one != two {
				t.Errorf("%s: the owners are %q and %q", errno, one, two)
			}
		}
	}
	if found := debris(store); len(found) > 0 {
		t.Errorf("left %v", found)
	}
}

// ownerNote returns the owner that a tree records for a file, if its file system supports that.
func ownerNote(t *testing.T, tree, name string) string {
	t.Helper()
	b := make([]byte, 100)
	n, err := unix.Getxattr(filepath.Join(tree, name), "user.hpcc.owner", b)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Errorf("owner of %s: %v", name, err)
	}
	return string(b[:max(0, n)])
}

// TestNoSymbolicLinks checks the error on a file system without symbolic links.
func TestNoSymbolicLinks(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns", "strace")
	store, _ := many(t)
	dest := filepath.Join(t.TempDir(), "tree")
	out, status, met := faults{calls: "symlinkat", err: "EPERM"}.under(t, withStore(store), "unpack", "bb", dest)
	if status != 1 || len(met) == 0 || !strings.Contains(out, "the file system does not support symbolic links") || !strings.Contains(out, dest) {
		t.Errorf("status %d: %s", status, out)
	}
	if left, _ := os.ReadDir(filepath.Dir(dest)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// inNamespaces runs a script as root of new namespaces. The test fails if the output contains
// FAULT.
func inNamespaces(t *testing.T, script string, env ...string) string {
	t.Helper()
	cmd := exec.Command("unshare", "-Urm", "sh", "-ec", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "FAULT") {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// TestNoAttributes puts the store on a file system without extended attributes (ramfs). A build
// works on copies, because an overlay cannot replace a directory there, and warns about losses.
func TestNoAttributes(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns")
	out := inNamespaces(t, `
mkdir ram context; mount -t ramfs r ram; export HPCC_STORE=$PWD/ram/store
printf 'FROM bb\nRUN rm -rf /d && mkdir /d && echo new >/d/new && chown 3:4 /d/new\nRUN cat /d/* && ln /d/new /d/two && mv /d /e\nCOPY --chown=7:8 Dockerfile /e/x\nRUN cat /e/new\n' >context/Dockerfile
mkdir -p r/d; seq 9 >r/d/old; mkdir r/bin; cp $(command -v busybox) r/bin; for n in sh cat rm mkdir chown ln mv ls; do ln -s busybox r/bin/$n; done; tar cf root.tar -C r .
hpcc load root.tar bb
hpcc build --progress=plain -t made context
hpcc run made -- ls /e
hpcc gc
[ -z "$(ls ram/store/tmp)" ] || echo FAULT left: $(ls ram/store/tmp)
`)
	if strings.Contains(out, "warning") {
		t.Errorf("owners in a file of notes are not lost, but the output is: %s", out)
	}
	if !strings.Contains(out, "\nnew\ntwo\nx\n") {
		t.Errorf("the image is wrong: %s", out)
	}
}

// TestReadOnlyStore checks that images of a read-only store can be listed, shown, run, unpacked and
// saved. Commands that change the store must fail with a hint. Commands that read a missing store
// find it empty and do not create it.
func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns")
	top := t.TempDir()
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", top).Run() })
	ref := fillPlaces(t, top)
	const script = `
cd $TOP; store=$TOP/$1; export HPCC_STORE=$store TMPDIR=$OUT
mount --bind $store $store; mount -o remount,bind,ro $store
works() { hpcc "$@" >$OUT/said 2>&1 || echo "FAULT hpcc $*: $(cat $OUT/said)"; }
cannot() { status=0; hpcc "$@" >$OUT/said 2>&1 || status=$?
	[ $status = 1 ] || [ $status = 125 ] || echo "FAULT hpcc $* ends with $status"
	for w in "read-only file system" "$store" "set HPCC_STORE to a directory that you can write to"; do grep -qF "$w" $OUT/said || echo "FAULT hpcc $* says: $(cat $OUT/said)"; done; }
works images; grep -q '^base ' $OUT/said || echo "FAULT images: $(cat $OUT/said)"
works inspect base
works unpack base $OUT/tree; [ -e $OUT/tree/.hpcc/image.json ] || echo FAULT no tree
works save base $OUT/base.tar
works status; works gc --dry-run; works script --to slurm base -- true; works run --stage base -- true
cannot pull $REF img; cannot pull $REF
cannot load $TOP/oci.tar other; cannot load $TOP/root.tar
cannot build -t made context; cannot build -t base context
cannot rm base
`
	t.Run("with a tree", func(t *testing.T) {
		inNamespaces(t, strings.ReplaceAll(script, "$1", "full")+`
works run base -- true; works run base -- seq 3; [ "$(cat $OUT/said | tail -n 1)" = 3 ] || echo "FAULT run: $(cat $OUT/said)"
works save base $OUT/base.sqfs
cannot submit --to local --wait base -- true; grep -q 'jobs keep their records' $OUT/said || echo "FAULT submit: $(cat $OUT/said)"
`, "TOP="+top, "OUT="+t.TempDir(), "REF="+ref)
	})
	t.Run("without", func(t *testing.T) {
		inNamespaces(t, strings.ReplaceAll(script, "$1", "flat")+`
cannot run base -- true; grep -q -e 'with --stage' $OUT/said || echo "FAULT run: $(cat $OUT/said)"
`, "TOP="+top, "OUT="+t.TempDir(), "REF="+ref)
	})
	t.Run("not there", func(t *testing.T) {
		inNamespaces(t, `
mkdir ro; mount -t tmpfs -o ro,mode=755 t ro
for s in $PWD/ro/store $PWD/none/store; do
	export HPCC_STORE=$s
	[ "$(hpcc images)" = "$(printf 'NAME  DIGEST  PLATFORM  SIZE')" ] || echo FAULT images
	for c in "run base true" "inspect base" "save base x.tar" "push base" "rm base" "unpack base tree"; do
		hpcc $c >said 2>&1 && echo "FAULT hpcc $c"
		grep -q 'no image "base" in the store' said || echo "FAULT hpcc $c: $(cat said)"
	done
	hpcc status >/dev/null; hpcc script --to slurm base -- true >/dev/null
done
[ ! -e none ] || echo "FAULT made: $(find none)"
`)
	})
}

// TestUnpackNameOfLayout checks that the name of a layout in the current directory needs no store,
// and that an image of that name has priority.
func TestUnpackNameOfLayout(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns")
	store, _ := many(t)
	dir := t.TempDir()
	at := func(store string, args ...string) string {
		cmd := hpcc(store, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("hpcc %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	at(store, "save", "bb", "sci/")
	none := filepath.Join(dir, "none")
	at(none, "unpack", "sci", "one")
	at(none, "unpack", "--bundle", "sci", "bundle")
	if b, err := os.ReadFile(filepath.Join(dir, "one", "7")); err != nil || string(b) != "7\n" {
		t.Errorf("the tree holds %q, %v", b, err)
	}
	if exists(none) {
		t.Errorf("the command created a store")
	}
	other := exec.Command("sh", "-ec", "mkdir r && echo mine >r/mine && tar cf mine.tar -C r mine")
	other.Dir = dir
	if out, err := other.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at(store, "load", "mine.tar", "sci")
	at(store, "unpack", "sci", "two")
	at(store, "unpack", "./sci", "three")
	var got []bool
	for _, f := range []string{"two/mine", "two/7", "three/mine", "three/7"} {
		got = append(got, exists(filepath.Join(dir, f)))
	}
	if !slices.Equal(got, []bool{true, false, false, true}) {
		t.Errorf("the image of the name, and the layout of the path: %v", got)
	}
}
