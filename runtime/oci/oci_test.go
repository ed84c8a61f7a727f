package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/testdata/helpers/testenv"
)

// minimal is the smallest configuration that is accepted.
const minimal = `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"args":["sh"],"cwd":"/"}}`

func TestParseConfig(t *testing.T) {
	with := func(more string) string { return strings.TrimSuffix(minimal, "}") + "," + more + "}" }
	tests := []struct{ name, in, err string }{
		{"minimal", minimal, ""},
		{"empty", "", "not a bundle configuration"},
		{"cut short", minimal[:30], "not a bundle configuration"},
		{"another type", `{"ociVersion":1}`, "ociVersion"},
		{"two configurations", minimal + minimal, "unexpected data after"},
		{"no version", `{"root":{"path":"r"}}`, `ociVersion is ""`},
		{"the next version", `{"ociVersion":"2.0.0"}`, `ociVersion is "2.0.0"`},
		{"no root", `{"ociVersion":"1.0.0"}`, "root.path is missing"},
		{"no process", `{"ociVersion":"1.0.0","root":{"path":"r"}}`, "process is missing"},
		{"no program", `{"ociVersion":"1.0.0","root":{"path":"r"},"process":{"cwd":"/"}}`, "process.args is empty"},
		{"a relative directory", `{"ociVersion":"1.0.0","root":{"path":"r"},"process":{"args":["x"],"cwd":"x"}}`, `process.cwd "x" is not absolute`},
		{"a zero byte", with(`"hostname":"a\u0000b"`), "zero byte"},
		{"another system", with(`"windows":{"layerFolders":[]}`), "another operating system"},
		{"a mount without a destination", with(`"mounts":[{"type":"tmpfs"}]`), "mounts[0] has no destination"},
		{"a mount over the root", with(`"mounts":[{"destination":"/x/..","type":"tmpfs"}]`), "cover the root"},
		{"a bind without a source", with(`"mounts":[{"destination":"/x","options":["rbind"]}]`), "has no source"},
		{"a mount without a type", with(`"mounts":[{"destination":"/x","source":"y"}]`), "has no type"},
		{"a mount with mapped ids", with(`"mounts":[{"destination":"/x","type":"bind","source":"/","options":["idmap"]}]`), "not permitted"},
		{"a mount with an unknown option", with(`"mounts":[{"destination":"/x","type":"bind","source":"/","options":["rbind","norm"]}]`), `mounts[0] at "/x": unknown option "norm"`},
		{"a bind with an option of file systems", with(`"mounts":[{"destination":"/x","type":"bind","source":"/","options":["bind","sync"]}]`), `option "sync" belongs to a file system`},
		{"a namespace twice", with(`"linux":{"namespaces":[{"type":"pid"},{"type":"pid"}]}`), `"pid" twice`},
		{"an unknown namespace", with(`"linux":{"namespaces":[{"type":"moon"}]}`), `not support "moon" namespaces`},
		{"a user namespace to join", with(`"linux":{"namespaces":[{"type":"user","path":"/proc/1/ns/user"}]}`), "does not join"},
		{"a range of ids that wraps", with(`"linux":{"uidMappings":[{"containerID":4294967295,"hostID":0,"size":2}]}`), "not a valid range of ids"},
		{"a relative hook", with(`"hooks":{"poststop":[{"path":"x"}]}`), `path "x" is not absolute`},
		{"a hook with a timeout of 0", with(`"hooks":{"poststop":[{"path":"/x","timeout":0}]}`), "timeout of 0"},
	}
	for _, test := range tests {
		_, err := parseConfig([]byte(test.in))
		if got := fmt.Sprint(err); (err != nil) != (test.err != "") || !strings.Contains(got, test.err) {
			t.Errorf("%s: parseConfig = %v; want %q", test.name, err, test.err)
		}
	}
}

