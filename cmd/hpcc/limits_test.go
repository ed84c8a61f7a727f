package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// limitsDir returns a directory with a context, an archive, an image to load, and a store with the
// images box and many.
func limitsDir(t *testing.T) string {
	t.Helper()
	needs(t, "busybox", "userns")
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash: other shells cannot set all limits")
	}
	box, err := testenv.Busybox()
	testenv.Check(t, err)
	dir := t.TempDir()
	script := `
		mkdir -p root/bin root/tmp many && cp ` + box + ` root/bin/busybox
		for a in sh true cat ls mkdir seq chmod sleep; do ln -s busybox root/bin/$a; done
		d=many; for i in $(seq 40); do d=$d/d; done; mkdir -p $d
		for i in $(seq 30); do mkdir many/$i; echo $i >many/$i/f; done; echo deep >$d/f; ln $d/f $d/g; ln $d/f many/g
		printf 'FROM scratch\nCOPY root /\nENV PATH=/bin\n' >Box
		{ printf 'FROM box\n'; for i in $(seq 6); do printf 'COPY many /m%d\n' $i; done; } >Many
		printf 'FROM box\nRUN mkdir /a; for i in $(seq 100); do echo $i >/a/$i; done\n' >Run
		hpcc build -f Box -t box . && hpcc build -f Many -t many . && hpcc save box box.tar`
	if out, err := limited(dir, "", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// limited returns a command that runs a bash script under limits such as "-n 30".
func limited(dir, limits, script string) *exec.Cmd {
	if limits != "" {
		script = "ulimit -S " + limits + " && ulimit -H " + limits + " || exit 99\n" + script
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HPCC_STORE="+dir+"/store", "HOME="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
	return cmd
}

var limitCommands = []string{
	"run box -- true", "run --set-env=A=1 box -- true", "run --pid box -- true", "run -W box -- true", "run --measure=m.json box -- true",
	"build --no-cache -f Run -t new .", "load box.tar", "save box new.tar", "unpack many new", "submit --to local box -- true",
	"pull localhost:1/x", "status", "nodes", "report none.json", "images", "inspect box", "gc", "check --restricted box",
	"script --to slurm box -- true", "sites", "doctor", "build --help", "--version",
}

// TestLimits runs every kind of command under limits that are too small for it or for Go. Each must
// work, or fail with a message that names the limit.
func TestLimits(t *testing.T) {
	testenv.Slow(t)
	dir := limitsDir(t)
	t.Run("CPU time", func(t *testing.T) { limitOfTime(t, dir) })
	t.Run("inherited", func(t *testing.T) { limitsInherited(t, dir) })
	t.Run("streams", func(t *testing.T) { closedStreams(t, dir) })
	t.Run("few files", func(t *testing.T) { manyUnderFewFiles(t, dir) })
	for _, l := range []struct {
		limits string
		fail   string // regular expression for commands that must fail
		says   string
	}{
		{"-n 3", "run|build --no|load|save|unpack|submit|status", `open files is 3; raise it with "ulimit -n 1024"`},
		{"-n 6", "run|build --no|load|save|unpack|submit|status|doctor", `open files is 6; raise it with "ulimit -n 1024"`},
		{"-n 10", "run|submit", `open files is 10; raise it with "ulimit -n 1024"`},
		// Removing a tree needs a descriptor for each of its levels.
		{"-n 30", "nothing", `open files is 30; raise it with "ulimit -n 1024"`},
		{"-v 100000", ".", `address space is 100000 KiB; raise it with "ulimit -v unlimited"`},
		{"-v 500000", ".", `address space is 500000 KiB; raise it with "ulimit -v unlimited"`},
		{"-v 1000000", "nothing", ""},
		{"-d 50000", ".", `data is 50000 KiB; raise it with "ulimit -d unlimited"`},
		{"-u 1", ".", `processes and threads is 1; raise it with "ulimit -u 4096"`},
		{"-f 0", "run|build --no|load|save|unpack|submit", `size of a file is 0 KiB; raise it with "ulimit -f unlimited"`},
		{"-s 64", "nothing", ""},
		{"-l 0", "nothing", ""},
		{"-m 1000", "nothing", ""},
	} {
		t.Run(l.limits, func(t *testing.T) {
			if l.limits == "-u 1" && os.Geteuid() == 0 {
				t.Skip("the system does not limit the processes of root")
			}
			for _, c := range limitCommands {
				_ = exec.Command("chmod", "-R", "u+w", dir+"/new").Run()
				_ = os.RemoveAll(dir + "/new")
				_ = os.Remove(dir + "/new.tar")
				cmd := limited(dir, l.limits, "exec hpcc "+c)
				var stderr, stdout bytes.Buffer
				cmd.Stderr, cmd.Stdout = &stderr, &stdout
				err := cmd.Run()
				status, text := cmd.ProcessState.ExitCode(), stderr.String()
				own := c == "pull localhost:1/x" || c == "report none.json" || strings.HasPrefix(c, "check") || c == "doctor"
				must := regexp.MustCompile("^(" + l.fail + ")").MatchString(c)
				if l.fail == "." && regexp.MustCompile("^run (box|-W|--set-env)").MatchString(c) {
					must = false // the run executes before the Go runtime, which would need more
				}
				if regexp.MustCompile(`goroutine |runtime: |fatal error|panic|SIG`).MatchString(text) {
					t.Errorf("%s: the output has a Go trace:\n%s", c, text)
				}
				switch {
				case status == 0 && must && !own:
					t.Errorf("%s succeeds", c)
				case status == 0:
				case status < 0 || status != map[bool]int{true: 125, false: 1}[strings.HasPrefix(c, "run")]:
					t.Errorf("%s: %v\n%s", c, err, text)
				case own && !must:
				case c == "doctor" && strings.Contains(stdout.String(), "limited  limits"):
				case !strings.Contains("\n"+text, "\nhpcc: error: ") || !strings.Contains(text, l.says) || l.says == "":
					t.Errorf("%s: exit %d, without %q:\n%s", c, status, l.says, text)
				}
			}
		})
	}
}

// limitOfTime checks that hpcc prints a message before the kernel kills it at the limit of CPU time.
func limitOfTime(t *testing.T, dir string) {
	cmd := limited(dir, "", `truncate -s 20G big; ulimit -t 1; printf 'FROM box\nCOPY big /\n' >Big; hpcc build --no-cache -f Big -t big . 2>&1`)
	out, _ := cmd.CombinedOutput()
	if !strings.Contains(string(out), "hpcc: error: hpcc has reached the limit of CPU time (1 s)") || !strings.Contains(string(out), `"ulimit -t unlimited"`) {
		t.Errorf("%s", out)
	}
}

// limitsInherited checks that a program gets the limits of the caller, although Go raises the soft
// limit of open files for hpcc.
func limitsInherited(t *testing.T, dir string) {
	const limits = "ulimit -S -n 100; ulimit -H -n 200; ulimit -S -s 4096; ulimit -S -t 3600; ulimit -S -f 8000000; ulimit -S -v 4000000; ulimit -c 0; ulimit -S -l 0; ulimit -S -u 4000\n"
	out, err := limited(dir, "", limits+"cat /proc/self/limits").Output()
	testenv.Check(t, err)
	if !regexp.MustCompile(`Max open files +100 +200`).Match(out) {
		t.Fatalf("the shell sets other limits:\n%s", out)
	}
	for _, c := range []string{"run box --", "run --set-env=A=1 box --", "run -W box --", "run --pid box --", "run --measure=m.json box --", "run --no-config box --"} {
		got, err := limited(dir, "", limits+"hpcc "+c+" cat /proc/self/limits 2>&1").Output()
		if err != nil || !bytes.Equal(got, out) {
			t.Errorf("%s: %v\n%s\nwant\n%s", c, err, got, out)
		}
	}
	got, err := limited(dir, "", limits+`printf 'FROM box\nRUN cat /proc/self/limits >/limits\n' >Limits; hpcc build --no-cache -f Limits -t limits . >/dev/null 2>&1 && hpcc run limits -- cat /limits`).CombinedOutput()
	if err != nil || !bytes.Equal(got, out) {
		t.Errorf("RUN: %v\n%s\nwant\n%s", err, got, out)
	}
}

// TestCrash checks that hpcc prints a message instead of a Go trace, and writes the trace to a file.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	cmd := limited(dir, "", "exec hpcc build -t x -f - .")
	stdin, err := cmd.StdinPipe()
	testenv.Check(t, err)
	defer stdin.Close()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	testenv.Check(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	time.Sleep(300 * time.Millisecond) // until it reads the Dockerfile
	testenv.Check(t, cmd.Process.Signal(syscall.SIGQUIT))
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatal("hpcc does not exit")
	}
	m := regexp.MustCompile(`^hpcc: error: ended by SIGQUIT: quit\nhpcc: hint: the trace is in (/tmp/hpcc-crash-\S+)\n$`).FindStringSubmatch(stderr.String())
	if m == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("exit %d:\n%s", cmd.ProcessState.ExitCode(), &stderr)
	}
	defer os.Remove(m[1])
	if st, err := os.Stat(m[1]); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if b, err := os.ReadFile(m[1]); err != nil || !bytes.Contains(b, []byte("goroutine ")) || !bytes.Contains(b, []byte("main.main()")) {
		t.Errorf("%v\n%s", err, b)
	}
}

