package runtime

import (
	"context"
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

// Default mounts come first, in this order. The user's come last and may cover them.
func TestMountOrder(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"full/x", "vacant"} {
		testenv.Check(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	data := t.TempDir()
	t.Setenv("HOME", "/home/u")
	for _, c := range []struct {
		name, home, cwd string
		o               Options
		want            string // destinations after /proc /sys /dev; "!" is a tmpfs
	}{
		{"working directory outside the home", "/home/u", "/work", Options{}, "/tmp /home/u /work"},
		{"below the home", "/home/u", "/home/u/x", Options{}, "/tmp /home/u"},
		{"next to the home", "/home/u", "/home/user2", Options{}, "/tmp /home/u /home/user2"},
		{"home below tmp", "/tmp/u", "/tmp/u/x", Options{}, "/tmp"},
		{"below a private tmp", "/home/u", "/tmp/x", Options{PrivateTmp: true}, "!/tmp /home/u /tmp/x"},
		{"home below a private tmp", "/tmp/u", "/tmp/u/x", Options{PrivateTmp: true}, "!/tmp /tmp/u"},
		{"at the root", "/home/u", "/", Options{}, "/tmp /home/u"},
		{"no home", "", "/work", Options{NoHome: true}, "/tmp /work"},
		{"no home, below the home", "", "/home/u/x", Options{NoHome: true}, "/tmp"},
		{"image directory with files", "/home/u", "/full", Options{}, "/tmp /home/u"},
		{"empty image directory", "/home/u", "/vacant", Options{}, "/tmp /home/u /vacant"},
		{"below proc", "/home/u", "/proc/self", Options{}, "/tmp /home/u"},
		{"binds", "/home/u", "/work", Options{Binds: []string{data + ":/z", data + ":/a", data + ":/tmp"}}, "/tmp /home/u /work /z /a /tmp"},
	} {
		ms, err := mounts(root, c.home, c.cwd, c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, m := range ms {
			switch {
			case m.Type == "tmpfs":
				got = append(got, "!"+m.Destination)
			case m.Destination != "/etc/hosts" && m.Destination != "/etc/resolv.conf":
				got = append(got, m.Destination)
			}
		}
		if want := append([]string{"/proc", "/sys", "/dev"}, strings.Fields(c.want)...); !slices.Equal(got, want) {
			t.Errorf("%s: mounts %q; want %q", c.name, got, want)
		}
	}
	if _, err := mounts(root, "/home/u", "/", Options{Binds: []string{data + ":/a/../b"}}); err == nil {
		t.Error("a bind to a destination with \"..\" is accepted")
	}
	// A file with another host name takes the place of the host's /etc/hosts, not of the user's bind.
	host, err := os.Hostname()
	testenv.Check(t, err)
	for name, want := range map[string]int{"": 2, host: 2, "not-" + host: 1} {
		ms, err := mounts(root, "", "/", Options{Hostname: name, Binds: []string{data + ":/etc/hosts"}})
		testenv.Check(t, err)
		n := 0
		for _, m := range ms {
			if m.Destination == "/etc/hosts" {
				n++
			}
		}
		if n != want {
			t.Errorf("host name %q: %d mounts at /etc/hosts; want %d", name, n, want)
		}
	}
}

func TestEntry(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/sh\n\nbroken\n#me:x:10:\nme:x:10:20:Me,,:/home/me:/bin/zsh\ntwice:x:10:20::/:\nlast:x:11:1::/l"
	for _, c := range []struct {
		n     int
		value string
		want  string
	}{
		{0, "me", "me:x:10:20:Me,,:/home/me:/bin/zsh"},
		{2, "10", "#me:x:10:"},
		{2, "11", "last:x:11:1::/l"},
		{2, "1", ""}, {0, "m", ""}, {0, "broken", "broken"}, {2, "", ""}, {9, "", ""},
	} {
		if got := strings.Join(accounts.Entry([]byte(passwd), c.n, c.value), ":"); got != c.want {
			t.Errorf("Entry(passwd, %d, %q) = %q; want %q", c.n, c.value, got, c.want)
		}
	}
}

// Mount points are resolved inside the root, wherever its links point.
func TestMountPoints(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "file"), []byte("shown"), 0o644))
	for _, d := range []string{"real/sub", "etc"} {
		testenv.Check(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for link, to := range map[string]string{"rel": "real", "abs": "/real", "up": "../../../real", "far": "nowhere/yet", "real/back": "../rel/sub", "loop": "loop", "real/top": "/etc", "etc/resolv.conf": "../run/resolv.conf"} {
		testenv.Check(t, os.Symlink(to, filepath.Join(root, link)))
	}
	testenv.Check(t, os.WriteFile(filepath.Join(root, "real/kept"), []byte("kept"), 0o644))
	t.Chdir("/")
	for _, write := range []bool{false, true} {
		for _, c := range []struct{ bind, script, want string }{
			{dir + ":/real/sub", "cat /real/sub/file /rel/sub/file /abs/sub/file /real/kept", "shownshownshownkept"},
			{dir + ":/rel/sub", "cat /real/sub/file /real/kept", "shownkept"},
			{dir + ":/abs/sub", "cat /real/sub/file", "shown"},
			{dir + ":/up/sub", "cat /real/sub/file", "shown"},
			{dir + ":/rel/back", "cat /real/sub/file", "shown"},
			{dir + ":/real/new/deep", "cat /real/new/deep/file /rel/kept", "shownkept"},
			{dir + ":/far/d", "cat /nowhere/yet/d/file /far/d/file", "shownshown"},
			{dir + ":/real/top/sub", "cat /etc/sub/file", "shown"},
			{dir + "/file:/real/kept", "cat /real/kept", "shown"},
			{dir + "/file:/etc/one", "cat /etc/one", "shown"},
			{dir + ":/loop/x", "", "too many levels"},
			{dir + "/file:/real", "", "the destination is a directory in the image"},
			{dir + ":/real/kept", "", "the destination is a file in the image"},
			{dir + ":/real/kept/x", "", "not a directory"},
		} {
			s, err := Spec(root, ImageConfig{}, Options{Args: []string{"x"}, Binds: []string{c.bind}, Write: write, NoHome: true})
			testenv.Check(t, err)
			if out, err := output(t, s, c.script); (err != nil) != (c.script == "") || !strings.Contains(out, c.want) {
				t.Errorf("-b %s, writable %v: %q prints %q, %v; want %q", c.bind, write, c.script, out, err, c.want)
			}
			for _, d := range []string{"real/new", "nowhere", "etc/one", "etc/sub"} {
				if _, err := os.Lstat(filepath.Join(root, d)); err == nil && !write {
					t.Errorf("-b %s: the read-only image now contains %s", c.bind, d)
				}
				os.RemoveAll(filepath.Join(root, d))
			}
		}
	}
}

// TestReadOnlyMountPoints checks that a directory that was replaced to hold a mount point
// stays read-only like the image, and that programs run with no_new_privs.
func TestReadOnlyMountPoints(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	dir := t.TempDir()
	t.Chdir("/")
	for _, c := range []struct{ script, want string }{
		{"touch /mnt/x", "Read-only"},
		{"touch /x", "Read-only"},
		{"touch /mnt/a/b/x && ls /mnt/a/b", "x"},
		{"cat /proc/self/status", "NoNewPrivs:\t1"},
	} {
		s, err := Spec(root, ImageConfig{}, Options{Args: []string{"x"}, Binds: []string{dir + ":/mnt/a/b"}, NoHome: true})
		testenv.Check(t, err)
		if out, err := output(t, s, c.script); !strings.Contains(out, c.want) {
			t.Errorf("%q prints %q, %v; want %q", c.script, out, err, c.want)
		}
	}
}

// TestManyEntries checks that an overlay adds missing mount points to a directory with many
// entries. The overlay must keep the directory's mode and the earlier mounts below it.
func TestManyEntries(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	big := filepath.Join(root, "big")
	const many = 48 // more than rootfs covers with bind mounts
	for i := range many {
		testenv.Check(t, os.MkdirAll(filepath.Join(big, fmt.Sprint("d", i)), 0o755))
	}
	testenv.Check(t, os.Chmod(big, 0o750))
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "file"), []byte("shown"), 0o644))
	t.Chdir("/")
	for _, c := range []struct {
		binds        string
		script, want string
	}{
		{dir + ":/big/new", "cat /big/new/file; ls /big | wc -l; stat -c %a /big", "shown49\n750\n"},
		{dir + ":/big/new " + dir + "/file:/big/f " + dir + ":/big/x/y", "cat /big/new/file /big/f /big/x/y/file; ls /big | wc -l", "shownshownshown51\n"},
		{dir + ":/big/d1 " + dir + ":/big/new", "cat /big/d1/file /big/new/file; ls /big | wc -l", "shownshown49\n"},
		{dir + ":/big/d1/deep " + dir + ":/big/new", "cat /big/d1/deep/file /big/new/file", "shownshown"},
		{dir + ":/big/new", "touch /big/t; mkdir /big/d1/t", "Read-only file system"},
	} {
		s, err := Spec(root, ImageConfig{}, Options{Args: []string{"x"}, Binds: strings.Fields(c.binds), NoHome: true})
		testenv.Check(t, err)
		if out, err := output(t, s, c.script); !strings.Contains(out, c.want) {
			t.Errorf("-b %s: %q prints %q, %v; want %q", c.binds, c.script, out, err, c.want)
		}
	}
	if entries, err := os.ReadDir(big); err != nil || len(entries) != many {
		t.Errorf("the image's directory has %d entries now (%v); want %d", len(entries), err, many)
	}
}

