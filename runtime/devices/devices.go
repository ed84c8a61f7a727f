// Package devices gives a run hardware of the host: GPUs, devices of CDI specs, and the
// networks and launchers of MPI.
//
//	Request.Add ─► device nodes, the host's libraries for the image ─► mounts of the run
//
// It reads only the host's files, and the image's to see which libraries fit; it runs no
// driver program. Libraries that need a newer glibc than the image has are left out, with a
// note.
package devices

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/rootfs"
)

// A Request states which hardware of the host a run gets, together with the
// host's libraries that speak to its drivers. The zero value is none.
type Request struct {
	GPU   bool     // the GPUs of this host, whoever made them
	Names []string // devices of CDI specs: vendor.com/class=name
	MPI   string   // a profile: "pmix" or "host"; "" is none
	// SpecDirs hold CDI specs; a device in a later one replaces that of the
	// same name in an earlier one. None: /etc/cdi and /var/run/cdi.
	SpecDirs []string
	// DriverRoot is the directory below which the NVIDIA driver is installed,
	// DevRoot the one that has its /dev. "" is the host's own root.
	DriverRoot, DevRoot string
}

// privateDir holds, inside, the libraries and programs of the host. It is a
// tmpfs: neither the image nor the directories where it has its own are touched.
const privateDir = "/run/hpcc"

// Add gives the run of s the devices. Notes are what a user should know of
// them, a line each, also where there is an error.
//
// What a device needs and is visible inside already, as all of /dev is by
// default, is left as it is. Libraries come under their SONAMEs, only those of
// the image's architecture, in a directory of their own: [Search] has
// them found.
func (d Request) Add(s *specs.Spec) (notes []string, err error) {
	if !d.GPU && len(d.Names) == 0 && d.MPI == "" {
		return nil, nil
	}
	h := newHardware(s)
	if len(d.Names) > 0 {
		if err := d.addNamed(h); err != nil {
			return h.notes, err
		}
	}
	if d.GPU {
		if err := d.addGPUs(h); err != nil {
			return h.notes, err
		}
	}
	if err := h.addMPI(d.MPI); err != nil {
		return h.notes, err
	}
	h.finish()
	return h.notes, nil
}

// hardware is what is going to be added to a run.
type hardware struct {
	spec     *specs.Spec
	arch     string            // the image's
	glibc    glibcVersion      // the image's
	hasGlibc bool              // whether it has one
	libs     map[string]string // names in the private directory of libraries: files of the host
	programs map[string]string // the same for programs
	mounts   []specs.Mount     // at their own places
	notes    []string
}

func newHardware(s *specs.Spec) *hardware {
	h := &hardware{spec: s, arch: s.Annotations[runtime.Architecture], libs: map[string]string{}, programs: map[string]string{}}
	if h.arch == "" {
		h.arch = goruntime.GOARCH
	}
	h.glibc, h.hasGlibc = imageGlibc(s.Root.Path, h.arch)
	return h
}

func (h *hardware) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(h.notes, n) {
		h.notes = append(h.notes, n)
	}
}

// errOtherMachine says that a library is none for the image's architecture.
var errOtherMachine = errors.New("not a library for the image's architecture")

// errNewerGlibc says that a library cannot be loaded in the image.
var errNewerGlibc = errors.New("needs a newer glibc than the image has")

// addLibrary shows the host's library at file inside, under its SONAME and name.
// The first one of a name stays.
func (h *hardware) addLibrary(name, file string) (sharedObject, error) {
	so, err := readShared(file, h.arch)
	if err != nil {
		return so, errOtherMachine
	}
	if h.hasGlibc && h.glibc.less(so.glibc) {
		return so, fmt.Errorf("%s of the host needs glibc %v, the image has %v: %w", filepath.Base(file), so.glibc, h.glibc, errNewerGlibc)
	}
	for _, n := range []string{so.soname, name} {
		if _, ok := h.libs[n]; !ok && n != "" {
			h.libs[n] = file
		}
	}
	return so, nil
}

// show makes the host's file or directory src visible at dst. What is there
// under its own name already is left alone.
func (h *hardware) show(src, dst string, options ...string) {
	if src == dst && visible(append(slices.Clone(h.spec.Mounts), h.mounts...), dst) {
		return
	}
	m := bind(src, dst)
	m.Options = append(m.Options, options...)
	h.mounts = append(h.mounts, m)
}

// inImage says whether the image has something at an absolute path.
func (h *hardware) inImage(p string) bool {
	r, err := os.OpenRoot(h.spec.Root.Path)
	if err != nil {
		return false
	}
	defer r.Close()
	_, err = r.Lstat(p[1:])
	return err == nil
}

// visible says whether the last mount over path shows the host's own.
func visible(ms []specs.Mount, path string) bool {
	for _, m := range slices.Backward(ms) {
		if rootfs.Inside(path, m.Destination) {
			return m.Type == "bind" && m.Source == m.Destination
		}
	}
	return false
}

