package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/inherit"
)

// Architecture is the annotation of a Spec that holds the architecture of the image's
// programs, as a GOARCH value. Programs for another architecture run under qemu's user
// emulation.
const Architecture = "hpcc.architecture"

// A machine is an architecture in the terms of ELF headers and qemu.
type machine struct {
	elf  byte // e_machine; all values here fit into one byte
	big  bool // big-endian
	qemu string
}

var machines = map[string]machine{
	"amd64":   {0x3e, false, "x86_64"},
	"arm64":   {0xb7, false, "aarch64"},
	"ppc64le": {0x15, false, "ppc64le"},
	"riscv64": {0xf3, false, "riscv64"},
	"s390x":   {0x16, true, "s390x"},
}

// Handlers is the directory in which the kernel lists handlers for foreign executables.
// Since Linux 6.7 a user namespace can mount a list of its own there. That changes nothing
// outside, and the list disappears with its last mount. A root with its own /proc has to
// mount it as well.
const Handlers = "/proc/sys/fs/binfmt_misc"

// emulate lets the kernel run programs of the spec's architecture in this process's user
// namespace. Callers continue after an error, because the program may be native anyway; if
// it is not, the error explains why it cannot run.
func emulate(s *specs.Spec) error {
	arch := s.Annotations[Architecture]
	if arch == "" || arch == goruntime.GOARCH || (arch == "386" && goruntime.GOARCH == "amd64") {
		return nil
	}
	fail := func(why string) error {
		return fmt.Errorf("the image is for %s, this machine is %s, and %s; put Debian's qemu-user-static on PATH and use Linux 6.7 or newer, or ask the administrator to register it with binfmt_misc (flag F)", arch, goruntime.GOARCH, why)
	}
	m, ok := machines[arch]
	if !ok {
		return fail("no emulator is known for it")
	}
	if registered(m) {
		return nil
	}
	qemu, err := findQemu(m.qemu)
	if err != nil {
		return fail(err.Error())
	}
	if inInitialUserNamespace() {
		return fail("hpcc does not register emulators for the whole host")
	}
	// The list belongs to the namespace's root. A run keeps the user's own IDs, so it becomes
	// root of one more namespace to register the handler, and takes its own IDs again in
	// another below. The kernel looks for handlers upwards.
	uid, gid, registering := ladder("register")
	if requested, _ := earlyNamespaces(); requested && os.Geteuid() != 0 {
		return again("register", os.Geteuid(), os.Getegid())
	}
	if err := unix.Mount("binfmt_misc", Handlers, "binfmt_misc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fail(fmt.Sprintf("the kernel does not allow users to register emulators (%v)", err))
	}
	if err := os.WriteFile(Handlers+"/register", []byte(rule(m, qemu)), 0); err != nil && !errors.Is(err, os.ErrExist) {
		return fail(fmt.Sprintf("the kernel refuses to register %s (%v)", qemu, err))
	}
	if registering {
		return again("run", uid, gid)
	}
	return nil
}

// inInitialUserNamespace reports whether this process is in the host's user namespace. An
// emulator that root registers there applies to the whole host and outlives the process.
// 0xeffffffd is that namespace's inode (PROC_USER_INIT_INO, include/linux/proc_ns.h).
func inInitialUserNamespace() bool {
	link, err := os.Readlink("/proc/self/ns/user")
	return err == nil && link == fmt.Sprintf("user:[%d]", 0xeffffffd)
}

// ladderVar is the environment variable that names, when hpcc executes itself, the
// IDs to take in the namespace that its entry point creates: "register" means root's,
// "run" those in the value.
const ladderVar = "HPCC_FOREIGN"

// ladder returns the IDs in ladderVar. ok reports whether its rung is rung.
func ladder(rung string) (uid, gid int, ok bool) {
	n, _ := fmt.Sscanf(os.Getenv(ladderVar), rung+":%d:%d", &uid, &gid)
	return uid, gid, n == 2
}

// again executes this program again, with the same pid, as the next rung.
func again(rung string, uid, gid int) error {
	env := []string{fmt.Sprintf("%s=%s:%d:%d", ladderVar, rung, uid, gid)}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, ladderVar+"=") {
			env = append(env, e)
		}
	}
	return fmt.Errorf("executing hpcc again: %w", inherit.Exec("/proc/self/exe", os.Args, env))
}

