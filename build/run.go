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
	"strconv"
	"strings"
	"time"
	"unicode"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/conda/program"
	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/fakeroot"
	"hpcc/unpack"
)

// run returns the change of RUN.
func (st *stage) run(ctx context.Context, c *instructions.RunCommand) (*change, error) {
	isolated, err := isolation(c)
	if err != nil {
		return nil, err
	}
	if instructions.GetSecurity(c) == instructions.SecurityInsecure {
		return nil, errors.New("--security=insecure is not supported: a build only has the rights of its user")
	}
	for _, d := range instructions.GetDevices(c) {
		if d.Required {
			return nil, fmt.Errorf("--device=%s: CDI devices are not supported; the host's /dev is available", d.Name)
		}
	}
	args, script, err := st.runArgs(c)
	if err != nil {
		return nil, err
	}
	env := st.vars()
	cwd := st.absolute(".")
	mounts := instructions.GetMounts(c)
	nameSockets(mounts)
	parts, err := st.mountKeyParts(ctx, mounts)
	if err != nil {
		return nil, err
	}
	if isolated {
		parts = append(parts, "--network=none")
	}
	parts = append([]string{st.key, "RUN", cwd, st.config.Config.User, script, strings.Join(args, "\x00")}, parts...)
	key := digestOf(append(parts, env...)...)
	text := "RUN " + strings.Join(args, " ")
	if named := pairs(st.buildArgs); len(named) > 0 {
		text = fmt.Sprintf("RUN |%d %s %s", len(named), strings.Join(named, " "), strings.Join(args, " "))
	}
	return &change{text: text, key: key, make: st.capture(func(ctx context.Context, dir string) error {
		set, err := st.openMounts(ctx, mounts)
		defer set.close()
		if err != nil {
			return err
		}
		st.tree.changedBy = userOf(dir, st.config.Config.User)
		return st.execute(ctx, dir, &command{args: args, script: script, cwd: cwd, env: env, isolated: isolated, mounts: set})
	})}, nil
}

// A command is a program that RUN starts.
type command struct {
	args     []string
	script   string // here-document with its own interpreter
	cwd      string
	env      []string
	isolated bool // without network
	mounts   *mountSet
}

// isolation reports whether RUN has no network.
func isolation(c *instructions.RunCommand) (bool, error) {
	switch n := instructions.GetNetwork(c); n {
	case instructions.NetworkDefault, instructions.NetworkHost:
		return false, nil
	case instructions.NetworkNone:
		return true, nil
	default:
		return false, fmt.Errorf("--network=%s: want default, host or none", n)
	}
}

// runArgs returns the argv of RUN. script is a here-document with its own interpreter, or
// "".
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
	// The shell reads the here-documents, which follow the line.
	for _, f := range c.Files {
		line += "\n" + f.Data + f.Name
	}
	return append(st.shell(), line+"\n"), "", nil
}

// Paths of RUN's own files in the container; files below /.hpcc are not in layers.
const (
	scriptPath = "/.hpcc/script"
	aptPath    = "/.hpcc/apt.conf"
)

// aptConf disables apt's sandbox, whose user does not exist with a single user ID.
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
	cmd, err := runtime.Command(ctx, spec, st.notes(p))
	if err != nil {
		return err
	}
	log := &tail{max: 64 << 10}
	var out io.Writer = log
	if st.b.Progress != nil {
		out = io.MultiWriter(log, printer{st})
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 2 * time.Second // a daemon of RUN may keep the pipe open
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
		why := full(st.b.views.place(st.b.work))
		if ee.ExitCode() == 127 {
			why = ": a program was not found in the image" + why
		}
		return &program.Error{Err: fmt.Errorf("the command ended with %s%s", ee, why), Log: log.bytes()}
	}
	return err
}

// notes returns the notes that record a program's changes of owners. Notes in memory are
// unknown to the kernel, so they are also applied to the programs' view.
func (st *stage) notes(p *command) *fakeroot.Notes {
	n := st.tree.notes
	recorded := &fakeroot.Notes{Owner: n.Owner, Mode: n.Mode, SetAttr: n.SetAttr, RemoveAttr: n.RemoveAttr}
	stat := unpack.DiffOptions{Notes: n, By: st.tree.changedBy}.Stat(st.tree.merged, st.tree.layers)
	recorded.Stat = func(file, link string, s *unix.Stat_t) {
		if link == "" {
			p.mounts.stat(s)
		}
		stat(file, link, s)
	}
	if by := st.tree.changedBy; by != nil {
		recorded.User = identity(st.tree.merged, st.config.Config.User, by)
	}
	recorded.AllStat = asksForOwners(append(slices.Clone(p.args), p.script))
	recorded.Lost = func() {
		if !st.lostOwners.Swap(true) {
			st.b.report(Event{Warning: "this host allows neither seccomp notification (Linux 5.0) nor ptrace: of a RUN, the " + ownersLost +
				"; the image's history says so, and the step is not cached. Build on another host, or ask for ptrace"})
		}
	}
	if n.InMemory() {
		recorded.GetAttr, recorded.ListAttr = n.GetAttr, n.ListAttr
	}
	return recorded
}

