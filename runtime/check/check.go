// Package check reports whether an image runs under OpenShift's restricted-v2 policy or
// Kubernetes' Pod Security Standard "restricted".
//
// image ─► configuration, owners and modes of its files ─► findings, each with a fix
//
// The package reads layers and runs nothing. It reports every problem that follows from the
// user, the ports, and the owners and modes of files. It does not analyse scripts or
// programs.
package check

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/envfile"
	"hpcc/runtime/foreign"
	"hpcc/text"
	"hpcc/text/terminal"
	"hpcc/unpack"
)

// AnyUser is a USER that every cluster accepts as a user other than root. It is numeric,
// because Kubernetes does not accept a name. No account has this uid. Group 0 is the one that
// OpenShift assigns.
const AnyUser = "1001:0"

// A Finding is one result of the check. An error is a reason why the image does not run under
// the restrictions. A warning is a reason why part of it may fail. A note states what was not
// checked, or a limit that most programs never meet.
type Finding struct {
	Level   string `json:"level"` // "error", "warning" or "note"
	Rule    string `json:"rule"`  // kind of finding, one word
	Subject string `json:"subject"`
	Reason  string `json:"reason"`
	// Cure holds lines that fix the problem at the end of the Dockerfile, run as root. If
	// Replaces is set, they replace that line instead.
	Cure     []string `json:"cure,omitempty"`
	Replaces string   `json:"replaces,omitempty"`
}

// Write writes findings, errors first, as text or as JSON objects. It returns the number of errors.
func Write(w io.Writer, found []Finding, asJSON bool) (errs int, err error) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, level := range []string{"error", "warning", "note"} {
		for _, f := range found {
			if f.Level != level {
				continue
			}
			if level == "error" {
				errs++
			}
			if !asJSON {
				_, err = io.WriteString(w, f.text())
			} else {
				err = enc.Encode(struct {
					Type string `json:"type"`
					Finding
				}{"finding", f})
			}
			if err != nil {
				return errs, err
			}
		}
	}
	return errs, nil
}

// text returns the problem and the reason, then the lines that correct it.
func (f Finding) text() string {
	var b strings.Builder
	terminal.Rowf(&b, "%s: %s %s: %s\n", f.Level, f.Rule, f.Subject, f.Reason)
	for i, line := range f.Cure {
		if i == 0 && f.Replaces != "" {
			line += "    (instead of " + f.Replaces + ")"
		}
		terminal.Rowf(&b, "    %s\n", line)
	}
	return b.String()
}

// Image returns the reasons why an image would not run without root. It checks the
// configuration, and the owners and modes of the files of the programs that the image
// starts. Kubernetes' Pod Security Standard "restricted" requires the image to name a
// numeric user other than root. With openshift, the rules are those of OpenShift's
// restricted-v2, which assigns any uid in group 0. Both drop all capabilities and forbid
// gaining new ones.
func Image(ctx context.Context, img v1.Image, openshift bool) ([]Finding, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	files, err := unpack.List(ctx, img)
	if err != nil {
		return nil, err
	}
	x := &examiner{ctx: ctx, files: files, cfg: &cfg.Config, openshift: openshift, uid: unknownUID}
	x.passwd, x.group = x.text("/etc/passwd"), x.text("/etc/group")
	x.user()
	x.ports()
	x.programs(x.commandLine())
	x.directories()
	x.variables()
	x.services()
	x.userNames()
	// USER comes last, because the other lines run as root.
	slices.SortStableFunc(x.found, func(a, b Finding) int { return cmp.Compare(userLast(a), userLast(b)) })
	return x.found, x.err
}

// userLast is a sort key that puts findings about USER last.
func userLast(f Finding) int {
	if f.Rule == "user" {
		return 1
	}
	return 0
}

// unknownUID represents a uid that the cluster chooses.
const unknownUID = 1000680000

// maxScript bounds the size of a script or passwd file, in bytes.
const maxScript = 1 << 20

