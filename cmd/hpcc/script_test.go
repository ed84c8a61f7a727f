package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"hpcc/runtime"
	"hpcc/testdata/helpers/slowfs/mount"
	"hpcc/testdata/helpers/testenv"
)

// The programs of the tests: bin is the directory of hpcc as "make build" builds it. The hpcc in full
// always starts the Go runtime and does not embed the program for images. load is a program with
// known resource use (testdata/helpers/measure).
var bin, full, load string

func TestMain(m *testing.M) {
	if os.Getenv(unusualMark) != "" {
		fmt.Fprintln(os.Stderr, execUnusual(os.Args[1:]))
		os.Exit(1)
	}
	_ = flag.Set("test.parallel", strconv.Itoa(max(atOnce, goruntime.GOMAXPROCS(0)))) // -parallel overrides it
	flag.Parse()
	testenv.Run(withPrograms{m})
}

// withPrograms builds hpcc as "make build" does, and then runs the tests. HPCC_TEST_BUILT names a
// directory in which it builds only once, for slow machines (testdata/clusters/vm).
type withPrograms struct{ *testing.M }

func (w withPrograms) Run() int {
	dir := os.Getenv("HPCC_TEST_BUILT")
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "hpcc-test-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // some tests run programs as another user
			panic(err)
		}
	}
	bin, full, load = filepath.Join(dir, "bin"), filepath.Join(dir, "full"), filepath.Join(dir, "load")
	if _, err := os.Stat(filepath.Join(bin, "hpcc")); err != nil {
		buildAll(dir)
	}
	return w.M.Run()
}

func buildAll(dir string) {
	here, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	small, overlay := filepath.Join(dir, "entry"), filepath.Join(dir, "overlay.json")
	embedded := fmt.Sprintf(`{"Replace": {%q: %q}}`, filepath.Join(here, "entry.bin"), small)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(overlay, []byte(embedded), 0o644); err != nil {
		panic(err)
	}
	for _, args := range [][]string{
		{"build", "-trimpath", "-ldflags", "-E hpcc_entry", "-o", filepath.Join(full, "hpcc"), "."},
		{"build", "-tags", "start", "-trimpath", "-ldflags", "-E hpcc_entry", "-o", small, "../start"},
		{"build", "-tags", "entry", "-overlay", overlay, "-trimpath", "-ldflags", "-E hpcc_start", "-o", filepath.Join(bin, "hpcc"), "."},
		{"build", "-o", load, "../../testdata/helpers/measure/load.go"},
		{"build", "-o", filepath.Join(dir, "lacks"), "../../testdata/helpers/lacks"},
		{"build", "-o", filepath.Join(dir, "slowfs"), "../../testdata/helpers/slowfs"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building hpcc: %v\n%s", err, out)
			os.Exit(1)
		}
	}
}

// errOptional is the error of a facility that was not set up and that CI need not have.
var errOptional = errors.New("optional")

