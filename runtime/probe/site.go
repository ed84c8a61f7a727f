package probe

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
)

// Below lowSpace or lowInodes, doctor warns that a file system is nearly full. Below minSpace or
// minInodes, the file system has no room for an image.
const (
	lowSpace, minSpace   = 2 << 30, 16 << 20 // bytes
	lowInodes, minInodes = 20_000, 200
)

// storeFeature checks the file system of the store.
func storeFeature(dir string) Feature {
	p, err := files.SystemOf(dir + "/tmp")
	if err != nil {
		return Feature{State: No, Why: err.Error(), Do: "set HPCC_STORE to a directory that you can write to"}
	}
	if err := store.Exposed(dir); err != nil {
		why, do, _ := strings.Cut(err.Error(), "; ")
		return Feature{State: No, Why: fmt.Sprintf("%s: refused: %s", dir, why), Do: do}
	}
	_, exposed, _ := files.Resolve(dir)
	f := Feature{State: OK, Why: dir + ": " + fileSystemText(p)}
	const elsewhere = "set HPCC_STORE to a directory on another file system"
	feature := func(s State, do string, format string, a ...any) Feature {
		f.State, f.Do, f.Why = s, do, fmt.Sprintf(format, a...)+"; "+f.Why
		return f
	}
	switch {
	case isFull(p):
		return feature(No, "free space on it, run \"hpcc gc\", or "+elsewhere, "full: existing images run, but pull and build fail")
	case p.Write != nil:
		return feature(No, elsewhere, "not writable (%v): existing images run, but pull and build fail", p.Write)
	case p.NoExec:
		return feature(No, elsewhere, "mounted noexec: no program of an image can be executed")
	case p.Owner != os.Geteuid():
		return feature(Limited, "use hpcc as an ordinary user",
			"files that you create belong to user ID %d: the server squashes your ID", p.Owner)
	case p.HardLink != nil:
		return feature(Limited, elsewhere, "no hard links (%v): each hard link of an image takes the space of a file", p.HardLink)
	case p.XAttr != nil:
		return feature(Limited, elsewhere, "no user attributes (%v): builds copy the tree for each step, and lose owners, set-ID bits and capabilities", p.XAttr)
	case (p.Total > 0 && p.Free < lowSpace) || (p.Inodes > 0 && p.FreeInodes < lowInodes) ||
		(p.QuotaLimit > 0 && p.QuotaLimit < p.QuotaUsed+lowSpace):
		return feature(Limited, "run \"hpcc gc\" or "+elsewhere, "nearly full")
	case len(exposed) > 0:
		return feature(Limited, "set HPCC_STORE to a directory that only you can change, unless you trust these users", "%v", exposed[0])
	}
	if p.Type == "nfs" || p.Type == "lustre" {
		f.Why += "; root squash does not matter: hpcc writes as you"
	}
	return f
}

// isFull reports whether a file system has no space for an image. A file system without a
// limit, such as some in memory, reports 0 of 0.
func isFull(p files.System) bool {
	return errors.Is(p.Write, syscall.ENOSPC) || errors.Is(p.Write, syscall.EDQUOT) ||
		(!p.ReadOnly && ((p.Total > 0 && p.Free < minSpace) || (p.Inodes > 0 && p.FreeInodes < minInodes)))
}

// fileSystemText describes a file system and its free space.
func fileSystemText(p files.System) string {
	t := p.Type
	if p.Shared {
		t += ", shared"
	}
	if p.ReadOnly {
		t += ", read-only"
	}
	if p.Total > 0 {
		t += fmt.Sprintf(", %s free of %s", text.Size(int64(p.Free)), text.Size(int64(p.Total)))
	}
	if p.Inodes > 0 {
		t += fmt.Sprintf(", %d files free", p.FreeInodes)
	}
	switch {
	case p.QuotaLimit > 0:
		t += fmt.Sprintf(", quota %s of %s", text.Size(int64(p.QuotaUsed)), text.Size(int64(p.QuotaLimit)))
	case p.Shared:
		t += ", quota not readable here (try: quota -s)"
		if p.Type == "lustre" {
			t = strings.Replace(t, "quota -s", "lfs quota -h "+p.Dir, 1)
		}
	}
	return t
}