// An examiner checks one image.
type examiner struct {
	ctx           context.Context
	files         *unpack.Files
	cfg           *v1.Config
	openshift     bool
	passwd, group string
	uid, gid      int             // IDs of the programs in the pod
	hasEntry      bool            // the command line begins with "hpcc entry"
	ran           map[string]bool // started programs, by path
	programNames  []string        // names under which they were started
	found         []Finding
	err           error // first error of reading a file of the image
}

// add records a finding. It keeps only the first of the most severe findings for a rule and
// subject.
func (x *examiner) add(f Finding) {
	switch i := slices.IndexFunc(x.found, func(g Finding) bool { return g.Rule == f.Rule && g.Subject == f.Subject }); {
	case i < 0:
		x.found = append(x.found, f)
	case f.Level == "error" && x.found[i].Level != "error":
		x.found[i] = f
	}
}

// text returns the content of a small file, or "".
func (x *examiner) text(p string) string {
	_, f, err := x.files.Resolve(p, nil)
	if err != nil || f.Kind != 0 {
		return ""
	}
	b, err := x.files.Read(x.ctx, f, maxScript)
	if err != nil {
		x.err = cmp.Or(x.err, err)
	}
	return string(b)
}

// Permission bits of chmod(2) for one class.
const (
	mayRead, mayWrite, mayExecute = 4, 2, 1
)

// may reports whether the pod's user has all the given permissions for a file.
func (x *examiner) may(f *unpack.File, permissions uint32) bool {
	bits := f.Perm
	switch {
	case f.UID == x.uid:
		bits >>= 6
	case f.GID == x.gid:
		bits >>= 3
	}
	return bits&permissions == permissions
}

// reach resolves a path. blocked is the first directory on the path that the pod's user may not
// enter.
func (x *examiner) reach(p string) (real string, f *unpack.File, blocked string, err error) {
	real, f, err = x.files.Resolve(p, func(dir string, d *unpack.File) {
		if blocked == "" && !x.may(d, mayExecute) {
			blocked = dir
		}
	})
	return real, f, blocked, err
}

// writable reports whether files can be created in a directory, or the directory itself can
// be created.
func (x *examiner) writable(p string) bool {
	real, f, blocked, err := x.reach(p)
	for errors.Is(err, fs.ErrNotExist) && blocked == "" && real != "/" {
		real, f, blocked, err = x.reach(path.Dir(real))
	}
	return err == nil && blocked == "" && f.Kind == fs.ModeDir && x.may(f, mayWrite|mayExecute)
}

// holdsFiles reports whether a directory has entries and the pod's user may enter it. A program may
// only need to read those; an empty directory is there to be written.
func (x *examiner) holdsFiles(p string) bool {
	_, f, blocked, err := x.reach(p)
	return err == nil && blocked == "" && f.Kind == fs.ModeDir && x.may(f, mayExecute) && len(f.Names()) > 0
}

// stat reports whether a path exists and whether it is a directory.
func (x *examiner) stat(p string) (exists, isDir bool) {
	_, f, err := x.files.Resolve(p, nil)
	return err == nil, err == nil && f.Kind == fs.ModeDir
}

// makeWritable returns the Dockerfile lines that make a directory writable for the pod's user.
func (x *examiner) makeWritable(dir string) []string {
	line := "RUN "
	if exists, _ := x.stat(dir); !exists {
		line += "mkdir -p " + text.Quote(dir) + " && "
	}
	if x.gid == 0 {
		return []string{line + fmt.Sprintf("chgrp -R 0 %[1]s && chmod -R g=u %[1]s", text.Quote(dir))}
	}
	return []string{line + fmt.Sprintf("chown -R %d:%d %s", x.uid, x.gid, text.Quote(dir))}
}

