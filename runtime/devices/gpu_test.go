package devices

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime"
	"hpcc/runtime/rootfs"
	"hpcc/testdata/helpers/testenv"
)

// ldCache returns a loader's cache as ldconfig writes it. With old, a table in the old
// format precedes it.
func ldCache(old bool, libs ...[2]string) []byte {
	var table, text []byte
	base := newHeader + newEntry*len(libs)
	add := func(s string) uint32 {
		at := uint32(base + len(text))
		text = append(append(text, s...), 0)
		return at
	}
	for _, l := range libs {
		var e [newEntry]byte
		binary.NativeEndian.PutUint32(e[4:], add(l[0]))
		binary.NativeEndian.PutUint32(e[8:], add(l[1]))
		table = append(table, e[:]...)
	}
	head := make([]byte, newHeader)
	copy(head, newMagic)
	binary.NativeEndian.PutUint32(head[20:], uint32(len(libs)))
	binary.NativeEndian.PutUint32(head[24:], uint32(len(text)))
	b := append(append(head, table...), text...)
	if old {
		o := make([]byte, (oldHeader+oldEntry+7)&^7)
		copy(o, oldMagic)
		binary.NativeEndian.PutUint32(o[12:], 1)
		b = append(o, b...)
	}
	return b
}

func TestParseLDCache(t *testing.T) {
	for _, old := range []bool{false, true} {
		got, err := parseLDCache(ldCache(old, [2]string{"libb.so.1", "/usr/lib/libb.so.1"}, [2]string{"liba.so", "/lib/x/liba.so"}, [2]string{"libb.so.1", "/lib32/libb.so.1"}))
		if want := "map[liba.so:[/lib/x/liba.so] libb.so.1:[/usr/lib/libb.so.1 /lib32/libb.so.1]]"; err != nil || fmt.Sprint(got) != want {
			t.Errorf("old table %v: %v, %v; want %s", old, got, err, want)
		}
	}
	wrong := ldCache(false, [2]string{"liba.so", "/liba.so"})
	binary.NativeEndian.PutUint32(wrong[20:], 1<<31)
	far := ldCache(false, [2]string{"liba.so", "/liba.so"})
	binary.NativeEndian.PutUint32(far[newHeader+8:], 1<<30)
	for name, b := range map[string][]byte{
		"empty": nil, "another format": []byte("glibc-ld.so.cache9.9"), "an entry count that is too large": wrong, "a string outside the file": far,
		"a relative path": ldCache(false, [2]string{"liba.so", "lib/liba.so"}), "a name with a slash": ldCache(false, [2]string{"../liba.so", "/liba.so"}),
		"an old table longer than the file": []byte(oldMagic + "\x00\xff\xff\xff\xff"),
	} {
		if got, err := parseLDCache(b); err == nil {
			t.Errorf("%s: %v; want an error", name, got)
		}
	}
	// The cache of this machine, if there is one.
	if b, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		got, err := parseLDCache(b)
		if err != nil || len(got["libc.so.6"]) == 0 {
			t.Errorf("this machine's cache: %d libraries, %v; want libc.so.6 among them", len(got), err)
		}
	}
}

func FuzzParseLDCache(f *testing.F) {
	f.Add(ldCache(false, [2]string{"libcuda.so.1", "/usr/lib/libcuda.so.1"}))
	f.Add(ldCache(true, [2]string{"a", "/a"}, [2]string{"b", "/b"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseLDCache(b)
		if err != nil {
			return
		}
		for n, files := range got {
			for _, p := range files {
				if !isFileName(n) || !filepath.IsAbs(p) || filepath.Clean(p) != p {
					t.Errorf("%q at %q", n, p)
				}
			}
		}
	})
}

// compile builds a program or library from C.
func compile(t *testing.T, out, source string, args ...string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	testenv.Need(t, "gcc", err)
	c := filepath.Join(t.TempDir(), "x.c")
	os.MkdirAll(filepath.Dir(out), 0o755)
	testenv.Check(t, os.WriteFile(c, []byte(source), 0o644))
	if msg, err := exec.Command(gcc, append([]string{"-o", out, c}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, msg)
	}
}

// probe is a program that loads the driver as CUDA's runtime does.
const probe = `#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **v) {
	for (int i = 1; i < n; i++) {
		void *l = dlopen(v[i], RTLD_NOW);
		int (*init)(unsigned) = l ? (int (*)(unsigned))dlsym(l, "cuInit") : 0;
		if (init) printf("%s: cuInit %d\n", v[i], init(0));
		else printf("%s: %s\n", v[i], l ? "loaded" : dlerror());
	}
}`

// glibcRoot returns a root directory with a shell, glibc and the probe.
func glibcRoot(t *testing.T) string {
	t.Helper()
	root := testenv.BusyboxRoot(t)
	prog := filepath.Join(root, "bin/probe")
	compile(t, prog, probe, "-ldl")
	f, err := elf.Open(prog)
	testenv.Check(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz-1)
			p.ReadAt(b, 0)
			copyTo(t, string(b), filepath.Join(root, string(b)))
		}
	}
	libs, _ := f.ImportedLibraries()
	for _, l := range libs {
		path, err := exec.Command("gcc", "-print-file-name="+l).Output()
		testenv.Check(t, err)
		copyTo(t, strings.TrimSpace(string(path)), filepath.Join(root, "lib64", l))
		os.MkdirAll(filepath.Join(root, "lib"), 0o755)
		os.Symlink("../lib64", filepath.Join(root, "lib", triplets[goruntime.GOARCH]))
	}
	return root
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	testenv.Check(t, err)
	writeFile(t, to, string(b))
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	testenv.Check(t, os.MkdirAll(filepath.Dir(file), 0o755))
	testenv.Check(t, os.WriteFile(file, []byte(text), 0o755))
}

