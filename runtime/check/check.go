// Package check finds out whether an image runs where a cluster takes its programs'
// rights: under OpenShift's restricted-v2 or Kubernetes' Pod Security "restricted".
//
//	image ─► configuration, owners and modes of its files ─► findings, each with its cure
//
// It reads layers and runs nothing. It names every reason that follows from the user,
// the ports, and the owners and modes of files. It does not read scripts or programs:
// what they do with their rights is not known.
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

// AnyUser is a USER that passes as another one than root in every cluster. It is a
// number, because Kubernetes accepts no name as proof. The number belongs to nobody, and
// the group is that of OpenShift's users.
const AnyUser = "1001:0"

// A Finding is a reason why an image would not run where the cluster takes its
// rights, or, as a warning, why something in it might not. A note says what was not checked.
type Finding struct {
	Level   string `json:"level"` // "error", "warning" or "note"
	Rule    string `json:"rule"`  // what kind of reason, in a word
	Subject string `json:"subject"`
	Reason  string `json:"reason"`
	// Cure are lines that cure it at the end of the Dockerfile, for root to carry out; where
	// Replaces is a line, they stand in its place.
	Cure     []string `json:"cure,omitempty"`
	Replaces string   `json:"replaces,omitempty"`
}

// Image returns the reasons why an image would not run without root: its configuration,
// and the final owners and modes of its files, which it checks for the programs that the
// image starts with. Kubernetes' Pod Security Standard "restricted" requires a numeric
// user other than root, which the image names. With openshift the rules are those of
// OpenShift's restricted-v2, which assigns any uid, in group 0. Both take all
// capabilities and the way to get new ones.
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
	// USER last: the other lines are for root.
	slices.SortStableFunc(x.found, func(a, b Finding) int { return cmp.Compare(isUser(a), isUser(b)) })
	return x.found, x.err
}

func isUser(f Finding) int {
	if f.Rule == "user" {
		return 1
	}
	return 0
}

// unknownUID stands for a uid that the cluster chooses.
const unknownUID = 1000680000

// maxScript bounds what is read of a script, and of passwd.
const maxScript = 1 << 20

// An examiner looks one image over.
type examiner struct {
	ctx           context.Context
	files         *unpack.Files
	cfg           *v1.Config
	openshift     bool
	passwd, group string
	uid, gid      int // who the programs will be
	entry         bool
	ran           map[string]bool // programs that start, by path
	called        []string        // their names
	found         []Finding
	err           error // of reading
}

// add notes a finding, of several about one thing the first of the gravest.
func (x *examiner) add(f Finding) {
	switch i := slices.IndexFunc(x.found, func(g Finding) bool { return g.Rule == f.Rule && g.Subject == f.Subject }); {
	case i < 0:
		x.found = append(x.found, f)
	case f.Level == "error" && x.found[i].Level != "error":
		x.found[i] = f
	}
}

// text is the content of a small file, "" where there is none.
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

// The rights of chmod(2), as one class has them.
const (
	mayRead, mayWrite, mayExecute = 4, 2, 1
)

// may says whether the pod's user has all of these rights to a file.
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

// reach resolves a path; shut is the first directory on the way that may not be entered.
func (x *examiner) reach(p string) (real string, f *unpack.File, shut string, err error) {
	real, f, err = x.files.Resolve(p, func(dir string, d *unpack.File) {
		if shut == "" && !x.may(d, mayExecute) {
			shut = dir
		}
	})
	return real, f, shut, err
}

// writable says whether files can be made in a directory, or in the one that it could be made in.
func (x *examiner) writable(p string) bool {
	real, f, shut, err := x.reach(p)
	for errors.Is(err, fs.ErrNotExist) && shut == "" && real != "/" {
		real, f, shut, err = x.reach(path.Dir(real))
	}
	return err == nil && shut == "" && f.Kind == fs.ModeDir && x.may(f, mayWrite|mayExecute)
}