// ownerPrograms read the owners of files by stat(2) or fstat(2), which cost more under a fake
// root. packageManagers call these so often, without asking for owners, that it matters.
var (
	ownerPrograms   = []string{"chgrp", "chown", "cp", "find", "ls", "rsync", "stat", "tar"}
	packageManagers = []string{"apk", "apt", "apt-get", "aptitude", "dnf", "dpkg", "microdnf", "rpm", "yum", "zypper"}
)

// asksForOwners reports whether the text of a command names a program that may ask for owners,
// and no package manager.
func asksForOwners(text []string) bool {
	asks := false
	for _, t := range text {
		for _, word := range strings.FieldsFunc(t, func(c rune) bool {
			return !strings.ContainsRune("+-._", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
		}) {
			if slices.Contains(packageManagers, word) {
				return false
			}
			asks = asks || slices.Contains(ownerPrograms, word)
		}
	}
	return asks
}

// full returns a hint if the file system of steps is full: programs often do not report it.
func full(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || (s.Bavail*uint64(s.Bsize) >= 1<<20 && (s.Ffree >= 64 || s.Files == 0)) {
		return ""
	}
	return fmt.Sprintf("; no space left on device: free space on the file system of %s, run \"hpcc gc\", or set HPCC_STORE", dir)
}

// runSpec returns the specification of a RUN: root of the build's user namespace, with its
// own mounts and recorded ownership.
func (st *stage) runSpec(dir string, prog *command) (*specs.Spec, error) {
	bind := func(src, dst string) specs.Mount {
		return specs.Mount{Type: "bind", Source: src, Destination: dst, Options: []string{"rbind"}}
	}
	m := []specs.Mount{{Type: "proc", Source: "proc", Destination: "/proc",
		Options: []string{"nosuid", "nodev", "noexec"}}, bind("/dev", "/dev")}
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
	if st.b.Reproducible && envfile.Lookup(env, epochArg) == "" { // for compilers and archivers
		env = envfile.Set(env, epochArg, strconv.FormatInt(st.b.date.Unix(), 10))
	}
	for _, kv := range proxyVariables(st.b.Args) {
		k, v, _ := strings.Cut(kv, "=")
		env = envfile.Set(env, k, v)
	}
	base, err := runtime.Spec(dir, runtime.ImageConfig{User: st.config.Config.User, Env: env},
		runtime.Options{Args: prog.args, NoHome: true, CleanEnv: true, NoNetwork: prog.isolated})
	if err != nil {
		return nil, err
	}
	for _, own := range base.Mounts {
		if own.Destination == "/sys" || strings.HasPrefix(own.Destination, "/sys/") {
			m = append(m, own)
		}
	}
	vars := []string{"PATH=" + envfile.Lookup(base.Process.Env, "PATH"), "HOME=" + envfile.Lookup(base.Process.Env, "HOME")}
	for _, kv := range append(append(env, prog.mounts.env...), "APT_CONFIG="+aptPath) {
		k, v, _ := strings.Cut(kv, "=")
		vars = envfile.Set(vars, k, v)
	}
	// In hpcc's PID namespace, a program could reach the caller's files through /proc/PID/root.
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

// ownMemory returns mounts over the host's shared memory and message queues, so that files
// of RUN are gone after the step. Directories that the host's /dev lacks are omitted.
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

// buildUmask is the umask of RUN and git, as in BuildKit: the caller's would change the
// image.
const buildUmask uint32 = 0o022

// rememberStubs records which mount points the tree lacks, before they are created for the
// run. undo removes those that are still empty, to keep them out of layers.
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
			continue // runtime creates a directory or reports the error
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
			_ = os.Remove(p) // a directory that is not empty stays
		}
		for _, p := range parents {
			// Restore the time of the directory, unless the program changed the directory.
			_ = os.Chtimes(p.path, time.Time{}, p.time)
		}
	}, nil
}

// tail keeps the last bytes that are written to it.
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
