package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hpcc/envfile"
)

// nvidiaLibraries are the parts of the driver that programs load, the same as
// libnvidia-container chooses; all of a driver have the version of its kernel module.
var nvidiaLibraries = strings.Fields(`
	libnvidia-ml libnvidia-cfg libnvidia-nscq
	libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler libnvidia-fatbinaryloader
	libnvidia-allocator libnvidia-compiler libnvidia-pkcs11 libnvidia-pkcs11-openssl3 libnvidia-nvvm libnvidia-nvvm70 libnvidia-sandboxutils
	libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid libnvidia-present
	libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr libnvidia-rtcore libnvoptix
	libnvidia-glvkspirv libnvidia-vksc-core libnvidia-cbl libnvidia-ngx libnvidia-egl-gbm libnvidia-egl-wayland
	libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia
	libdxcore`)

// nvidiaPrograms speak to the driver and must be of its version.
var nvidiaPrograms = strings.Fields("nvidia-smi nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server")

// nvidiaFiles are shown where the host has them: daemons' sockets, and what
// tells the loaders of OpenCL, EGL and Vulkan of the driver.
var nvidiaFiles = strings.Fields(`/run/nvidia-persistenced/socket /run/nvidia-fabricmanager/socket
	/etc/OpenCL/vendors/nvidia.icd /usr/share/glvnd/egl_vendor.d/10_nvidia.json
	/usr/share/vulkan/icd.d/nvidia_icd.json /etc/vulkan/icd.d/nvidia_icd.json /usr/share/nvidia/nvoptix.bin
	/usr/lib/wsl/drivers`)

// nvidiaNodes are patterns below /dev.
var nvidiaNodes = strings.Fields(`nvidiactl nvidia[0-9]* nvidia-uvm nvidia-uvm-tools nvidia-modeset nvidia-nvswitch*
	nvidia-nvlink nvidia-caps/* nvidia-caps-imex-channels/* gdrdrv dxg`)

// NoGPU is the message for a host without GPUs.
const NoGPU = "this machine shows no GPU: there is no /dev/nvidiactl, /dev/kfd or Intel /dev/dri/renderD*; " +
	`ask for a node that has one ("hpcc submit --gpus 1"), or have the administrator load its driver`

// addGPUs gives the run the GPUs of this host, whoever made them.
func (d Request) addGPUs(h *hardware) error {
	nvidia, err := d.addNvidia(h)
	if err != nil {
		return err
	}
	amd := h.addNodes(d.DevRoot, []string{"kfd"})
	if amd {
		h.addROCm()
	}
	if !nvidia && !amd && !intelGPU() {
		return errors.New(NoGPU)
	}
	h.addNodes(d.DevRoot, []string{"dri/card[0-9]*", "dri/renderD[0-9]*"})
	return nil
}

// addNodes shows device nodes that match patterns below /dev, and says whether
// there are any.
func (h *hardware) addNodes(root string, patterns []string) bool {
	if root == "" {
		root = "/"
	}
	any := false
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(root, "dev", p))
		if err != nil {
			continue // the patterns are ours and sound
		}
		for _, src := range found {
			rel, err := filepath.Rel(root, src)
			if err != nil {
				continue
			}
			any = true
			h.show(src, "/"+rel)
		}
	}
	return any
}

// addNvidia gives the run NVIDIA's GPUs: as a CDI spec of the host has it, else
// by looking for the driver. It says whether there are any.
func (d Request) addNvidia(h *hardware) (bool, error) {
	const kind = "nvidia.com/gpu"
	done := false
	if r := readCDI(d.SpecDirs); r.has(kind) {
		found, err := r.find(kind + "=all")
		if chosen := nvidiaChosen(r, kind); len(chosen) > 0 {
			found, err = chosen, nil
		}
		if err == nil {
			err = missingFiles(found)
		}
		if err == nil {
			err = h.addCDI(found)
		}
		if err != nil {
			h.note("the CDI spec for %s is not used: %v", kind, err)
		}
		done = err == nil
	}
	if !done {
		if !h.addNodes(d.DevRoot, nvidiaNodes[:1]) && !h.addNodes(d.DevRoot, []string{"dxg"}) {
			return false, nil
		}
		h.addNodes(d.DevRoot, nvidiaNodes)
		if err := h.addDriver(d.DriverRoot); err != nil {
			return false, err
		}
		if root := filepath.Join("/", d.DevRoot); !exists(root+"/dev/nvidia-uvm") && !exists(root+"/dev/dxg") {
			h.note("/dev/nvidia-uvm is missing, so CUDA will not start: ask the administrator to run nvidia-modprobe -u -c=0 at boot")
		}
	}
	h.addMPS()
	h.chooseNvidia()
	return true, nil
}

// missingFiles is an error when a device's spec names a file that is not there.
func missingFiles(devices []*cdiDevice) error {
	if p := missingCDI(cdiEdits(devices)); p != "" {
		return fmt.Errorf("%s is not there", p)
	}
	return nil
}