// FuzzParseConfig checks that an accepted configuration has the properties on which later
// steps rely.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(`{"ociVersion":"1.2.0","root":{"path":"/r","readonly":true},"process":{"args":["a"],"cwd":"/","user":{"uid":7},"terminal":true},` +
		`"mounts":[{"destination":"proc","type":"proc","source":"proc"},{"destination":"/d","source":"s","options":["bind","ro"]}],` +
		`"linux":{"namespaces":[{"type":"user"},{"type":"network","path":"/n"}],"uidMappings":[{"containerID":0,"hostID":5,"size":1}]},"hooks":{"prestart":[{"path":"/h","timeout":1}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseConfig(b)
		if err != nil {
			return
		}
		if s.Linux == nil || s.Root.Path == "" || len(s.Process.Args) == 0 || !filepath.IsAbs(s.Process.Cwd) {
			t.Fatalf("accepted, but incomplete: %+v", s)
		}
		for _, m := range s.Mounts {
			if m.Destination == "/" || filepath.Clean(m.Destination) != m.Destination || !filepath.IsAbs(m.Destination) || m.Type == "" || (m.Type == "bind" && m.Source == "") {
				t.Fatalf("accepted, but not a valid mount: %+v", m)
			}
		}
		p, err := newPlan(s)
		if err != nil {
			return
		}
		l := p.spec.Linux
		if p.flags&unix.CLONE_NEWNS == 0 || (p.flags&unix.CLONE_NEWUSER != 0 && (len(l.UIDMappings) == 0 || len(l.GIDMappings) == 0)) {
			t.Fatalf("a plan without its namespaces: %+v", p)
		}
	})
}

func TestPlan(t *testing.T) {
	if hasSysAdmin() {
		t.Log("privileged process: skipping the notes for ordinary users")
	}
	s, err := parseConfig([]byte(`{"ociVersion":"1.0.2","root":{"path":"r"},"process":{"args":["sh"],"cwd":"/","user":{"uid":7,"gid":8,"additionalGids":[9]},"apparmorProfile":"x"},
		"linux":{"uidMappings":[{"containerID":0,"hostID":100000,"size":65536}],"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"},"resources":{"memory":{"limit":5}}}}`))
	testenv.Check(t, err)
	p, err := newPlan(s)
	testenv.Check(t, err)
	notes := strings.Join(p.notes, "\n")
	want := []string{"seccomp", "apparmorProfile", "cgroups and their limits"}
	if !hasSysAdmin() {
		want = append(want, "one is added", "uidMappings requests ids", "additionalGids")
		one := specs.LinuxIDMapping{ContainerID: 7, HostID: uint32(os.Geteuid()), Size: 1}
		if m := s.Linux.UIDMappings; len(m) != 1 || m[0] != one {
			t.Errorf("uid mappings %v; want only %v", m, one)
		}
	}
	for _, w := range want {
		if !strings.Contains(notes, w) {
			t.Errorf("no note contains %q:\n%s", w, notes)
		}
	}
	s.Hostname = "x"
	if _, err := newPlan(s); err == nil || !strings.Contains(err.Error(), "uts namespace") {
		t.Errorf("a host name in the host's own uts namespace: %v", err)
	}
}

// A testbed is a bundle, a state directory, and a file that programs write to.
type testbed struct {
	*testing.T
	Containers
	bundle, out string
	spec        *specs.Spec
}

func newTestbed(t *testing.T) *testbed {
	root := testenv.BusyboxRoot(t)
	dir := t.TempDir()
	b := &testbed{T: t, Containers: Containers{Root: filepath.Join(dir, "state")}, bundle: dir, out: filepath.Join(dir, "shared", "out")}
	testenv.Check(t, os.Mkdir(filepath.Dir(b.out), 0o755))
	var err error
	if b.spec, err = runtime.Bundle(root, ".hpcc/image.json", runtime.Options{Binds: []string{filepath.Dir(b.out) + ":/shared"}}); err != nil {
		t.Fatal(err)
	}
	b.spec.Root.Path = root
	return b
}

// create creates container id, whose program is a shell script.
func (b *testbed) create(id, script string) error {
	b.Helper()
	b.spec.Process.Args = []string{"/bin/busybox", "sh", "-c", script}
	testenv.Check(b, runtime.WriteBundle(b.bundle, b.spec))
	err := b.Create(id, CreateOptions{Bundle: b.bundle, PidFile: filepath.Join(b.bundle, "pid")})
	if err == nil {
		b.Cleanup(func() { b.Delete(id, true) })
	}
	return err
}

// await waits until the container has the given status.
func (b *testbed) await(id string, want specs.ContainerState) *specs.State {
	b.Helper()
	for range 500 {
		s, err := b.State(id)
		testenv.Check(b, err)
		if s.Status == want {
			return s
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatalf("%s is not %s after five seconds", id, want)
	return nil
}

// refused checks that err is an error whose message contains want.
func (b *testbed) refused(operation string, err error, want string) {
	b.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		b.Errorf("%s: %v; want an error with %q", operation, err, want)
	}
}

func (b *testbed) ok(operation string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", operation, err)
	}
}

// TestLifeCycle checks every operation in every state. It is allowed as in runtime.md, or
// refused with runc's message.
func TestLifeCycle(t *testing.T) {
	b := newTestbed(t)
	_, err := b.State("c")
	b.refused("state of a missing container", err, "container does not exist")
	b.refused("start of a missing container", b.Start("c"), "container does not exist")
	b.refused("kill of a missing container", b.Kill("c", unix.SIGTERM, false), "container does not exist")
	b.refused("delete of a missing container", b.Delete("c", false), "container does not exist")
	b.ok("forced delete of a missing container", b.Delete("c", true))
	for _, id := range []string{"", ".", "..", "a/b", "a b", "é", strings.Repeat("x", 256)} {
		b.refused("id "+id, b.create(id, "true"), "container id")
		b.refused("forced delete of id "+id, b.Delete(id, true), "container id")
	}

	b.ok("create", b.create("c", `trap 'echo term >>/shared/out; exit 3' TERM; echo began >>/shared/out; while :; do read -t 1 x </dev/zero; done`))
	s := b.await("c", specs.StateCreated)
	if pid, _ := os.ReadFile(filepath.Join(b.bundle, "pid")); string(pid) != fmt.Sprint(s.Pid) || s.Pid == 0 || s.Bundle != b.bundle {
		t.Errorf("state %+v; pid file %s", s, pid)
	}
	if _, err := os.Stat(b.out); err == nil {
		t.Error("the program ran before start")
	}
	b.refused("create twice", b.create("c", "true"), "container with given ID already exists")
	b.ok("start", b.Start("c"))
	b.await("c", specs.StateRunning)
	b.refused("start of a running container", b.Start("c"), "cannot start an already running container")
	b.refused("delete of a running container", b.Delete("c", false), "that is not stopped: running")
	for i := 0; i < 500 && !strings.Contains(read(b.out), "began"); i++ {
		time.Sleep(10 * time.Millisecond)
	}
	b.ok("kill 0", b.Kill("c", 0, false))
	b.ok("kill", b.Kill("c", unix.SIGTERM, false))
	if s := b.await("c", specs.StateStopped); s.Pid != 0 {
		t.Errorf("a stopped container has pid %d", s.Pid)
	}
	if got := read(b.out); got != "began\nterm\n" {
		t.Errorf("the program wrote %q", got)
	}
	b.refused("kill of a stopped container", b.Kill("c", unix.SIGTERM, false), "container not running")
	b.refused("start of a stopped container", b.Start("c"), "cannot start a container that has stopped")
	b.ok("delete", b.Delete("c", false))
	_, err = b.State("c")
	b.refused("state after delete", err, "container does not exist")

	b.ok("create", b.create("never", "echo never >>/shared/out"))
	b.ok("delete of a container that never ran", b.Delete("never", false))
	b.ok("create", b.create("killed", "true"))
	b.ok("kill of a container that never ran", b.Kill("killed", unix.SIGKILL, true))
	b.await("killed", specs.StateStopped)
	b.ok("create", b.create("forced", "while :; do read -t 1 x </dev/zero; done & while :; do read -t 1 x </dev/zero; done"))
	b.ok("start", b.Start("forced"))
	b.ok("forced delete", b.Delete("forced", true))
	if strings.Contains(read(b.out), "never") {
		t.Error("a program ran in a container that was never started")
	}
	if l, err := b.List(); err != nil || len(l) != 1 || l[0].ID != "killed" {
		t.Errorf("List = %v, %v", l, err)
	}
}

func read(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

// TestCreateRefuses checks that Create refuses impossible containers with the reason, and
// leaves nothing behind.
func TestCreateRefuses(t *testing.T) {
	b := newTestbed(t)
	tests := []struct {
		name   string
		change func(*specs.Spec)
		want   string
	}{
		{"no such program", func(s *specs.Spec) { s.Process.Args = []string{"nosuch"} }, `exec: "nosuch": executable file not found in $PATH`},
		{"no such file", func(s *specs.Spec) { s.Process.Args = []string{"/nosuch"} }, "no such file or directory"},
		{"a directory", func(s *specs.Spec) { s.Process.Args = []string{"/bin"} }, "permission denied"},
		{"no working directory", func(s *specs.Spec) { s.Process.Cwd = "/nosuch" }, "working directory"},
		{"no source", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/nosuch"})
		}, `opening "/nosuch"`},
		{"no root", func(s *specs.Spec) { s.Root.Path = "nosuch" }, "opening the root"},
		{"a terminal without a console socket", func(s *specs.Spec) { s.Process.Terminal = true }, "--console-socket"},
		{"no namespace to join", func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/nosuch"})
		}, "joining network namespace"},
		{"a hook that fails", func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo sorry; exit 4"}}}}
		}, `running createRuntime hook "/bin/sh": exit status 4: sorry`},
		{"a hook that hangs", func(s *specs.Spec) {
			one := 1
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "exec sleep 100"}, Timeout: &one}}}
		}, "running createContainer hook"},
		{"a process that is killed", func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", `read s; s=${s#*'"pid":'}; kill -9 ${s%%,*}; sleep 0.1`}}}}
		}, ": killed"},
	}
	for _, test := range tests {
		var s specs.Spec
		j, err := json.Marshal(b.spec)
		if err == nil {
			err = json.Unmarshal(j, &s)
		}
		b.ok("copying the configuration", err)
		s.Process.Args = []string{"/bin/busybox", "true"}
		test.change(&s)
		b.ok("writing the bundle", runtime.WriteBundle(b.bundle, &s))
		b.refused(test.name, b.Create("x", CreateOptions{Bundle: b.bundle}), test.want)
		if _, err := b.State("x"); err == nil {
			t.Errorf("%s: a container remains", test.name)
			b.Delete("x", true)
		}
	}
}

