package runtime

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/fakeroot"
	"hpcc/testdata/helpers/testenv"
)

// A ledger records the requests of a program under a fake root as text.
type ledger struct {
	mu    sync.Mutex
	lines []string
	errs  map[string]error // of a kind of call
}

func (l *ledger) add(kind, file, link string, rest ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var st unix.Stat_t
	what := "gone"
	if err := unix.Stat(file, &st); err == nil {
		what = map[uint32]string{unix.S_IFREG: "file", unix.S_IFDIR: "dir", unix.S_IFIFO: "fifo"}[st.Mode&unix.S_IFMT]
	}
	if link != "" {
		what = "link " + link
	}
	l.lines = append(l.lines, strings.TrimSpace(fmt.Sprintln(append([]any{kind, what}, rest...)...)))
	return l.errs[kind]
}

// requests returns the requests that were recorded so far.
func (l *ledger) requests() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

func (l *ledger) notes() *fakeroot.Notes {
	return &fakeroot.Notes{
		Owner: func(file, link string, uid, gid int) error { return l.add("owner", file, link, uid, gid) },
		Mode:  func(file string) { l.add("mode", file, "") },
		SetAttr: func(file, name string, value []byte) error {
			return l.add("set", file, "", name, string(value))
		},
		RemoveAttr: func(file, name string) error { return l.add("remove", file, "", name) },
	}
}

// run runs a shell script under a fake root, with busybox for all programs.
func (l *ledger) run(t *testing.T, root, script string) string {
	t.Helper()
	return runNoted(t, root, script, l.notes())
}

// runNoted runs a shell script under a fake root with these notes.
func runNoted(t *testing.T, root, script string, notes *fakeroot.Notes) string {
	t.Helper()
	s, err := Spec(root, ImageConfig{}, Options{Args: []string{"sh", "-c", script}, Write: true})
	testenv.Check(t, err)
	s.Linux = newNamespaces(0, 0)
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	s.Annotations = map[string]string{fakeRootMark: "1"}
	cmd, err := Command(context.Background(), s, notes)
	testenv.Check(t, err)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run()
	return out.String()
}

// Requests of programs on files are reported for the right file, and programs get the
// answers of the notes.
func TestNotes(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	for _, n := range []string{"chmod", "chgrp", "mkdir", "rm", "chroot", "cp"} {
		testenv.Check(t, os.Symlink("busybox", filepath.Join(root, "bin", n)))
	}
	for _, test := range []struct {
		name, script string
		want         []string
		out          string
	}{
		{"a file", "touch /f; chown 5:6 /f", []string{"owner file 5 6"}, ""},
		{"a directory", "mkdir /d; chown 5:6 /d", []string{"owner dir 5 6"}, ""},
		{"a FIFO", "mkfifo /p; chown 5:6 /p", []string{"owner link p 5 6"}, ""},
		{"a FIFO through a link", "rm -f /p; mkfifo /p; ln -sf p /lp; chown 5:6 /lp", []string{"owner link p 5 6"}, ""},
		{"a FIFO's mode", "rm -f /p; mkfifo /p; chmod 640 /p; stat -c %a /p", []string{"mode fifo"}, "640\n"},
		{"through a link", "touch /f; ln -sf f /l; chown 5:6 /l", []string{"owner file 5 6"}, ""},
		{"a link itself", "ln -sf nowhere /m; chown -h 5:6 /m", []string{"owner link m 5 6"}, ""},
		{"a relative name", "mkdir -p /d/e; cd /d/e; touch g; chown 5:6 g ../../d/e/./g", []string{"owner file 5 6", "owner file 5 6"}, ""},
		{"a link out of the root", "ln -sf ../../../../f /o; touch /f; chown 5:6 /o", []string{"owner file 5 6"}, ""},
		{"below another root", "mkdir -p /r/bin /r/d; cp /bin/busybox /r/bin/; ln -sf busybox /r/bin/chown; touch /r/d/f; chroot /r /bin/busybox sh -c 'cd /d && chown 5:6 f'", []string{"owner file 5 6"}, ""},
		{"nothing", "rm -f /f; chown 5:6 /f", nil, "No such file"},
		{"below a file", "touch /f; chown 5:6 /f/g", nil, "Not a directory"},
		{"no group", "touch /f; /bin/chown 5 /f", []string{"owner file 5 -1"}, ""},
		{"no user", "touch /f; /bin/chown :6 /f", []string{"owner file -1 6"}, ""},
		{"a group", "touch /f; /bin/chgrp 6 /f", []string{"owner file -1 6"}, ""},
		{"both, one of them root", "touch /f; /bin/chown 0:6 /f", []string{"owner file 0 6"}, ""},
		{"a mode", "touch /f; chmod 4751 /f; stat -c %a /f", []string{"mode file"}, "4751\n"},
		{"a mode of nothing", "rm -f /f; chmod 4751 /f", nil, "No such file"},
		{"many", "mkdir -p /many/a/b; touch /many/a/b/c; chown -R 5:6 /many", []string{"owner dir 5 6", "owner dir 5 6", "owner dir 5 6", "owner file 5 6"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l ledger
			out := l.run(t, root, test.script)
			got := l.requests()
			slices.Sort(got)
			if !slices.Equal(got, test.want) || !strings.Contains(out, test.out) {
				t.Errorf("%q asks for %q and prints %q; want %q and %q", test.script, got, out, test.want, test.out)
			}
		})
	}
	l := ledger{errs: map[string]error{"owner": unix.EDQUOT}}
	if out := l.run(t, root, "touch /f; chown 5:6 /f"); !strings.Contains(out, "uota") {
		t.Errorf("a refused note: %q; want that the quota is said", out)
	}
}

