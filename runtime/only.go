package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime/rootfs"
)

// onlyMark is the annotation that holds Options.Only.
const onlyMark = "hpcc.only"

// overHost completes s for [Options.Only]. The program sees the host's files, accounts and
// variables, and can start the host's programs.
func overHost(s *specs.Spec, root string, c ImageConfig, o Options) error {
	if o.Architecture != "" && o.Architecture != goruntime.GOARCH {
		return fmt.Errorf("the image is for %s, but this machine is %s and its own C library would run the programs; leave --only out", o.Architecture, goruntime.GOARCH)
	}
	dir := filepath.Clean(o.Only)
	if !filepath.IsAbs(dir) || dir == "/" {
		return fmt.Errorf("--only %q is not the absolute path of a directory below /", o.Only)
	}
	image, err := os.OpenRoot(root) // the image's links may not lead out of it
	if err != nil {
		return fmt.Errorf("opening image directory %q: %w", root, err)
	}
	defer image.Close()
	if st, err := image.Stat(dir[1:]); err != nil || !st.IsDir() {
		return fmt.Errorf("the image has no directory %s; leave --only out to use all files of the image", dir)
	}
	s.Annotations = withMark(s.Annotations, onlyMark, dir)
	s.Root = &specs.Root{Path: "/"}
	s.Mounts = []specs.Mount{{Destination: dir, Type: "bind", Source: filepath.Join(root, dir), Options: []string{"rbind", "ro"}}}
	if o.NoNetwork {
		s.Mounts = append(s.Mounts, ownSysfs()...)
	}
	if s.Mounts, err = addUserMounts(s.Mounts, o, bindOf); err != nil {
		return err
	}
	s.Process.Cwd = o.Dir
	if !filepath.IsAbs(o.Dir) {
		s.Process.Cwd = filepath.Join(callerDir(), o.Dir)
	}
	if s.Process.Args, err = programArgs(c, o.Args); err != nil {
		return err
	}
	s.Process.Env = environmentOverHost(callerEnv(o, true), c, dir)
	return nil
}

func withMark(marks map[string]string, name, value string) map[string]string {
	if marks == nil {
		marks = map[string]string{}
	}
	marks[name] = value
	return marks
}

// environmentOverHost returns the variables of [callerEnv] with the image's on top. PATH begins with the
// image's directories below dir. HOME stays the caller's. HPCC_RUNNING is not set, because jobs that the program submits
// inherit its variables.
func environmentOverHost(host []string, c ImageConfig, dir string) []string {
	var env, path []string
	for _, kv := range host {
		if name, _, _ := strings.Cut(kv, "="); name != "PATH" && name != "HPCC_RUNNING" && name != ladderVar {
			env = append(env, kv)
		}
	}
	for _, p := range filepath.SplitList(envfile.Lookup(c.Env, "PATH")) {
		if rootfs.Inside(p, dir) {
			path = append(path, p)
		}
	}
	env = append(env, "PATH="+strings.Join(append(path, callerPath(host)), ":"))
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); ok && name != "" && name != "PATH" && name != "HOME" {
			env = setVariable(env, kv)
		}
	}
	return env
}

// callerPath returns the caller's PATH, with /bin appended unless it is listed, as ch-run
// does, or [StandardPath] if it is unset.
func callerPath(host []string) string {
	p := envfile.Lookup(host, "PATH")
	switch {
	case p == "":
		return StandardPath
	case slices.Contains(strings.Split(p, ":"), "/bin"):
		return p
	}
	return p + ":/bin"
}

// mountOverHost makes the spec's mounts in this process's mount namespace, which must be private
// to this process, and keeps its root. A missing mount point is added as in an image.
func mountOverHost(s *specs.Spec) error {
	src, err := rootfs.OpenSources(s.Mounts)
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	if err := rootfs.CloneSources(s.Mounts, src); err != nil {
		return err
	}
	r := &rootfs.Root{Over: s.Annotations[onlyMark]}
	if r.FD, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the root: %w", err)
	}
	r.NoteMount("/", true)
	for i, m := range s.Mounts {
		if err := mountInside(r, m, src[i], false); err != nil {
			return fmt.Errorf("mounting %q at %q: %w", m.Source, m.Destination, err)
		}
		if src[i] >= 0 {
			unix.Close(src[i])
		}
	}
	return r.Seal()
}
