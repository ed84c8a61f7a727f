package prepare

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"hpcc/envfile"
	"hpcc/job"
	"hpcc/runtime"
	"hpcc/runtime/runconf"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
)

// absoluteImage makes the path of an image file or directory absolute.
func absoluteImage(j *job.Job) (err error) {
	if fi, serr := os.Stat(j.Image); ready.NamesImageFile(j.Image) || (ready.IsPath(j.Image) && serr == nil && fi.IsDir()) {
		j.Image, err = filepath.Abs(j.Image)
	}
	return err
}

// PinImage makes the path of the job's image absolute and records its version: what its name refers to may change
// before the job starts. An image that the store does not have stays as it is, because the nodes may have it. dir is
// the directory of the store, or "" for the default.
func PinImage(j *job.Job, dir string) error {
	if err := absoluteImage(j); err != nil {
		return err
	}
	j.ImageVersion = job.ImageVersion{}
	switch {
	case ready.NamesImageFile(j.Image):
		return j.ReadFile(j.Image)
	case j.Image == "" || ready.IsPath(j.Image):
		return nil
	}
	s, err := store.OpenToRead(dir)
	if err != nil {
		return err
	}
	d, err := s.Digest(j.Image)
	if errors.As(err, new(*store.NotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.ImageDigest = d.String(); store.ByDigest(j.Image, d) == j.ImageDigest { // the beginning of a digest
		j.Image = j.ImageDigest
	}
	return nil
}

// AbsoluteSources makes the sources of --bind and --mount in flags of "hpcc run" absolute, relative to base. It
// changes and returns argv.
func AbsoluteSources(base string, argv []string) []string {
	abs := func(p string) string {
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(base, p)
	}
	for i, arg := range argv {
		if v, ok := strings.CutPrefix(arg, "--bind="); ok {
			src, rest, more := strings.Cut(v, ":")
			if src = abs(src); more {
				src += ":" + rest
			}
			argv[i] = "--bind=" + src
		}
		if v, ok := strings.CutPrefix(arg, "--mount="); ok {
			items := strings.Split(v, ",")
			for n, item := range items {
				if k, p, ok := strings.Cut(item, "="); ok && (k == "source" || k == "src") {
					items[n] = k + "=" + abs(p)
				}
			}
			argv[i] = "--mount=" + strings.Join(items, ",")
		}
	}
	return argv
}

// programFlags are the flags that can change which program a name means.
var programFlags = []string{"from", "workflow", "entrypoint", "set-env", "set-env0", "unset-env", "clean-env",
	"bind", "mount", "device", "mpi", "gpu"}

// checkProgram refuses a job whose program is not in the PATH of the image, whose tree is dir, because every task
// would fail. It skips jobs whose program depends on flags, on run.conf or on an ENTRYPOINT.
func (r *Request) checkProgram(dir string, j *job.Job) error {
	if len(j.Args) == 0 || strings.ContainsAny(j.Args[0], "/{") ||
		slices.ContainsFunc(programFlags, func(name string) bool { return r.Set[name] }) {
		return nil
	}
	if lines, err := runconf.Read(); !r.Set["no-config"] && (err != nil || len(lines) > 0) {
		return nil
	}
	img, err := runtime.ReadImage(dir, unpack.ConfigFile)
	if err != nil || len(img.Config.Entrypoint) > 0 {
		return nil // the run reports the error
	}
	vars, err := envfile.Apply(img.Config.Env, r.Env, false)
	path := cmp.Or(envfile.Lookup(vars, "PATH"), runtime.StandardPath)
	if err != nil || strings.Contains(path, "{") {
		return nil
	}
	home := os.Getenv("HOME") + "/"
	var dirs []string
	for _, d := range filepath.SplitList(path) {
		program := filepath.Join(d, j.Args[0])
		inside, err := securejoin.SecureJoin(dir, program)
		if err != nil {
			return nil
		}
		if _, err := os.Stat(inside); err == nil {
			return nil
		}
		if _, err := os.Stat(program); err == nil && strings.HasPrefix(d, home) { // the home directory is bound
			return nil
		}
		dirs = append(dirs, filepath.Dir(inside))
	}
	image := cmp.Or(r.Image, j.Image)
	m := text.Usagef("image %s has no program %q in its PATH (%s)", image, j.Args[0], path)
	if like := text.NearestEntry(j.Args[0], dirs...); like != "" {
		return m.Hint("did you mean %q?", like)
	}
	return m.Hint("the program comes after IMAGE: hpcc %s %s -- CMD", r.Verb, image)
}