// fakeDriver returns a root with an NVIDIA driver of version 550.54.14 and its nodes.
func fakeDriver(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	lib := filepath.Join(root, "usr/lib/nv")
	var cache [][2]string
	for _, l := range []struct{ name, soname, source string }{
		{"libcuda.so.550.54.14", "libcuda.so.1", "char *getenv(const char *); int cuInit(unsigned f) { return getenv(\"NO_SUCH\") ? 1 : 42; }"},
		{"libnvidia-ml.so.550.54.14", "libnvidia-ml.so.1", "int nvmlInit(void) { return 0; }"},
		{"libnvidia-glcore.so.550.54.14", "libnvidia-glcore.so.550.54.14", "int g;"},
		{"libnvidia-encode.so.470.1.2", "libnvidia-encode.so.1", "int old;"}, // of an older driver
		{"libvulkan.so.1.2", "libvulkan.so.1", "int no_part_of_it;"},
	} {
		compile(t, filepath.Join(lib, l.name), l.source, "-shared", "-fPIC", "-Wl,-soname,"+l.soname)
		if l.name != l.soname {
			// An absolute link must be resolved inside the driver's root.
			testenv.Check(t, os.Symlink("/usr/lib/nv/"+l.name, filepath.Join(lib, l.soname)))
		}
		cache = append(cache, [2]string{l.soname, "/usr/lib/nv/" + l.soname})
	}
	writeFile(t, filepath.Join(lib, "junk.so.1"), "no ELF")
	cache = append(cache, [2]string{"libnvidia-cfg.so.1", "/usr/lib/nv/junk.so.1"}, [2]string{"libnvoptix.so.1", "/usr/lib/nv/gone.so.1"})
	writeFile(t, filepath.Join(root, "etc/ld.so.cache"), string(ldCache(false, cache...)))
	writeFile(t, filepath.Join(root, "usr/bin/nvidia-smi"), "#!/bin/sh\necho the fake smi\n")
	writeFile(t, filepath.Join(root, "run/nvidia-persistenced/socket"), "socket")
	for _, n := range []string{"nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "null"} {
		writeFile(t, filepath.Join(root, "dev", n), "node "+n)
	}
	return root
}

// driverSpec returns a run in root without a GPU.
func driverSpec(t *testing.T, root string, c runtime.ImageConfig) *specs.Spec {
	t.Helper()
	t.Chdir("/")
	s, err := runtime.Spec(root, c, runtime.Options{Args: []string{"x"}, NoHome: true})
	testenv.Check(t, err)
	return s
}

// unsetGPUVariables unsets variables of this machine that select GPUs and libraries.
func unsetGPUVariables(t *testing.T) {
	t.Helper()
	for _, n := range []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY"} {
		t.Setenv(n, "")
		os.Unsetenv(n)
	}
}

// listing returns the names of the mount points directly in a directory.
func listing(s *specs.Spec, dir string) []string {
	var out []string
	for _, m := range s.Mounts {
		if filepath.Dir(m.Destination) == dir {
			out = append(out, filepath.Base(m.Destination))
		}
	}
	return out
}

