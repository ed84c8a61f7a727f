package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// TestStartIsTheSame compares starts before the Go runtime (cmd/start/bare) with the full program, for
// many flags. It also checks that the flags of jobs do not need the Go runtime.
func TestStartIsTheSame(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	needs(t, "busybox", "userns")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	dir := t.TempDir()
	script := `mkdir -p root/bin root/etc root/empty job files/sub &&
		cp "$0" root/bin/busybox && for n in sh env id ls cat pwd grep; do ln -s busybox root/bin/$n; done &&
		for i in $(seq 40); do echo $i >root/etc/e$i; done &&
		echo "not a program" >root/bin/text && ln -s /nowhere root/bin/lost && chmod 755 root/bin/text &&
		tar cf image.tar -C root . && printf 'A=one\\nB=$A:x\\n' >a.env && printf 'C=1\\0D=2\\0' >zero.env && echo broken >bad.env && echo kept >files/f`
	sh := exec.Command("sh", "-c", script, busy)
	sh.Dir = dir
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(program string, args ...string) (status int, output string, began bool) {
		cmd := exec.Command(filepath.Join(program, "hpcc"), args...)
		cmd.Dir = dir
		// inittrace: the Go runtime reports each package that it initialises.
		cmd.Env = []string{"GODEBUG=inittrace=1", "HOME=" + filepath.Join(dir, "job"), "HPCC_STORE=" + filepath.Join(dir, "store"), "PATH=" + os.Getenv("PATH"), "USER=me", "HPCC_RUNNING=0", "LD_PRELOAD=x"}
		cmd.Stdin = strings.NewReader("E=from a pipe\n")
		var out, words bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &words
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		errors, began := withoutTrace(words.String())
		return cmd.ProcessState.ExitCode(), out.String() + "---\n" + errors, began
	}
	if status, out, _ := run(bin, "load", "image.tar", "bb"); status != 0 {
		t.Fatal(out)
	}
	// An image whose name is not in its shortest form, and one without a platform.
	if status, out, _ := run(bin, "load", "image.tar", "lab/bb:1.0"); status != 0 {
		t.Fatal(out)
	}
	s, err := store.OpenToRead(filepath.Join(dir, "store"))
	testenv.Check(t, err)
	digest, err := s.Digest("bb")
	testenv.Check(t, err)
	compare := func(line, defaults string, fast bool) {
		t.Helper()
		args := []string{"run"}
		for _, word := range strings.Fields(line) {
			args = append(args, strings.NewReplacer(`\x20`, " ", `\x1b`, "\x1b", "DIGEST", digest.String()).Replace(word))
		}
		status, out, began := run(bin, args...)
		if want, text, _ := run(full, args...); status != want || out != text {
			t.Errorf("hpcc run %s, with defaults %q: status %d and\n%s; the full program: %d and\n%s", line, defaults, status, out, want, text)
		}
		t.Logf("hpcc run %s, with defaults %q: began with the Go runtime: %v", line, defaults, began)
		if fast && began {
			t.Errorf("hpcc run %s, with defaults %q: started the Go runtime, and should not", line, defaults)
		}
	}
	for _, line := range []string{
		"bb -- env", "bb env", "bb:latest -- env", "lab/bb:1.0 -- env", "./root -- env", "./root/ -- env", "root -- env", "-- bb -- env",
		"bb@DIGEST -- env", "lab/gone:1.0@DIGEST -- env", "DIGEST -- env", "--set-env a.env bb@DIGEST env", "--store store bb@DIGEST -- env",
		"bb -- sh -c exit\x207", "bb -- sh -c kill\x20-9\x20$$", "bb -- id", "bb -- cat /etc/passwd /etc/group /etc/e40", "bb -- ls -lan /etc", "bb -- env -j", "bb env --join", "bb env --measure",
		"--cd /etc bb -- pwd", "--cd=job bb pwd", "-cd job bb pwd", "-c /etc bb pwd", "-c /etc --cd /bin bb pwd", "-b files:/mnt/x --bind files:/mnt/y bb -- ls /mnt", "--cd /etc/../bin bb pwd",
		"--set-env a.env bb -- env", "--set-env=a.env --unset-env B bb -- env", "--set-env A=1 --set-env B=$A --env-no-expand bb -- env", "--set-env bb -- env", "--set-env0 zero.env bb -- env", "--unset-env H?ME* bb -- env", "--set-env A=1 bb env",
		"-b files:/mnt/x bb -- cat /mnt/x/f", "--bind files:/etc/x:ro bb -- ls /etc", "-b files/f:/etc/e1 -b files/f:/etc/new bb -- cat /etc/e1 /etc/new", "-b /etc/hosts:/etc/group bb -- cat /etc/group", "-b files:/mnt/x -b files:/mnt/y bb -- ls /mnt", "-b files:/a/b/c bb ls /a/b",
		"-t bb -- ls /tmp", "--private-tmp --no-home bb -- env", "--home bb -- env", "-W bb -- sh -c ls>/x", "-W=1 bb -- env", "--store store bb -- env", "--clean-env bb -- env", "--no-passwd bb -- ls /etc", "--no-config bb -- env",
		"--entrypoint env bb", "--entrypoint env bb -- -i", "--entrypoint= bb -- env",
		"--set-env a.env --cd job bb -- sh -c env;pwd", "--set-env a.env -b files:/mnt --set-env=B=$A -c /mnt -W bb sh -c env;ls;touch\x20/x",
	} {
		compare(line, "", true)
	}
	for _, line := range []string{
		"", "--help", "-h", "--bogus", "--cd", "--bogus=1 bb -- env", "bb", "nothere -- env", "./nothere -- env", "Nothere -- env", "bb --", "bb@sha256:0123456789ab -- env", "bb@sha256:" + strings.Repeat("0", 64) + " -- env", "--store nostore bb@DIGEST -- env", "--store root bb@DIGEST -- env",
		"bb -- -- env",
		"bb -- nosuch", "bb -- /nosuch", "bb -- text", "bb -- lost", "bb -- /etc", "bb -- ./x", "bb -- n\x1b[31mo", "bb -- größe",
		"--cd nowhere bb pwd", "--cd= bb pwd",
		"--set-env nofile bb -- env", "--set-env bad.env bb -- env", "--set-env= bb -- env",
		"--set-env /dev/stdin bb -- env", "--set-env =x bb -- env", "--unset-env [ bb -- env", "--unset-env * bb -- env",
		"-b nosuch bb -- env", "-b a,b:/mnt bb -- env", "-b files:rel bb -- env",
		"-w bb -- env", "-w ./root -- sh -c cat\x20/etc/e1", "--write=true ./root -- env", "--write=maybe bb -- env",
		"--home --no-home bb -- env", "-tw ./root -- env",
		"--store=nostore bb -- env", "--store= bb -- env", "--store root bb -- env", "--env-no-expand=false bb -- env", "--- bb", "- bb", "-= bb",
		"--set-env --set-env=A=$PATH bb -- env", "--set-env --cd /etc bb -- pwd",
		"--mount type=bind,source=files,target=/mnt/x bb -- ls /mnt/x", "-u 0 bb -- id", "--uid=5 --gid 6 bb -- id", "--uid 0x10 bb -- id", "--uid 010 bb -- id", "--gid -1 bb -- id", "--uid 4294967295 bb -- id", "--seccomp bb -- id", "--seccomp --gid 7 bb -- id",
		"--network none bb -- cat /proc/net/route", "--network mine bb -- env", "--network= bb -- env", "--hostname h bb -- cat /proc/sys/kernel/hostname", "--hostname a/b bb -- env", "--hostname= bb -- env",
		"--pid bb -- cat /proc/1/comm", "--pid bb -- sh -c exit\x207", "--pid --join-ct 1 bb -- env",
		"--entrypoint= bb", "--join-ct 1 bb -- id", "-j --join-pid 1 bb -- id",
		"--measure=/dev/null bb -- sh -c exit\x207", "-measure=/dev/null --set-env A=1 --set-env bb -- env", "--measure= bb -- env", "--measure=/dev/null nothere -- env", "--measure=/dev/null", "--measure=false bb -- env",
		"-b files/f:/bin bb -- env", "--runtime crun bb -- env",
	} {
		compare(line, "", false)
	}
	// Files of defaults, which the command line overrides.
	conf := filepath.Join(dir, "job", ".config", "hpcc", "run.conf")
	testenv.Check(t, os.MkdirAll(filepath.Dir(conf), 0o755))
	for _, defaults := range []string{
		"", "# nothing\n\n", "--set-env A=conf -b files:/mnt/c\n-t --cd /etc # and\n", "--no-home --env-no-expand --unset-env US*", "--home --no-home", "--set-env 'A=b c'\n--set-env \"B=$HOME\"\r\n",
		"-b files:/a\n--bind files:/b", "-b files/f:/bin", "-b nosuch", "--cd nowhere", "--cd", "--set-env a.env --", "--set-env nofile", "-w", "--store store", "--bogus", "word", "-t word", "'open", "--cd $NO", "-W", "-W=1m --clean-env --no-passwd", "--mount type=bind,source=files,target=/mnt/m", "-W=x", "--set-env A=nosuch", "--join", "--hostname conf", "--network none --uid 0", "--seccomp", "--pid", "--entrypoint id", "--uid x", "--stage", "--no-config",
	} {
		testenv.Check(t, os.WriteFile(conf, []byte(defaults), 0o644))
		for _, line := range []string{"bb -- env", "--home bb -- env", "--no-home --cd / -b files:/mnt/l bb -- ls /mnt", "--set-env A=line --bind files:/mnt/d bb -- sh -c pwd;env;ls\x20/mnt", "--no-config bb -- env", "--cd= bb -- pwd", "-w ./root -- grep -c ^overlay\x20/\x20 /proc/mounts", "-W=2m bb -- touch /t", "bb -- nosuch", "--home --no-home bb env", "--network host --gid 3 --hostname line bb -- id"} {
			compare(line, defaults, false)
		}
	}
}
