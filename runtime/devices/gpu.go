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

// nvidiaLibraries are the driver's libraries that programs load, the same as in
// libnvidia-container. All have the version of the kernel module.
var nvidiaLibraries = strings.Fields(`
	libnvidia-ml libnvidia-cfg libnvidia-nscq
	libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler libnvidia-fatbinaryloader
	libnvidia-allocator libnvidia-compiler libnvidia-pkcs11 libnvidia-pkcs11-openssl3 libnvidia-nvvm libnvidia-nvvm70 libnvidia-sandboxutils
	libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid libnvidia-present
	libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr libnvidia-rtcore libnvoptix
	libnvidia-glvkspirv libnvidia-vksc-core libnvidia-cbl libnvidia-ngx libnvidia-egl-gbm libnvidia-egl-wayland
	libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia
	libdxcore`)

// nvidiaPrograms communicate with the driver and must have its version.
var nvidiaPrograms = strings.Fields("nvidia-smi nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server")

// nvidiaFiles are bound if the host has them: sockets of daemons, and configuration files of
// the OpenCL, EGL and Vulkan loaders.
var nvidiaFiles = strings.Fields(`/run/nvidia-persistenced/socket /run/nvidia-fabricmanager/socket
	/etc/OpenCL/vendors/nvidia.icd /usr/share/glvnd/egl_vendor.d/10_nvidia.json
	/usr/share/vulkan/icd.d/nvidia_icd.json /etc/vulkan/icd.d/nvidia_icd.json /usr/share/nvidia/nvoptix.bin
	/usr/lib/wsl/drivers`)

// nvidiaNodes are patterns for the driver's device nodes below /dev.
var nvidiaNodes = strings.Fields(`nvidiactl nvidia[0-9]* nvidia-uvm nvidia-uvm-tools nvidia-modeset nvidia-nvswitch*
	nvidia-nvlink nvidia-caps/* nvidia-caps-imex-channels/* gdrdrv dxg`)

// NoGPU is the error message for a host without GPUs.
const NoGPU = "this machine has no visible GPU: there is no /dev/nvidiactl, /dev/kfd or Intel /dev/dri/renderD*; " +
	`request a node with a GPU ("hpcc submit --gpus 1"), or ask the administrator to load the driver`

// addGPUs gives the run all GPUs of this host, of any vendor.
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

// addNodes adds the device nodes that match patterns below /dev and reports whether there
// are any.
func (h *hardware) addNodes(root string, patterns []string) bool {
	if root == "" {
		root = "/"
	}
	any := false
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(root, "dev", p))
		if err != nil {
			continue // the patterns are constants and valid
		}
		for _, src := range found {
			rel, err := filepath.Rel(root, src)
			if err != nil {
				continue
			}
			any = true
			h.addBind(src, "/"+rel)
		}
	}
	return any
}

// addNvidia gives the run the NVIDIA GPUs, from a CDI spec of the host or by searching for
// the driver. It reports whether there are any.
func (d Request) addNvidia(h *hardware) (bool, error) {
	const kind = "nvidia.com/gpu"
	usedCDI := false
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
		usedCDI = err == nil
	}
	if !usedCDI {
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
	h.setNvidiaVariables()
	return true, nil
}

// missingFiles returns an error if the devices need a file that the host does not have.
func missingFiles(devices []*cdiDevice) error {
	if p := missingCDI(cdiEdits(devices)); p != "" {
		return fmt.Errorf("%s does not exist", p)
	}
	return nil
}