// there says whether a path leads to something, and to a directory.
func (x *examiner) there(p string) (exists, dir bool) {
	_, f, err := x.files.Resolve(p, nil)
	return err == nil, err == nil && f.Kind == fs.ModeDir
}

// share are the lines that give who the programs will be a directory.
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

// shellWord is a path as a word of the shell.
func shellWord(p string) string {
	if strings.Trim(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@%") == "" {
		return p
	}
	return "'" + strings.ReplaceAll(p, "'", `'\''`) + "'"
}

// user judges USER, and finds out who the programs will be.
func (x *examiner) user() {
	name, group, _ := strings.Cut(x.cfg.User, ":")
	number, err := strconv.Atoi(name)
	root := name == "" || name == "root" || (err == nil && number == 0)
	switch {
	case x.openshift && root:
		x.add(Finding{Level: "warning", Rule: "user", Subject: cmp.Or(name, "root"), Reason: "the image was made to run as root; OpenShift runs it as a uid of its own choice, in group 0", Cure: []string{"USER " + AnyUser}})
	case x.openshift:
	case root:
		x.add(Finding{Level: "error", Rule: "user", Subject: cmp.Or(name, "root"), Reason: "the image runs as root, which pods with runAsNonRoot may not", Cure: []string{"USER " + AnyUser}})
	case err != nil:
		f := accountLine(x.passwd, 0, name)
		cure := AnyUser
		if len(f) > 3 {
			x.uid, cure = atoi(f[2]), f[2]
			x.gid = atoi(f[3])
		}
		x.add(Finding{Level: "error", Rule: "user", Subject: name, Reason: "USER is a name, and Kubernetes takes only a number as proof that it is not root's", Cure: []string{"USER " + cure}})
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

// accountLine is the one of a passwd or group file whose field n is value.
func accountLine(file string, n int, value string) []string {
	for l := range strings.Lines(file) {
		if f := strings.Split(strings.TrimSpace(l), ":"); value != "" && len(f) > n && f[n] == value {
			return f
		}
	}
	return nil
}

// atoi is a number of passwd; what is none is nobody's.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return unknownUID
	}
	return n
}

// ports judges EXPOSE.
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
		x.add(Finding{Level: "error", Rule: "port", Subject: p, Reason: "only who has a capability may listen on a port below 1024; let the program listen on a higher one, and a Service map it",
			Replaces: fmt.Sprintf("EXPOSE %d%s", n, proto), Cure: []string{fmt.Sprintf("EXPOSE %d%s", other, proto)}})
		for _, kv := range x.cfg.Env {
			if name, value, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "PORT") && value == number {
				x.add(Finding{Level: "error", Rule: "port", Subject: kv, Reason: "it looks like the port that the program listens on", Cure: []string{fmt.Sprintf("ENV %s=%d", name, other)}})
			}
		}
	}
}

// directories judges where the program starts, its home, its volumes and /tmp.
func (x *examiner) directories() {
	const not = "the pod's user may not write to it"
	if d := path.Clean("/" + x.cfg.WorkingDir); d != "/" && !x.writable(d) {
		f := Finding{Level: "error", Rule: "workdir", Subject: d, Reason: "the program starts in it, and " + not, Cure: x.share(d)}
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

// home judges HOME: what the image sets, else what a runtime sets for the user.
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
	f := Finding{Level: "warning", Rule: "home", Subject: home, Reason: "HOME is / for a user that the image does not know: what keeps caches or settings there fails",
		Cure: append(x.share("/home/user"), "ENV HOME=/home/user")}
	switch {
	case set && !IsSystemDir(path.Clean(home)):
		f.Level, f.Reason, f.Cure = "error", "the image sets HOME to it, and the pod's user may not write to it", x.share(path.Clean(home))
	case set:
		f.Level, f.Reason = "error", "the image sets HOME to it, and the pod's user may not write to it"
	case home != "/":
		f.Reason = "it is the user's home, and may not be written to"
	}
	x.add(f)
}

// writtenTo are endings of variables that name directories which programs write to.
var writtenTo = []string{"_CACHE_DIR", "_CACHE_HOME", "_CACHE_PATH", "_LOG_DIR", "_LOGS_DIR", "_RUN_DIR", "_RUNTIME_DIR", "_TMP_DIR", "_TEMP_DIR", "_OUTPUT_DIR", "_STATE_HOME"}

// writtenVariables are others.
var writtenVariables = []string{"TMPDIR", "TMP", "TEMP", "MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "PGDATA", "HF_HOME", "TORCH_HOME", "TRANSFORMERS_CACHE", "RAY_TMPDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "WANDB_DIR", "OUTPUT_DIR", "LOG_DIR", "LOGDIR", "CACHE_DIR"}

// variables judges directories that variables name: those to write to, and those to read
// programs and libraries from.
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
			f.Level, f.Reason = "warning", "programs may want to write to this directory; there is something in it, which they can read"
		}
		x.add(f)
	}
}