// localFeature looks for node-local storage.
func localFeature() Feature {
	var why, exposed []string
	stage := os.Getenv("HPCC_STAGE")
	if !filepath.IsAbs(stage) { // 1, for --stage with every run
		stage = ""
	}
	for _, d := range []struct{ name, dir string }{
		{"HPCC_STAGE", stage}, {"TMPDIR", os.Getenv("TMPDIR")}, {"XDG_RUNTIME_DIR", os.Getenv("XDG_RUNTIME_DIR")},
		{"", "/tmp"}, {"", "/dev/shm"},
	} {
		if d.dir == "" || (d.name == "TMPDIR" && d.dir == "/tmp") {
			continue
		}
		p, err := files.SystemOf(d.dir)
		if err != nil || p.Write != nil || p.Shared || p.NoExec || p.Dir != d.dir || isFull(p) {
			continue
		}
		name := d.dir
		if d.name != "" {
			name = d.name + "=" + d.dir
		}
		if _, err := files.Trusted(d.dir); err != nil {
			exposed = append(exposed, fmt.Sprintf("%s is not used: %v", name, err))
			continue
		}
		why = append(why, name+" ("+fileSystemText(p)+")")
	}
	if len(why) == 0 {
		none := "no writable, executable, node-local directory (TMPDIR, XDG_RUNTIME_DIR, /tmp, /dev/shm)"
		return Feature{State: No, Why: strings.Join(append(exposed, none), "; "),
			Do: "set TMPDIR to the node's own disk", Ask: "is there a local disk on the nodes, mounted without noexec?"}
	}
	if len(exposed) > 0 {
		return Feature{State: Limited, Why: strings.Join(append(exposed, why...), "; "),
			Do: "set HPCC_STAGE to a directory of this node that only you can change"}
	}
	return Feature{State: OK, Why: strings.Join(why, "; ")}
}

// proxiesFeature reports the proxies for downloads, without passwords.
func proxiesFeature() Feature {
	var why []string
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"} {
		v := os.Getenv(name)
		if v == "" {
			continue
		}
		if u, err := url.Parse(v); err == nil && u.User != nil {
			v = u.Redacted()
		} else if strings.Contains(v, "@") {
			return Feature{State: Limited, Why: name + " is not an address", Do: "write " + name + "=http://HOST:PORT"}
		}
		why = append(why, name+"="+v)
	}
	if len(why) == 0 {
		return Feature{State: OK, Why: "not set: downloads use direct connections"}
	}
	return Feature{State: OK, Why: strings.Join(why, " ")}
}

// gitFeature looks for the programs that build contexts from repositories and RUN
// --mount=type=ssh need.
func gitFeature() Feature {
	var missing []string
	for _, n := range []string{"git", "ssh"} {
		if _, err := exec.LookPath(n); err != nil {
			missing = append(missing, n)
		}
	}
	agent := "no ssh agent (SSH_AUTH_SOCK)"
	if s := os.Getenv("SSH_AUTH_SOCK"); s != "" {
		if _, err := os.Stat(s); err != nil {
			agent = "SSH_AUTH_SOCK names a socket that does not exist"
		} else {
			agent = "an ssh agent"
		}
	}
	if len(missing) > 0 {
		return Feature{State: Limited, Why: "not on PATH: " + strings.Join(missing, ", ") +
			"; builds cannot fetch repositories", Do: "load a module that has them"}
	}
	return Feature{State: OK, Why: "git and ssh are on PATH; " + agent}
}

// Registry returns the check whether a registry answers.
func Registry(host string) Check {
	return Check{"registry " + host, false, func(ctx context.Context) Feature {
		if err := store.Ping(ctx, host); err != nil {
			return Feature{State: No, Why: err.Error(),
				Do:  "pull on a machine that reaches it, then use hpcc save and hpcc load; or set HTTPS_PROXY",
				Ask: "may this node open connections to " + host + "?"}
		}
		return Feature{State: OK, Why: "the registry answers"}
	}}
}

// limitsFeature reports resource limits that are too small for some commands.
func limitsFeature() Feature {
	f := Feature{State: OK, Why: "high enough for hpcc"}
	small := ""
	for _, l := range []struct {
		resource    int
		least, unit uint64
		format, fix string
	}{
		{unix.RLIMIT_NOFILE, 256, 1, "%d open files (-n)", "-n 1024"},
		{unix.RLIMIT_NPROC, 64, 1, "%d processes and threads (-u)", "-u 4096"},
		{unix.RLIMIT_AS, 2 << 30, 1024, "%d KiB of address space (-v)", "-v unlimited"},
		{unix.RLIMIT_DATA, 1 << 30, 1024, "%d KiB of data (-d)", "-d unlimited"},
		{unix.RLIMIT_FSIZE, 1 << 40, 1024, "%d KiB per file (-f)", "-f unlimited"},
		{unix.RLIMIT_CPU, 3600, 1, "%d s of CPU time (-t)", "-t unlimited"},
	} {
		var r unix.Rlimit
		if unix.Getrlimit(l.resource, &r) != nil || r.Cur >= l.least {
			continue
		}
		if small != "" {
			small, f.Do = small+", ", f.Do+"; "
		}
		small += fmt.Sprintf(l.format, r.Cur/l.unit)
		f.Do += "ulimit " + l.fix
	}
	if small != "" {
		f.State, f.Why = Limited, small
	}
	return f
}
