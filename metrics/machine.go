package metrics

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// thisMachine describes the host without running a program.
func thisMachine() Machine {
	m := Machine{Architecture: goruntime.GOARCH, CPU: cpuName("/proc/cpuinfo"), CPUs: online("/sys/devices/system/cpu/online")}
	m.Host, _ = os.Hostname()
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	if m.CPUs == 0 {
		m.CPUs = goruntime.NumCPU()
	}
	return m
}

// cpuName returns the model of the first processor in a file such as /proc/cpuinfo, whose
// format depends on the architecture, or "".
func cpuName(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name", "cpu", "uarch": // x86; POWER; RISC-V
			return strings.TrimSpace(value)
		case "CPU part": // on ARM, the kernel lists only part numbers
			return "ARM part " + strings.TrimSpace(value)
		}
	}
	return ""
}

// online returns the number of processors in a list such as 0-3,8.
func online(file string) (n int) {
	b, err := new(reader).read(file)
	if err != nil {
		return 0
	}
	for item := range bytes.SplitSeq(bytes.TrimSpace(b), []byte(",")) {
		first, last, ok := strings.Cut(string(item), "-")
		from, err := strconv.ParseUint(first, 10, 20)
		to := from
		if err == nil && ok {
			to, err = strconv.ParseUint(last, 10, 20)
		}
		if err != nil || to < from {
			return 0
		}
		n += int(to-from) + 1
	}
	return n
}

// ConfigDigest returns the digest of a tree's configuration, or "". It reads regular files of
// at most 16 MiB.
func ConfigDigest(file string) string {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > 16<<20 {
		return ""
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