// rule returns a line for the register file (admin-guide/binfmt-misc.rst): magic and mask of
// an ELF header up to e_machine, for programs and shared objects. F opens qemu at
// registration, while its path is visible; P keeps argv[0].
func rule(m machine, qemu string) string {
	head, mask := "\x7fELF\x02\x01\x01", "\xff\xff\xff\xff\xff\xff\xff"
	tail, tailMask := "\x02\x00"+string([]byte{m.elf})+"\x00", "\xfe\xff\xff\xff"
	if m.big {
		head = "\x7fELF\x02\x02\x01"
		tail, tailMask = "\x00\x02\x00"+string([]byte{m.elf}), "\xff\xfe\xff\xff"
	}
	head += strings.Repeat("\x00", 9) + tail
	mask += "\x00" + strings.Repeat("\xff", 8) + tailMask
	escape := func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		}
		return b.String()
	}
	return fmt.Sprintf(":hpcc-%s:M::%s:%s:%s:FP", m.qemu, escape(head), escape(mask), qemu)
}

// registered reports whether the host, or an earlier program in this namespace, has
// registered a handler for the machine that works inside images.
func registered(m machine) bool {
	files, _ := filepath.Glob(Handlers + "/*")
	end := fmt.Sprintf("0200%02x00", m.elf)
	if m.big {
		end = fmt.Sprintf("000200%02x", m.elf)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(string(b), "enabled\ninterpreter ") {
			continue
		}
		_, flags, _ := strings.Cut(string(b), "\nflags: ")
		flags, _, _ = strings.Cut(flags, "\n")
		_, magic, _ := strings.Cut(string(b), "\nmagic ")
		magic, _, _ = strings.Cut(magic, "\n")
		if strings.Contains(flags, "F") && strings.HasPrefix(magic, "7f454c46") && strings.HasSuffix(magic, end) {
			return true
		}
	}
	return false
}

// Emulators returns the foreign architectures, sorted, whose programs this machine can run:
// those with a handler that the host has registered, and those with a static qemu on PATH.
func Emulators() (registeredHere, byQemu []string) {
	for arch, m := range machines {
		if arch == goruntime.GOARCH {
			continue
		}
		if registered(m) {
			registeredHere = append(registeredHere, arch)
		} else if _, err := findQemu(m.qemu); err == nil {
			byQemu = append(byQemu, arch)
		}
	}
	slices.Sort(registeredHere)
	slices.Sort(byQemu)
	return registeredHere, byQemu
}

// findQemu finds a static emulator. A dynamic one would look for its libraries in the image.
func findQemu(name string) (string, error) {
	dynamic := ""
	for _, n := range []string{"qemu-" + name + "-static", "qemu-" + name} {
		p, err := exec.LookPath(n)
		if err != nil {
			continue
		}
		if p, err = filepath.Abs(p); err != nil || strings.ContainsAny(p, ":\n") {
			continue
		}
		if isStatic(p) {
			return p, nil
		}
		dynamic = p
	}
	if dynamic != "" {
		return "", fmt.Errorf("%s needs libraries that the image does not have", dynamic)
	}
	return "", fmt.Errorf("there is no qemu-%s-static", name)
}

// isStatic reports whether a native program names no dynamic loader (elf(5)). It does not
// use debug/elf, which would add half a megabyte to the start of every run.
func isStatic(file string) bool {
	const header, segment, interpreter = 64, 56, 3
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, header)
	if _, err := f.ReadAt(b, 0); err != nil || string(b[:6]) != "\x7fELF\x02\x01" {
		return false
	}
	at, size, n := binary.LittleEndian.Uint64(b[32:]), binary.LittleEndian.Uint16(b[54:]), binary.LittleEndian.Uint16(b[56:])
	if at > 1<<30 || size != segment {
		return false
	}
	b = make([]byte, segment*int(n))
	if _, err := f.ReadAt(b, int64(at)); err != nil {
		return false
	}
	for ; len(b) > 0; b = b[segment:] {
		if binary.LittleEndian.Uint32(b) == interpreter {
			return false
		}
	}
	return true
}

// CanRun lets the programs that this process starts be of architecture arch, a GOARCH value,
// or returns the reason why they cannot run. If arch is not this machine's, the process must
// be root of its own user and mount namespace ([EnterFakeRoot]).
func CanRun(arch string) error {
	return emulate(&specs.Spec{Annotations: map[string]string{Architecture: arch}})
}
