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
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/envfile"
	"hpcc/runtime/foreign"
	"hpcc/unpack"
)

// AnyUser is a USER that every cluster accepts as a user other than root. It is a number
// because Kubernetes does not accept a name. No account has the number, and the group is
// that of OpenShift's users.
const AnyUser = "1001:0"

// A Finding is a reason why an image does not run under the restrictions, or as a warning,
// why part of it may fail. A note states what was not checked.
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

// Image returns the reasons why an image would not run without root. It checks the
// configuration, and the owners and modes of the files of the programs with which the image
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
	x.names()
	// USER comes last, because the other lines run as root.
	slices.SortStableFunc(x.found, func(a, b Finding) int { return cmp.Compare(isUser(a), isUser(b)) })
	return x.found, x.err
}

func isUser(f Finding) int {
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
	uid, gid      int // IDs of the programs in the pod
	entry         bool
	ran           map[string]bool // started programs, by path
	called        []string        // their names
	found         []Finding
	err           error // error of reading the image
}

// add records a finding. Among several for the same subject, it keeps the first of the most
// severe.
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

// may reports whether the pod's user has all these permissions for a file.
func (x *examiner) may(f *unpack.File, rights uint32) bool {
	bits := f.Perm
	switch {
	case f.UID == x.uid:
		bits >>= 6
	case f.GID == x.gid:
		bits >>= 3
	}
	return bits&rights == rights
}

// reach resolves a path. shut is the first directory on the path that the pod's user may not
// enter.
func (x *examiner) reach(p string) (real string, f *unpack.File, shut string, err error) {
	real, f, err = x.files.Resolve(p, func(dir string, d *unpack.File) {
		if shut == "" && !x.may(d, mayExecute) {
			shut = dir
		}
	})
	return real, f, shut, err
}

// writable reports whether files can be created in a directory, or the directory itself can
// be created.
func (x *examiner) writable(p string) bool {
	real, f, shut, err := x.reach(p)
	for errors.Is(err, fs.ErrNotExist) && shut == "" && real != "/" {
		real, f, shut, err = x.reach(path.Dir(real))
	}
	return err == nil && shut == "" && f.Kind == fs.ModeDir && x.may(f, mayWrite|mayExecute)
}

// there reports whether a path exists and whether it is a directory.
func (x *examiner) there(p string) (exists, dir bool) {
	_, f, err := x.files.Resolve(p, nil)
	return err == nil, err == nil && f.Kind == fs.ModeDir
}

// share returns the Dockerfile lines that make a directory writable for the pod's user.
func (x *examiner) share(dir string) []string {
	line := "RUN "
	if exists, _ := x.there(dir); !exists {
		line += "mkdir -p " + shellWord(dir) + " && "
	}
	if x.gid == 0 {
		return []string{line + fmt.Sprintf("chgrp -R 0 %[1]s && chmod -R g=u %[1]s", shellWord(dir))}
	}
	return []string{line + fmt.Sprintf("chown -R %d:%d %s", x.uid, x.gid, shellWord(dir))}
}

// shellWord quotes a path for the shell.
func shellWord(p string) string {
	if strings.Trim(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@%") == "" {
		return p
	}
	return "'" + strings.ReplaceAll(p, "'", `'\''`) + "'"
}

// user checks USER and sets the IDs of the programs in the pod.
func (x *examiner) user() {
	name, group, _ := strings.Cut(x.cfg.User, ":")
	number, err := strconv.Atoi(name)
	root := name == "" || name == "root" || (err == nil && number == 0)
	switch {
	case x.openshift && root:
		x.add(Finding{Level: "warning", Rule: "user", Subject: cmp.Or(name, "root"), Reason: "the image runs as root; OpenShift assigns it another uid, in group 0", Cure: []string{"USER " + AnyUser}})
	case x.openshift:
	case root:
		x.add(Finding{Level: "error", Rule: "user", Subject: cmp.Or(name, "root"), Reason: "the image runs as root, which runAsNonRoot forbids", Cure: []string{"USER " + AnyUser}})
	case err != nil:
		f := accountLine(x.passwd, 0, name)
		cure := AnyUser
		if len(f) > 3 {
			x.uid, cure = atoi(f[2]), f[2]
			x.gid = atoi(f[3])
		}
		x.add(Finding{Level: "error", Rule: "user", Subject: name, Reason: "USER is a name; Kubernetes accepts only a numeric user as non-root", Cure: []string{"USER " + cure}})
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

// atoi parses a number of passwd. An invalid number gives an ID that no account has.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return unknownUID
	}
	return n
}

