package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/fakeroot"
)

// A runError is a program of RUN that failed, with the last of what it printed.
type runError struct {
	err error
	log []byte
}

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// run carries out RUN.
func (st *stage) run(ctx context.Context, c *instructions.RunCommand) (bool, error) {
	isolated, err := isolation(c)
	if err != nil {
		return false, err
	}
	if instructions.GetSecurity(c) == instructions.SecurityInsecure {
		return false, errors.New("--security=insecure: a build has the rights of its user and can give no others")
	}
	for _, d := range instructions.GetDevices(c) {
		if d.Required {
			return false, fmt.Errorf("--device=%s: devices of CDI are not supported; those of the host's /dev are there", d.Name)
		}
	}
	args, script, err := st.runArgs(c)
	if err != nil {
		return false, err
	}
	env := st.vars()
	cwd := st.absolute(".")
	mounts := instructions.GetMounts(c)
	nameSockets(mounts)
	words, err := st.mountWords(ctx, mounts)
	if err != nil {
		return false, err
	}
	if isolated {
		words = append(words, "--network=none")
	}
	words = append([]string{st.key, "RUN", cwd, st.config.Config.User, script, strings.Join(args, "\x00")}, words...)
	key := digestOf(append(words, env...)...)
	text := "RUN " + strings.Join(args, " ")
	if named := pairs(st.buildArgs); len(named) > 0 {
		text = fmt.Sprintf("RUN |%d %s %s", len(named), strings.Join(named, " "), strings.Join(args, " "))
	}
	return st.change(ctx, text, key, func(dir string) error {
		set, err := st.openMounts(ctx, mounts)
		defer set.close()
		if err != nil {
			return err
		}
		st.tree.by = userOf(dir, st.config.Config.User)
		return st.execute(ctx, dir, &command{args: args, script: script, cwd: cwd, env: env, isolated: isolated, mounts: set})
	})
}

// A command is what RUN starts.
type command struct {
	args     []string
	script   string // text of a here-document with its own interpreter
	cwd      string
	env      []string
	isolated bool // no network
	mounts   *mountSet
}

// isolation says whether RUN is to have no network.
func isolation(c *instructions.RunCommand) (bool, error) {
	switch n := instructions.GetNetwork(c); n {
	case instructions.NetworkDefault, instructions.NetworkHost:
		return false, nil
	case instructions.NetworkNone:
		return true, nil
	default:
		return false, fmt.Errorf("--network=%s: known are default, host and none", n)
	}
}

// runArgs is the program that RUN starts; script, when there is one, is the
// text of a here-document with its own interpreter.
func (st *stage) runArgs(c *instructions.RunCommand) (args []string, script string, err error) {
	if !c.PrependShell {
		if len(c.CmdLine) == 0 {
			return nil, "", errors.New("the command is empty")
		}
		return c.CmdLine, "", nil
	}
	line := strings.Join(c.CmdLine, " ")
	if len(c.Files) == 0 {
		return append(st.shell(), line), "", nil
	}
	if h := parser.MustParseHeredoc(line); h != nil {
		body := c.Files[0].Data
		if c.Files[0].Chomp {
			body = parser.ChompHeredocContent(body)
		}
		if strings.HasPrefix(body, "#!") {
			return []string{scriptPath}, body, nil
		}
		return append(st.shell(), body), "", nil
	}
	// The shell itself reads the documents: they follow the line.
	for _, f := range c.Files {
		line += "\n" + f.Data + f.Name
	}
	return append(st.shell(), line+"\n"), "", nil
}

// Where RUN's own files appear inside; nothing below /.hpcc gets into a layer.
const (
	scriptPath = "/.hpcc/script"
	aptPath    = "/.hpcc/apt.conf"
)

// aptConf turns off apt's own sandbox, whose user does not exist under one id.
const aptConf = "APT::Sandbox::User \"root\";\n"

// execute runs a program of RUN in the view dir.
func (st *stage) execute(ctx context.Context, dir string, p *command) error {
	spec, err := st.runSpec(dir, p)
	if err != nil {
		return err
	}
	undo, err := rememberStubs(dir, spec.Mounts)
	if err != nil {
		return err
	}
	cmd, err := runtime.Command(ctx, spec, st.notes())
	if err != nil {
		return err
	}
	log := &tail{max: 64 << 10}
	var out io.Writer = log
	if st.b.Progress != nil {
		out = io.MultiWriter(log, printer{st})
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 2 * time.Second // a daemon that RUN left behind may hold the pipe
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	undo()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return &runError{fmt.Errorf("the command ended with %s%s", ee, full(st.b.work)), log.bytes()}
	}
	return err
}

// notes are who hears what a program asks of files. Of notes in memory the kernel
// knows nothing, so programs are shown them.
func (st *stage) notes() *fakeroot.Notes {
	n := st.tree.notes
	heard := &fakeroot.Notes{Owner: n.Owner, Mode: n.Mode, SetAttr: n.SetAttr, RemoveAttr: n.RemoveAttr}
	heard.Lost = func() {
		if !st.unheard.Swap(true) {
			st.b.report(Event{Warning: "this host allows neither seccomp notification (Linux 5.0) nor ptrace: of a RUN, the " + ownersLost +
				"; the image's history says so, and the step is not cached. Build on another host, or ask for ptrace"})
		}
	}
	if n.InMemory() {
		heard.GetAttr, heard.ListAttr = n.GetAttr, n.ListAttr
	}
	return heard
}

// full says that no space is left where steps work: programs often do not.
func full(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || (s.Bavail*uint64(s.Bsize) >= 1<<20 && (s.Ffree >= 64 || s.Files == 0)) {
		return ""
	}
	return fmt.Sprintf("; no space left on device: free space on the file system of %s, run \"hpcc gc\", or set HPCC_STORE", dir)
}

