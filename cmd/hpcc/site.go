package main

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

	"hpcc/job/dispatch"
	"hpcc/runtime/probe"
	"hpcc/store"
	"hpcc/store/disk"
	"hpcc/store/owndir"

	"golang.org/x/sys/unix"
)

// siteChecks are those of what lies around the machine: file systems,
// schedulers, the network's entrances.
func siteChecks(dir string) []probe.Check {
	return []probe.Check{
		{Name: "store", Look: func(context.Context) probe.Feature { return storeFeature(dir) }},
		{Name: "node-local storage", Look: func(context.Context) probe.Feature { return localFeature() }},
		{Name: "limits", Look: func(context.Context) probe.Feature { return limitsFeature() }},
		{Name: "schedulers", Look: schedulersFeature},
		{Name: "sites", Look: sitesFeature},
		{Name: "proxies", Look: func(context.Context) probe.Feature { return proxiesFeature() }},
		{Name: "git and ssh", Look: func(context.Context) probe.Feature { return gitFeature() }},
	}
}

// What is little and what is too little for an image.
const (
	littleSpace, noSpace   = 2 << 30, 16 << 20 // bytes
	littleInodes, noInodes = 20_000, 200
)

// storeFeature judges the file system where images are kept.
func storeFeature(dir string) probe.Feature {
	p, err := disk.LookAt(dir + "/tmp")
	if err != nil {
		return probe.Feature{State: probe.No, Why: err.Error(), Do: "set HPCC_STORE to a directory that you can write to"}
	}
	if err := store.Exposed(dir); err != nil {
		why, do, _ := strings.Cut(err.Error(), "; ")
		return probe.Feature{State: probe.No, Why: fmt.Sprintf("%s: refused: %s", dir, why), Do: do}
	}
	_, exposed, _ := owndir.Walk(dir)
	f := probe.Feature{State: probe.OK, Why: dir + ": " + placeText(p)}
	const elsewhere = "set HPCC_STORE to a directory on another file system"
	is := func(s probe.State, do string, format string, a ...any) probe.Feature {
		f.State, f.Do, f.Why = s, do, fmt.Sprintf(format, a...)+"; "+f.Why
		return f
	}
	switch {
	case crowded(p):
		return is(probe.No, "free space there, run \"hpcc gc\", or "+elsewhere, "full: what is there runs, nothing can be pulled or built")
	case p.Write != nil:
		return is(probe.No, elsewhere, "not writable (%v): what is there runs, nothing can be pulled or built", p.Write)
	case p.NoExec:
		return is(probe.No, elsewhere, "mounted noexec: no program of an image can be executed")
	case p.Owner != os.Geteuid():
		return is(probe.Limited, "use hpcc as an ordinary user", "files that you make belong to uid %d: the server squashes your id", p.Owner)
	case p.HardLink != nil:
		return is(probe.Limited, elsewhere, "no hard links (%v): of images that have some each is a file of its own", p.HardLink)
	case p.XAttr != nil:
		return is(probe.Limited, elsewhere, "no user attributes (%v): builds copy the tree for each step, and keep no owners, set-id bits and capabilities", p.XAttr)
	case (p.Total > 0 && p.Free < littleSpace) || (p.Inodes > 0 && p.FreeInodes < littleInodes) || (p.QuotaLimit > 0 && p.QuotaLimit < p.QuotaUsed+littleSpace):
		return is(probe.Limited, "run \"hpcc gc\" or "+elsewhere, "nearly full")
	case len(exposed) > 0:
		return is(probe.Limited, "set HPCC_STORE to a directory that only you can change, unless you trust them", "%v", exposed[0])
	}
	if p.Type == "nfs" || p.Type == "lustre" {
		f.Why += "; root-squash does no harm: everything is written as you"
	}
	return f
}

// crowded says whether no image finds room. A file system that counts nothing,
// such as one in memory without a limit, says 0 of 0.
func crowded(p disk.Place) bool {
	return errors.Is(p.Write, syscall.ENOSPC) || errors.Is(p.Write, syscall.EDQUOT) || (!p.ReadOnly && ((p.Total > 0 && p.Free < noSpace) || (p.Inodes > 0 && p.FreeInodes < noInodes)))
}

// placeText says what a file system is and what is left of it.
func placeText(p disk.Place) string {
	t := p.Type
	if p.Shared {
		t += ", shared"
	}
	if p.ReadOnly {
		t += ", read-only"
	}
	if p.Total > 0 {
		t += fmt.Sprintf(", %s free of %s", size(int64(p.Free)), size(int64(p.Total)))
	}
	if p.Inodes > 0 {
		t += fmt.Sprintf(", %d files free", p.FreeInodes)
	}
	switch {
	case p.QuotaLimit > 0:
		t += fmt.Sprintf(", quota %s of %s", size(int64(p.QuotaUsed)), size(int64(p.QuotaLimit)))
	case p.Shared:
		t += ", quota not readable here (try: quota -s)"
		if p.Type == "lustre" {
			t = strings.Replace(t, "quota -s", "lfs quota -h "+p.Dir, 1)
		}
	}
	return t
}