// user checks USER and sets the IDs of the programs in the pod.
func (x *examiner) user() {
	name, group, _ := strings.Cut(x.cfg.User, ":")
	number, err := strconv.Atoi(name)
	root := name == "" || name == "root" || (err == nil && number == 0)
	switch {
	case x.openshift && root:
		x.add(Finding{Level: "warning", Rule: "user", Subject: cmp.Or(name, "root"),
			Reason: "the image runs as root; OpenShift assigns it another uid, in group 0", Cure: []string{"USER " + AnyUser}})
	case x.openshift:
	case root:
		x.add(Finding{Level: "error", Rule: "user", Subject: cmp.Or(name, "root"),
			Reason: "the image runs as root, which runAsNonRoot forbids", Cure: []string{"USER " + AnyUser}})
	case err != nil:
		f := accountLine(x.passwd, 0, name)
		cure := AnyUser
		if len(f) > 3 {
			x.uid, cure = atoi(f[2]), f[2]
			x.gid = atoi(f[3])
		}
		x.add(Finding{Level: "error", Rule: "user", Subject: name,
			Reason: "USER is a name; Kubernetes accepts only a numeric user as non-root", Cure: []string{"USER " + cure}})
	default:
		x.uid = number
		if f := accountLine(x.passwd, 2, name); len(f) > 3 {
			x.gid = atoi(f[3])
		}
	}
	if g, err := strconv.Atoi(group); err == nil && !x.openshift {
		x.gid = g
	} else if f := accountLine(x.group, 0, group); len(f) > 2 && !x.openshift {
		x.gid = atoi(f[2])
	}
}

// accountLine returns the fields of the line of a passwd or group file whose field n is
// value.
func accountLine(file string, n int, value string) []string {
	for l := range strings.Lines(file) {
		if f := strings.Split(strings.TrimSpace(l), ":"); value != "" && len(f) > n && f[n] == value {
			return f
		}
	}
	return nil
}

// atoi parses an ID in a passwd or group file. For an invalid one it returns an ID that no
// account has.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return unknownUID
	}
	return n
}

// ports checks EXPOSE. The container runtime sets the first port that is free for all: CRI-O, which
// OpenShift has, leaves the kernel's 1024, and containerd since 2.0 sets 0.
func (x *examiner) ports() {
	for _, p := range slices.Sorted(maps.Keys(x.cfg.ExposedPorts)) {
		number, proto, _ := strings.Cut(p, "/")
		n, err := strconv.Atoi(number)
		if err != nil || n == 0 || n >= 1024 {
			continue
		}
		other := 8000 + n
		level, reason := "error", "CRI-O lets no program without capabilities listen on a port below 1024; use a higher port and let a Service map it"
		if !x.openshift {
			level, reason = "warning", "containerd before 2.0 and CRI-O let no program without capabilities listen on a port below 1024, unless the pod sets net.ipv4.ip_unprivileged_port_start; use a higher port and let a Service map it"
		}
		if proto != "" && proto != "tcp" {
			proto = "/" + proto
		} else {
			proto = ""
		}
		x.add(Finding{Level: level, Rule: "port", Subject: p, Reason: reason,
			Replaces: fmt.Sprintf("EXPOSE %d%s", n, proto), Cure: []string{fmt.Sprintf("EXPOSE %d%s", other, proto)}})
		for _, kv := range x.cfg.Env {
			if name, value, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "PORT") && value == number {
				x.add(Finding{Level: level, Rule: "port", Subject: kv,
					Reason: "the variable appears to set the program's port", Cure: []string{fmt.Sprintf("ENV %s=%d", name, other)}})
			}
		}
	}
}

