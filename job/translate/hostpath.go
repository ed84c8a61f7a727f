package translate

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"

	"hpcc/front"
	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
)

// imageRoots are the top directories of images and pods. Paths in others are on the host's file systems, unless the image
// has an unusual directory.
var imageRoots = strings.Fields("bin boot dev etc lib lib32 lib64 libx32 opt proc root run sbin sys tmp usr var nix")

// hostRoots are top directories of clusters, which are host paths even without a file below them.
var hostRoots = strings.Fields("gpfs lustre scratch home nfs beegfs work data project projects users nobackup " +
	"pscratch afs cvmfs disk mnt media srv fast fsx efs depot panfs archive storage")

// localRoots are top directories on the disks of nodes.
var localRoots = strings.Fields("lscratch localscratch local_scratch local ssd nvme jobfs scr")

// inImage reports whether images and pods have a path's top directory.
func inImage(p string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	return slices.Contains(imageRoots, top)
}

// pathText matches an absolute path in a script, or a path that begins with a variable or the home directory. The text
// before it is the first group.
var pathText = sync.OnceValue(func() *regexp.Regexp {
	name := `(?:[A-Za-z0-9._@+%-]|\$\w+|\$\{\w+\}|\$\(\w+\))+`
	return regexp.MustCompile(`(^|[\s"'=(<>,;|&` + "`" + `]-[A-Z]|:-|[\s"'=(<>,;|&` + "`" + `:])(` +
		`/` + name + `(?:/` + name + `)*|` + `\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})/?|~/)`)
})

// A hostFile is a path of the host in a script.
type hostFile struct {
	path string
	dir  string // its directory, without variables
	at   int
}

// hostPaths adds a row for each path of the host, which pods do not have, and for each variable of the site.
func (b *podBody) hostPaths() {
	b.ignorePrograms()
	var files []hostFile
	for _, m := range pathText().FindAllStringSubmatchIndex(b.text, -1) {
		at, p := m[4], b.text[m[4]:m[5]]
		switch {
		case within(b.ignored, at) || remote(b.text[:at]):
		case p[0] != '/':
			b.pathVariable(p, at)
		default:
			if f, ok := b.hostFile(p, at); ok {
				files = append(files, f)
			}
		}
	}
	dirs := common(files)
	for _, f := range files {
		top := f.top()
		how := "pods do not see this machine's files: use --volume CLAIM:" + dirs[top] + ", or a path in the image"
		if slices.Contains(localRoots, top) {
			how = "pods do not see the disks of the node: use --volume scratch:" + dirs[top] +
				" for an empty directory, or --volume CLAIM:" + dirs[top]
		}
		if strings.Contains(f.path, "$USER") || strings.Contains(f.path, "${USER}") {
			how += b.userHint()
		}
		if !b.reported[f.path] {
			b.reported[f.path] = true
			b.add(&field.Row{Fate: needsVolume, How: how}, f.at, f.path)
		}
	}
}

// top returns the name of the top directory.
func (f hostFile) top() string {
	top, _, _ := strings.Cut(f.path[1:], "/")
	return top
}

// hostFile returns the path at an offset if it is not in the image or in a volume.
func (b *podBody) hostFile(p string, at int) (hostFile, bool) {
	p = strings.TrimRight(p, ".")
	top, below, _ := strings.Cut(p[1:], "/")
	sure := slices.Contains(hostRoots, top) || slices.Contains(localRoots, top)
	static, _, variable := strings.Cut(p, "$")
	dir := path.Dir(static + "x")
	if !variable && below != "" {
		dir = path.Dir(p)
	} else if !variable {
		dir = p
	}
	if top == "" || strings.HasPrefix(top, "$") || inImage(p) || (below == "" && !sure) || b.mounted(p) {
		return hostFile{}, false
	}
	return hostFile{path.Clean(p), dir, at}, true
}

// common returns the deepest directory that contains all files, by the name of their top directory.
func common(files []hostFile) map[string]string {
	dirs := map[string]string{}
	for _, f := range files {
		dir := cmp.Or(dirs[f.top()], f.dir)
		for dir != "/" && !below(f.dir, dir) {
			dir = path.Dir(dir)
		}
		dirs[f.top()] = dir
	}
	for top, dir := range dirs {
		if dir == "/" { // which is not a mount point
			dirs[top] = "PATH"
		}
	}
	return dirs
}

// remote reports whether the text before a path ends with the name of a host, as in host:/path.
func remote(before string) bool { return remoteText().MatchString(before[max(0, len(before)-300):]) }

var remoteText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s"'])(?:[\w.-]+|\$\{?\w+\}?)?@?[A-Za-z][\w.-]*:$`)
})

// mounted reports whether a path is in a volume of the pod, or in a directory that another row asks for.
func (b *podBody) mounted(p string) bool {
	return b.inVolume(p) || slices.ContainsFunc(b.bound, func(dir string) bool { return below(p, dir) })
}

// inVolume reports whether a path is in a volume of the pod.
func (b *podBody) inVolume(p string) bool {
	return slices.ContainsFunc(b.t.Job.Pod.Volumes, func(v job.Volume) bool { return below(p, v.Path) })
}