// TestNoDevices checks that the zero value reads nothing, not even the run.
func TestNoDevices(t *testing.T) {
	if notes, err := (Request{}).Add(nil); notes != nil || err != nil {
		t.Errorf("%q, %v", notes, err)
	}
}

// TestDriver checks that the driver is found through the loader's cache, and that a program of
// the image can load it.
func TestDriver(t *testing.T) {
	unsetGPUVariables(t)
	root, driver := glibcRoot(t), fakeDriver(t)
	before, err := exec.Command("find", root, "-printf", "%p %s\n").Output()
	testenv.Check(t, err)
	s := driverSpec(t, root, runtime.ImageConfig{Env: []string{"LD_LIBRARY_PATH=/image/lib", "NVIDIA_VISIBLE_DEVICES=all"}})
	d := Request{GPU: true, SpecDirs: []string{t.TempDir()}, DriverRoot: driver, DevRoot: driver}
	if os.Geteuid() == 0 {
		t.Skip("run this as an ordinary user: root would create the nodes in this machine's own /dev")
	}
	notes, err := d.Add(s)
	if err != nil || len(notes) > 0 {
		t.Fatalf("%q, %v", notes, err)
	}
	SetSearchPaths(s)
	out, err := printed(t, s, "probe libcuda.so.1 libcuda.so libnvidia-ml.so.1 libvulkan.so.1; ls /run/hpcc/lib; nvidia-smi; cat /dev/nvidia0 /dev/nvidia-caps/nvidia-cap1 /run/nvidia-persistenced/socket; echo; echo $LD_LIBRARY_PATH; echo x >/dev/null && ls /dev/null")
	for _, want := range []string{"libcuda.so.1: cuInit 42\n", "libcuda.so: cuInit 42\n", "libnvidia-ml.so.1: loaded\n", "libvulkan.so.1: libvulkan.so.1: cannot open",
		"libcuda.so\nlibcuda.so.1\nlibnvidia-glcore.so.550.54.14\nlibnvidia-ml.so.1\n", "the fake smi\n", "node nvidia0node nvidia-caps/nvidia-cap1socket\n", "/run/hpcc/lib:/image/lib\n/dev/null\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the program ended with %v and printed\n%s\nwant %q in it", err, out, want)
		}
	}
	after, _ := exec.Command("find", root, "-printf", "%p %s\n").Output()
	if string(before) != string(after) {
		t.Errorf("the image has changed from\n%s\nto\n%s", before, after)
	}
}

