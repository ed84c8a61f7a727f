package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/runtime/rootfs"
)

// rootFeature reports how a run replaces the root directory.
func rootFeature(context.Context) Feature {
	if rootfs.IsLowest() {
		return Feature{State: OK, Why: "an initramfs, as on diskless nodes, which pivot_root(2) cannot replace: runs move the image over it; programs that are root inside cannot mount"}
	}
	return Feature{State: OK, Why: "pivot_root(2) replaces it"}
}

// overlay tries an overlay whose changes are in dir, or else one whose changes are on this node.
func overlay(ctx context.Context, dir string) Feature {
	const without = "builds copy the tree for each step instead"
	dir = existing(dir)
	step, err := overlayIn(ctx, dir)
	other := err != nil && step != "" && step != attrStep && !errors.Is(err, syscall.ENOSPC) // an error that builds avoid
	if other {
		if local, lerr := runtime.StagePlace(); lerr == nil {
			if _, lerr = overlayIn(ctx, local); lerr == nil {
				return Feature{State: OK, Why: fmt.Sprintf("in a user namespace, on this node: builds keep the changes of steps in %s, because the store's file system cannot (%s: %v)", local, step, err)}
			}
		}
	}
	f := Feature{State: Limited}
	switch {
	case err == nil:
		return Feature{State: OK, Why: "in a user namespace, on the store's file system"}
	case step == "":
		f.Why = fmt.Sprintf("needs user namespaces (%v)", err)
	case errors.Is(err, syscall.ENOSPC):
		f.Why, f.Do = "not tested: the file system of "+dir+" is full", "free space on that file system"
	case step == createStep:
		f.Why = fmt.Sprintf("not tested: %v", err)
	case step == "mounting" && errors.Is(err, syscall.ENODEV):
		f.Why, f.Ask = "the kernel does not support overlays; "+without, "modprobe overlay"
	case step == "mounting" && errors.Is(err, syscall.EPERM):
		f.Why, f.Ask = "users may not mount overlays ("+err.Error()+"); "+without,
			"Linux 5.11 or newer (this is "+kernelFile("/proc/sys/kernel/osrelease")+")"
	case step == attrStep && errors.Is(err, syscall.ENOTSUP):
		f.Why = "the file system of " + dir + " does not support user extended attributes, in which an overlay records removals (tmpfs does since Linux 6.6, NFS since 4.2); " + without
		f.Do = "a store on a local disk builds faster: HPCC_STORE=/tmp/$USER-hpcc"
	default:
		f.Why = fmt.Sprintf("overlays do not work on the file system of %s (%s: %v); %s", dir, step, err, without)
		f.Do = "a store on a local disk builds faster: HPCC_STORE=/tmp/$USER-hpcc"
	}
	return f
}

// overlayIn mounts an overlay whose changes are in dir, and uses it. step is the step that failed; it is
// empty if the host does not allow namespaces.
func overlayIn(ctx context.Context, dir string) (step string, err error) {
	tmp, err := os.MkdirTemp(dir, ".hpcc-doctor-")
	if err != nil {
		return createStep, err
	}
	defer os.RemoveAll(tmp)
	step, err = trial(ctx, syscall.CLONE_NEWNS, "overlay", tmp)
	_ = os.Chmod(filepath.Join(tmp, "work", "work"), 0o700) // the kernel creates it with mode 0
	return step, err
}

// createStep is the step of overlayIn that creates a directory.
const createStep = "creating a directory"

// seccompFeature tests the filter that lets package managers work in builds.
func seccompFeature(ctx context.Context) Feature {
	step, err := trial(ctx, 0, "seccomp", "")
	switch {
	case err == nil:
		return Feature{State: OK, Why: "filter and notification of RUN's requests on files"}
	case step == "tracing":
		return Feature{State: OK, Why: fmt.Sprintf("filter, but no notification (%v): RUN is traced (ptrace), which makes it slower", err)}
	case step == "listening":
		return Feature{State: Limited, Why: fmt.Sprintf("filter, but neither notification (%v) nor ptrace: owners that RUN sets are lost", err), Ask: "Linux 5.0 or newer with CONFIG_SECCOMP_FILTER=y; no outer container that uses seccomp notification itself or forbids ptrace"}
	case step == "":
		return Feature{State: No, Why: fmt.Sprintf("not tested: needs user namespaces (%v)", err)}
	}
	return Feature{State: No, Why: fmt.Sprintf("%s: %v; package managers fail in RUN", step, err),
		Ask: "a kernel with CONFIG_SECCOMP_FILTER=y"}
}

// fuse checks the programs and devices that mount SquashFS files.
func fuse(context.Context) Feature {
	const without = "SquashFS files are unpacked before they run"
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return Feature{State: Limited, Why: "there is no /dev/fuse; " + without, Ask: "modprobe fuse"}
	case err != nil:
		return Feature{State: Limited, Why: fmt.Sprintf("/dev/fuse: %v; %s", err, without), Ask: "chmod 666 /dev/fuse"}
	}
	unix.Close(fd)
	if err := runtime.CanMountSquashFS(); err != nil {
		return Feature{State: Limited, Why: fmt.Sprintf("/dev/fuse exists, but %v; %s", errors.Unwrap(err), without),
			Ask: "install the package squashfuse"}
	}
	return Feature{State: OK, Why: "/dev/fuse and squashfuse"}
}

