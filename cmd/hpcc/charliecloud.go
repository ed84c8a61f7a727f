package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/envfile"
	"hpcc/files"
	"hpcc/front"
	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
	"hpcc/unpack/squashfs"
)

// charliecloudCommand does what ch-image and ch-convert do and other commands of hpcc do not.
func charliecloudCommand() *cli.Command {
	return &cli.Command{
		Name: "charliecloud", Hidden: true, Usage: "manage a storage directory of Charliecloud (started by ch-image and ch-convert)", ArgsUsage: "OPERATION DIR [ARG...]",
		Flags:  []cli.Flag{storeFlag()},
		Action: action(parseCharliecloud),
	}
}

// charliecloudArgs is a command line of "hpcc charliecloud". The storage directory has the layout
// of Charliecloud's: img/NAME is the directory of an image, here a link to its tree in the store.
type charliecloudArgs struct {
	operation string
	dir       string // the storage directory
	args      []string
	store     string
}

func parseCharliecloud(c *cli.Context) (*charliecloudArgs, error) {
	args := c.Args().Slice()
	if len(args) < 2 {
		return nil, text.Usagef("charliecloud needs an operation and a storage directory").Hint("use ch-image or ch-convert: hpcc install-fronts DIR")
	}
	return &charliecloudArgs{operation: args[0], dir: args[1], args: args[2:], store: c.String("store")}, nil
}

func (a *charliecloudArgs) run(ctx context.Context) error {
	op, ok := map[string]struct {
		args int // -1: any number
		do   func(*charliecloudArgs, context.Context) error
	}{
		"link": {1, (*charliecloudArgs).link}, "delete": {-1, (*charliecloudArgs).delete}, "reset": {0, (*charliecloudArgs).reset},
		"show": {1, (*charliecloudArgs).show}, "import": {2, (*charliecloudArgs).load},
		"convert": {4, (*charliecloudArgs).convert}, "convert-new": {4, (*charliecloudArgs).convert},
	}[a.operation]
	if !ok || (op.args >= 0 && len(a.args) != op.args) {
		return text.Usagef("%q is not an operation with %d arguments", a.operation, len(a.args))
	}
	return op.do(a, ctx)
}

// chFile returns the name of an image in the directory img.
func chFile(ref string) string { return strings.NewReplacer("/", "%", ":", "+").Replace(ref) }

// link makes img/NAME lead to the tree of an image.
func (a *charliecloudArgs) link(context.Context) error {
	file, name := chFile(a.args[0]), front.CharliecloudName(a.args[0])
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	tree, err := s.TreeOf(name)
	if errors.As(err, new(*store.PlatformError)) { // an image of another architecture has a tree, but not for this machine
		return nil
	}
	if err != nil {
		return err
	}
	if err := a.create(); err != nil {
		return err
	}
	at := filepath.Join(a.dir, "img", file)
	if fi, err := os.Lstat(at); err == nil && fi.Mode().Type() != fs.ModeSymlink {
		return text.Hint(fmt.Errorf("linking %s to the image: it is not a link: Charliecloud made it", at), "choose another directory with --storage or CH_IMAGE_STORAGE")
	}
	target := tree
	if rel, err := filepath.Rel(filepath.Dir(at), tree); err == nil && inDirectory(a.dir, tree) {
		target = rel // the directory can be moved
	}
	tmp, err := store.Sibling(at)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	if err := os.Symlink(target, filepath.Join(tmp, file)); err != nil {
		return fmt.Errorf("linking an image: %w", err)
	}
	return os.Rename(filepath.Join(tmp, file), at)
}

// inDirectory reports whether a path is below a directory.
func inDirectory(dir, p string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && filepath.IsLocal(rel)
}

// checkOwner refuses a storage directory of another user, who could replace the images: the default
// is in /var/tmp.
func (a *charliecloudArgs) checkOwner() error {
	fi, err := os.Stat(a.dir)
	if err != nil {
		return err
	}
	if int(fi.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return text.Hint(fmt.Errorf("storage directory %s: other users can change it", a.dir), "set CH_IMAGE_STORAGE to a directory that only you can write to")
	}
	return nil
}

// create creates the storage directory.
func (a *charliecloudArgs) create() error {
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return fmt.Errorf("creating the storage directory: %w", err)
	}
	if err := a.checkOwner(); err != nil {
		return err
	}
	for _, d := range []string{"img", "dlcache"} { // Nextflow expects both
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return fmt.Errorf("creating the storage directory: %w", err)
		}
	}
	return nil
}