// runSpec states the run of a program of RUN: root of the namespace that the
// build is in, its own mounts, ownership faked.
func (st *stage) runSpec(dir string, prog *command) (*specs.Spec, error) {
	bind := func(src, dst string) specs.Mount {
		return specs.Mount{Type: "bind", Source: src, Destination: dst, Options: []string{"rbind"}}
	}
	m := []specs.Mount{{Type: "proc", Source: "proc", Destination: "/proc", Options: []string{"nosuid", "nodev", "noexec"}}, bind("/sys", "/sys"), bind("/dev", "/dev")}
	m = append(m, ownMemory()...)
	for _, f := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		if _, err := os.Stat(f); err == nil {
			m = append(m, bind(f, f))
		}
	}
	if _, err := os.Stat(runtime.Handlers); err == nil && st.platform.Architecture != goruntime.GOARCH {
		m = append(m, bind(runtime.Handlers, runtime.Handlers))
	}
	own, err := st.scratch()
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name, text, at string
		mode           os.FileMode
	}{{"apt.conf", aptConf, aptPath, 0o644}, {"script", prog.script, scriptPath, 0o755}} {
		if f.text == "" {
			continue
		}
		p := filepath.Join(own, f.name)
		if err := os.WriteFile(p, []byte(f.text), f.mode); err != nil {
			return nil, err
		}
		m = append(m, bind(p, f.at))
	}
	env := slices.Clone(prog.env)
	for _, p := range proxyArgs {
		if v, ok := st.b.Args[p]; ok {
			env = envfile.Set(env, p, v)
		}
	}
	base, err := runtime.Spec(dir, runtime.ImageConfig{User: st.config.Config.User, Env: env}, runtime.Options{Args: prog.args, NoHome: true, CleanEnv: true})
	if err != nil {
		return nil, err
	}
	vars := []string{"PATH=" + envfile.Lookup(base.Process.Env, "PATH"), "HOME=" + envfile.Lookup(base.Process.Env, "HOME")}
	for _, kv := range append(append(env, prog.mounts.env...), "APT_CONFIG="+aptPath) {
		k, v, _ := strings.Cut(kv, "=")
		vars = envfile.Set(vars, k, v)
	}
	// In hpcc's own, a program of a stranger's Dockerfile would find the caller's files at /proc/PID/root.
	spaces := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}}
	if prog.isolated {
		spaces = append(spaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	umask := buildUmask
	return &specs.Spec{
		Version:     specs.Version,
		Root:        &specs.Root{Path: dir},
		Process:     &specs.Process{User: specs.User{Umask: &umask}, Args: prog.args, Env: vars, Cwd: prog.cwd, NoNewPrivileges: true},
		Mounts:      append(m, prog.mounts.mounts...),
		Annotations: runtime.BuildAnnotations(st.platform.Architecture),
		Linux:       &specs.Linux{Namespaces: spaces},
	}, nil
}

// ownMemory are the mounts over the host's shared memory and message queues: what
// programs of RUN leave there is gone when the step ends. A host whose /dev lacks
// one of the directories has nothing to hide there.
func ownMemory() []specs.Mount {
	var m []specs.Mount
	for _, own := range []specs.Mount{
		{Type: "tmpfs", Source: "shm", Destination: "/dev/shm", Options: []string{"nosuid", "nodev", "noexec", "mode=1777"}},
		{Type: "mqueue", Source: "mqueue", Destination: "/dev/mqueue", Options: []string{"nosuid", "nodev", "noexec"}},
	} {
		if fi, err := os.Lstat(own.Destination); err == nil && fi.IsDir() {
			m = append(m, own)
		}
	}
	return m
}

// buildUmask is that of programs in RUN, as in BuildKit, and of git: the caller's
// would come to be in the image.
const buildUmask uint32 = 0o022

// rememberStubs notes which mount points the tree lacks. They are made for the
// run; undo removes those that are still empty, so that no layer shows them.
func rememberStubs(dir string, ms []specs.Mount) (undo func(), err error) {
	type parent struct {
		path string
		time time.Time
	}
	var stubs []string
	var parents []parent
	for _, m := range ms {
		full, err := securejoin.SecureJoin(dir, m.Destination)
		if errors.Is(err, unix.ELOOP) {
			continue // runtime makes a directory of it, or says why not
		}
		if err != nil {
			return nil, fmt.Errorf("finding %s in the image: %w", m.Destination, err)
		}
		for p := full; p != dir; p = filepath.Dir(p) {
			if _, err := os.Lstat(p); err == nil {
				break
			}
			stubs = append(stubs, p)
			if fi, err := os.Stat(filepath.Dir(p)); err == nil {
				parents = append(parents, parent{filepath.Dir(p), fi.ModTime()})
			}
		}
	}
	return func() {
		slices.SortFunc(stubs, func(a, b string) int { return len(b) - len(a) })
		for _, p := range stubs {
			fi, err := os.Lstat(p)
			if err != nil || (fi.Mode().IsRegular() && fi.Size() > 0) {
				continue
			}
			_ = os.Remove(p) // a directory with something in it stays
		}
		for _, p := range parents {
			// What the program itself changed there is later than the build's begin
			// either way; only an untouched directory gets its old time back.
			_ = os.Chtimes(p.path, time.Time{}, p.time)
		}
	}, nil
}

// tail keeps the last bytes written to it.
type tail struct {
	max int
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if over := t.buf.Len() - 2*t.max; over > 0 {
		t.buf.Next(t.buf.Len() - t.max)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	b := t.buf.Bytes()
	if len(b) > t.max {
		b = b[len(b)-t.max:]
	}
	return b
}