// ports checks EXPOSE.
func (x *examiner) ports() {
	for _, p := range slices.Sorted(maps.Keys(x.cfg.ExposedPorts)) {
		number, proto, _ := strings.Cut(p, "/")
		n, err := strconv.Atoi(number)
		if err != nil || n == 0 || n >= 1024 {
			continue
		}
		other := 8000 + n
		if proto != "" && proto != "tcp" {
			proto = "/" + proto
		} else {
			proto = ""
		}
		x.add(Finding{Level: "error", Rule: "port", Subject: p, Reason: "listening on a port below 1024 needs a capability; use a higher port and let a Service map it",
			Replaces: fmt.Sprintf("EXPOSE %d%s", n, proto), Cure: []string{fmt.Sprintf("EXPOSE %d%s", other, proto)}})
		for _, kv := range x.cfg.Env {
			if name, value, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "PORT") && value == number {
				x.add(Finding{Level: "error", Rule: "port", Subject: kv, Reason: "the variable appears to set the program's port", Cure: []string{fmt.Sprintf("ENV %s=%d", name, other)}})
			}
		}
	}
}

// directories checks the working directory, the home, the volumes and /tmp.
func (x *examiner) directories() {
	const not = "the pod's user may not write to it"
	if d := path.Clean("/" + x.cfg.WorkingDir); d != "/" && !x.writable(d) {
		f := Finding{Level: "error", Rule: "workdir", Subject: d, Reason: "it is the working directory, and" + not, Cure: x.share(d)}
		if IsSystemDir(d) {
			f.Cure = append(x.share("/app"), "WORKDIR /app")
		}
		x.add(f)
	}
	for _, d := range slices.Sorted(maps.Keys(x.cfg.Volumes)) {
		if d = path.Clean("/" + d); !x.writable(d) {
			x.add(Finding{Level: "error", Rule: "volume", Subject: d, Reason: "it is a VOLUME, and " + not, Cure: x.share(d)})
		}
	}
	if exists, dir := x.there("/tmp"); exists && dir && !x.writable("/tmp") {
		x.add(Finding{Level: "error", Rule: "tmp", Subject: "/tmp", Reason: not, Cure: []string{"RUN chmod 1777 /tmp"}})
	}
	x.home()
	x.unreadable(path.Clean("/" + x.cfg.WorkingDir))
}

// home checks HOME: the image's value, or the runtime's value for the user.
func (x *examiner) home() {
	home, set := envfile.Lookup(x.cfg.Env, "HOME"), true
	if home == "" {
		home, set = "/", false
		if f := accountLine(x.passwd, 2, strconv.Itoa(x.uid)); len(f) > 5 {
			home = f[5]
		}
	}
	if (x.entry && (x.writable("/tmp") || x.writable("/var/tmp"))) || (path.Clean(home) != "/" && x.writable(home)) {
		return
	}
	f := Finding{Level: "warning", Rule: "home", Subject: home, Reason: "HOME is / for a user without a passwd entry: programs that write caches or settings there fail",
		Cure: append(x.share("/home/user"), "ENV HOME=/home/user")}
	switch {
	case set && !IsSystemDir(path.Clean(home)):
		f.Level, f.Reason, f.Cure = "error", "the image sets HOME to it, and the pod's user may not write to it", x.share(path.Clean(home))
	case set:
		f.Level, f.Reason = "error", "the image sets HOME to it, and the pod's user may not write to it"
	case home != "/":
		f.Reason = "it is the user's home, and the pod's user may not write to it"
	}
	x.add(f)
}

// writtenTo lists suffixes of variables that name directories to which programs write.
var writtenTo = []string{"_CACHE_DIR", "_CACHE_HOME", "_CACHE_PATH", "_LOG_DIR", "_LOGS_DIR", "_RUN_DIR", "_RUNTIME_DIR", "_TMP_DIR", "_TEMP_DIR", "_OUTPUT_DIR", "_STATE_HOME"}

// writtenVariables lists other variables of that kind.
var writtenVariables = []string{"TMPDIR", "TMP", "TEMP", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "PGDATA", "HF_HOME", "TORCH_HOME", "TRANSFORMERS_CACHE", "RAY_TMPDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "WANDB_DIR", "OUTPUT_DIR", "LOG_DIR", "LOGDIR", "CACHE_DIR"}

// variables checks directories that variables name: those to which programs write, and those
// from which programs and libraries are loaded.
func (x *examiner) variables() {
	for _, kv := range x.cfg.Env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case name == "PYTHONPATH" || name == "LD_LIBRARY_PATH" || name == "NODE_PATH" || name == "PATH":
			for _, d := range strings.Split(value, ":") {
				x.searched(name, d)
			}
			continue
		case !path.IsAbs(value) || (x.entry && slices.Contains(foreign.Variables(), name)):
			continue
		}
		if !slices.Contains(writtenVariables, name) && !slices.ContainsFunc(writtenTo, func(end string) bool { return strings.HasSuffix(name, end) }) {
			continue
		}
		d := path.Clean(value)
		exists, dir := x.there(d)
		if (exists && !dir) || x.writable(d) {
			continue
		}
		f := Finding{Level: "error", Rule: "variable", Subject: name + "=" + value, Reason: "programs write to this directory, and the pod's user may not", Cure: x.share(d)}
		if _, at, err := x.files.Resolve(d, nil); err == nil && len(at.Names()) > 0 {
			f.Level, f.Reason = "warning", "programs may need to write to this directory, which contains files and is only readable"
		}
		x.add(f)
	}
}