// TestHooks checks that hooks run in order, in the right namespaces, with the state on standard
// input.
func TestHooks(t *testing.T) {
	b := newTestbed(t)
	hook := func(name string) []specs.Hook {
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", `read s; case $s in *'"id":"h"'*) ;; *) exit 9;; esac; echo ` + name + ` $X >>` + b.out, "x"}, Env: []string{"X=set"}}}
	}
	inside := []specs.Hook{{Path: "/bin/busybox", Args: []string{"sh", "-c", "echo startContainer >>/shared/out"}}}
	b.spec.Hooks = &specs.Hooks{
		//lint:ignore SA1019 engines still write prestart hooks
		Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), CreateContainer: hook("createContainer"),
		StartContainer: inside, Poststart: hook("poststart"), Poststop: hook("poststop"),
	}
	b.ok("create", b.create("h", "read x </shared/gate; echo program >>/shared/out"))
	b.ok("creating a FIFO", unix.Mkfifo(filepath.Join(filepath.Dir(b.out), "gate"), 0o600))
	b.ok("start", b.Start("h"))
	b.ok("writing to the FIFO", os.WriteFile(filepath.Join(filepath.Dir(b.out), "gate"), []byte("\n"), 0))
	b.await("h", specs.StateStopped)
	b.ok("delete", b.Delete("h", false))
	if got, want := read(b.out), "prestart set\ncreateRuntime set\ncreateContainer set\nstartContainer\npoststart set\nprogram\npoststop set\n"; got != want {
		t.Errorf("hooks wrote\n%s; want\n%s", got, want)
	}
}

