package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// TestHostile runs hpcc unpack and hpcc load on the hostile set under strace. Calls may create,
// change, rename or remove files only below the destination and the store. Other files must not
// change, not even their times.
func TestHostile(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	needs(t, "strace")
	set := hostileSet()
	if len(set) < 60 {
		t.Errorf("the hostile set has %d members; want at least 60", len(set))
	}
	t.Logf("%d archives and layouts", len(set))
	for _, h := range set {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			a := newArena(t)
			h.file(t, a.in)
			before := a.outside(t)
			for _, args := range [][]string{{"unpack", a.in, filepath.Join(a.out, "tree")}, {"load", a.in, "image"}} {
				a.run(t, h, args)
			}
			if after := a.outside(t); !slices.Equal(before, after) {
				t.Errorf("files outside the destination and the store changed from\n%q\nto\n%q", before, after)
			}
			a.checkCalls(t)
		})
	}
}

// An arena is a directory with the store, the destination of trees, a hostile file and files that
// must stay untouched.
type arena struct{ top, in, out, store, log string }

func newArena(t *testing.T) *arena {
	top, err := filepath.EvalSymlinks(t.TempDir())
	testenv.Check(t, err)
	a := &arena{top, filepath.Join(top, "in"), filepath.Join(top, "out"), filepath.Join(top, "store"), filepath.Join(top, "log")}
	for _, d := range []string{a.out, a.store, a.log, filepath.Join(top, "victim/d")} {
		testenv.Check(t, os.MkdirAll(d, 0o755))
	}
	for _, f := range []string{"victim/secret", "victim/d/secret"} {
		testenv.Check(t, os.WriteFile(filepath.Join(top, f), []byte("kept"), 0o600))
	}
	return a
}

// outside lists all files except the store, the destination and the log, with their change times.
func (a *arena) outside(t *testing.T) (out []string) {
	t.Helper()
	err := filepath.WalkDir(a.top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == a.store || p == a.out || p == a.log {
			return fs.SkipDir
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		out = append(out, fmt.Sprint(p, " ", st.Mode, st.Ino, st.Size, st.Nlink, st.Mtim, st.Ctim))
		return nil
	})
	testenv.Check(t, err)
	return out
}

// run runs hpcc on the hostile file, and checks its output and the files that it leaves.
func (a *arena) run(t *testing.T, h hostile, args []string) {
	t.Helper()
	// No member of the set needs a file of more than 256 MiB or more than 20 seconds.
	shell := `ulimit -f 262144; exec strace -f -ff -ttt -y -s 4096 -e trace=file,fcntl -o "$0" timeout 20 "$@"`
	cmd := exec.Command("sh", append([]string{"-c", shell, filepath.Join(a.log, args[0]), filepath.Join(bin, "hpcc")}, args...)...)
	cmd.Env = []string{"HOME=" + a.top, "HPCC_STORE=" + a.store, "PATH=" + os.Getenv("PATH"), "GOMEMLIMIT=256MiB"}
	cmd.Dir = a.out
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begun := time.Now()
	err := cmd.Run()
	output := out.String()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		t.Fatal(err)
	case err == nil && h.error != "" && h.error != "*":
		t.Errorf("%s succeeds; want an error with %q", args[0], h.error)
	case err != nil && h.error == "":
		t.Errorf("%s fails: %s", args[0], output)
	case err != nil && exit.ExitCode() != 1:
		t.Errorf("%s ends with %v after %v: %s", args[0], err, time.Since(begun), output)
	case err != nil && h.error != "*" && !strings.Contains(output, h.error):
		t.Errorf("%s prints %q; want %q in it", args[0], output, h.error)
	case err != nil && strings.Contains(output, "unpacking layer") && !(strings.Contains(output, "sha256:") && (strings.Contains(output, "entr") || strings.Contains(output, "digest") || strings.Contains(output, "EOF") || strings.Contains(output, "checksum"))):
		t.Errorf("%s prints %q, which names no layer and no entry", args[0], output)
	}
	if strings.ContainsAny(strings.ReplaceAll(output, "\n", ""), "\x00\x07\x1b\r") || len(output) > 4000 {
		t.Errorf("%s prints %.5000q", args[0], output)
	}
	if args[0] == "unpack" && err != nil && exists(filepath.Join(a.out, "tree")) {
		t.Errorf("a failed unpack leaves a tree")
	}
	if left, _ := filepath.Glob(filepath.Join(a.out, ".*")); len(left) > 0 {
		t.Errorf("%s leaves %v", args[0], left)
	}
	for _, d := range []string{"tmp", "trees"} { // a complete image may stay
		left, _ := os.ReadDir(filepath.Join(a.store, d))
		if len(left) > 0 && (d == "tmp" || err != nil) {
			t.Errorf("%s leaves %v in %s of the store", args[0], left, d)
		}
	}
}

// call matches a line of strace: time, name, arguments and result.
var call = regexp.MustCompile(`^([0-9.]+) (\w+)\((.*)\) += (\S.*)$`)