// localFeature looks for storage of this node alone.
func localFeature() probe.Feature {
	var why, exposed []string
	stage := os.Getenv("HPCC_STAGE")
	if !filepath.IsAbs(stage) { // 1, for --stage with every run
		stage = ""
	}
	for _, d := range []struct{ name, dir string }{
		{"HPCC_STAGE", stage}, {"TMPDIR", os.Getenv("TMPDIR")}, {"XDG_RUNTIME_DIR", os.Getenv("XDG_RUNTIME_DIR")}, {"", "/tmp"}, {"", "/dev/shm"},
	} {
		if d.dir == "" || (d.name == "TMPDIR" && d.dir == "/tmp") {
			continue
		}
		p, err := disk.LookAt(d.dir)
		if err != nil || p.Write != nil || p.Shared || p.NoExec || p.Dir != d.dir || crowded(p) {
			continue
		}
		name := d.dir
		if d.name != "" {
			name = d.name + "=" + d.dir
		}
		if _, err := owndir.Place(d.dir); err != nil {
			exposed = append(exposed, fmt.Sprintf("%s is not used: %v", name, err))
			continue
		}
		why = append(why, name+" ("+placeText(p)+")")
	}
	if len(why) == 0 {
		none := "no writable directory of this node alone that allows programs (TMPDIR, XDG_RUNTIME_DIR, /tmp, /dev/shm)"
		return probe.Feature{State: probe.No, Why: strings.Join(append(exposed, none), "; "),
			Do: "set TMPDIR to the node's own disk", Ask: "is there a local disk on the nodes, mounted without noexec?"}
	}
	if len(exposed) > 0 {
		return probe.Feature{State: probe.Limited, Why: strings.Join(append(exposed, why...), "; "), Do: "set HPCC_STAGE to a directory of this node that only you can change"}
	}
	return probe.Feature{State: probe.OK, Why: strings.Join(why, "; ")}
}

// schedulersFeature says which schedulers are here and which of them answer.
func schedulersFeature(ctx context.Context) probe.Feature {
	var why []string
	f := probe.Feature{State: probe.OK}
	for _, s := range dispatch.Schedulers(ctx) {
		text := s.Name
		if s.Version != "" {
			text += " (" + s.Version + ")"
		}
		if s.Err != nil {
			f.State, text = probe.Limited, fmt.Sprintf("%s does not answer: %v", text, s.Err)
		}
		why = append(why, text)
	}
	if f.Why = strings.Join(why, "; "); f.Why == "" {
		return probe.Feature{State: probe.No, Why: "none on PATH; jobs run here (--target local)"}
	}
	return f
}

// proxiesFeature says which way downloads go. Passwords in addresses are not shown.
func proxiesFeature() probe.Feature {
	var why []string
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"} {
		v := os.Getenv(name)
		if v == "" {
			continue
		}
		if u, err := url.Parse(v); err == nil && u.User != nil {
			v = u.Redacted()
		} else if strings.Contains(v, "@") {
			return probe.Feature{State: probe.Limited, Why: name + " is not an address", Do: "write " + name + "=http://HOST:PORT"}
		}
		why = append(why, name+"="+v)
	}
	if len(why) == 0 {
		return probe.Feature{State: probe.OK, Why: "none set: downloads go straight out"}
	}
	return probe.Feature{State: probe.OK, Why: strings.Join(why, " ")}
}

// gitFeature looks for what contexts from repositories and RUN --mount=type=ssh use.
func gitFeature() probe.Feature {
	var missing []string
	for _, n := range []string{"git", "ssh"} {
		if _, err := exec.LookPath(n); err != nil {
			missing = append(missing, n)
		}
	}
	agent := "no ssh agent (SSH_AUTH_SOCK)"
	if s := os.Getenv("SSH_AUTH_SOCK"); s != "" {
		if _, err := os.Stat(s); err != nil {
			agent = "SSH_AUTH_SOCK leads nowhere"
		} else {
			agent = "an ssh agent"
		}
	}
	if len(missing) > 0 {
		return probe.Feature{State: probe.Limited, Why: "not on PATH: " + strings.Join(missing, ", ") + "; builds cannot fetch repositories", Do: "load a module that has them"}
	}
	return probe.Feature{State: probe.OK, Why: "git and ssh are on PATH; " + agent}
}

// registryFeature asks whether a registry answers.
func registryFeature(ctx context.Context, host string) probe.Feature {
	if err := store.Ping(ctx, host); err != nil {
		return probe.Feature{State: probe.No, Why: err.Error(), Do: "pull on a machine that reaches it, then hpcc save and hpcc load; or set HTTPS_PROXY", Ask: "may this node open connections to " + host + "?"}
	}
	return probe.Feature{State: probe.OK, Why: "it answers"}
}

// limitsFeature reports resource limits that are too small for some commands.
func limitsFeature() probe.Feature {
	f := probe.Feature{State: probe.OK, Why: "none that hpcc meets"}
	small := ""
	for _, l := range []struct {
		resource    int
		least, unit uint64
		what, cure  string
	}{
		{unix.RLIMIT_NOFILE, 256, 1, "%d open files (-n)", "-n 1024"},
		{unix.RLIMIT_NPROC, 64, 1, "%d processes and threads (-u)", "-u 4096"},
		{unix.RLIMIT_AS, 2 << 30, 1024, "%d KiB of address space (-v)", "-v unlimited"},
		{unix.RLIMIT_DATA, 1 << 30, 1024, "%d KiB of data (-d)", "-d unlimited"},
		{unix.RLIMIT_FSIZE, 1 << 40, 1024, "%d KiB a file (-f)", "-f unlimited"},
		{unix.RLIMIT_CPU, 3600, 1, "%d s of CPU time (-t)", "-t unlimited"},
	} {
		var r unix.Rlimit
		if unix.Getrlimit(l.resource, &r) != nil || r.Cur >= l.least {
			continue
		}
		if small != "" {
			small, f.Do = small+", ", f.Do+"; "
		}
		small += fmt.Sprintf(l.what, r.Cur/l.unit)
		f.Do += "ulimit " + l.cure
	}
	if small != "" {
		f.State, f.Why = probe.Limited, small
	}
	return f
}