// subordinate reports on subordinate IDs, which other tools need from administrators.
func subordinate(context.Context) Feature {
	return Feature{State: OK, Why: "not needed: builds and runs use your own id alone; no /etc/subuid, no setuid helper"}
}

// foreign reports the other architectures whose programs this host can run.
func foreign(ctx context.Context) Feature {
	registered, onPath := runtime.Emulators()
	step, err := trial(ctx, syscall.CLONE_NEWNS, "binfmt", "")
	canRegister := err == nil
	var why []string
	if len(registered) > 0 {
		why = append(why, "registered with the host: "+strings.Join(registered, ", "))
	}
	if canRegister && len(onPath) > 0 {
		why = append(why, "by qemu on PATH: "+strings.Join(onPath, ", "))
	}
	f := Feature{State: OK, Why: strings.Join(why, "; ")}
	switch {
	case f.Why != "":
	case canRegister:
		f = Feature{State: Limited, Why: "the kernel supports it, but no static qemu is on PATH",
			Do: "put Debian's qemu-user-static on PATH"}
	case step == "":
		f = Feature{State: No, Why: fmt.Sprintf("nothing is registered with binfmt_misc, and registering needs user namespaces (%v)", err)}
	default:
		f = Feature{State: No, Why: fmt.Sprintf("the kernel does not allow users to register emulators (%v); Linux 6.7 does. Images of other architectures can only be unpacked and moved", err),
			Ask: "install qemu-user-static and its binfmt_misc handlers (flag F)"}
	}
	return f
}

// glob returns the files that match any of the patterns.
func glob(patterns ...string) (out []string) {
	for _, p := range patterns {
		m, _ := filepath.Glob(p)
		out = append(out, m...)
	}
	return out
}

// gpu checks for GPU device nodes that the user can open, and for CDI specs.
func gpu(context.Context) Feature {
	nodes := glob("/dev/nvidia[0-9]*", "/dev/kfd")
	if len(nodes) == 0 {
		if kernelFile("/proc/driver/nvidia/version") != "" {
			return Feature{State: No, Why: "the NVIDIA driver is loaded, but its device nodes are missing", Ask: "nvidia-modprobe -c 0 -u"}
		}
		return Feature{State: No, Why: "none on this machine (no /dev/nvidia*, /dev/kfd); compute nodes may have some"}
	}
	for _, n := range nodes {
		if err := unix.Access(n, unix.R_OK|unix.W_OK); err != nil {
			return Feature{State: No, Why: fmt.Sprintf("%s: %v", n, err), Ask: "may users open " +
				n + "? (NVIDIA: NVreg_DeviceFileMode=0666; AMD: groups video and render)"}
		}
	}
	why := strings.Join(nodes, " ")
	for _, w := range strings.Fields(kernelFile("/proc/driver/nvidia/version")) {
		if w[0] >= '0' && w[0] <= '9' && strings.Contains(w, ".") { // "NVRM version: … Kernel Module  535.129.03  …"
			why += ", NVIDIA driver " + w
			break
		}
	}
	if specs := glob("/etc/cdi/*.json", "/etc/cdi/*.yaml", "/var/run/cdi/*.json", "/var/run/cdi/*.yaml"); len(specs) > 0 {
		why += "; CDI: " + strings.Join(specs, " ")
	} else {
		why += "; no CDI specs"
	}
	return Feature{State: OK, Why: why}
}

// fabric checks for the devices of fast networks.
func fabric(context.Context) Feature {
	nodes := glob("/dev/infiniband/uverbs*", "/dev/cxi[0-9]*", "/dev/hfi1_[0-9]*", "/dev/xpmem")
	if len(nodes) == 0 {
		return Feature{State: No, Why: "none on this machine (InfiniBand, Slingshot, Omni-Path): MPI uses TCP and shared memory; compute nodes may have one"}
	}
	for _, n := range nodes {
		if err := unix.Access(n, unix.R_OK|unix.W_OK); err != nil {
			return Feature{State: Limited, Why: fmt.Sprintf("%s: %v", n, err), Ask: "chmod 666 " + n}
		}
	}
	return Feature{State: OK, Why: strings.Join(nodes, " ") + ", visible in images as all of /dev"}
}

// mpi checks for launchers, and for the PMI types with which Slurm can start ranks.
func mpi(ctx context.Context) Feature {
	var have []string
	for _, n := range []string{"mpirun", "mpiexec", "prterun"} {
		if p, err := exec.LookPath(n); err == nil {
			have = append(have, p)
		}
	}
	if _, err := exec.LookPath("srun"); err == nil {
		have = append(have, "srun ("+pmiTypes(ctx)+")")
	}
	if len(have) == 0 {
		return Feature{State: No, Why: "no mpirun, mpiexec or srun on PATH", Do: "load your site's MPI module, if programs need MPI"}
	}
	return Feature{State: OK, Why: strings.Join(have, ", ")}
}

// pmiTypes returns the PMI types that "srun --mpi=list" prints. srun writes them to standard
// error, and fails if the cluster does not answer.
func pmiTypes(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "srun", "--mpi=list")
	cmd.WaitDelay = time.Second // child processes may keep its output open
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "PMI types unknown"
	}
	var types []string
	for _, l := range strings.Split(string(out), "\n") {
		l = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(l), "specific pmix plugin versions available:"))
		if l != "" && !strings.HasSuffix(l, "are...") && !strings.HasSuffix(l, ":") {
			types = append(types, l)
		}
	}
	return "PMI: " + strings.Join(types, " ")
}