// TestDriverRefusals checks that errors name a remedy.
func TestDriverRefusals(t *testing.T) {
	unsetGPUVariables(t)
	driver := fakeDriver(t)
	empty := t.TempDir()
	nodes := t.TempDir() // devices without a driver
	writeFile(t, filepath.Join(nodes, "dev/nvidiactl"), "")
	old := t.TempDir() // an image whose C library is too old
	script := filepath.Join(t.TempDir(), "v")
	writeFile(t, script, "GLIBC_2.0 { global: f; };")
	compile(t, filepath.Join(old, "lib64/libc.so.6"), "int f;", "-shared", "-fPIC", "-nostdlib", "-Wl,--version-script="+script)
	for _, c := range []struct {
		name, root, arch, driver, dev, want string
	}{
		{"no device", empty, "", driver, empty, "this machine has no visible GPU"},
		{"no driver", empty, "", nodes, nodes, "set NVIDIA_DRIVER_ROOT"},
		{"another machine's image", empty, "s390x", driver, driver, "no libraries for s390x"},
		{"an old image", old, "", driver, driver, "of the host needs glibc 2."},
	} {
		s := driverSpec(t, c.root, runtime.ImageConfig{})
		s.Annotations = map[string]string{runtime.Architecture: c.arch}
		_, err := Request{GPU: true, SpecDirs: []string{empty}, DriverRoot: c.driver, DevRoot: c.dev}.Add(s)
		if c.want == "this machine has no visible GPU" && intelGPU() {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
	// An image with musl runs with a note.
	s := driverSpec(t, empty, runtime.ImageConfig{})
	notes, err := Request{GPU: true, SpecDirs: []string{empty}, DriverRoot: driver, DevRoot: driver}.Add(s)
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "no glibc") {
		t.Errorf("an image without glibc: %q, %v", notes, err)
	}
	// A corrupt cache does not keep the libraries from being found.
	writeFile(t, filepath.Join(driver, "etc/ld.so.cache"), "nonsense")
	testenv.Check(t, os.Rename(filepath.Join(driver, "usr/lib/nv"), filepath.Join(driver, "usr/lib64")))
	os.Remove(filepath.Join(driver, "usr/lib64/libcuda.so.1"))
	os.Symlink("libcuda.so.550.54.14", filepath.Join(driver, "usr/lib64/libcuda.so.1"))
	s = driverSpec(t, empty, runtime.ImageConfig{})
	notes, err = Request{GPU: true, SpecDirs: []string{empty}, DriverRoot: driver, DevRoot: driver}.Add(s)
	if err != nil || !strings.Contains(strings.Join(notes, "\n"), "ld.so.cache") || !slices.Contains(listing(s, "/run/hpcc/lib"), "libcuda.so.1") {
		t.Errorf("with a broken cache: %q, %v, %q", notes, err, listing(s, "/run/hpcc/lib"))
	}
}

// TestChosenGPUs checks that the scheduler's choice reaches CUDA, whatever the image sets.
func TestChosenGPUs(t *testing.T) {
	unsetGPUVariables(t)
	for _, c := range []struct{ nvidia, cuda, want string }{
		{"", "", "NVIDIA_VISIBLE_DEVICES=image CUDA_VISIBLE_DEVICES=7"},
		{"", "2,3", "NVIDIA_VISIBLE_DEVICES=image CUDA_VISIBLE_DEVICES=2,3"},
		{"all", "", "NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=7"},
		{"1", "", "NVIDIA_VISIBLE_DEVICES=1 CUDA_VISIBLE_DEVICES=1 CUDA_DEVICE_ORDER=PCI_BUS_ID"},
		{"GPU-a,GPU-b", "0", "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b CUDA_VISIBLE_DEVICES=0"},
		{"none", "", "NVIDIA_VISIBLE_DEVICES=none CUDA_VISIBLE_DEVICES="},
	} {
		for n, v := range map[string]string{"NVIDIA_VISIBLE_DEVICES": c.nvidia, "CUDA_VISIBLE_DEVICES": c.cuda} {
			if v == "" {
				os.Unsetenv(n)
			} else {
				os.Setenv(n, v) // the cleanup of unsetGPUVariables restores it
			}
		}
		h := &hardware{spec: &specs.Spec{Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=image", "CUDA_VISIBLE_DEVICES=7"}}}}
		h.setNvidiaVariables()
		if got := strings.Join(h.spec.Process.Env, " "); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestVisible checks that nodes need a mount only in a private /dev: the host's /dev already
// contains them.
func TestVisible(t *testing.T) {
	ms := []specs.Mount{bind("/dev", "/dev"), bind("/data", "/mnt"), {Type: "tmpfs", Destination: "/tmp"}}
	for p, want := range map[string]bool{"/dev/nvidia0": true, "/dev": true, "/devil": false, "/mnt/x": false, "/tmp/x": false, "/opt": false} {
		if got := rootfs.Visible(ms, p); got != want {
			t.Errorf("Visible(%q) = %v", p, got)
		}
	}
	if rootfs.Visible(append(ms, specs.Mount{Type: "tmpfs", Destination: "/dev"}), "/dev/nvidia0") {
		t.Error("a node below a private /dev is visible")
	}
}

// TestSetSearchPaths checks that programs find the host's libraries whatever the user's
// settings are, and that the environment does not change without host libraries.
func TestSetSearchPaths(t *testing.T) {
	s := &specs.Spec{Process: &specs.Process{Env: []string{"PATH=/bin", "LD_LIBRARY_PATH=/mine"}}}
	SetSearchPaths(s)
	if got := strings.Join(s.Process.Env, " "); got != "PATH=/bin LD_LIBRARY_PATH=/mine" {
		t.Errorf("without devices: %s", got)
	}
	s.Mounts = []specs.Mount{bind("/x/libcuda.so.1", "/run/hpcc/lib/libcuda.so.1"), bind("/x/nvidia-smi", "/run/hpcc/bin/nvidia-smi")}
	SetSearchPaths(s)
	if got := strings.Join(s.Process.Env, " "); got != "PATH=/bin:/run/hpcc/bin LD_LIBRARY_PATH=/run/hpcc/lib:/mine" {
		t.Errorf("with devices: %s", got)
	}
}

// printed runs a shell script in the root of s and returns its output.
func printed(t *testing.T, s *specs.Spec, script string) (string, error) {
	t.Helper()
	s.Process.Args = []string{"sh", "-c", script}
	cmd, err := runtime.Command(context.Background(), s, nil)
	testenv.Check(t, err)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
