package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime/accounts"
	"hpcc/runtime/process"
	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) {
	if child, err := Init(); child {
		if err == nil {
			os.Exit(0)
		}
		fmt.Fprintln(os.Stderr, err)
		var e *process.Error
		if errors.As(err, &e) {
			os.Exit(e.Status)
		}
		os.Exit(process.ExitFailed)
	}
	if os.Getenv(oldVar) != "" {
		fmt.Fprintln(os.Stderr, execAsOld())
		os.Exit(1)
	}
	if os.Getenv(attrVar) != "" {
		setAttributes()
		return
	}
	testenv.Run(m)
}

func TestParseBind(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	tests := []struct {
		in, src, dst, err string
		ro                bool
	}{
		{in: dir, src: dir, dst: dir},
		{in: ".", src: dir, dst: dir},
		{in: ".:/mnt", src: dir, dst: "/mnt"},
		{in: ".:/mnt//a/:ro", src: dir, dst: "/mnt/a", ro: true},
		{in: ".:/mnt:rw", src: dir, dst: "/mnt"},
		{in: "", err: "source is empty"},
		{in: ":/mnt", err: "source is empty"},
		{in: ".:", err: "destination is empty"},
		{in: ".:mnt", err: "not absolute"},
		{in: ".:/a/../../etc", err: "contains \"..\""},
		{in: ".:/..", err: "contains \"..\""},
		{in: ".:/", err: "root directory"},
		{in: "/:", err: "destination is empty"},
		{in: "/", err: "root directory"},
		{in: "nosuch:/mnt", err: "SRC does not exist"},
		{in: ".:/mnt:rx", err: "unknown option rx"},
		{in: ".:/mnt:ro:x", err: "too many colons"},
	}
	for _, test := range tests {
		m, err := parseBind(test.in, bindOf)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("parseBind(%q) = %v, %v; want an error with %q", test.in, m, err, test.err)
			}
			continue
		}
		if err != nil || m.Source != test.src || m.Destination != test.dst || slices.Contains(m.Options, "ro") != test.ro {
			t.Errorf("parseBind(%q) = %+v, %v; want %s at %s, read-only %v", test.in, m, err, test.src, test.dst, test.ro)
		}
	}
}