// facilities maps the conditions of scripts to functions that check whether the machine meets them. A
// script with an unmet condition is skipped with the reason; in CI it fails, unless the error is errOptional.
var facilities = map[string]func() error{
	"busybox": func() error { _, err := testenv.Busybox(); return err },
	"home": func() error { // the home directory is below /home, as for most users
		me, err := user.Current()
		if err == nil && filepath.Dir(me.HomeDir) != "/home" {
			err = fmt.Errorf("the home directory %s is not directly below /home", me.HomeDir)
		}
		return err
	},
	"userns": func() error {
		out, err := exec.Command(filepath.Join(bin, "hpcc"), "doctor").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s", strings.TrimSpace(string(out)))
		}
		return nil
	},
	"registry": func() error {
		if os.Getenv("HPCC_TEST_REGISTRY") == "" {
			return fmt.Errorf("HPCC_TEST_REGISTRY does not name a registry (HOST:PORT)")
		}
		return nil
	},
	"ch-run":       func() error { _, err := exec.LookPath("ch-run"); return err },
	"cwltool":      func() error { _, err := exec.LookPath("cwltool"); return err },
	"own-registry": func() error { _, err := exec.LookPath("docker-registry"); return err },
	"debian": func() error {
		_, err := os.Stat(os.Getenv("HPCC_TEST_DEBIAN"))
		return err
	},
	"power": func() error {
		_, err := os.Stat(os.Getenv("HPCC_TEST_POWER"))
		return err
	},
	"mpi": func() error {
		if _, err := exec.LookPath("mpirun"); err != nil {
			return err
		}
		_, err := os.Stat(os.Getenv("HPCC_TEST_MPI"))
		return err
	},
	"pmix": func() error { // srun can start tasks of Open MPI
		out, err := testenv.SchedulerCommand("slurm", "srun", "--mpi=list").CombinedOutput()
		if err == nil && !strings.Contains(string(out), "pmix") {
			err = fmt.Errorf("srun has no pmix: %s", out)
		}
		return err
	},
	"npm": func() error {
		if _, err := os.Stat(os.Getenv("HPCC_TEST_NODE")); err != nil {
			return err
		}
		registry := os.Getenv("npm_config_registry")
		if registry == "" {
			return errors.New("npm_config_registry names no registry: npm config get registry tells it")
		}
		client := http.Client{Timeout: 20 * time.Second}
		res, err := client.Get(registry)
		if err != nil {
			return err
		}
		return res.Body.Close()
	},
	"ssh": func() error { _, err := exec.LookPath("sftp"); return err },
	"jupyter": func() error {
		out, err := exec.Command("/usr/bin/python3", "-c", "import jupyter_client, ipykernel").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	},
	"slurm": func() error {
		out, err := testenv.SchedulerCommand("slurm", "scontrol", "ping").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	},
	"gridengine": func() error {
		out, err := testenv.SchedulerCommand("gridengine", "qstat").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	},
	"lsf": func() error { // see testdata/clusters/lsf/up.sh
		if testenv.ClusterVariable("LSF_ENVDIR") == "" {
			return fmt.Errorf("%w: LSF_ENVDIR does not name the directory of an LSF", errOptional)
		}
		out, err := testenv.SchedulerCommand("lsf", "lsid").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	},
	"snakemake": func() error { _, err := exec.LookPath("snakemake"); return err },
	"openpbs":   openPBS,
	"kube":      kubeNode,
	"kube-api":  kubeAPI,
	"slurm-oci": func() error { // Slurm can run containers; see testdata/clusters/slurm/up.sh
		_, err := os.Stat(filepath.Join(filepath.Dir(testenv.ClusterVariable("SLURM_CONF")), "oci.conf"))
		return err
	},
	"slurm-disks": func() error { // each node has other files in the directory local; see testdata/clusters/slurm/up.sh
		_, err := os.Stat(filepath.Join(filepath.Dir(testenv.ClusterVariable("SLURM_CONF")), "local"))
		return err
	},
	"own-slurm": func() error { // a user can start a Slurm; see testdata/clusters/slurm/up.sh
		for _, daemon := range []string{"slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd"} {
			if _, err := exec.LookPath(daemon); err != nil {
				return err
			}
		}
		return nil
	},
	"sshd": func() error {
		if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
			return err
		}
		_, err := exec.LookPath("ssh")
		return err
	},
	"crun":   func() error { _, err := exec.LookPath("crun"); return err },
	"runc":   func() error { _, err := exec.LookPath("runc"); return err },
	"podman": func() error { _, err := exec.LookPath("podman"); return err },
	"channel": func() error {
		_, err := os.Stat(filepath.Join(os.Getenv("HPCC_TEST_CHANNEL"), "requirements.txt"))
		return err
	},
	"setuptools": func() error { // wheels of the tools that build wheels, from Debian
		found, err := filepath.Glob("/usr/share/python-wheels/setuptools-*.whl")
		if err == nil && len(found) == 0 {
			err = errors.New("there is no /usr/share/python-wheels/setuptools-*.whl: install Debian's python3-setuptools-whl and python3-wheel-whl")
		}
		return err
	},
	"qemu": func() error { _, err := exec.LookPath("qemu-ppc64le-static"); return err },
	"foreign": func() error { // a private binfmt_misc can run programs of other architectures
		if _, err := exec.LookPath("qemu-ppc64le-static"); err != nil {
			return err
		}
		var major, minor int
		b, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if _, serr := fmt.Sscanf(string(b), "%d.%d", &major, &minor); err != nil || serr != nil || major*100+minor < 607 {
			return fmt.Errorf("Linux %s is older than 6.7", strings.TrimSpace(string(b)))
		}
		return nil
	},
	"fuse":     runtime.CanMountSquashFS,
	"slowfs":   mount.Possible,
	"squashfs": func() error { _, err := exec.LookPath("mksquashfs"); return err },
	"unshare":  func() error { _, err := exec.LookPath("unshare"); return err },
	"strace":   func() error { _, err := exec.LookPath("strace"); return err },
	"time":     func() error { _, err := os.Stat("/usr/bin/time"); return err }, // Debian's package time
	"perf": func() error {
		out, err := exec.Command("perf", "stat", "-x,", "-e", "task-clock", "true").CombinedOutput()
		if (err == nil && !strings.Contains(string(out), "task-clock")) || strings.Contains(string(out), "<not") {
			err = errors.New("it counts nothing")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	},
	"cgroups": func() error {
		found, err := filepath.Glob("/sys/fs/cgroup/*/memory.limit_in_bytes")
		if two, _ := filepath.Glob("/sys/fs/cgroup/cgroup.controllers"); err == nil && len(found)+len(two) == 0 {
			err = errors.New("no cgroups of version 1 or 2 below /sys/fs/cgroup")
		}
		return err
	},
	"git":    func() error { _, err := exec.LookPath("git"); return err },
	"zstd":   func() error { _, err := exec.LookPath("zstd"); return err },
	"skopeo": func() error { _, err := exec.LookPath("skopeo"); return err },
	"umoci":  func() error { _, err := exec.LookPath("umoci"); return err },
}