func TestGroups(t *testing.T) {
	for _, c := range []struct{ name, group, want string }{
		{"no line for the group", "root:x:0:\nstaff:x:50:me", "root:x:0:\nstaff:x:50:me\nNAME:x:4343:\n"},
		{"no groups", "", "root:x:0:\nnogroup:x:65534:\nNAME:x:4343:\n"},
		{"the image has the group", "mine:x:4343:\n", ""},
	} {
		root := t.TempDir()
		testenv.Check(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
		testenv.Check(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte(c.group), 0o644))
		_, group := accounts.Files(root, 4242, 4343, "/")
		if want := strings.Replace(c.want, "NAME", "group", 1); string(group) != want {
			t.Errorf("%s: group %q; want %q", c.name, group, want)
		}
	}
}

// TestStatuses checks exit statuses, mostly of runs whose program cannot start.
func TestStatuses(t *testing.T) {
	root := testenv.BusyboxRoot(t)
	t.Chdir("/")
	for name, text := range map[string]string{"plain": "#!/bin/sh\n", "script": "#!/bin/sh\nexit 9\n", "orphan": "#!/bin/nosuch\n", "garbage": "\x7fELF garbage"} {
		testenv.Check(t, os.WriteFile(filepath.Join(root, "bin", name), []byte(text), 0o755))
	}
	testenv.Check(t, os.Chmod(filepath.Join(root, "bin/plain"), 0o644))
	for _, c := range []struct {
		prog, cwd string
		path      string
		status    int
		want      string
	}{
		{"script", "/", "/bin", 9, ""},
		{"/bin/script", "/", "/bin", 9, ""},
		{"./script", "/bin", "/", 9, ""},
		{"script", "/bin", "/nosuch::/x", 9, ""}, // an empty element is the current directory
		{"nosuch", "/", "/bin", process.ExitNotFound, `no such program in the image's PATH (/bin)`},
		{"--cd", "/", "/bin", process.ExitNotFound, "flags of hpcc come before IMAGE"},
		{"/nosuch", "/", "/bin", process.ExitNotFound, "no such file"},
		{"orphan", "/", "/bin", process.ExitNotFound, "interpreter"},
		{"/bin/orphan", "/", "/bin", process.ExitNotFound, "interpreter"},
		{"plain", "/", "/bin", process.ExitNotExecutable, "permission denied"},
		{"/bin/plain", "/", "/bin", process.ExitNotExecutable, "permission denied"},
		{"plain", "/", "/bin:/nosuch", process.ExitNotExecutable, "permission denied"},
		{"bin", "/", "/", process.ExitNotFound, "no such program"},
		{"/bin", "/", "/bin", process.ExitNotExecutable, "permission denied"},
		{"garbage", "/", "/bin", process.ExitNotExecutable, "not a program that this machine"},
		{"script", "/nosuch", "/bin", process.ExitFailed, `working directory "/nosuch"`},
		{"script", "/bin/script", "/bin", process.ExitFailed, "working directory"},
	} {
		s, err := Spec(root, ImageConfig{Env: []string{"PATH=" + c.path}}, Options{Args: []string{c.prog}, NoHome: true})
		testenv.Check(t, err)
		s.Process.Cwd = c.cwd
		cmd, err := Command(context.Background(), s, nil)
		testenv.Check(t, err)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.Contains(string(out), c.want) {
			t.Errorf("%s in %s with PATH=%s ends with %d and %q; want %d and %q", c.prog, c.cwd, c.path, got, out, c.status, c.want)
		}
	}
	// Specifications without a program, an image directory or the source of a bind.
	for _, c := range []struct {
		change func(s *specs.Spec)
		want   string
	}{
		{func(s *specs.Spec) { s.Process.Args = nil }, "names no program"},
		{func(s *specs.Spec) { s.Root = &specs.Root{Path: "/nosuch"} }, `image directory "/nosuch"`},
		{func(s *specs.Spec) { s.Mounts = append(s.Mounts, bind("/nosuch", "/mnt")) }, `opening "/nosuch" to mount it at "/mnt"`},
	} {
		s, err := Spec(root, ImageConfig{}, Options{Args: []string{"script"}, NoHome: true})
		testenv.Check(t, err)
		c.change(s)
		cmd, err := Command(context.Background(), s, nil)
		testenv.Check(t, err)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != process.ExitFailed || !strings.Contains(string(out), c.want) {
			t.Errorf("the run ends with %d and %q; want %d and %q", cmd.ProcessState.ExitCode(), out, process.ExitFailed, c.want)
		}
	}
}