// addDriver gives the run the NVIDIA driver's libraries and programs, found as
// the loader of the system at root would.
func (h *hardware) addDriver(root string) error {
	f, err := openHost(root)
	if err != nil {
		h.note("%v", err)
	}
	const driver = "libcuda.so.1"
	if root == "" && len(f.cache[driver]) == 0 && exists("/run/nvidia/driver/etc/ld.so.cache") {
		// The GPU operator of Kubernetes has the driver in a root of its own.
		if f, err = openHost("/run/nvidia/driver"); err != nil {
			h.note("%v", err)
		}
	}
	version, otherMachine := "", 0
	var tooNew error
	take := func(name, file string) {
		stem, _, _ := strings.Cut(name, ".so")
		if !slices.Contains(nvidiaLibraries, stem) {
			return
		}
		if v := driverVersion(file); v != "" && version != "" && v != version {
			return // left over from another driver
		}
		_, err := h.addLibrary(name, file)
		if errors.Is(err, errNewerGlibc) {
			tooNew = err
		} else if err != nil {
			otherMachine++
		}
	}
	f.libraries(driver, h.arch, func(name, file string) {
		if v := driverVersion(file); name == driver && version == "" && v != "" {
			if _, err := readShared(file, h.arch); err == nil {
				version = v
			}
		}
	})
	f.libraries(driver, h.arch, take)
	if h.libs[driver] == "" {
		switch {
		case tooNew != nil:
			return fmt.Errorf("the NVIDIA driver cannot be used in this image: %w", tooNew)
		case otherMachine > 0:
			return fmt.Errorf("the NVIDIA driver of this machine has no libraries for %s, the image's architecture; use an image for this machine", h.arch)
		}
		return fmt.Errorf("this machine has NVIDIA devices, but no %s in the loader's cache or the usual directories below %s; set NVIDIA_DRIVER_ROOT to where the driver is installed", driver, f.root)
	}
	if tooNew != nil {
		h.note("left out: %v", tooNew)
	}
	if h.libs["libcuda.so"] == "" {
		h.libs["libcuda.so"] = h.libs[driver] // what some frameworks ask for
	}
	for _, p := range nvidiaPrograms {
		if file := f.program(p); file != "" {
			h.programs[p] = file
		}
	}
	files := nvidiaFiles
	if version != "" {
		files = append(slices.Clone(files), "/lib/firmware/nvidia/"+version)
	}
	for _, p := range files {
		if src := f.path(p); exists(src) {
			h.show(src, p)
		}
	}
	return nil
}

// driverVersion is that in the name of a driver's file, links followed:
// libcuda.so.550.54.14 has 550.54.14. "" where it has none: libraries with
// versions of their own begin at 1.
func driverVersion(file string) string {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	_, v, _ := strings.Cut(filepath.Base(file), ".so.")
	major, _, dotted := strings.Cut(v, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 100 || !dotted {
		return ""
	}
	return v
}

// addMPS shows the directory of the multi-process service, which is below /tmp
// unless the user says otherwise.
func (h *hardware) addMPS() {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	if dir = filepath.Clean(dir); isPlace(dir) && isDir(dir) {
		h.show(dir, dir)
	}
}

// nvidiaChosen are the devices of a CDI spec that NVIDIA_VISIBLE_DEVICES of the
// caller lists; none where it does not, or lists others.
func nvidiaChosen(r *cdiRegistry, kind string) []*cdiDevice {
	var found []*cdiDevice
	for _, n := range visibleGPUs() {
		d := r.devices[kind+"="+n]
		if d == nil || d.also != "" {
			return nil
		}
		found = append(found, d)
	}
	return found
}

// visibleGPUs are the GPUs that NVIDIA_VISIBLE_DEVICES of the caller lists, by
// index or UUID; none where it does not choose.
func visibleGPUs() []string {
	v := os.Getenv("NVIDIA_VISIBLE_DEVICES")
	switch v {
	case "", "all", "void", "none":
		return nil
	}
	return strings.Split(v, ",")
}

// chooseNvidia sees to it that what the caller was given is what the program
// uses: a scheduler's choice is in the caller's environment, and images have
// NVIDIA_VISIBLE_DEVICES=all in theirs. Nodes cannot be hidden in the host's
// /dev, so a choice made for container runtimes becomes CUDA's own.
func (h *hardware) chooseNvidia() {
	for _, name := range []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} {
		if v, ok := os.LookupEnv(name); ok {
			h.setEnv(name, v)
		}
	}
	if _, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		return
	}
	switch chosen := visibleGPUs(); {
	case os.Getenv("NVIDIA_VISIBLE_DEVICES") == "none":
		h.setEnv("CUDA_VISIBLE_DEVICES", "")
	case len(chosen) > 0:
		h.setEnv("CUDA_VISIBLE_DEVICES", strings.Join(chosen, ","))
		h.setEnv("CUDA_DEVICE_ORDER", "PCI_BUS_ID") // as those indices are counted
	}
}

// addROCm gives the run the host's ROCm where the image has none of its own.
// Unlike CUDA's driver it need not be the host's: the kernel's interface is stable.
func (h *hardware) addROCm() {
	const dir = "/opt/rocm"
	if h.inImage(dir) || !isDir(dir) {
		return
	}
	h.show(dir, dir, "ro")
	h.setEnv("LD_LIBRARY_PATH", strings.TrimPrefix(envfile.Lookup(h.spec.Process.Env, "LD_LIBRARY_PATH")+":"+dir+"/lib", ":"))
	h.setEnv("PATH", envfile.Lookup(h.spec.Process.Env, "PATH")+":"+dir+"/bin")
	h.note("the image has no ROCm: the host's %s is shown", dir)
}

// intelGPU says whether a render node is Intel's.
func intelGPU() bool {
	files, _ := filepath.Glob("/sys/class/drm/renderD*/device/vendor")
	for _, f := range files {
		if b, err := readBounded(f, 64); err == nil && strings.TrimSpace(string(b)) == "0x8086" {
			return true
		}
	}
	return false
}