func TestWorkingDir(t *testing.T) {
	m := []specs.Mount{bind("/home/u", "/home/u"), {Type: "tmpfs", Destination: "/tmp", Source: "tmpfs"}, bind("/data", "/mnt")}
	tests := []struct{ name, cwd, image, dir, want string }{
		{"the caller's, visible", "/home/u/work", "/app", "", "/home/u/work"},
		{"the image's, when the caller's is not", "/srv/x", "/app", "", "/app"},
		{"not below a private tmp", "/tmp/x", "/app", "", "/app"},
		{"not where it is under another name", "/data/x", "", "", "/"},
		{"neither", "/srv/x", "", "", "/"},
		{"relative", "/home/u", "", "dir", "/home/u/dir"},
		{"relative to the image's", "/srv", "/app", "dir", "/app/dir"},
		{"absolute", "/home/u", "/app", "/x/../y", "/y"},
		{"climbing", "/home/u", "", "../../../..", "/"},
		{"a neighbour with the same beginning", "/home/user2", "/app", "", "/app"},
		{"a relative WORKDIR of a strange image", "/srv", "app", "", "/app"},
	}
	for _, test := range tests {
		if got := workingDir(m, test.cwd, test.image, test.dir); got != test.want {
			t.Errorf("%s: workingDir(%q, %q, %q) = %q; want %q", test.name, test.cwd, test.image, test.dir, got, test.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	root := t.TempDir()
	testenv.Write(t, filepath.Join(root, "etc/passwd"), "app:x:10:10::/srv/app:/bin/sh\nroot:x:0:0::/root:/bin/sh\n")
	m := []specs.Mount{bind("/tmp", "/tmp")}
	host := []string{"PATH=/host/bin", "HOME=/home/u", "TMPDIR=/scratch/u", "LANG=de", "A=host", "HPCC_RUNNING=0"}
	tests := []struct {
		name string
		c    ImageConfig
		home string
		want []string
	}{
		{"host and image", ImageConfig{Env: []string{"A=image", "PATH=/opt/bin:/bin", "EMPTY=", "odd"}}, "/home/u",
			[]string{"A=image", "EMPTY=", "HOME=/home/u", "HPCC_RUNNING=1", "LANG=de", "PATH=/opt/bin:/bin"}},
		{"no home: the image's user", ImageConfig{User: "app:staff"}, "", []string{"A=host", "HOME=/srv/app", "HPCC_RUNNING=1", "LANG=de", "PATH=" + StandardPath}},
		{"no home: by number", ImageConfig{User: "10"}, "", []string{"A=host", "HOME=/srv/app", "HPCC_RUNNING=1", "LANG=de", "PATH=" + StandardPath}},
		{"no home: nobody known", ImageConfig{User: "ghost"}, "", []string{"A=host", "HOME=/", "HPCC_RUNNING=1", "LANG=de", "PATH=" + StandardPath}},
	}
	for _, test := range tests {
		got := environment(host, test.c, root, test.home, m)
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: environment = %q; want %q", test.name, got, test.want)
		}
	}
	if got := environment([]string{"TMPDIR=/tmp/x"}, ImageConfig{}, root, "/h", m); !slices.Contains(got, "TMPDIR=/tmp/x") {
		t.Errorf("TMPDIR that exists inside was lost: %q", got)
	}
}

func TestAccounts(t *testing.T) {
	tests := []struct{ name, passwd, want string }{
		{"a line is added", "root:x:0:0::/root:/bin/sh", "root:x:0:0::/root:/bin/sh\nNAME:x:4242:4343:"},
		{"none is there", "", "root:x:0:0:root:/root:/bin/sh\nnobody"},
		{"the image's will do", "me:x:4242:1::/:/bin/sh\n", ""},
	}
	for _, test := range tests {
		root := t.TempDir()
		os.MkdirAll(filepath.Join(root, "etc"), 0o755)
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(test.passwd), 0o644)
		t.Setenv("USER", "NAME")
		passwd, _ := accounts.Files(root, 4242, 4343, "/home/a:b")
		if !strings.HasPrefix(string(passwd), test.want) || (test.want == "" && passwd != nil) {
			t.Errorf("%s: passwd %q; want it to begin %q", test.name, passwd, test.want)
		}
		if test.want != "" && !strings.Contains(string(passwd), ":/home/a_b:") {
			t.Errorf("%s: passwd %q; want the home's colon made harmless", test.name, passwd)
		}
	}
	// A passwd link that leads out of the image is not read.
	root := t.TempDir()
	os.MkdirAll(filepath.Join(root, "etc"), 0o755)
	os.Symlink("/etc/passwd", filepath.Join(root, "etc/passwd"))
	if b := accounts.ReadInside(root, "etc/passwd"); b != nil {
		t.Errorf("the host's passwd was read through a link: %q", b)
	}
}

func TestSpecArgs(t *testing.T) {
	root := t.TempDir()
	tests := []struct {
		name            string
		entrypoint, cmd []string
		args, want      []string
		refused         bool
	}{
		{"the image's command", nil, []string{"sh", "-c", "x"}, nil, []string{"sh", "-c", "x"}, false},
		{"entry point and command", []string{"e"}, []string{"c"}, nil, []string{"e", "c"}, false},
		{"the caller's in the command's place", []string{"e"}, []string{"c"}, []string{"mine"}, []string{"e", "mine"}, false},
		{"the caller's alone", nil, []string{"c"}, []string{"mine", "x"}, []string{"mine", "x"}, false},
		{"none at all", nil, nil, nil, nil, true},
	}
	for _, test := range tests {
		s, err := Spec(root, ImageConfig{Entrypoint: test.entrypoint, Cmd: test.cmd}, Options{Args: test.args})
		if (err != nil) != test.refused || (err == nil && !slices.Equal(s.Process.Args, test.want)) {
			t.Errorf("%s: Spec = %v, %v; want %q", test.name, s, err, test.want)
		}
	}
	if _, err := Spec(filepath.Join(root, "nosuch"), ImageConfig{}, Options{Args: []string{"x"}}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("Spec of a missing directory: %v", err)
	}
}

// output runs a shell script in the root with Command.
func output(t *testing.T, s *specs.Spec, script string) (string, error) {
	t.Helper()
	s.Process.Args = []string{"sh", "-c", script}
	cmd, err := Command(context.Background(), s, nil)
	testenv.Check(t, err)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestCommand(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	t.Chdir(t.TempDir())
	os.WriteFile("here", nil, 0o644)
	spec := func(o Options) *specs.Spec {
		o.Args = []string{"x"}
		s, err := Spec(root, ImageConfig{}, o)
		testenv.Check(t, err)
		return s
	}
	uid, rights := fmt.Sprint(os.Getuid()), "CapEff:\t0000000000000000"
	if uid == "0" {
		rights = "CapAmb:\t0000000000000000" // root is root inside too
	}
	tests := []struct {
		name   string
		o      Options
		script string
		want   string // in the output; "!" before it: and the script fails
	}{
		{"own ids and name", Options{}, "id -u; id -un", uid},
		{"the current directory", Options{}, "ls", "here"},
		{"a read-only image", Options{}, "touch /x", "!Read-only"},
		{"a writable one", Options{Write: true}, "touch /x && ls /", "x"},
		{"no rights of the namespace", Options{}, "cat /proc/self/status", rights},
		{"the host's proc", Options{}, "cat /proc/self/comm", "cat"},
		{"a bind where the image has nothing", Options{Binds: []string{".:/mnt/a/b"}}, "ls /mnt/a/b", "here"},
		{"a bind that may not be written", Options{Binds: []string{".:/mnt:ro"}}, "touch /mnt/y", "!Read-only"},
		{"an empty tmp", Options{PrivateTmp: true}, "ls -A /tmp | cat; echo end", "end"},
		{"a bind of one file", Options{Binds: []string{"here:/etc/one"}}, "ls /etc/one", "/etc/one"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, err := output(t, spec(test.o), test.script)
			want, fails := strings.CutPrefix(test.want, "!")
			if (err != nil) != fails || !strings.Contains(out, want) {
				t.Errorf("%q gives %q, %v; want %q, failing %v", test.script, out, err, want, fails)
			}
		})
	}
	s := spec(Options{})
	s.Process.Args = []string{"nosuch"}
	cmd, err := Command(context.Background(), s, nil)
	testenv.Check(t, err)
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != process.ExitNotFound {
		t.Errorf("a program that is not there: %q, %v; want status %d", out, err, process.ExitNotFound)
	}
}

// With the filter, calls succeed that a single ID cannot make, without any effect.
func TestFakeRoot(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	s, err := Spec(root, ImageConfig{}, Options{Args: []string{"x"}, Write: true})
	testenv.Check(t, err)
	s.Linux = newNamespaces(0, 0)
	tests := []struct{ name, script, with, without string }{
		{"owner", "touch /f; chown 5:6 /f && echo ok; stat -c %u:%g /f", "ok\n0:0\n", "0:0"},
		{"owner of a link", "ln -sf f /l; chown -h 7 /l && echo ok", "ok\n", ""},
		{"device", "mknod /null c 1 3 && echo ok; ls -d /null || true", "ok\n", ""},
		{"FIFO", "mkfifo /p && test -p /p && echo fifo; rm -f /p", "fifo\n", "fifo\n"},
		{"still root", "id -u", "0\n", "0\n"},
	}
	os.Symlink("busybox", filepath.Join(root, "bin/rm"))
	os.Symlink("busybox", filepath.Join(root, "bin/test"))
	for _, test := range tests {
		s.Annotations = map[string]string{fakeRootMark: "1"}
		if out, err := output(t, s, test.script); !strings.HasPrefix(out, test.with) {
			t.Errorf("%s: with the filter %q, %v; want %q", test.name, out, err, test.with)
		}
		s.Annotations = nil
		if out, _ := output(t, s, test.script); strings.Contains(out, "ok\n") || !strings.Contains(out, test.without) {
			t.Errorf("%s: without the filter %q; the test proves nothing", test.name, out)
		}
	}
}