// directories checks the working directory, the home, the volumes and /tmp.
func (x *examiner) directories() {
	const notWritable = "the pod's user may not write to it"
	if d := path.Clean("/" + x.cfg.WorkingDir); d != "/" && !x.writable(d) {
		f := Finding{Level: "error", Rule: "workdir", Subject: d, Reason: "it is the working directory, and " +
			notWritable, Cure: x.makeWritable(d)}
		if IsSystemDir(d) {
			f.Cure = append(x.makeWritable("/app"), "WORKDIR /app")
		}
		if x.holdsFiles(d) {
			f.Level, f.Reason = "note", "it is the working directory, and the pod's user may only read it: relative paths of results fail"
		}
		x.add(f)
	}
	for _, d := range slices.Sorted(maps.Keys(x.cfg.Volumes)) {
		if d = path.Clean("/" + d); !x.writable(d) {
			x.add(Finding{Level: "error", Rule: "volume", Subject: d, Reason: "it is a VOLUME, and " + notWritable,
				Cure: x.makeWritable(d)})
		}
	}
	if exists, isDir := x.stat("/tmp"); exists && isDir && !x.writable("/tmp") {
		x.add(Finding{Level: "error", Rule: "tmp", Subject: "/tmp", Reason: notWritable, Cure: []string{"RUN chmod 1777 /tmp"}})
	}
	x.home()
	x.unreadable(path.Clean("/" + x.cfg.WorkingDir))
}

// home checks HOME: the value in the image, or the default that container runtimes set.
func (x *examiner) home() {
	home, set := envfile.Lookup(x.cfg.Env, "HOME"), true
	if home == "" {
		home, set = "/", false
		if f := accountLine(x.passwd, 2, strconv.Itoa(x.uid)); len(f) > 5 {
			home = f[5]
		}
	}
	if (x.hasEntry && (x.writable("/tmp") || x.writable("/var/tmp"))) || (path.Clean(home) != "/" && x.writable(home)) {
		return
	}
	f := Finding{Level: "warning", Rule: "home", Subject: home,
		Reason: "HOME is / for a user without a passwd entry: programs that write caches or settings there fail",
		Cure:   append(x.makeWritable("/home/user"), "ENV HOME=/home/user")}
	switch {
	case set && !IsSystemDir(path.Clean(home)):
		f.Level, f.Reason, f.Cure = "error", "the image sets HOME to it, and the pod's user may not write to it",
			x.makeWritable(path.Clean(home))
	case set:
		f.Level, f.Reason = "error", "the image sets HOME to it, and the pod's user may not write to it"
	case home != "/":
		f.Reason = "it is the user's home, and the pod's user may not write to it"
	}
	x.add(f)
}

// writtenSuffixes lists suffixes of variables for directories to which programs write.
var writtenSuffixes = []string{"_CACHE_DIR", "_CACHE_HOME", "_CACHE_PATH", "_LOG_DIR", "_LOGS_DIR",
	"_RUN_DIR", "_RUNTIME_DIR", "_TMP_DIR", "_TEMP_DIR", "_OUTPUT_DIR", "_STATE_HOME"}

// writtenVariables lists other variables for such directories.
var writtenVariables = []string{"TMPDIR", "TMP", "TEMP", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "PGDATA",
	"HF_HOME", "TORCH_HOME", "TRANSFORMERS_CACHE", "RAY_TMPDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR",
	"WANDB_DIR", "OUTPUT_DIR", "LOG_DIR", "LOGDIR", "CACHE_DIR"}

// variables checks the directories in environment variables: those to which programs write,
// and those from which programs and libraries are loaded.
func (x *examiner) variables() {
	for _, kv := range x.cfg.Env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case name == "PYTHONPATH" || name == "LD_LIBRARY_PATH" || name == "NODE_PATH" || name == "PATH":
			for _, d := range strings.Split(value, ":") {
				x.searchPathDir(name, d)
			}
			continue
		case !path.IsAbs(value) || (x.hasEntry && slices.Contains(foreign.Variables(), name)):
			continue
		}
		if !slices.Contains(writtenVariables, name) &&
			!slices.ContainsFunc(writtenSuffixes, func(end string) bool { return strings.HasSuffix(name, end) }) {
			continue
		}
		d := path.Clean(value)
		exists, isDir := x.stat(d)
		if (exists && !isDir) || x.writable(d) {
			continue
		}
		f := Finding{Level: "error", Rule: "variable", Subject: name + "=" + value,
			Reason: "programs write to this directory, and the pod's user may not", Cure: x.makeWritable(d)}
		if _, at, err := x.files.Resolve(d, nil); err == nil && len(at.Names()) > 0 {
			f.Level, f.Reason = "warning", "programs may need to write to this directory, but the pod's user may only read it and its files"
		}
		x.add(f)
	}
}