// TestRaces checks that one of many concurrent starts of a container succeeds, and one of many
// concurrent creates.
func TestRaces(t *testing.T) {
	b := newTestbed(t)
	b.ok("create", b.create("r", "echo ran >>/shared/out"))
	var created, started atomic.Int32
	var g sync.WaitGroup
	for range 8 {
		g.Add(2)
		go func() {
			defer g.Done()
			if b.Start("r") == nil {
				started.Add(1)
			}
		}()
		go func() {
			defer g.Done()
			if b.Create("s", CreateOptions{Bundle: b.bundle}) == nil {
				created.Add(1)
			}
		}()
	}
	g.Wait()
	b.ok("delete", b.Delete("s", true))
	b.await("r", specs.StateStopped)
	if created.Load() != 1 || started.Load() != 1 || read(b.out) != "ran\n" {
		t.Errorf("%d created, %d started, output %q; want one of each", created.Load(), started.Load(), read(b.out))
	}
}

// TestAskEndedCreator checks that a process whose creator has ended reports this, once.
func TestAskEndedCreator(t *testing.T) {
	for _, reads := range []bool{false, true} { // whether the creator reads the message before it ends
		parentEnd, childEnd, err := new(initRequest).connect()
		testenv.Check(t, err)
		if reads {
			go func() { _ = receive(parentEnd, msgReady); parentEnd.Close() }()
		} else {
			parentEnd.Close()
		}
		if err := ask(childEnd, msgReady, msgWait); err == nil || err.Error() != "the creating process ended before the container was ready" {
			t.Errorf("creator reads the message %v: ask returns %v", reads, err)
		}
		childEnd.Close()
	}
}