// closedStreams runs commands with closed standard streams, and with a standard output that fails.
func closedStreams(t *testing.T, dir string) {
	for _, c := range []string{"--version", "--help", "build --help", "help", "images", "status", "inspect box", "gc", "doctor --json", "save box -"} {
		cmd := limited(dir, "", "exec hpcc "+c+" >/dev/full")
		cmd.Stdout = io.Discard
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(stderr.String(), "hpcc: error: ") || !strings.Contains(stderr.String(), "no space left on device") {
			t.Errorf("%s on a full disk: %v: %s", c, err, &stderr)
		}
	}
	for _, c := range []string{"--version", "images", "run box -- true", "run --pid box -- true", "build --no-cache -f Run -t new .", "load box.tar", "save box closed.tar", "status"} {
		if err := limited(dir, "", "exec hpcc "+c+" <&- >&- 2>&-").Run(); err != nil {
			t.Errorf("%s with closed streams: %v", c, err)
		}
	}
	if err := limited(dir, "", "hpcc load closed.tar >/dev/null && hpcc run box -- true").Run(); err != nil {
		t.Errorf("file that was written with closed streams: %v", err)
	}
}

// manyUnderFewFiles unpacks, copies and packs images with many layers and deep directories under a
// small limit of open files.
func manyUnderFewFiles(t *testing.T, dir string) {
	out, err := limited(dir, "-n 30", `set -e
		hpcc unpack many new >/dev/null
		hpcc save many many.tar; HPCC_STORE=$PWD/other hpcc load many.tar >/dev/null
		hpcc build --no-cache -f Many -t again . >/dev/null 2>build.log || { cat build.log; exit 1; }
		hpcc run box -- true`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i := 1; i <= 6; i++ {
		deep := filepath.Join(dir, "new", fmt.Sprintf("m%d", i), strings.Repeat("d/", 40), "g")
		if b, err := os.ReadFile(deep); err != nil || string(b) != "deep\n" {
			t.Errorf("%s: %q %v", deep, b, err)
		}
	}
}