// searchPathDir checks a directory of a search path. If it exists, it must be accessible.
func (x *examiner) searchPathDir(variable, dir string) {
	if !path.IsAbs(dir) {
		return
	}
	real, f, blocked, err := x.reach(dir)
	if err != nil || f.Kind != fs.ModeDir || (blocked == "" && x.may(f, mayExecute)) {
		return
	}
	level := "error"
	if variable == "PATH" { // programs that are started from it have their own findings
		level = "warning"
	}
	x.add(Finding{Level: level, Rule: "unreadable", Subject: dir,
		Reason: variable + " contains it, and the pod's user may not enter it", Cure: x.makeReadable(blocked, real)})
}

// makeReadable returns the Dockerfile lines that let all users enter the directory blocked and
// read the tree.
func (x *examiner) makeReadable(blocked, tree string) []string {
	line := "RUN chmod -R a+rX " + text.Quote(tree)
	if blocked != "" && blocked != tree {
		line = "RUN chmod a+x " + text.Quote(blocked) + " && chmod -R a+rX " + text.Quote(tree)
	}
	return []string{line}
}

// unreadable checks the files below a program's own directory.
func (x *examiner) unreadable(dir string) {
	real, d, err := x.files.Resolve(dir, nil)
	if err != nil || d.Kind != fs.ModeDir || IsSystemDir(real) {
		return
	}
	n, first := 0, ""
	var walk func(p string, d *unpack.File)
	walk = func(p string, d *unpack.File) {
		for _, base := range d.Names() {
			f, full := d.At(base), path.Join(p, base)
			blocked := f.Kind == fs.ModeDir && !x.may(f, mayRead|mayExecute)
			if blocked || (f.Kind == 0 && !x.may(f, mayRead)) {
				if n++; n == 1 {
					first = full
				}
			}
			if f.Kind == fs.ModeDir && !blocked {
				walk(full, f)
			}
		}
	}
	walk(real, d)
	if n == 0 {
		return
	}
	reason := "the pod's user may not read it"
	if n == 2 {
		reason = "the pod's user may not read it or another file or directory in " + dir
	} else if n > 2 {
		reason = fmt.Sprintf("the pod's user may not read it or %d other files and directories in %s", n-1, dir)
	}
	x.add(Finding{Level: "error", Rule: "unreadable", Subject: first, Reason: reason, Cure: x.makeReadable("", real)})
}

// services checks the directories to which known services write.
func (x *examiner) services() {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(x.programNames))) {
		for _, d := range serviceDirs[name] {
			real, f, err := x.files.Resolve(d, nil)
			if err != nil || f.Kind != fs.ModeDir || x.writable(d) {
				continue
			}
			x.add(Finding{Level: "error", Rule: "service", Subject: d,
				Reason: name + " writes to it, and the pod's user may not", Cure: x.makeWritable(real)})
		}
		if why := rootServices[name]; why != "" {
			x.add(Finding{Level: "error", Rule: "service", Subject: name, Reason: why})
		}
	}
}

// serviceDirs lists directories to which services write if the image has them.
var serviceDirs = map[string][]string{
	"nginx":          {"/var/cache/nginx", "/var/lib/nginx", "/var/log/nginx", "/run", "/run/nginx"},
	"apache2":        {"/run/apache2", "/var/lock/apache2", "/run/lock/apache2", "/var/log/apache2"},
	"apache2ctl":     {"/run/apache2", "/var/lock/apache2", "/run/lock/apache2", "/var/log/apache2"},
	"httpd":          {"/run/httpd", "/var/log/httpd", "/usr/local/apache2/logs"},
	"redis-server":   {"/var/lib/redis"},
	"postgres":       {"/var/lib/postgresql", "/run/postgresql"},
	"mysqld":         {"/var/lib/mysql", "/run/mysqld"},
	"mariadbd":       {"/var/lib/mysql", "/run/mysqld"},
	"mongod":         {"/data/db", "/var/lib/mongodb"},
	"supervisord":    {"/var/log/supervisor", "/run"},
	"rserver":        {"/var/lib/rstudio-server", "/run/rstudio-server"},
	"rstudio-server": {"/var/lib/rstudio-server", "/run/rstudio-server"},
	"munged":         {"/run/munge", "/var/lib/munge", "/var/log/munge"},
}