// pathArg matches a path argument with the directory that it is relative to.
var pathArg = regexp.MustCompile(`(?:(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"`)

// checkCalls checks the system calls in the log of strace.
func (a *arena) checkCalls(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(a.log, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("strace wrote nothing (%v)", err)
	}
	var lines []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		testenv.Check(t, err)
		lines = append(lines, strings.Split(string(b), "\n")...)
	}
	slices.Sort(lines)
	opened := map[string]string{} // paths by descriptor, for /proc/self/fd/N
	wrote := 0
	for _, line := range lines {
		m := call.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name, args, result := m[2], m[3], m[4]
		if bare := nameless.FindStringSubmatch(args); bare != nil { // the path is too long for the kernel to report
			at := opened["/proc/self/fd/"+bare[1]]
			args = bare[1] + "<" + at + ">" + args[len(bare[1]):]
			if name == "fcntl" && strings.Contains(args, "F_DUPFD") {
				opened["/proc/self/fd/"+result] = at
			}
		}
		if fd, path, ok := strings.Cut(result, "<"); ok {
			opened["/proc/self/fd/"+fd] = strings.TrimSuffix(strings.TrimSuffix(path, ">"), " (deleted)")
		} else if strings.HasPrefix(name, "open") { // too long for the kernel to report
			opened["/proc/self/fd/"+result] = changedPaths("", args, "")[0]
		}
		if strings.HasPrefix(result, "-1") || !changes(name, args) {
			continue
		}
		wrote++
		for _, p := range changedPaths(name, args, result) {
			if at, ok := opened[p]; ok {
				p = at
			}
			if !a.isAllowed(p) {
				t.Errorf("outside the destination and the store: %s: %s", p, line)
			}
		}
	}
	if wrote == 0 {
		t.Error("strace recorded no change, so the test checks nothing")
	}
}

// nameless matches a descriptor without its path.
var nameless = regexp.MustCompile(`^(\d+),`)

// changes reports whether a call creates or changes files.
func changes(name, args string) bool {
	switch name {
	case "open", "openat", "openat2":
		return regexp.MustCompile(`O_(WRONLY|RDWR|CREAT|TRUNC)`).MatchString(args)
	case "mkdir", "mkdirat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir",
		"chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "truncate", "utimensat", "utimes", "futimesat", "utime", "mount", "creat",
		"setxattr", "lsetxattr", "removexattr", "lremovexattr":
		return true
	}
	return false
}

// changedPaths returns the paths that a call changes. The kernel reports the path of an opened file,
// and the directory of other files. A single name in that directory cannot be redirected by a link.
func changedPaths(name, args, result string) (out []string) {
	if _, path, ok := strings.Cut(strings.TrimSuffix(result, ">"), "<"); ok && strings.HasPrefix(name, "open") {
		return []string{strings.TrimSuffix(path, " (deleted)")}
	}
	args = strings.ReplaceAll(args, ">(deleted)", ">") // a file that a later entry has replaced
	found := pathArg.FindAllStringSubmatch(args, -1)
	if strings.HasPrefix(name, "symlink") {
		found = found[1:] // the target of the link is not a changed path
	}
	if strings.Contains(name, "xattr") {
		found = found[:1]
	}
	for _, m := range found {
		p := m[2]
		switch {
		case p == "":
			p = m[1]
		case !strings.HasPrefix(p, "/"):
			p = m[1] + "/" + p
			if strings.Contains(m[2], "/") || m[2] == ".." {
				p += "/../more than one part"
			}
		default:
			if m := inTree.FindStringSubmatch(p); m != nil && m[1] != ".hpcc" && m[1] != "new" && m[1] != "root" {
				p += "/../a full path into a tree"
			}
		}
		out = append(out, p)
	}
	return out
}

// inTree matches a full path that leads through a directory below the root of a tree. Only the
// directory of hpcc is allowed there.
var inTree = regexp.MustCompile(`/(?:root|new|old|tree|trees/[0-9a-f]{64})/([^/]+)(/|$)`)

// isAllowed reports whether hpcc may change a path. It may change its own files in the store and the
// destination.
func (a *arena) isAllowed(p string) bool {
	if p == "/dev/null" || p == "/dev/tty" {
		return true
	}
	if in, ok := strings.CutPrefix(p, a.store+"/"); ok {
		return inStore.MatchString(in)
	}
	in, ok := strings.CutPrefix(p, a.out+"/")
	return ok && inOut.MatchString(in)
}

var (
	inStore = regexp.MustCompile(`^(README|version|blobs(/sha256)?|refs|trees|cache|jobs|tmp|damaged|(refs|blobs/sha256|trees|damaged)/[^/]+|tmp/[^/]+(/(version|new|old|blobs|index\.json|oci-layout)(/[^/]+)*)?)$`)
	inOut   = regexp.MustCompile(`^(tree|\.tree\.hpcc\.[^/]+(/root(/[^/]+)*)?)$`)
)