// addDriver gives the run the NVIDIA driver's libraries and programs, found as the loader of
// the system at root finds them.
func (h *hardware) addDriver(root string) error {
	f, err := openHost(root)
	if err != nil {
		h.note("%v", err)
	}
	const driver = "libcuda.so.1"
	if root == "" && len(f.cache[driver]) == 0 && exists("/run/nvidia/driver/etc/ld.so.cache") {
		// Kubernetes' GPU operator installs the driver in its own root.
		if f, err = openHost("/run/nvidia/driver"); err != nil {
			h.note("%v", err)
		}
	}
	version, otherMachine := "", 0
	var tooNew error
	add := func(name, file string) {
		stem, _, _ := strings.Cut(name, ".so")
		if !slices.Contains(nvidiaLibraries, stem) {
			return
		}
		if v := driverVersion(file); v != "" && version != "" && v != version {
			return // left over from another driver version
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
	f.libraries(driver, h.arch, add)
	if h.libs[driver] == "" {
		switch {
		case tooNew != nil:
			return fmt.Errorf("the NVIDIA driver cannot be used in this image: %w", tooNew)
		case otherMachine > 0:
			return fmt.Errorf("the NVIDIA driver of this machine has no libraries for %s, the image's architecture; use an image for this machine", h.arch)
		}
		return fmt.Errorf("this machine has NVIDIA devices, but no %s in the loader's cache or the usual directories below %s; set NVIDIA_DRIVER_ROOT to the root directory of the driver's installation", driver, f.root)
	}
	if tooNew != nil {
		h.note("a library of the NVIDIA driver is left out: %v", tooNew)
	}
	if h.libs["libcuda.so"] == "" {
		h.libs["libcuda.so"] = h.libs[driver] // some frameworks load this name
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
			h.addBind(src, p)
		}
	}
	return nil
}

// driverVersion returns the version in the name of a driver's file after following links:
// 550.54.14 for libcuda.so.550.54.14. It returns "" if the name has none. Versions below
// 100 are those of libraries with their own numbering.
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

// addMPS binds the directory of the multi-process service, which is below /tmp unless the
// user sets another.
func (h *hardware) addMPS() {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	if dir = filepath.Clean(dir); isMountPoint(dir) && isDir(dir) {
		h.addBind(dir, dir)
	}
}

// nvidiaChosen returns the devices of a CDI spec that the caller's NVIDIA_VISIBLE_DEVICES
// lists, or nil if it lists none of them.
func nvidiaChosen(r *cdiRegistry, kind string) []*cdiDevice {
	var found []*cdiDevice
	for _, n := range visibleGPUs() {
		d := r.devices[kind+"="+n]
		if d == nil || d.duplicate != "" {
			return nil
		}
		found = append(found, d)
	}
	return found
}

// visibleGPUs returns the GPUs that the caller's NVIDIA_VISIBLE_DEVICES lists, by index or
// UUID, or nil if it does not choose.
func visibleGPUs() []string {
	v := os.Getenv("NVIDIA_VISIBLE_DEVICES")
	switch v {
	case "", "all", "void", "none":
		return nil
	}
	return strings.Split(v, ",")
}

// setNvidiaVariables restricts the program to the GPUs that the scheduler assigned to the
// caller, which are in the caller's environment; images set NVIDIA_VISIBLE_DEVICES=all. Nodes
// in the host's /dev cannot be hidden, so the variable of container runtimes is translated
// to that of CUDA.
func (h *hardware) setNvidiaVariables() {
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
		h.setEnv("CUDA_DEVICE_ORDER", "PCI_BUS_ID") // the order to which the indices refer
	}
}

// addROCm gives the run the host's ROCm if the image has none. Unlike the NVIDIA driver's
// libraries, ROCm may come from the image, because its kernel interface is stable.
func (h *hardware) addROCm() {
	const dir = "/opt/rocm"
	if h.inImage(dir) || !isDir(dir) {
		return
	}
	h.addBind(dir, dir, "ro")
	h.setEnv("LD_LIBRARY_PATH", strings.TrimPrefix(envfile.Lookup(h.spec.Process.Env, "LD_LIBRARY_PATH")+":"+dir+"/lib", ":"))
	h.setEnv("PATH", envfile.Lookup(h.spec.Process.Env, "PATH")+":"+dir+"/bin")
	h.note("the image has no ROCm: using the host's %s", dir)
}

// intelGPU reports whether a render node belongs to an Intel GPU.
func intelGPU() bool {
	files, _ := filepath.Glob("/sys/class/drm/renderD*/device/vendor")
	for _, f := range files {
		if b, err := readBounded(f, 64); err == nil && strings.TrimSpace(string(b)) == "0x8086" {
			return true
		}
	}
	return false
}