// TestDeleteSparesOthers checks that deleting a container does not kill containers that start
// meanwhile: the kernel reuses the number of an ended mount namespace.
func TestDeleteSparesOthers(t *testing.T) {
	b := newTestbed(t)
	for i := range 50 {
		victim, other := fmt.Sprint("victim", i), fmt.Sprint("other", i)
		b.ok("create", b.create(victim, "true"))
		deleted := make(chan error)
		go func() { deleted <- b.Delete(victim, true) }()
		time.Sleep(time.Duration(i%10) * time.Millisecond)
		b.ok("create while another is deleted", b.create(other, "true"))
		b.ok("delete", <-deleted)
		b.ok("start", b.Start(other))
	}
}

// TestContainerInside checks that namespaces, mounts and rights match the configuration.
func TestContainerInside(t *testing.T) {
	b := newTestbed(t)
	soft := uint64(77)
	b.spec.Hostname = "inside"
	b.spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: soft, Hard: 1 << 40}}
	b.spec.Process.User = specs.User{UID: 1234, GID: 4321}
	b.spec.Linux = &specs.Linux{
		MaskedPaths:   []string{"/proc/version", "/nosuch"},
		ReadonlyPaths: []string{"/proc/sys", "/shared/fixed"},
		Namespaces:    []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.UTSNamespace}, {Type: specs.IPCNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.MountNamespace}},
	}
	b.spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		{Destination: "/shared", Source: filepath.Dir(b.out), Type: "none", Options: []string{"bind", "noexec"}},
	}
	b.ok("making a directory", os.Mkdir(filepath.Join(filepath.Dir(b.out), "fixed"), 0o755))
	script := `B=/bin/busybox; exec >/shared/out 2>&1
$B echo pid $$; $B hostname; $B id -u; $B id -g; ulimit -n; $B cat /proc/version; $B test -c /dev/null && $B echo null
$B touch /shared/fixed/x || $B echo fixed; $B touch /x || $B echo root; $B grep -c lo: /proc/net/dev; $B test -e /dev/pts/ptmx && $B echo ptmx; $B ls /proc/self/fd | $B wc -l; $B grep CapEff /proc/self/status`
	b.ok("create", b.create("i", script))
	b.ok("start", b.Start("i"))
	b.await("i", specs.StateStopped)
	got := read(b.out)
	want := "pid 1\ninside\n1234\n4321\n77\nnull\n" +
		"touch: /shared/fixed/x: Read-only file system\nfixed\ntouch: /x: Read-only file system\nroot\n1\nptmx\n4\nCapEff:\t0000000000000000\n"
	if got != want {
		t.Errorf("the program printed\n%s; want\n%s", got, want)
	}
}

// TestHostInside checks that a bind of the host's root shows the host's own /usr, and not the
// container's root, which is assembled in that directory.
func TestHostInside(t *testing.T) {
	b := newTestbed(t)
	host := filepath.Join(t.TempDir(), "host") // under any name
	b.ok("making a link", os.Symlink("/", host))
	b.spec.Mounts = append(b.spec.Mounts, specs.Mount{Destination: "/host", Type: "bind", Source: host, Options: []string{"rbind"}})
	b.ok("create", b.create("h", `B=/bin/busybox; exec >/shared/out 2>&1; $B test -e /host/usr/shared && $B echo half-made; $B test -d /host/usr/lib && $B echo host`))
	b.ok("start", b.Start("h"))
	b.await("h", specs.StateStopped)
	if got := read(b.out); got != "host\n" {
		t.Errorf("the host's /usr contains %q", got)
	}
}

// TestStandardInputStaysEmpty checks that nothing is created in a directory that is standard
// input: a container has no scratch tmpfs, and the zero value of Root.Scratch is not taken for
// descriptor 0.
func TestStandardInputStaysEmpty(t *testing.T) {
	b := newTestbed(t)
	b.spec.Root.Readonly = true
	for i := range 20 {
		b.ok("making a directory", os.MkdirAll(filepath.Join(b.spec.Root.Path, "big", fmt.Sprint(i)), 0o755))
	}
	b.spec.Mounts = append(b.spec.Mounts, specs.Mount{Destination: "/big/new", Type: "tmpfs", Source: "tmpfs"})
	dir := t.TempDir()
	in, err := os.Open(dir)
	b.ok("opening a directory", err)
	defer in.Close()
	old := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = old }()
	b.ok("create", b.create("in", "true"))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("standard input holds %v, %v", entries, err)
	}
}