// rootServices lists services that only root can run.
var rootServices = map[string]string{
	"sshd":    "it reads root's host keys and switches to the user who logs in: use \"kubectl exec\" or \"hpcc attach\"",
	"cron":    "it switches to the owner of each job: use a CronJob",
	"crond":   "it switches to the owner of each job: use a CronJob",
	"dockerd": "it needs root: build with \"hpcc build\"",
}

// needUserName lists programs that fail if getpwuid(3) finds no name for their uid.
var needUserName = []string{"ssh", "mpirun", "mpiexec", "orted", "prte", "ray", "psql"}

// userNames checks that programs which need a user name will have one.
func (x *examiner) userNames() {
	if accountLine(x.passwd, 2, strconv.Itoa(x.uid)) != nil {
		return
	}
	_, passwd, err := x.files.Resolve("/etc/passwd", nil)
	if x.hasEntry && ((err == nil && x.may(passwd, mayWrite)) || x.hasLibrary("libnss_wrapper.so")) {
		return
	}
	var have []string
	for _, name := range needUserName {
		if p, _, _ := x.lookPath(name); p != "" {
			have = append(have, name)
		}
	}
	if len(have) == 0 {
		return
	}
	reason := "getpwuid(3) finds no name for the uid"
	if x.openshift {
		reason += ", unless the cluster's runtime (CRI-O) adds it to /etc/passwd"
	}
	x.add(Finding{Level: "warning", Rule: "name", Subject: strings.Join(have, " "),
		Reason: reason + ": build with --entry, and make /etc/passwd writable for group 0",
		Cure:   []string{"RUN chgrp 0 /etc/passwd && chmod g=u /etc/passwd"}})
}

// hasLibrary reports whether a library is in one of the usual directories of dynamic loaders.
func (x *examiner) hasLibrary(name string) bool {
	for _, d := range []string{"/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/opt/conda/lib"} {
		_, dir, err := x.files.Resolve(d, nil)
		if err != nil {
			continue
		}
		if dir.At(name) != nil {
			return true
		}
		for _, sub := range dir.Names() {
			if f := dir.At(sub); strings.Contains(sub, "-linux-gnu") && f.Kind == fs.ModeDir && f.At(name) != nil {
				return true
			}
		}
	}
	return false
}

// commandLine returns the image's default argv.
func (x *examiner) commandLine() []string {
	return slices.Concat(x.cfg.Entrypoint, x.cfg.Cmd)
}

// interpreterOf returns the interpreter and its arguments from a script's first line.
func interpreterOf(script string) []string {
	head, _, _ := strings.Cut(script, "\n")
	return strings.Fields(strings.TrimPrefix(head, "#!"))
}

// systemDirs lists directories that do not belong to a single program, even if one starts
// there.
var systemDirs = []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media",
	"/mnt", "/opt", "/proc", "/root", "/run", "/sbin",
	"/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin",
	"/usr/local/lib", "/usr/sbin", "/usr/share", "/var", "/var/lib", "/var/log", "/var/tmp"}

// systemBelow lists directories below which nothing belongs to a single program.
var systemBelow = []string{"/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/",
	"/sys/", "/usr/bin/", "/usr/lib/", "/usr/lib64/", "/usr/sbin/"}

// IsSystemDir reports whether a directory, given as a clean path, belongs to the system and
// not to one program.
func IsSystemDir(dir string) bool {
	return slices.Contains(systemDirs, dir) || slices.ContainsFunc(systemBelow,
		func(prefix string) bool { return strings.HasPrefix(dir, prefix) })
}