// searched judges a directory of a search path: one that is there must be open.
func (x *examiner) searched(variable, dir string) {
	if !path.IsAbs(dir) {
		return
	}
	real, f, shut, err := x.reach(dir)
	if err != nil || f.Kind != fs.ModeDir || (shut == "" && x.may(f, mayExecute)) {
		return
	}
	level := "error"
	if variable == "PATH" { // what is started from there has findings of its own
		level = "warning"
	}
	x.add(Finding{Level: level, Rule: "unreadable", Subject: dir, Reason: variable + " names it, and the pod's user may not enter it", Cure: x.open(shut, real)})
}

// open are the lines that let everybody into a directory, and read what is in a tree.
func (x *examiner) open(shut, tree string) []string {
	line := "RUN chmod -R a+rX " + shellWord(tree)
	if shut != "" && shut != tree {
		line = "RUN chmod a+x " + shellWord(shut) + " && chmod -R a+rX " + shellWord(tree)
	}
	return []string{line}
}

// unreadable judges what lies below a directory of the program's own.
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

// services judges what the programs that start are known to write to.
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

// serviceDirs are directories that services write to, where an image has them.
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

// rootServices can be nothing but root's.
var rootServices = map[string]string{
	"sshd":    "it reads host keys that are root's and becomes those who log in: use \"kubectl exec\" or \"hpcc attach\"",
	"cron":    "it becomes those whose jobs it runs: use a CronJob",
	"crond":   "it becomes those whose jobs it runs: use a CronJob",
	"dockerd": "it needs root: build with \"hpcc build\"",
}

// askers are programs that end when getpwuid(3) does not know who they are.
var askers = []string{"ssh", "mpirun", "mpiexec", "orted", "prte", "ray", "psql"}

// names judges whether programs that need a user name will have one.
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
	x.add(Finding{Level: "warning", Rule: "name", Subject: strings.Join(have, " "), Reason: where + ": build with --entry, and give it a way to say one",
		Cure: []string{"RUN chgrp 0 /etc/passwd && chmod g=u /etc/passwd"}})
}

// hasLibrary looks for a library where dynamic loaders do.
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

// commandLine is what the image starts with, by itself.
func (x *examiner) commandLine() []string {
	return slices.Concat(x.cfg.Entrypoint, x.cfg.Cmd)
}

// interpreterOf are the words of a script's first line.
func interpreterOf(script string) []string {
	head, _, _ := strings.Cut(script, "\n")
	return strings.Fields(strings.TrimPrefix(head, "#!"))
}

// systemDirs are directories that are not a program's own, also when it starts in one.
var systemDirs = []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin",
	"/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin", "/usr/share", "/var", "/var/lib", "/var/log", "/var/tmp"}

// systemBelow are those of which also nothing below is.
var systemBelow = []string{"/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/bin/", "/usr/lib/", "/usr/lib64/", "/usr/sbin/"}

// IsSystemDir reports whether a directory, a clean path, is the system's and not a
// program's own.
func IsSystemDir(dir string) bool {
	return slices.Contains(systemDirs, dir) || slices.ContainsFunc(systemBelow, func(head string) bool { return strings.HasPrefix(dir, head) })
}