// finish puts what was found into the run's specification.
func (h *hardware) finish() {
	s := h.spec
	if len(h.libs)+len(h.programs) > 0 {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: privateDir, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "size=1m", "mode=755"}})
	}
	for _, dir := range []struct {
		name  string
		files map[string]string
	}{{"lib", h.libs}, {"bin", h.programs}} {
		for _, n := range slices.Sorted(maps.Keys(dir.files)) {
			s.Mounts = append(s.Mounts, bind(dir.files[n], privateDir+"/"+dir.name+"/"+n))
		}
	}
	s.Mounts = append(s.Mounts, h.mounts...)
	if len(h.libs) > 0 && !h.hasGlibc {
		h.note("the image has no glibc: its programs cannot load the host's libraries, which need one; take an image that is not made with musl")
	}
}

// Search puts the libraries that [Request.Add] gave the run at the head
// of its LD_LIBRARY_PATH, and the programs at the end of its PATH. It comes after
// the user's own changes of the environment, which may set both variables.
func Search(s *specs.Spec) {
	h := &hardware{spec: s}
	for _, v := range []struct {
		name, dir string
		first     bool
	}{{"LD_LIBRARY_PATH", privateDir + "/lib", true}, {"PATH", privateDir + "/bin", false}} {
		if !slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return filepath.Dir(m.Destination) == v.dir }) {
			continue
		}
		paths := []string{v.dir}
		if old := envfile.Lookup(s.Process.Env, v.name); old != "" {
			paths = append(paths, old)
		}
		if !v.first {
			slices.Reverse(paths)
		}
		h.setEnv(v.name, strings.Join(paths, ":"))
	}
}

// setEnv sets a variable of the program.
func (h *hardware) setEnv(name, value string) {
	p := h.spec.Process
	for i, e := range p.Env {
		if strings.HasPrefix(e, name+"=") {
			p.Env[i] = name + "=" + value
			return
		}
	}
	p.Env = append(p.Env, name+"="+value)
}

// hostFiles finds libraries and programs as the host's own loader and shell
// would, below a root.
type hostFiles struct {
	root  string
	cache map[string][]string // the loader's
}

// openHost reads the loader's cache below root. That none can be read is no
// error: the directories are searched then.
func openHost(root string) (*hostFiles, error) {
	if root == "" {
		root = "/"
	}
	f := &hostFiles{root: filepath.Clean(root)}
	b, err := readBounded(f.path("/etc/ld.so.cache"), maxCache)
	if err != nil {
		return f, nil
	}
	if f.cache, err = parseLDCache(b); err != nil {
		return f, fmt.Errorf("reading %q: %w; it is searched without", f.path("/etc/ld.so.cache"), err)
	}
	return f, nil
}

// path is where p below the root is, its links resolved as a program with that
// root would see them. What cannot be resolved gives a path that is not there.
func (f *hostFiles) path(p string) string {
	if f.root == "/" {
		return p
	}
	full, err := securejoin.SecureJoin(f.root, p)
	if err != nil {
		return filepath.Join(f.root, p)
	}
	return full
}

// libraries calls take with the names and files of the shared libraries in the
// cache; where the cache lacks the name key, with those of the usual directories.
func (f *hostFiles) libraries(key, arch string, take func(name, file string)) {
	if len(f.cache[key]) > 0 {
		for _, n := range slices.Sorted(maps.Keys(f.cache)) {
			for _, p := range f.cache[n] {
				take(n, f.path(p))
			}
		}
		return
	}
	for _, dir := range append(f.callerDirs(), usualDirs(arch)...) {
		names, err := readNames(f.path(dir))
		if err != nil {
			continue
		}
		for _, n := range names {
			if strings.HasPrefix(n, "lib") && strings.Contains(n, ".so") {
				take(n, f.path(dir+"/"+n))
			}
		}
	}
}

// callerDirs are those of the caller's LD_LIBRARY_PATH, which the loader
// searches first. The stubs of CUDA's toolkit are not a driver.
func (f *hostFiles) callerDirs() []string {
	if f.root != "/" {
		return nil
	}
	return slices.DeleteFunc(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), func(d string) bool {
		return !filepath.IsAbs(d) || filepath.Base(d) == "stubs"
	})
}

// usualDirs are where drivers are put beside what the loader's cache has: GKE
// and its kin, Debian, WSL, NixOS.
func usualDirs(arch string) []string {
	t := "/usr/lib/" + triplets[arch]
	return []string{"/usr/local/nvidia/lib64", "/usr/lib64", t, t + "/nvidia/current", "/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/lib"}
}

// maxNames bounds how many names of one directory are looked at.
const maxNames = 100_000

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxNames)
	slices.Sort(names)
	return names, err
}

// program finds a program of the host, "" where there is none.
func (f *hostFiles) program(name string) string {
	dirs := []string{"/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/usr/sbin", "/run/opengl-driver/bin"}
	if f.root == "/" {
		dirs = append(filepath.SplitList(os.Getenv("PATH")), dirs...)
	}
	for _, dir := range dirs {
		p := f.path(filepath.Join("/", dir, name))
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// bind shows a file or directory of the host at dst.
func bind(src, dst string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: []string{"rbind"}}
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

func isDir(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.IsDir()
}
