// Command probe runs in a container and prints what it sees as one line of JSON. TestEffects of
// cmd/hpcc compares these reports.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Report is what a program sees. Its fields are independent: an option of hpcc changes only those
// that docs/options.md names.
type Report struct {
	Argv        []string
	Env         map[string]string
	Repeated    []string // names that the environment has more than once
	Dir         string
	IDs         map[string]string // Uid, Gid, Groups
	User        string            // the user's line of /etc/passwd
	Rights      map[string]string // CapInh to CapAmb, NoNewPrivs, Seccomp
	Signals     map[string]string // inherited: ignored and blocked
	Process     map[string]string // pid, parent, session, CPUs, executable
	Namespaces  map[string]string
	Mounts      map[string]string // path: type, options, source
	Writable    map[string]bool   // whether a file can be created or opened for writing
	Root        []string          // names in /
	Files       map[string]string // size, mode and time of the image's known files
	Program     string            // device and inode of this program
	Limits      map[string]string
	Umask       string
	Descriptors map[string]string
	Devices     []string
	Cgroup      map[string]string // limits of its own cgroup: cpu, memory
	Host        string
	Network     []string // by netlink
	NetworkSys  []string // by /sys
	Chown       string   // the result of changing the owner of a new file in /tmp
	Start       time.Time
	Sleep       time.Duration // that follows the report
}

// inherited returns the ignored and the blocked signals and the limit of open files that this program
// inherited. The Go runtime changes them; see early.go.
var inherited = func() (ignored, blocked uint64, files unix.Rlimit) { return 0, 0, unix.Rlimit{} }

func main() {
	r := Report{Start: time.Now(), Argv: os.Args, Descriptors: descriptors()} // before this program opens others
	for _, a := range os.Args {
		if text, ok := strings.CutPrefix(a, "sleep="); ok {
			r.Sleep, _ = time.ParseDuration(text)
		}
		if a == "staggered" { // launchers mix the output of processes
			rank, _ := strconv.Atoi(os.Getenv("PMIX_RANK"))
			time.Sleep(time.Duration(rank) * 500 * time.Millisecond)
		}
	}
	r.Env, r.Repeated = environment()
	r.Dir, _ = unix.Getwd()
	r.status()
	r.process()
	r.mounts()
	r.limits()
	r.Files = map[string]string{}
	for _, f := range os.Args[1:] { // known files are arguments
		if st, err := os.Stat(f); filepath.IsAbs(f) && err == nil {
			r.Files[f] = fmt.Sprint(st.Mode(), " ", st.ModTime().Unix(), " ", first(f))
		}
	}
	r.User = line("/etc/passwd", ":"+strconv.Itoa(os.Getuid())+":")
	var st unix.Stat_t
	if unix.Stat("/proc/self/exe", &st) == nil {
		r.Program = fmt.Sprint(st.Dev, ":", st.Ino)
	}
	r.Root, r.Devices, r.Cgroup = names("/"), names("/dev"), cgroup()
	r.Host, _ = os.Hostname()
	if list, err := net.Interfaces(); err == nil {
		for _, i := range list {
			r.Network = append(r.Network, i.Name)
		}
	}
	slices.Sort(r.Network)
	r.NetworkSys = names("/sys/class/net")
	r.Chown = chown()
	out, err := json.Marshal(r)
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	os.Stdout.Write(append(out, '\n')) // one write, because tasks may share a file
	time.Sleep(r.Sleep)
}

// environment reads the variables as the kernel passed them. os.Environ leaves out repeated names.
func environment() (env map[string]string, repeated []string) {
	all, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		all = []byte(strings.Join(os.Environ(), "\x00"))
	}
	env = map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(string(all), "\x00"), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		if _, ok := env[name]; ok {
			repeated = append(repeated, name)
		}
		env[name] = value
	}
	return env, repeated
}

// descriptors lists the open descriptors. It opens none itself.
func descriptors() map[string]string {
	out := map[string]string{}
	var b [4096]byte
	for n := range 1024 {
		path := fmt.Sprintf("/proc/self/fd/%d", n)
		size, err := unix.Readlink(path, b[:])
		if err == nil && !bytes.HasPrefix(b[:size], []byte("/sys/fs/cgroup/")) { // the Go runtime reads quotas
			out[strconv.Itoa(n)] = string(b[:size])
		}
	}
	return out
}

// status reads IDs, rights and the umask.
func (r *Report) status() {
	r.IDs, r.Rights, r.Signals = map[string]string{}, map[string]string{}, map[string]string{}
	text, _ := os.ReadFile("/proc/self/status")
	for l := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), ":")
		value = strings.Join(strings.Fields(value), " ")
		switch name {
		case "Uid", "Gid", "Groups":
			r.IDs[name] = value
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
			r.Rights[name] = value
		case "Umask":
			r.Umask = value
		}
	}
	for _, id := range []string{"uid_map", "gid_map"} {
		text, _ := os.ReadFile("/proc/self/" + id)
		r.IDs[id] = strings.Join(strings.Fields(string(text)), " ")
	}
	ignored, blocked, _ := inherited()
	r.Signals["ignored"], r.Signals["blocked"] = signals(ignored), signals(blocked)
}

