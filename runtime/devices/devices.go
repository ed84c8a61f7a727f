// Package devices gives a run hardware of the host: GPUs, devices of CDI specs, and MPI
// networks and launchers.
//
//	Request.Add ─► device nodes, the host's libraries for the image ─► mounts of the run
//
// The package reads files of the host, and files of the image to see which libraries fit. It
// does not run programs of the driver. Libraries that need a newer glibc than the image has
// are left out, with a note.
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

// Request states which hardware of the host a run gets, together with the host's libraries
// for its drivers. The zero value requests nothing.
type Request struct {
	GPU   bool     // all GPUs of this host, of any vendor
	Names []string // devices of CDI specs: vendor.com/class=name
	MPI   string   // a profile: "pmix" or "host"; empty: no MPI
	// SpecDirs are the directories with CDI specs. A device in a later directory replaces one
	// of the same name in an earlier one. The default is /etc/cdi and /var/run/cdi.
	SpecDirs []string
	// DriverRoot is the root directory of the NVIDIA driver's installation, DevRoot the root
	// directory of its /dev. An empty value means the host's root.
	DriverRoot, DevRoot string
}

// privateDir is the directory of the run that holds the host's libraries and programs. It is
// a tmpfs, so that the image and its directories stay unchanged.
const privateDir = "/run/hpcc"

// Check returns an error for a request that no host could fulfil.
func (d Request) Check() error {
	for _, n := range d.Names {
		if _, _, _, err := splitName(n); err != nil {
			return err
		}
	}
	return checkProfile(d.MPI)
}

// Add adds the devices to the run s. notes are messages for the user, one line each, and are
// valid even with an error.
//
// Add does not bind paths that are already visible in the run, such as those in /dev by
// default. It adds
// libraries under their SONAMEs to a private directory, only for the image's architecture.
// [SetSearchPaths] makes programs find them.
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

// hardware collects the changes to a run.
type hardware struct {
	spec     *specs.Spec
	arch     string            // architecture of the image
	glibc    glibcVersion      // version in the image
	hasGlibc bool              // whether the image has glibc
	libs     map[string]string // name in the private library directory → file of the host
	programs map[string]string // name in the private program directory → file of the host
	mounts   []specs.Mount     // of files and directories at other paths
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

// errOtherMachine reports that a library is not for the image's architecture.
var errOtherMachine = errors.New("not a library for the image's architecture")

// errNewerGlibc reports that a library needs a newer glibc than the image has.
var errNewerGlibc = errors.New("needs a newer glibc than the image has")

// addLibrary adds the host's library at file under its SONAME and name. If
// several libraries have a name, the first one gets it.
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

// addBind binds the host's file or directory src at dst. It does nothing if src is already
// visible at its own path.
func (h *hardware) addBind(src, dst string, options ...string) {
	if src == dst && rootfs.Visible(append(slices.Clone(h.spec.Mounts), h.mounts...), dst) {
		return
	}
	m := bind(src, dst)
	m.Options = append(m.Options, options...)
	h.mounts = append(h.mounts, m)
}

// inImage reports whether an absolute path exists in the image.
func (h *hardware) inImage(p string) bool {
	r, err := os.OpenRoot(h.spec.Root.Path)
	if err != nil {
		return false
	}
	defer r.Close()
	_, err = r.Lstat(p[1:])
	return err == nil
}

// finish adds the collected changes to the run's specification.
func (h *hardware) finish() {
	s := h.spec
	if len(h.libs)+len(h.programs) > 0 {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: privateDir, Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "size=1m", "mode=755"}})
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
		h.note("the image has no glibc, which the host's libraries need, so its programs cannot load them; use an image that is not based on musl")
	}
}

// SetSearchPaths prepends the directory of the libraries that [Request.Add] added to
// LD_LIBRARY_PATH, and appends that of the programs to PATH. Call it after the user's own
// changes to the environment, which may set both variables.
func SetSearchPaths(s *specs.Spec) {
	h := &hardware{spec: s}
	for _, v := range []struct {
		name, dir string
		prepend   bool
	}{{"LD_LIBRARY_PATH", privateDir + "/lib", true}, {"PATH", privateDir + "/bin", false}} {
		if !slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return filepath.Dir(m.Destination) == v.dir }) {
			continue
		}
		paths := []string{v.dir}
		if old := envfile.Lookup(s.Process.Env, v.name); old != "" {
			paths = append(paths, old)
		}
		if !v.prepend {
			slices.Reverse(paths)
		}
		h.setEnv(v.name, strings.Join(paths, ":"))
	}
}

// setEnv sets an environment variable of the program.
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

// hostFiles finds libraries and programs below a root as the host's own loader and
// shell would.
type hostFiles struct {
	root  string
	cache map[string][]string // the loader's cache: paths by library name
}

// openHost reads the loader's cache below root. If the cache cannot be read, it returns an
// error and a usable result that searches the directories instead.
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
		return f, fmt.Errorf("reading %q: %w; searching the usual directories instead", f.path("/etc/ld.so.cache"), err)
	}
	return f, nil
}

// path returns the path of p below the root, with links resolved as for a program with that
// root. For an unresolvable link, the result is a path that does not exist.
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

// libraries calls visit with the name and file of each shared library in the cache. If the
// cache does not contain the library key, it searches the usual directories instead.
func (f *hostFiles) libraries(key, arch string, visit func(name, file string)) {
	if len(f.cache[key]) > 0 {
		for _, n := range slices.Sorted(maps.Keys(f.cache)) {
			for _, p := range f.cache[n] {
				visit(n, f.path(p))
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
				visit(n, f.path(dir+"/"+n))
			}
		}
	}
}

// callerDirs returns the directories of the caller's LD_LIBRARY_PATH, which the loader
// searches first. It skips the stub libraries of CUDA's toolkit, which are not a driver.
func (f *hostFiles) callerDirs() []string {
	if f.root != "/" {
		return nil
	}
	return slices.DeleteFunc(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), func(d string) bool {
		return !filepath.IsAbs(d) || filepath.Base(d) == "stubs"
	})
}

// usualDirs returns the library directories of drivers on GKE, Debian, WSL and NixOS, which
// the loader's cache often lacks.
func usualDirs(arch string) []string {
	t := "/usr/lib/" + triplets[arch]
	return []string{"/usr/local/nvidia/lib64", "/usr/lib64", t, t + "/nvidia/current", "/usr/lib/wsl/lib",
		"/run/opengl-driver/lib", "/usr/lib"}
}

// maxNames bounds how many names of one directory are read.
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

// program returns the path of a host program, or "".
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

// bind returns a bind mount of a host file or directory at dst.
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