// attrVar makes this program, under a fake root, run setAttributes. Its value is the working
// directory.
const attrVar = "HPCC_TEST_ATTRS"

// Extended attributes, and system calls that no busybox program makes.
func TestNotesOfAttributes(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	testenv.Check(t, os.Symlink("f", filepath.Join(dir, "l")))
	exe, err := os.Executable()
	testenv.Check(t, err)
	var l ledger
	out := l.run(t, "/", "cd "+dir+" && "+attrVar+"=1 exec "+exe)
	want := []string{
		"set file security.capability \x01\x02", "set file user.x value", "set file user.x",
		"remove file user.x", "remove file security.capability",
		"mode file", "owner file -1 7", "owner link l 3 4", "owner file 8 9",
		"mode file", "owner file 1 2",
	}
	if got := l.requests(); !slices.Equal(got, want) || out != "" {
		t.Errorf("recorded requests %q, output %q; want %q", got, out, want)
	}
}

// setAttributes is the program of TestNotesOfAttributes. It prints its failures.
func setAttributes() {
	f, err := os.OpenFile("f", os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	here, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	link, err := unix.Open("l", unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fd := int(f.Fd())
	for i, err := range []error{
		unix.Setxattr("l", "security.capability", []byte{1, 2}, 0),
		unix.Fsetxattr(fd, "user.x", []byte("value"), 0),
		unix.Lsetxattr("f", "user.x", nil, 0),
		unix.Lsetxattr("l", "user.x", []byte("of a link: not reported"), 0),
		unix.Removexattr("l", "user.x"),
		unix.Fremovexattr(fd, "security.capability"),
		unix.Fchmod(fd, 0o4755),
		unix.Fchownat(unix.AT_FDCWD, "f", -1, 7, 0),
		unix.Fchownat(link, "", 3, 4, unix.AT_EMPTY_PATH),
		unix.Fchown(fd, 8, 9),
		unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), 0o700, 0),
		unix.Chown(fmt.Sprintf("/dev/fd/%d/l", here), 1, 2),
	} {
		if err != nil {
			fmt.Println("call", i, err)
		}
	}
	for what, got := range map[string]error{
		"a name at a bad address": unix.Fchownat(999, "f", 1, 1, 0),
		"no name":                 unix.Fchownat(unix.AT_FDCWD, "", 1, 1, 0),
		"no descriptor":           unix.Fchown(999, 1, 1),
	} {
		if want := map[bool]error{true: unix.ENOENT, false: unix.EBADF}[what == "no name"]; got != want {
			fmt.Println(what, got)
		}
	}
}