// openPBS is the facility of testdata/clusters/openpbs. It is built from sources that CI does not have.
func openPBS() error {
	bin := os.Getenv("HPCC_TEST_OPENPBS")
	if bin == "" {
		return fmt.Errorf("%w: HPCC_TEST_OPENPBS does not name the directory of the commands of an OpenPBS", errOptional)
	}
	out, err := exec.Command(filepath.Join(bin, "qstat"), "-B").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// needs skips a test if a facility is missing; in CI it fails the test, unless the error is [errOptional].
func needs(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		err := facilities[n]()
		if errors.Is(err, errOptional) {
			t.Skipf("needs %s: %v", n, err)
		}
		testenv.Need(t, n, err)
	}
}

// condition evaluates conditions such as "[busybox]" for lines such as "[!busybox] skip". In CI, a
// missing facility fails the script with the reason, unless the error is [errOptional].
func condition(name string) (bool, error) {
	have, ok := facilities[name]
	if !ok {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	err := have()
	if err != nil && os.Getenv("CI") != "" && !errors.Is(err, errOptional) {
		return false, fmt.Errorf("CI must have %s: %w", name, err)
	}
	return err == nil, nil
}

// busyroot implements "busyroot DIR": it creates a root directory with busybox and its links.
func busyroot(ts *testscript.TestScript, _ bool, args []string) {
	bb, err := testenv.Busybox()
	ts.Check(err)
	dir := filepath.Join(ts.MkAbs(args[0]), "bin")
	ts.Check(os.MkdirAll(dir, 0o755))
	data, err := os.ReadFile(bb)
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(dir, "busybox"), data, 0o755))
	for _, n := range strings.Fields("sh ls cat echo id env pwd touch mkdir chown chmod mknod rm ln mv cp stat sleep true false test grep kill ps tr seq readlink dd head sort mount") {
		ts.Check(os.Symlink("busybox", filepath.Join(dir, n)))
	}
}

// scheduler implements "scheduler NAME...": from here on, the script sees the schedulers of this machine with
// these names. Without it, a script sees none. It follows a condition that the scheduler answers.
func scheduler(ts *testscript.TestScript, _ bool, args []string) {
	for _, v := range testenv.Scheduler(ts.Getenv("PATH"), args...) {
		name, value, _ := strings.Cut(v, "=")
		ts.Setenv(name, value)
	}
}

// commandOf returns a command that is found on the PATH of a script, with the variables of the script that
// select its store and its clusters.
func commandOf(ts *testscript.TestScript, argv ...string) *exec.Cmd {
	cmd := exec.Command("env", argv...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range append(testenv.ClusterVariables(), "HPCC_STORE", "HPCC_SITE", "HOME", "KUBECONFIG", "USER", "XDG_RUNTIME_DIR", "TERM", "NO_COLOR") {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}

// later implements "later COMMAND [ARG...]": it runs a command after the end of the script.
func later(ts *testscript.TestScript, _ bool, args []string) {
	cmd := commandOf(ts, args...)
	cmd.Env = append(os.Environ(), cmd.Env...)
	ts.Defer(func() {
		if out, err := cmd.CombinedOutput(); err != nil {
			ts.Logf("%s: %v\n%s", args, err, out)
		}
	})
}

// serve implements "serve DIR": it serves a directory over HTTP at $SERVED during the script.
func serve(ts *testscript.TestScript, _ bool, args []string) {
	s := httptest.NewServer(http.FileServer(http.Dir(ts.MkAbs(args[0]))))
	ts.Defer(s.Close)
	ts.Setenv("SERVED", s.URL)
}

// capture implements "capture NAME": it sets $NAME to the trimmed output of the last command.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// freePortsCommand implements "freeports NAME": it sets $NAME to the result of freePorts.
func freePortsCommand(ts *testscript.TestScript, _ bool, args []string) {
	port, err := freePorts()
	ts.Check(err)
	ts.Setenv(args[0], strconv.Itoa(port))
}

// freePorts returns a port for a Slurm of testdata/clusters/slurm/up.sh, which also uses some ports above it. No
// other test gets these ports.
func freePorts() (int, error) {
	givenPorts.Lock()
	defer givenPorts.Unlock()
	above := []int{0, 1, 101, 102, 103}
next:
	for range 100 {
		port := 20000 + rand.IntN(9000)
		for _, n := range above {
			if givenPorts.all[port+n] {
				continue next
			}
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+n))
			if err != nil {
				continue next
			}
			l.Close()
		}
		for _, n := range above {
			givenPorts.all[port+n] = true
		}
		return port, nil
	}
	return 0, errors.New("no free ports")
}

// givenPorts are the ports that tests have reserved.
var givenPorts = struct {
	sync.Mutex
	all map[int]bool
}{all: map[int]bool{}}
