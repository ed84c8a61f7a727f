package devices

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/rootfs"
	"hpcc/testdata/helpers/testenv"
)

// TestMPILauncher checks that the launcher's files are bound unless they are already visible.
func TestMPILauncher(t *testing.T) {
	unsetGPUVariables(t)
	far, err := filepath.EvalSymlinks(t.TempDir())
	testenv.Check(t, err)
	t.Setenv("PMIX_SERVER_TMPDIR", far)
	t.Setenv("PMIX_SYSTEM_TMPDIR", "/dev/shm")
	for _, private := range []bool{false, true} {
		t.Chdir("/")
		s, err := runtime.Spec(t.TempDir(), runtime.ImageConfig{}, runtime.Options{Args: []string{"x"}, NoHome: true, PrivateTmp: private})
		testenv.Check(t, err)
		hidden := !rootfs.Visible(s.Mounts, far)
		before := len(s.Mounts)
		notes, err := Request{MPI: "pmix"}.Add(s)
		bound := slices.ContainsFunc(s.Mounts[before:], func(m specs.Mount) bool { return m.Source == far && m.Destination == far })
		if err != nil || len(notes) > 0 || bound != hidden || slices.Contains(listing(s, "/dev"), "shm") {
			t.Errorf("private tmp %v: %q, %v, bound %v", private, notes, err, bound)
		}
	}
	s := driverSpec(t, t.TempDir(), runtime.ImageConfig{})
	if _, err := (Request{MPI: "mpich"}).Add(s); err == nil || !strings.Contains(err.Error(), `no MPI profile "mpich"`) {
		t.Errorf("an unknown profile: %v", err)
	}
}

// TestHostMPI checks that the host's MPI is added with its dependencies, but without a second
// C library.
func TestHostMPI(t *testing.T) {
	unsetGPUVariables(t)
	prefix := t.TempDir()
	lib := filepath.Join(prefix, "lib")
	compile(t, filepath.Join(lib, "libfabricx.so.1"), "int fi(void) { return 7; }", "-shared", "-fPIC", "-Wl,-soname,libfabricx.so.1")
	compile(t, filepath.Join(lib, "libmpi.so.12.3"), "int fi(void); int cuInit(unsigned f) { return fi(); }", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", filepath.Join(lib, "libfabricx.so.1"))
	os.Symlink("libmpi.so.12.3", filepath.Join(lib, "libmpi.so.12"))
	// A component, which the library loads by path, has another dependency.
	compile(t, filepath.Join(lib, "libpmixx.so.2"), "int px;", "-shared", "-fPIC", "-Wl,-soname,libpmixx.so.2")
	compile(t, filepath.Join(lib, "openmpi/mca_x.so"), "extern int px; int *x(void) { return &px; }", "-shared", "-fPIC", filepath.Join(lib, "libpmixx.so.2"))
	root := glibcRoot(t)
	// The image has an MPI of the same ABI, which is replaced.
	compile(t, filepath.Join(root, "lib64/libmpi.so.12"), "int cuInit(unsigned f) { return 1; }", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12")
	t.Setenv("LD_LIBRARY_PATH", lib)
	t.Setenv("OPAL_PREFIX", prefix)
	s := driverSpec(t, root, runtime.ImageConfig{})
	if v := envfile.Lookup(s.Process.Env, "OPAL_PREFIX"); v != "" {
		t.Errorf("without an MPI of the host, OPAL_PREFIX is %q", v)
	}
	notes, err := Request{MPI: "host"}.Add(s)
	if err != nil || len(notes) > 0 {
		t.Fatalf("%q, %v", notes, err)
	}
	if v := envfile.Lookup(s.Process.Env, "OPAL_PREFIX"); v != prefix {
		t.Errorf("with the host's MPI, OPAL_PREFIX is %q; want %q", v, prefix)
	}
	SetSearchPaths(s)
	if out, err := printed(t, s, "probe libmpi.so.12 "+lib+"/openmpi/mca_x.so; ls /run/hpcc/lib"); !strings.HasPrefix(out, "libmpi.so.12: cuInit 7\n"+lib+"/openmpi/mca_x.so: loaded\nlibfabricx.so.1\nlibmpi.so.12\nlibpmixx.so.2\n") {
		t.Errorf("the program printed %q, %v", out, err)
	}
	testenv.Check(t, os.Remove(filepath.Join(lib, "libfabricx.so.1")))
	if _, err := (Request{MPI: "host"}).Add(driverSpec(t, root, runtime.ImageConfig{})); err == nil || !strings.Contains(err.Error(), "dependency libfabricx.so.1 was not found") {
		t.Errorf("a missing library: %v", err)
	}
}