// Programs see the owners and modes of the notes, however they name a file.
func TestStat(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	for _, n := range []string{"chroot", "mkdir", "cp"} {
		testenv.Check(t, os.Symlink("busybox", filepath.Join(root, "bin", n)))
	}
	notes := (&ledger{}).notes()
	notes.Stat = func(file, link string, st *unix.Stat_t) {
		at, err := os.Readlink(file)
		if err == nil && filepath.Base(filepath.Join(at, link)) == "noted" {
			st.Uid, st.Gid, st.Mode = 5, 6, st.Mode&unix.S_IFMT|0o4711
		}
	}
	for _, test := range []struct {
		name, script string
		some, all    string // output without and with AllStat
	}{
		{"a file", "stat -c '%u %g %a' /d/noted", "5 6 4711", "5 6 4711"},
		{"a relative name", "cd /d; stat -c %u noted ../d/noted ./noted", "5\n5\n5", "5\n5\n5"},
		{"followed", "stat -L -c '%u %g %a' /d/noted", "0 0 644", "5 6 4711"},
		{"through a link", "stat -L -c %u /link", "0", "5"},
		{"through a link to a directory", "stat -c %u /dir/noted", "5", "5"},
		{"a link", "stat -c '%u %F' /other/noted", "5 symbolic link", "5 symbolic link"},
		{"a FIFO", "rm -f /p/noted; mkdir -p /p; mkfifo /p/noted; stat -c %u /p/noted", "5", "5"},
		{"a directory", "mkdir -p /e/noted; cd /e/noted; stat -c '%u %a' . ../noted", "5 4711\n5 4711", "5 4711\n5 4711"},
		{"another file", "stat -c '%u %a' /d/plain /d/plain", "0 644\n0 644", "0 644\n0 644"},
		{"renamed", "cp /d/plain /d/x; stat -c %u /d/x; mkdir -p /n; mv /d/x /n/noted; chown 0:0 /n/noted; stat -c %u /n/noted", "0\n5", "0\n5"},
		{"nothing", "stat -c %u /nothing; stat -c %u ''", "stat: can't stat '/nothing': No such file or directory\nstat: can't stat '': No such file or directory", "stat: can't stat '/nothing': No such file or directory\nstat: can't stat '': No such file or directory"},
		{"an open file", "exec 7</d/noted; stat -L -c %u /proc/self/fd/7 /dev/fd/7", "0\n0", "5\n5"},
		{"procfs", "stat -c %F /proc/self /proc/self/exe; stat -L -c %F /proc/self/exe", "symbolic link\nsymbolic link\nregular file", "symbolic link\nsymbolic link\nregular file"},
		{"below another root", "mkdir -p /r/bin /r/d; cp /bin/busybox /r/bin/; cp /d/plain /r/d/noted; chroot /r /bin/busybox sh -c 'busybox stat -c %u /d/noted; cd d; busybox stat -c %u noted'; stat -c %u /d/noted", "5\n5\n5", "5\n5\n5"},
	} {
		for _, all := range []bool{false, true} {
			want := map[bool]string{false: test.some, true: test.all}[all]
			t.Run(fmt.Sprint(test.name, " ", all), func(t *testing.T) {
				notes.AllStat = all
				prepare := "mkdir -p /d /other; echo >/d/noted; echo >/d/plain; ln -sf d/noted /link; ln -sfn d /dir; ln -sf x /other/noted; "
				if got := runNoted(t, root, prepare+test.script, notes); strings.TrimSpace(got) != want {
					t.Errorf("%q prints %q; want %q", test.script, got, want)
				}
			})
		}
	}
}