// signals names the signals of a set.
func signals(set uint64) string {
	var out []string
	for n := 1; n < 65; n++ {
		if set&(1<<(n-1)) != 0 {
			out = append(out, cmp.Or(unix.SignalName(unix.Signal(n)), strconv.Itoa(n)))
		}
	}
	return strings.Join(out, " ")
}

func (r *Report) process() {
	session, _ := unix.Getsid(0)
	var cpus unix.CPUSet
	_ = unix.SchedGetaffinity(0, &cpus)
	exe, _ := os.Readlink("/proc/self/exe")
	r.Process = map[string]string{"pid": strconv.Itoa(os.Getpid()), "parent": strconv.Itoa(os.Getppid()), "session": strconv.Itoa(session), "cpus": strconv.Itoa(cpus.Count()), "exe": exe}
	r.Namespaces = map[string]string{}
	for _, ns := range []string{"pid", "net", "ipc", "uts", "user"} {
		r.Namespaces[ns], _ = os.Readlink("/proc/self/ns/" + ns)
	}
}

// mounts reads the mounts, and tries to write at each and in the working directory.
func (r *Report) mounts() {
	r.Mounts, r.Writable = map[string]string{}, map[string]bool{}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return
	}
	defer f.Close()
	home, _ := unix.Getwd()
	for _, dir := range []string{"/", "/etc", "/opt", "/tmp", home, r.Env["HOME"]} {
		r.write(dir)
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		own, fsType, _ := strings.Cut(lines.Text(), " - ")
		w, t := strings.Fields(own), strings.Fields(fsType)
		if len(w) < 6 || len(t) < 3 {
			continue
		}
		if below(w[4], "/sys/fs/cgroup") { // nodes differ
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(w[4])
		options := strings.Split(w[5], ",")
		for _, o := range strings.Split(t[2], ",") {
			if name, _, _ := strings.Cut(o, "="); name == "ro" || ((name == "size" || name == "mode") && t[0] == "tmpfs") {
				options = append(options, "super:"+o)
			}
		}
		r.Mounts[at] = t[0] + " " + strings.Join(options, ",") + " " + w[3] // mounts at one path: the last is visible
		if !below(at, "/proc") && !below(at, "/sys") && !below(at, "/dev") {
			r.write(at)
		}
	}
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// write creates a file in a directory and removes it, or opens a file for writing.
func (r *Report) write(path string) {
	st, err := os.Stat(path)
	if err != nil {
		return
	}
	if !st.IsDir() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if r.Writable[path] = err == nil; err == nil {
			f.Close()
		}
		return
	}
	f, err := os.CreateTemp(path, ".probe-")
	if r.Writable[path] = err == nil; err == nil {
		f.Close()
		os.Remove(f.Name())
	}
}

var limitNames = []string{"cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as", "locks", "sigpending", "msgqueue", "nice", "rtprio", "rttime"}

func (r *Report) limits() {
	r.Limits = map[string]string{}
	for i, name := range limitNames {
		var l unix.Rlimit
		if err := unix.Getrlimit(i, &l); err != nil {
			continue
		}
		if _, _, files := inherited(); i == unix.RLIMIT_NOFILE && files.Max > 0 {
			l = files
		}
		r.Limits[name] = limit(l.Cur) + ":" + limit(l.Max)
	}
}

func limit(n uint64) string {
	if n == math.MaxUint64 {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// cgroup reads the limits in /sys/fs/cgroup, of both versions. The root cgroup has none.
func cgroup() map[string]string {
	const dir = "/sys/fs/cgroup/"
	if quota := first(dir + "cpu/cpu.cfs_quota_us"); quota != "" {
		return map[string]string{"cpu": quota + " " + first(dir+"cpu/cpu.cfs_period_us"), "memory": first(dir + "memory/memory.limit_in_bytes")}
	}
	return map[string]string{"cpu": first(dir + "cpu.max"), "memory": first(dir + "memory.max")}
}

// chown tries to change the owner of a new file. Only a fake root can.
func chown() string {
	f, err := os.CreateTemp("/tmp", ".probe-")
	if err != nil {
		return err.(*os.PathError).Err.Error()
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Chown(12, 34); err != nil {
		return err.(*os.PathError).Err.Error()
	}
	return "succeeds"
}

// first returns the first line of a file.
func first(file string) string {
	b, _ := os.ReadFile(file)
	b, _, _ = bytes.Cut(b, []byte("\n"))
	return string(b[:min(len(b), 60)])
}

// line returns the first line of a file that contains text.
func line(file, text string) string {
	b, _ := os.ReadFile(file)
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, text) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

func names(dir string) (out []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}