// below reports whether a path is a directory or in it.
func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// siteVariables name directories that sites set in the environment of jobs; localVariables name those on the node's disk.
var (
	siteVariables = strings.Fields("SCRATCH WORK PSCRATCH CSCRATCH GSCRATCH BSCRATCH SCRATCHDIR SCRATCH_DIR PROJECT " +
		"PROJECTS PROJWORK MEMBERWORK WORLDWORK PROJHOME GROUP_HOME GROUP_SCRATCH OAK " +
		"STORE WRKDIR USERWORK CFS STOCKYARD ARCHIVE FASTSCRATCH GPFS VSC_HOME VSC_DATA VSC_SCRATCH CINECA_SCRATCH HPCVAULT SOFTS")
	localVariables = strings.Fields("LOCAL_SCRATCH LOCALSCRATCH LSCRATCH L_SCRATCH L_SCRATCH_JOB JOBFS SNIC_TMP " +
		"VSC_SCRATCH_NODE JOB_SCRATCH DW_JOB_STRIPED DW_JOB_PRIVATE BBPATH TMPDIR TMP")
)

// podVariables are set in every pod and shell.
var podVariables = strings.Fields("PWD OLDPWD PATH HOSTNAME SHELL BASH RANDOM SECONDS UID EUID PPID LINENO IFS " +
	"BASH_SOURCE OPTARG OPTIND REPLY TERM LANG")

// pathVariable reports on a variable that begins a path, or names a directory of the site.
func (b *podBody) pathVariable(p string, at int) {
	name := strings.Trim(p, "${}/")
	if p == "~/" {
		name = "HOME"
	}
	if b.reported[p] {
		return
	}
	b.reported[p] = true
	path := strings.HasSuffix(p, "/")
	row := &field.Row{Fate: needsVolume}
	switch {
	case b.sets(name) || slices.Contains(podVariables, name):
		return
	case name == "HOME" && path:
		row.How = "the home directory of a pod does not have your files: use --volume CLAIM:PATH --env HOME=PATH"
	case name == "USER" || name == "LOGNAME":
		row.Fate, row.How = field.Changed, "a pod has another user"+b.userHint()
	case slices.Contains(localVariables, name) ||
		slices.ContainsFunc(b.t.known, func(d *dialect.Dialect) bool { return slices.Contains(d.LocalDirs, name) }):
		row.How = "only the site sets it: use --volume scratch:/scratch --env " + name + "=/scratch for an empty directory"
	case slices.Contains(siteVariables, name):
		row.How = "only the site sets it: use --volume CLAIM:/" + strings.ToLower(name) + " --env " + name + "=/" + strings.ToLower(name)
	case path && !b.schedulers(name):
		row.Fate, row.How = field.Changed, "nothing in the script sets it: use --env "+name+"=PATH, with a path in the "+
			"image or of --volume CLAIM:PATH"
	default:
		return
	}
	b.once(row, at, "$"+name)
}

// userHint returns the next action for a variable with the user's name.
func (b *podBody) userHint() string {
	if b.sets("USER") {
		return ""
	}
	return "; set your name with --env USER=NAME"
}

// sets reports whether the script or a flag sets a variable. HOME and USER have defaults in pods.
func (b *podBody) sets(name string) bool {
	j := b.t.Job
	flags := slices.Concat(j.Env, j.Pod.Env)
	return len(b.assigned[name]) > 0 || slices.ContainsFunc(flags, func(e string) bool {
		return strings.HasPrefix(e, name+"=") && e != "HOME=/tmp" && e != "USER=hpcc" && e != "LOGNAME=hpcc"
	})
}

// schedulers reports whether a variable is one of the script's batch system, which has rows of its own.
func (b *podBody) schedulers(name string) bool {
	from := b.t.from
	return slices.ContainsFunc(from.Variables, func(v job.Variable) bool { return v.Name == name }) || b.t.systemVariable().MatchString(name)
}

// patternCommands take patterns, whose slashes do not separate directories.
var patternCommands = []string{"sed", "awk", "gawk", "mawk", "grep", "egrep", "fgrep", "zgrep", "perl", "tr"}

// ignorePrograms excludes the patterns and programs of sed and its like from the search for paths.
func (b *podBody) ignorePrograms() {
	if b.file == nil {
		return
	}
	b.calls(func(c *syntax.CallExpr) {
		args := b.arguments(c.Args)
		if len(args) == 0 || !slices.Contains(patternCommands, path.Base(args[0].Text)) {
			return
		}
		first := true
		for _, a := range args[1:] {
			if (first && !front.IsOption(a)) || strings.IndexAny(a.Source, `'"`) == 0 {
				b.ignored = append(b.ignored, edit{start: a.Start, end: a.End})
			}
			first = first && front.IsOption(a)
		}
	})
}

// assignment matches the start of an assignment in a line of a script that hpcc cannot parse.
var assignment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)(?:^|[ \t;])([A-Za-z_]\w*)=`) })

// commentLines returns the ranges of the comment lines of a text.
func commentLines(text string) (out []edit) {
	at := 0
	for l := range strings.Lines(text) {
		if t := strings.TrimSpace(l); strings.HasPrefix(t, "#") || strings.HasPrefix(t, ": # hpcc left out:") {
			out = append(out, edit{start: at, end: at + len(l)})
		}
		at += len(l)
	}
	return out
}
