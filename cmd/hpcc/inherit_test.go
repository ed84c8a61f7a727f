package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// unusualMark is set in the environment of a copy of the test binary that calls execUnusual.
const unusualMark = "HPCC_TEST_UNUSUAL"

// execUnusual executes a program with attributes that differ from the usual ones and that programs
// inherit. The signals are not those that shells reset.
func execUnusual(argv []string) error {
	goruntime.LockOSThread()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGXFSZ, syscall.Signal(40))
	blocked := unix.Sigset_t{}
	blocked.Val[0] = 1<<(unix.SIGUSR2-1) | 1<<(unix.SIGTERM-1) | 1<<(45-1)
	syscall.Umask(0o037)
	return errors.Join(
		unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, nil),
		syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 777, Max: 1000}),
		syscall.Setrlimit(unix.RLIMIT_STACK, &syscall.Rlimit{Cur: 4 << 20, Max: 16 << 20}),
		syscall.Setpriority(unix.PRIO_PROCESS, 0, 17), // above that of any caller, which cannot be lowered
		os.WriteFile("/proc/self/oom_score_adj", []byte("983"), 0),
		unix.SchedSetaffinity(0, &unix.CPUSet{1}),
		syscall.Exec(argv[0], argv, os.Environ()))
}

// TestInherited checks that a program inherits the attributes of hpcc's caller in every way to run it,
// as if the caller had executed the program.
func TestInherited(t *testing.T) {
	t.Parallel()
	needs(t, "busybox", "userns")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	dir := t.TempDir()
	const program = "/bin/cat /proc/self/status /proc/self/limits /proc/self/oom_score_adj /proc/self/stat"
	shell(t, dir, `mkdir -p root/bin root/etc root/proc root/sys root/dev root/tmp fronts && cp "$0" root/bin/busybox && for n in cat ls sh; do ln -s busybox root/bin/$n; done
		for n in docker apptainer ch-run; do ln -s "$1" fronts/$n; done; export HPCC_STORE=$PWD/store; tar cf image.tar -C root . && "$1" load image.tar bb
		"$1" wrap bb wrapped cat && "$1" unpack --bundle bb bundle && sed -i "s#\"/bin/sh\"#\"$(echo "$2" | sed 's/ /","/g')\"#" bundle/config.json &&
		cp -r bundle pids && sed -i 's/"type": "mount"/"type": "mount"}, {"type": "pid"/' pids/config.json`, busy, filepath.Join(bin, "hpcc"), program)
	run := func(line string) string {
		cmd := exec.Command(os.Args[0], strings.Fields(line)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), unusualMark+"=1", "HPCC_STORE="+dir+"/store", "XDG_RUNTIME_DIR="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
		return string(out)
	}
	// pick returns the lines of attributes. No program inherits capabilities.
	pick := func(out string) string {
		var text strings.Builder
		for line := range strings.Lines(out) {
			switch name, _, _ := strings.Cut(line, ":"); name {
			case "SigBlk", "SigIgn", "CapInh", "CapAmb", "Umask", "Cpus_allowed_list", "983\n":
				text.WriteString(line)
			default:
				if strings.HasPrefix(line, "Max ") {
					text.WriteString(line)
				} else if at := strings.LastIndex(line, ") "); at > 0 {
					fmt.Fprintln(&text, "nice", strings.Fields(line[at:])[17])
				}
			}
		}
		return text.String()
	}
	hpcc, fronts := filepath.Join(bin, "hpcc"), filepath.Join(dir, "fronts")
	plain := pick(run(busy + " cat" + strings.TrimPrefix(program, "/bin/cat")))
	// A caller that was started with posix_spawn(3), such as a child of make, ignores signal 32, too.
	for _, want := range []string{"SigIgn:\t00000080[08]1005207\n", "SigBlk:\t0000100000004800\n", "Umask:\t0037\n", "nice 17\n", "983\n", "Cpus_allowed_list:\t0\n", "777 "} {
		if !regexp.MustCompile(want).MatchString(plain) {
			t.Fatalf("the test's own attributes lack %q: %s", want, plain)
		}
	}
	for _, c := range []struct{ name, line, log, umask string }{
		{name: "bare start", line: hpcc + " run bb -- " + program},
		{name: "full program", line: hpcc + " run --uid 0 bb -- " + program},
		{name: "--pid", line: hpcc + " run --pid bb -- " + program},
		{name: "--seccomp", line: hpcc + " run --seccomp bb -- " + program},
		{name: "--join", line: hpcc + " run --join --join-ct 1 --join-tag hpcc-inherited bb -- " + program},
		{name: "--measure", line: hpcc + " run --measure=/dev/null bb -- " + program},
		{name: "docker", line: fronts + "/docker run bb " + program, umask: "0022"},
		{name: "apptainer", line: fronts + "/apptainer exec " + dir + "/root " + program},
		{name: "ch-run", line: fronts + "/ch-run " + dir + "/root -- " + program},
		{name: "wrapper", line: dir + "/wrapped/bin/cat" + strings.TrimPrefix(program, "/bin/cat")},
		{name: "oci run", line: hpcc + " oci run --bundle bundle inherited"},
		{name: "oci run, PID namespace", line: hpcc + " oci run --bundle pids inherited-pids"},
		{name: "entry", line: hpcc + " entry -- " + program},
		{name: "entry --measure", line: hpcc + " entry --measure=/dev/null -- " + program},
		{name: "local job", line: hpcc + " submit --wait --to local --name one --output one.out bb -- " + program, log: "one.out"},
		{name: "packed local job", line: hpcc + " submit --wait --to local --name two --array 1-2 --pack --output {name}.{task}.out bb -- " + program, log: "two.1.out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := run(c.line)
			if c.log != "" {
				b, err := os.ReadFile(filepath.Join(dir, c.log))
				testenv.Check(t, err)
				out = string(b)
			}
			want := strings.Replace(plain, "0037", cmp.Or(c.umask, "0037"), 1)
			if got := pick(out); got != want {
				t.Error(differ(got, want))
			}
		})
	}
	// No descriptor of hpcc stays open.
	plain = run(busy + " ls /proc/self/fd")
	for _, line := range []string{hpcc + " run bb", hpcc + " run --uid 0 bb", hpcc + " run --pid bb", hpcc + " run --uid 0 --pid bb", fronts + "/docker run bb", fronts + "/apptainer exec " + dir + "/root"} {
		if out := run(line + " /bin/ls /proc/self/fd"); out != plain {
			t.Errorf("%s: descriptors %q; want %q", line, out, plain)
		}
	}
}
