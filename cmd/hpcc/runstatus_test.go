package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// smallTree creates the tree of a small image and the other files that TestRunRefusals needs.
func smallTree(t *testing.T) (dir, tree string) {
	t.Helper()
	needs(t, "busybox", "userns")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	dir = t.TempDir()
	shell(t, dir, `mkdir -p root/bin root/etc root/proc root/sys root/dev root/tmp root/home && cp "$0" root/bin/busybox && touch root/etc/passwd root/etc/group
for n in sh env cat readlink; do ln -s busybox root/bin/$n; done; echo text >root/bin/text; chmod 755 root/bin/text; echo broken >bad.env; printf 'A=\0\n' >nul.env
mkdir -p broken/.hpcc conf/hpcc badconf/hpcc; echo '{' >broken/.hpcc/image.json; echo '--bogus' >conf/hpcc/run.conf; echo "'" >badconf/hpcc/run.conf`, busy)
	return dir, filepath.Join(dir, "root")
}

// TestRunRefusals checks the exit status of "hpcc run": 125 with a message if hpcc fails, 126 if the
// program is not executable, and 127 if it does not exist.
func TestRunRefusals(t *testing.T) {
	t.Parallel()
	dir, tree := smallTree(t)
	for _, c := range []struct {
		args   string
		env    string
		status int
	}{
		{args: ""}, {args: "--bogus T"}, {args: "--cd"}, {args: "--uid x T"}, {args: "--uid -1 T"}, {args: "--gid 4294967295 T"}, {args: "--network mine T env"}, {args: "--hostname a/b T env"},
		{args: "--home --no-home T env"}, {args: "-w -W T env"}, {args: "--cd= T env"}, {args: "--write=maybe T env"}, {args: "-W=x T env"}, {args: "-W= T env"},
		{args: "--set-env nofile T -- env"}, {args: "--set-env bad.env T -- env"}, {args: "--set-env nul.env T env"}, {args: "--set-env= T env"}, {args: "--set-env . T env"}, {args: "--set-env =x T env"}, {args: "--unset-env= T env"},
		{args: "--cd /nowhere T env"}, {args: "-b nosuch T env"}, {args: "-b .:rel T env"}, {args: "-b .:/ T env"}, {args: "-b .:/a:b T env"}, {args: "-b bad.env:/bin T env"}, {args: "-b .:/proc/new T env"}, {args: "--mount bad T env"},
		{args: "--device x T env"}, {args: "--mpi nope T env"}, {args: "--runtime crun T env"}, {args: "--measure= T env"},
		{args: "--join-ct 0 T env"}, {args: "--join-tag= T env"}, {args: "--join-pid 0 T env"}, {args: "--join-pid 1 T env"}, {args: "-j --pid T env"},
		{args: "nothere env"}, {args: "Not:There env"}, {args: "./nothere env"}, {args: "./bad.env env"}, {args: "./broken env"}, {args: "--store ./root nothere env"}, {args: "T"},
		{args: "T env", env: "XDG_CONFIG_HOME=" + dir + "/conf"}, {args: "T env", env: "XDG_CONFIG_HOME=" + dir + "/badconf"}, {args: "T env", env: "HPCC_NO_CONFIG=maybe"},
		{args: "T text", status: 126}, {args: "T /etc", status: 126}, {args: "T nosuch", status: 127}, {args: "--cd /bin T ./nosuch", status: 127},
	} {
		if c.status == 0 {
			c.status = 125
		}
		for _, program := range []string{bin, full} {
			args := []string{"run"}
			for _, a := range strings.Fields(c.args) {
				if a == "T" {
					a = tree
				}
				args = append(args, a)
			}
			cmd := exec.Command(filepath.Join(program, "hpcc"), args...)
			cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "PATH=/bin", "HPCC_STORE=" + dir + "/store", c.env}
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.HasPrefix(string(out), "hpcc: error: ") {
				t.Errorf("%s: %s run %s: status %d; want %d: %s", c.env, program, c.args, got, c.status, out)
			}
		}
	}
}

// TestInheritedIsAsUnderChRun checks that a program inherits limits, closed standard streams and
// descriptors as under ch-run.
func TestInheritedIsAsUnderChRun(t *testing.T) {
	t.Parallel()
	needs(t, "ch-run")
	dir, tree := smallTree(t)
	const look = `cat /proc/self/limits; for f in /proc/self/fd/*; do t=$(readlink $f); case "$t" in ""|/proc/*|pipe:*) ;; *) echo "${f##*/} $t";; esac; done; [ -e /proc/self/fd/0 ] || echo closed`
	for _, c := range []string{
		"", "ulimit -Sn 100", "ulimit -Sn 100; ulimit -Hn 200", "ulimit -c 0; ulimit -s 4096; ulimit -Sf 1000", "exec <&-", "exec </dev/null 3</dev/null 7>>file 9<.", "exec <&- 4</dev/null",
	} {
		run := func(program ...string) string {
			args := append([]string{"-c", c + "\nexec \"$@\"", "sh"}, program...)
			cmd := exec.Command("sh", append(args, tree, "--", "/bin/sh", "-c", look)...)
			cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "PATH=/usr/local/bin:/usr/bin:/bin", "USER=me"}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %v: %s", c, program, err, out)
			}
			return string(out)
		}
		want := run("ch-run")
		for _, program := range []string{bin, full} {
			if got := run(filepath.Join(program, "hpcc"), "run"); got != want {
				t.Errorf("%s: %s run: %s; under ch-run: %s", c, program, differ(got, want), want)
			}
		}
	}
	// A closed stream stays closed.
	for _, program := range []string{bin, full} {
		cmd := exec.Command("sh", "-c", `"$@" <&- >&- 2>&-; echo $?`, "sh", filepath.Join(program, "hpcc"), "run", tree, "--", "/bin/sh", "-c", "for n in 0 1 2; do [ ! -e /proc/self/fd/$n ] || exit 1; done")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0\n" {
			t.Errorf("%s: %v: %s", program, err, out)
		}
	}
}