// delete removes the images that match patterns.
func (a *charliecloudArgs) delete(context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	list, err := s.Images()
	if err != nil {
		return err
	}
	var all []error
	for _, glob := range a.args {
		glob = front.CharliecloudName(glob)
		found := false
		for _, e := range list {
			if ok, err := path.Match(glob, e.Name); err != nil {
				return text.Usagef("%q is not a pattern", glob)
			} else if ok || e.Name+":latest" == glob {
				found = true
				all = append(all, s.Remove(e.Name), a.unlink(e.Name))
			}
		}
		if !found {
			all = append(all, &store.NotFoundError{Name: glob})
		}
	}
	return errors.Join(all...)
}

// unlink removes the links to an image.
func (a *charliecloudArgs) unlink(name string) error {
	file := chFile(name)
	for _, f := range []string{file, file + "+latest"} {
		at := filepath.Join(a.dir, "img", f)
		if fi, err := os.Lstat(at); err == nil && fi.Mode().Type() == fs.ModeSymlink {
			if err := os.Remove(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// reset removes all images of the storage directory.
func (a *charliecloudArgs) reset(context.Context) error {
	if err := a.checkOwner(); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	links, err := os.ReadDir(filepath.Join(a.dir, "img"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	var all []error
	for _, e := range links {
		name := front.CharliecloudName(e.Name())
		if err := s.Remove(name); err != nil && !errors.As(err, new(*store.NotFoundError)) {
			all = append(all, err)
		}
		if e.Type() == fs.ModeSymlink {
			all = append(all, os.Remove(filepath.Join(a.dir, "img", e.Name())))
		}
	}
	return errors.Join(all...)
}

// show prints the details of an image as "ch-image list IMAGE" does, without those of a registry.
func (a *charliecloudArgs) show(context.Context) error {
	name := front.CharliecloudName(a.args[0])
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	list, err := s.Images()
	if err != nil {
		return err
	}
	key, err := store.Canonical(name)
	if err != nil {
		return err
	}
	local, archs := "no", ""
	if i := slices.IndexFunc(list, func(e store.Entry) bool { return e.Name == key }); i >= 0 {
		local, archs = "yes", strings.ReplaceAll(strings.Join(list[i].Platforms, " "), "linux/", "")
	}
	text := fmt.Sprintf("details of image:    %s\nin local storage:    %s\nhost architecture:   %s\n", name, local, goruntime.GOARCH)
	if archs != "" {
		text += fmt.Sprintf("archs available:     %s\n", archs)
	}
	_, err = io.WriteString(os.Stdout, text)
	return err
}

// load keeps a directory, a SquashFS file or an archive as an image.
func (a *charliecloudArgs) load(ctx context.Context) error {
	source, ref := a.args[0], a.args[1]
	name := front.CharliecloudName(ref)
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	fi, err := os.Stat(source)
	isDir := err == nil && fi.IsDir()
	if isDir {
		err = loadTree(ctx, s, source, name)
		if err != nil {
			return fmt.Errorf("importing %s: %w", source, err)
		}
	} else if _, err := loadAny(ctx, s, source, name); err != nil {
		return err
	}
	tree, err := unpackedTree(ctx, s, name)
	if err != nil {
		return err
	}
	if top := onlyDirectory(tree); top != "" && !isDir && !squashfs.Is(source) {
		if err := loadTree(ctx, s, top, name); err != nil {
			return fmt.Errorf("importing %s: %w", source, err)
		}
		if _, err := unpackedTree(ctx, s, name); err != nil {
			return err
		}
	}
	a.args = []string{ref}
	return a.link(ctx)
}

// unpackedTree returns the tree of an image, which it unpacks if necessary.
func unpackedTree(ctx context.Context, s *store.Store, name string) (string, error) {
	img, err := s.Get(name, nil)
	if err == nil {
		err = unpackTree(ctx, s, img, nil)
	}
	if err != nil {
		return "", err
	}
	return s.TreeOf(name)
}

// onlyDirectory returns the directory that contains all files of a tree, or "". Archives of images
// often have such a directory, which ch-image and ch-convert leave out.
func onlyDirectory(tree string) string {
	entries, err := os.ReadDir(tree)
	if err != nil {
		return ""
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == filepath.Dir(unpack.ConfigFile) })
	standard := []string{"bin", "dev", "etc", "mnt", "proc", "sys", "tmp", "usr"}
	if len(entries) != 1 || !entries[0].IsDir() || slices.Contains(standard, entries[0].Name()) {
		return ""
	}
	return filepath.Join(tree, entries[0].Name())
}

// loadTree keeps the files of a directory as an image of one layer, with the configuration that
// hpcc or Charliecloud wrote to the directory.
func loadTree(ctx context.Context, s *store.Store, dir, name string) error {
	img, err := s.RootImage(ctx, func(w io.Writer) error { return archiveTree(dir, w) })
	if err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(dir, unpack.ConfigFile))
	if err == nil {
		img, err = withConfig(img, config)
	} else if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		err = nil
	}
	if err == nil {
		_, err = s.PutLoaded(ctx, name, img, dir)
	}
	return err
}

// archiveTree writes the files of an image directory as a tar archive.
func archiveTree(dir string, w io.Writer) error {
	empty, err := os.MkdirTemp("", "hpcc-")
	if err != nil {
		return err
	}
	defer os.Remove(empty)
	_, err = unpack.Compare(w, empty, dir, unpack.DiffOptions{Skip: []string{filepath.Dir(unpack.ConfigFile)}})
	return err
}

// convert converts an image between the formats of ch-convert.
func (a *charliecloudArgs) convert(ctx context.Context) error {
	from, in, to, out := a.args[0], a.args[1], a.args[2], a.args[3]
	if to == "ch-image" {
		if name := front.CharliecloudName(out); a.operation == "convert-new" && hasImage(a.store, name, "") {
			return fmt.Errorf("image %q exists, and --no-clobber keeps it", name)
		}
		a.args = []string{in, out}
		return a.load(ctx)
	}
	if from == "ch-image" {
		in = front.CharliecloudName(in)
	} else if !isPath(in) {
		in = "./" + in
	}
	err := a.checkOld(to, out)
	if err != nil {
		return err
	}
	if to == "dir" {
		err = a.replaceDirectory(ctx, from, in, out)
	} else {
		err = a.toFile(ctx, from, in, to, out)
	}
	if err != nil {
		return fullDiskHint(fmt.Errorf("converting %s to %s: %w", in, out, err), out)
	}
	return nil
}

// checkOld refuses an old result of a conversion that must not be replaced: only a file, an empty
// directory, or one that is an image is.
func (a *charliecloudArgs) checkOld(to, out string) error {
	fi, err := os.Stat(out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case a.operation == "convert-new":
		return fmt.Errorf("%s exists, and --no-clobber keeps it", out)
	case to != "dir":
		if fi.IsDir() {
			return text.Usagef("%s is a directory", out).Hint("name a file")
		}
		return nil
	}
	entries, err := os.ReadDir(out)
	if err != nil || len(entries) == 0 {
		return err
	}
	for _, d := range []string{"bin", "dev", "usr"} {
		if _, err := os.Stat(filepath.Join(out, d)); err != nil {
			return text.Usagef("%s exists and is not an image", out).Hint("name a new directory")
		}
	}
	if ready.InTree(out) {
		return text.Usagef("%s is an image of the store", out).Hint("name a new directory")
	}
	return nil
}

// replaceDirectory converts an image to a directory. An old directory stays until the new one is
// complete.
func (a *charliecloudArgs) replaceDirectory(ctx context.Context, from, in, out string) error {
	if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
		return a.toDirectory(ctx, from, in, out)
	}
	tmp, err := store.Sibling(out)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	made := filepath.Join(tmp, "new")
	if err := a.toDirectory(ctx, from, in, made); err != nil {
		return err
	}
	return replaceBy(out, made)
}

// source returns the image of a conversion from ch-image or tar.
func (a *charliecloudArgs) source(ctx context.Context, in string) (v1.Image, error) {
	if _, err := store.Open(a.store); err != nil {
		return nil, err
	}
	return sourceImage(ctx, a.store, in, nil)
}

// toDirectory unpacks an image, and adds the mount points that ch-run needs, so that other
// programs can use the directory as well.
func (a *charliecloudArgs) toDirectory(ctx context.Context, from, in, out string) error {
	if from == "squash" {
		in, _ = filepath.Abs(in)
	}
	if err := (&unpackArgs{source: in, dir: out, store: a.store}).unpackTo(ctx, out); err != nil {
		return err
	}
	if top := onlyDirectory(out); from == "tar" && top != "" {
		if err := replaceBy(out, top); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(out)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, d := range []string{"bin", "dev", "etc", "mnt", "proc", "sys", "tmp", "usr"} {
		if err := root.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for i := range 10 {
		_ = root.Mkdir(fmt.Sprintf("mnt/%d", i), 0o755) // mnt may lead out of the image
	}
	for _, f := range []string{"etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group"} {
		if f, err := root.OpenFile(f, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
			f.Close()
		}
	}
	return writeVariables(root, out)
}

// replaceBy replaces a directory by another one of the file system, which may be in it.
func replaceBy(dir, sub string) error {
	tmp, err := store.Sibling(dir)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	moved := filepath.Join(tmp, "root")
	if err := os.Rename(sub, moved); err != nil {
		return err
	}
	if err := files.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(moved, dir)
}

// writeVariables writes the image's variables to the file in which ch-run looks for them.
func writeVariables(root *os.Root, dir string) error {
	img, err := runtime.ReadImage(dir, unpack.ConfigFile)
	if err != nil || len(img.Config.Env) == 0 {
		return err
	}
	if err := root.Mkdir("ch", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return root.WriteFile("ch/environment", []byte(strings.Join(img.Config.Env, "\n")+"\n"), 0o644)
}

// toFile writes an image to a SquashFS file or a compressed tar archive.
func (a *charliecloudArgs) toFile(ctx context.Context, from, in, to, out string) error {
	write := func(f *os.File) error { return a.writeTree(ctx, from, in, to, f) }
	if from == "squash" && to == "tar" {
		write = func(f *os.File) error {
			return compressed(f, func(w io.Writer) error {
				_, notes, err := unpack.SquashFSLayer(ctx, in, w)
				sayNotes(notes)
				return err
			})
		}
	}
	return store.NewFile(out, write)
}

// writeTree writes the tree of an image, or a directory.
func (a *charliecloudArgs) writeTree(ctx context.Context, from, in, to string, f *os.File) error {
	tree := in
	if from != "dir" {
		img, err := a.source(ctx, in)
		if err != nil {
			return err
		}
		s, err := store.Open(a.store)
		if err != nil {
			return err
		}
		if tree, err = checkedTree(ctx, s, img); err != nil {
			return err
		}
		if top := onlyDirectory(tree); from == "tar" && top != "" {
			tree = top
		}
	}
	if to == "squash" {
		return unpack.WriteSquashFS(ctx, tree, f, nil)
	}
	return compressed(f, func(w io.Writer) error { return archiveTree(tree, w) })
}

// compressed passes to write a writer that compresses to f, at the fastest level because images
// are large and layers already compressed.
func compressed(f io.Writer, write func(io.Writer) error) error {
	buffered := bufio.NewWriterSize(f, 1<<20)
	z, err := gzip.NewWriterLevel(buffered, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := write(z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// chRunFlags are the flags of "hpcc run" that package front uses for ch-run.
func chRunFlags(env *envChanges) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "ch-run", Hidden: true, Usage: "run the program as ch-run does"},
		&cli.GenericFlag{Name: "image-env", Hidden: true, Value: &imageEnvFlag{env}, Usage: "with --ch-run: set the image's variables"},
	}
}

// imageEnvFlag is --image-env, whose position among the changes of the environment matters.
type imageEnvFlag struct{ e *envChanges }

func (f *imageEnvFlag) Set(arg string) error {
	if set, err := strconv.ParseBool(arg); err != nil || !set {
		return err
	}
	f.e.image = append(f.e.image, len(f.e.list))
	return nil
}
func (f *imageEnvFlag) String() string   { return "" }
func (f *imageEnvFlag) IsBoolFlag() bool { return true }

// Exit statuses of ch-run, from its manual.
const (
	chRunFailed    = 31
	chRunNoCommand = 49
)

// setChRunStatus replaces the exit status of a failed run with that of ch-run.
func setChRunStatus(isChRun bool, err *error) {
	var st exitStatus
	if isChRun && *err != nil && !errors.As(*err, &st) {
		*err = chRunError(*err)
	}
}

// chRunError adds the exit status of ch-run to the error of a run.
func chRunError(err error) error {
	out := &text.Error{Err: err, Status: chRunFailed}
	var re *process.Error
	if errors.As(err, &re) && re.Status != process.ExitFailed {
		out.Status = chRunNoCommand
	}
	out.Advice, _ = adviceFor(err)
	return out
}

// chRunImage returns the image that ch-run runs: a file with any name, or an image that is written as
// the name of its directory in Charliecloud's storage.
func chRunImage(image string) string {
	if _, err := store.Canonical(image); err == nil || isPath(image) {
		return image
	}
	if _, err := os.Stat(image); err == nil {
		return "./" + image
	}
	name := front.CharliecloudName(image)
	return name
}

// replaceWithChRun removes the parts of an image's configuration that ch-run ignores, and adds the
// image's variables to the changes of the environment where --image-env asks for them.
func (a *runArgs) replaceWithChRun(root string, img *runtime.Image) error {
	if len(a.imageEnv) > 0 {
		vars, err := imageVariables(root, img.Config.Env)
		if err != nil {
			return err
		}
		for _, i := range slices.Backward(a.imageEnv) {
			a.env = slices.Insert(slices.Clone(a.env), i, vars...)
		}
	}
	img.Config = runtime.ImageConfig{}
	return nil
}

// imageVariables returns the changes that set the image's variables: those of its configuration,
// or of the file that Charliecloud writes to its images.
func imageVariables(root string, config []string) ([]envfile.Change, error) {
	var out []envfile.Change
	for _, kv := range config {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			c, err := envfile.Exact(name + "=" + value)
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	tree, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	f, err := tree.Open("ch/environment")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return envfile.Read(f, "/ch/environment", envfile.Options{})
}