// searched checks a directory of a search path. An existing one must be accessible.
func (x *examiner) searched(variable, dir string) {
	if !path.IsAbs(dir) {
		return
	}
	real, f, shut, err := x.reach(dir)
	if err != nil || f.Kind != fs.ModeDir || (shut == "" && x.may(f, mayExecute)) {
		return
	}
	level := "error"
	if variable == "PATH" { // programs started from it have their own findings
		level = "warning"
	}
	x.add(Finding{Level: level, Rule: "unreadable", Subject: dir, Reason: variable + " names it, and the pod's user may not enter it", Cure: x.open(shut, real)})
}

// open returns the lines that give all users access to a directory and to a tree.
func (x *examiner) open(shut, tree string) []string {
	line := "RUN chmod -R a+rX " + shellWord(tree)
	if shut != "" && shut != tree {
		line = "RUN chmod a+x " + shellWord(shut) + " && chmod -R a+rX " + shellWord(tree)
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
			shut := f.Kind == fs.ModeDir && !x.may(f, mayRead|mayExecute)
			if shut || (f.Kind == 0 && !x.may(f, mayRead)) {
				if n++; n == 1 {
					first = full
				}
			}
			if f.Kind == fs.ModeDir && !shut {
				walk(full, f)
			}
		}
	}
	walk(real, d)
	if n == 0 {
		return
	}
	reason := "the pod's user may not read it"
	if n > 1 {
		reason = fmt.Sprintf("the pod's user may not read it, nor %d more in %s", n-1, dir)
	}
	x.add(Finding{Level: "error", Rule: "unreadable", Subject: first, Reason: reason, Cure: x.open("", real)})
}

// services checks the directories to which known services write.
func (x *examiner) services() {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(x.called))) {
		for _, d := range serviceDirs[name] {
			real, f, err := x.files.Resolve(d, nil)
			if err != nil || f.Kind != fs.ModeDir || x.writable(d) {
				continue
			}
			x.add(Finding{Level: "error", Rule: "service", Subject: d, Reason: name + " writes to it, and the pod's user may not", Cure: x.share(real)})
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

// askers lists programs that fail if getpwuid(3) does not find their user.
var askers = []string{"ssh", "mpirun", "mpiexec", "orted", "prte", "ray", "psql"}

// names checks whether programs that need a user name will have one.
func (x *examiner) names() {
	if accountLine(x.passwd, 2, strconv.Itoa(x.uid)) != nil {
		return
	}
	_, passwd, err := x.files.Resolve("/etc/passwd", nil)
	if x.entry && ((err == nil && x.may(passwd, mayWrite)) || x.hasLibrary("libnss_wrapper.so")) {
		return
	}
	var have []string
	for _, name := range askers {
		if p, _, _ := x.lookPath(name); p != "" {
			have = append(have, name)
		}
	}
	if len(have) == 0 {
		return
	}
	where := "getpwuid(3) knows no name for the uid"
	if x.openshift {
		where += ", unless the cluster's runtime (CRI-O) adds it to /etc/passwd"
	}
	x.add(Finding{Level: "warning", Rule: "name", Subject: strings.Join(have, " "), Reason: where + ": build with --entry, and make /etc/passwd writable for group 0",
		Cure: []string{"RUN chgrp 0 /etc/passwd && chmod g=u /etc/passwd"}})
}

// hasLibrary searches a library in the usual directories of dynamic loaders.
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

// interpreterOf returns the arguments in a script's first line.
func interpreterOf(script string) []string {
	head, _, _ := strings.Cut(script, "\n")
	return strings.Fields(strings.TrimPrefix(head, "#!"))
}

// systemDirs lists directories that do not belong to one program, even if it starts in one.
var systemDirs = []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin",
	"/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin", "/usr/share", "/var", "/var/lib", "/var/log", "/var/tmp"}

// systemBelow lists directories below which nothing belongs to one program.
var systemBelow = []string{"/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/bin/", "/usr/lib/", "/usr/lib64/", "/usr/sbin/"}

// IsSystemDir reports whether a directory, given as a clean path, belongs to the system and
// not to one program.
func IsSystemDir(dir string) bool {
	return slices.Contains(systemDirs, dir) || slices.ContainsFunc(systemBelow, func(head string) bool { return strings.HasPrefix(dir, head) })
}
