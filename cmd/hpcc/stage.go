package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/urfave/cli/v2"

	"hpcc/files"
	"hpcc/job/node"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
	"hpcc/unpack/sif"
	"hpcc/unpack/squashfs"
)

// stageFlag is --stage, which copies the image to this node.
func stageFlag() cli.Flag {
	return &cli.BoolFlag{Name: "stage", Usage: "copy the image to the node's local storage first"}
}

// parseStage reports whether a flag or else the variable HPCC_STAGE, a boolean or a directory, asks to
// copy the image to this node.
func parseStage(c *cli.Context) (bool, error) {
	env := os.Getenv("HPCC_STAGE")
	if c.IsSet("stage") || env == "" || filepath.IsAbs(env) {
		return c.Bool("stage") || (!c.IsSet("stage") && env != ""), nil
	}
	on, err := strconv.ParseBool(env)
	if err != nil {
		return false, text.Usagef("HPCC_STAGE=%s is neither true nor false, nor an absolute path", env).Hint("unset HPCC_STAGE, or set it to 1 or to a directory of this node")
	}
	return on, nil
}

// stageCommand returns the command with which the script of a job sends its image to the nodes. The
// script runs it on the first node. There it runs itself on each node, with --node.
func stageCommand() *cli.Command {
	return &cli.Command{
		Name: "stage", Hidden: true, Usage: "send an image to the nodes of a job (started by job scripts)", ArgsUsage: "IMAGE",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "each", Usage: "run a command on each node with `ARGV`"},
			&cli.StringFlag{Name: "send", Usage: "copy a file to each node with `ARGV`"},
			&cli.StringFlag{Name: "node", Usage: "prepare this node for broadcast `NAME`"},
			storeFlag(),
		},
		Action: action(parseStageCommand),
	}
}

// stageArgs are the arguments of "hpcc stage".
type stageArgs struct {
	image, store string
	each, send   []string
	node         string // name of the broadcast that this node receives
	refuse       bool   // instead, remove what it received
}

func parseStageCommand(c *cli.Context) (verb, error) {
	a := &stageArgs{image: c.Args().First(), store: c.String("store"), node: c.String("node")}
	a.refuse = c.Args().Get(1) == "refuse"
	for _, flag := range []struct {
		name string
		argv *[]string
	}{{"each", &a.each}, {"send", &a.send}} {
		list, err := text.Words(c.String(flag.name), true)
		if err != nil {
			return nil, text.Usagef("--%s: %w", flag.name, err)
		}
		for _, w := range list {
			*flag.argv = append(*flag.argv, w.Text)
		}
	}
	if a.image == "" || (a.node == "" && (len(a.each) == 0 || len(a.send) == 0)) || strings.ContainsRune(a.node, filepath.Separator) {
		return nil, text.Usagef("stage is for job scripts only").Hint("hpcc submit --stage --nodes 4 IMAGE -- CMD")
	}
	return a, nil
}

// run sends the image, and prints the directory of the nodes that it sent it to. Without it, each
// node copies the image itself. So a failure gives a message, and the job continues.
func (a *stageArgs) run(ctx context.Context) error {
	if a.node != "" {
		if err := a.onNode(ctx); err != nil {
			host, _ := os.Hostname()
			return fmt.Errorf("node %s: %w", host, err)
		}
		return nil
	}
	dir, err := a.broadcast(ctx)
	if err != nil {
		say("note: not sending %s to all nodes at once: %v; each node copies it from the original", a.image, err)
		return nil
	}
	_, err = fmt.Println(dir)
	return err
}

// broadcast sends the image to the nodes that lack it, if there are any, and returns the directory
// that each node prepared.
func (a *stageArgs) broadcast(ctx context.Context) (string, error) {
	img, err := a.sent()
	if err != nil {
		return "", err
	}
	s, err := openStage(true)
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding hpcc itself: %w", err)
	}
	b := &node.Broadcast{Each: a.each, Send: a.send, Self: []string{self, "stage", "--node=" + strings.ToLower(rand.Text()[:16]), a.image}}
	begin := time.Now()
	dir, needed, err := b.Prepare(ctx)
	if err == nil && needed {
		err = img.send(ctx, s, b, dir)
	}
	if err != nil && ctx.Err() == nil { // a job that was cancelled cannot start steps
		if rerr := b.Refuse(ctx); rerr != nil {
			err = fmt.Errorf("%w (cleaning up: %w)", err, rerr)
		}
	}
	if err != nil {
		return "", err
	}
	if needed {
		say("sent %s to all nodes: %s in %v", a.image, text.Size(img.size), time.Since(begin).Round(time.Millisecond))
	}
	return dir, nil
}

// onNode prepares this node, and prints the directory for the file and whether the node needs it.
func (a *stageArgs) onNode(ctx context.Context) error {
	s, err := openStage(true)
	if err != nil {
		return err
	}
	if a.refuse {
		return s.Refuse(a.node)
	}
	img, err := a.sent()
	if err != nil {
		return err
	}
	has, need := slices.ContainsFunc(img.copies, s.Has), img.need
	if has {
		need = 0
	}
	dir, err := s.Receive(ctx, a.node, need)
	if err != nil {
		return err
	}
	_, err = fmt.Println(node.Received(dir, has))
	return err
}

// A sentImage is an image that a job sends to its nodes as one file.
type sentImage struct {
	name   string
	image  v1.Image // whose layers are joined; nil for a SquashFS or SIF file
	key    string   // of the file
	copies []string // keys of the node's copies of the image
	size   int64    // of the file, in bytes
	need   int64    // required free space of a node, in bytes
}

// sent returns the image as a file to send.
func (a *stageArgs) sent() (*sentImage, error) {
	s := &sentImage{name: a.image}
	if namesSquashFS(a.image) {
		key, err := files.Key(a.image)
		if err != nil {
			return nil, err
		}
		fi, err := os.Stat(a.image)
		if err != nil {
			return nil, err
		}
		s.key, s.copies, s.size, s.need = sentKey(key), []string{"file-" + key, key}, fi.Size(), fi.Size()
		return s, nil
	}
	if isPath(a.image) {
		return nil, errors.New("only images of the store and SquashFS files are sent")
	}
	img, err := namedImage(a.store, a.image, nil)
	if err != nil {
		return nil, err
	}
	d, err := img.Digest()
	if err != nil {
		return nil, err
	}
	s.size, err = packedSize(img)
	s.image, s.key, s.copies, s.need = img, d.Hex, []string{d.Hex}, 2*s.size
	return s, err
}

// packedSize returns the size of an image's layers.
func packedSize(img v1.Image) (n int64, err error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	for _, l := range m.Layers {
		n += l.Size
	}
	return n, nil
}

// send sends the file to the directory dir of each node.
func (i *sentImage) send(ctx context.Context, s *store.Stage, b *node.Broadcast, dir string) error {
	file := i.name
	if i.image != nil {
		var err error
		if file, err = s.Join(ctx, i.image); err != nil {
			return err
		}
		defer os.Remove(file)
	}
	if err := b.To(ctx, file, filepath.Join(dir, i.key), i.size); err != nil || i.image != nil {
		return err
	}
	if key, err := files.Key(file); err != nil || sentKey(key) != i.key {
		return errors.New("the file changed while it was sent")
	}
	return nil
}

// rootArgs name the image of a run and how the run uses it.
type rootArgs struct {
	image string // a name, a directory or a SquashFS file
	store string
	write bool // the program may change the directory
	stage bool // copy the image to this node

	mounted *sif.Image // the SIF file that directory mounted, if any
	local   string     // the copy of an image file on this node, if there is one
	isFile  bool       // the image is a SquashFS or SIF file, whatever its name, unless the store has the name
}

// namesSquashFS reports whether IMAGE is the name of a SquashFS or SIF file. Every start calls
// it, so it reads the disk only if the extension matches.
func namesSquashFS(image string) bool {
	if !ready.IsImageFile(image) {
		return false
	}
	fi, err := os.Stat(image)
	return err == nil && fi.Mode().IsRegular()
}

// holdsSquashFS reports whether a file is a SquashFS or SIF file, by its content.
func holdsSquashFS(file string) bool { return squashfs.Is(file) || sif.Is(file) }

// directory returns the root directory of the run: the directory of the image, its copy on
// this node, or a mounted SquashFS file.
func (r *rootArgs) directory(ctx context.Context) (string, error) {
	if r.isFile && !isPath(r.image) { // a name of the store comes first, as with ch-run
		if dir, err := r.imageDir(ctx); !errors.As(err, new(*store.NotFoundError)) {
			return dir, err
		}
		r.image = "./" + r.image
	}
	file := r.isFile || namesSquashFS(r.image)
	if !file && !r.stage {
		return r.imageDir(ctx)
	}
	if r.write {
		return "", text.Usagef("--write would change a copy that other runs use").Hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", r.image)
	}
	s, err := openStage(true)
	if err != nil {
		return r.withoutStage(ctx, file, err)
	}
	if file {
		return r.squashRoot(ctx, s, r.stage)
	}
	dir, err := r.stagedCopy(ctx, s)
	if outOfSpace(err) {
		say("%v; running from the original", err)
		return r.imageDir(ctx)
	}
	return dir, err
}

// imageDir returns the directory of the image. It refuses a shared tree that the program may change.
func (r *rootArgs) imageDir(ctx context.Context) (string, error) {
	dir, err := r.imageTree(ctx)
	if err != nil || !r.write || !ready.InTree(dir) {
		return dir, err
	}
	name, _, _ := strings.Cut(r.image, "@sha256:") // of a job
	image := name
	if isPath(image) {
		image = "IMAGE"
	}
	return "", text.Usagef("--write would change %q for everybody who uses it", name).Hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", image)
}

// imageTree returns the directory of the image: a path, or the tree of a name, which it unpacks
// if the tree does not exist yet.
func (r *rootArgs) imageTree(ctx context.Context) (string, error) {
	image := r.image
	if isPath(image) {
		return image, nil
	}
	s, err := store.OpenToRead(r.store)
	if err != nil {
		return "", err
	}
	dir, err := s.TreeOf(image)
	var missing *store.NotFoundError
	var noTree *store.NoTreeError
	switch {
	case errors.As(err, &missing):
		if fi, serr := os.Stat(image); serr == nil && fi.IsDir() {
			return image, nil
		}
		return "", err
	case errors.As(err, &noTree):
		img, err := s.Get(image, nil)
		if err != nil {
			return "", err
		}
		if err := unpackTree(ctx, s, img, nil); err != nil {
			return "", readOnlyHint(err, s.Dir(), "unpack it to node-local storage with --stage")
		}
		return s.TreeOf(image)
	}
	return dir, err
}

// openStage opens the node's directory for copies, which only root and the user can change.
func openStage(create bool) (*store.Stage, error) {
	dir, err := runtime.StagePlace()
	if err != nil {
		return nil, err
	}
	return store.OpenStage(dir, create)
}

// withoutStage returns the root directory of the run on a node without a trusted directory for
// copies. It uses the original image. If a file cannot be mounted, it unpacks the file into the
// user's store.
func (r *rootArgs) withoutStage(ctx context.Context, file bool, why error) (string, error) {
	say("warning: not copying the image to this node: %v", why)
	say("hint: set HPCC_STAGE to a directory of this node that only you can write to")
	fi, err := os.Stat(r.image)
	if archive := err == nil && fi.Mode().IsRegular() && isPath(r.image); !file && !archive {
		return r.imageDir(ctx)
	}
	own, err := store.Open(r.store)
	if err != nil {
		return "", err
	}
	if file {
		return r.squashRoot(ctx, store.InStore(own), false)
	}
	return r.stagedCopy(ctx, store.InStore(own))
}

// outOfSpace reports whether a copy failed because a disk or quota is full.
func outOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// squashRoot mounts a SquashFS or SIF file, or its copy on this node. If the user may not
// mount, it unpacks the file on this node.
func (r *rootArgs) squashRoot(ctx context.Context, s *store.Stage, stage bool) (string, error) {
	key, err := files.Key(r.image)
	if err != nil {
		return "", err
	}
	defer s.Done(sentKey(key))
	mounted, err := r.squashMount(ctx, s, key, stage)
	var fuse *runtime.FUSEError
	if err == nil || !errors.As(err, &fuse) {
		return mounted, err
	}
	r.mounted = nil
	file := cmp.Or(r.local, s.Sent(sentKey(key)), r.image)
	dir, err := s.Copy(ctx, key, 0, func(dir string) error {
		say("unpacking %s to %s, once for this node (%v)", r.image, s.Dir(), fuse)
		_, notes, err := unpack.FillSquashFS(ctx, file, dir)
		for _, n := range notes {
			say("warning: %s: %s", r.image, n)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("unpacking %s on this node: %w", r.image, err)
	}
	return dir, nil
}

// config returns the image's configuration, whose tree is in root.
func (r *rootArgs) config(root string) (runtime.Image, error) {
	img, err := runtime.ReadImage(root, unpack.ConfigFile)
	if r.mounted == nil || err != nil {
		return img, err
	}
	files, err := sif.FilesIn(root)
	if err != nil {
		return img, err
	}
	var own *v1.ConfigFile
	if img.Architecture != "" {
		own = &v1.ConfigFile{Config: v1.Config{User: img.Config.User, Env: img.Config.Env, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd, WorkingDir: img.Config.WorkingDir}}
	}
	c, notes := r.mounted.Config(files, own)
	for _, n := range append(r.mounted.Ignored(), notes...) {
		say("warning: %s: %s", r.image, n)
	}
	return runtime.Image{Architecture: c.Architecture, Config: runtime.ImageConfig{User: c.Config.User, Env: c.Config.Env,
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, WorkingDir: c.Config.WorkingDir}}, nil
}

// squashMount mounts the file system of a SquashFS or SIF file, or of its copy if stage is set.
func (r *rootArgs) squashMount(ctx context.Context, s *store.Stage, key string, stage bool) (string, error) {
	at, err := s.Empty(ctx)
	if err != nil {
		return "", err
	}
	file := r.image
	if stage {
		if err := runtime.CanMountSquashFS(); err != nil {
			return "", err // do not copy a file that cannot be mounted
		}
		switch file, err = r.stagedFile(ctx, s, key); {
		case outOfSpace(err):
			say("%v; running from the original", err)
			file = r.image
		case err != nil:
			return "", err
		default:
			r.local = file
		}
	}
	if file, err = filepath.Abs(file); err != nil {
		return "", err
	}
	var offset int64
	if sif.Is(file) { // the copy, because the original may be on a slow file system
		if r.mounted, err = sif.Open(file); err == nil {
			offset, _, err = r.mounted.Root()
		}
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", r.image, err)
		}
	}
	return at, runtime.MountSquashFS(file, offset, at)
}

// stagedFile returns the copy of an image file on this node. It takes the file that the job sent to
// this node, or copies the original.
func (r *rootArgs) stagedFile(ctx context.Context, s *store.Stage, key string) (string, error) {
	fi, err := os.Stat(r.image)
	if err != nil {
		return "", err
	}
	sent, need := s.Sent(sentKey(key)), fi.Size()
	if sent != "" {
		need = 0
	}
	dir, err := s.Copy(ctx, "file-"+key, need, func(dir string) error {
		to := filepath.Join(dir, "image.sqfs")
		if sent != "" && os.Rename(sent, to) == nil {
			return nil
		}
		reportCopy(s, r.image)
		return files.Copy(r.image, to)
	})
	return filepath.Join(dir, "image.sqfs"), err
}

// sentKey returns the part of a file's key that is the same on all nodes: without the number of
// the device.
func sentKey(key string) string {
	_, rest, _ := strings.Cut(key, "-")
	return rest
}

// reportCopy prints that this process copies the image. Other processes wait for the copy.
func reportCopy(s *store.Stage, image string) {
	say("copying %s to %s, once for this node", image, s.Dir())
}

// stagedCopy returns the copy of the image's tree on this node. It unpacks a name from its
// layers, which are a few large files, copies a directory, and unpacks an archive.
func (r *rootArgs) stagedCopy(ctx context.Context, s *store.Stage) (string, error) {
	image := r.image
	fi, serr := os.Stat(image)
	if serr == nil && fi.IsDir() && isPath(image) {
		return stagedTree(ctx, s, image)
	}
	if serr == nil && fi.Mode().IsRegular() && isPath(image) {
		key, err := files.Key(image)
		if err != nil {
			return "", err
		}
		return s.Copy(ctx, key, fi.Size(), func(dir string) error {
			reportCopy(s, image)
			img, err := sourceImage(ctx, r.store, image, nil)
			if err != nil {
				return err
			}
			_, err = unpack.Fill(ctx, img, dir, unpack.Options{})
			return err
		})
	}
	img, err := namedImage(r.store, image, nil)
	var missing *store.NotFoundError
	if errors.As(err, &missing) && serr == nil && fi.IsDir() {
		return stagedTree(ctx, s, image)
	}
	if err != nil {
		return "", err
	}
	d, err := img.Digest()
	if err != nil {
		return "", err
	}
	packed, err := packedSize(img)
	if err != nil {
		return "", err
	}
	defer s.Done(d.Hex)
	if sent := s.Sent(d.Hex); sent != "" {
		dir, err := s.Copy(ctx, d.Hex, packed, func(dir string) error {
			local, err := s.Split(img, sent)
			if err == nil {
				_, err = unpack.Fill(ctx, local, dir, unpack.Options{})
			}
			return err
		})
		if err == nil {
			return dir, nil
		}
		say("warning: unpacking the layers of %s that the job sent to this node: %v", image, err)
	}
	return s.Copy(ctx, d.Hex, packed, func(dir string) error {
		reportCopy(s, image)
		_, err := unpack.Fill(ctx, img, dir, unpack.Options{})
		return err
	})
}

// stagedTree returns the copy of a directory. The key depends on the directory itself, so
// changes below it go unnoticed, as with trees that are in use.
func stagedTree(ctx context.Context, s *store.Stage, dir string) (string, error) {
	key, err := files.Key(dir)
	if err != nil {
		return "", err
	}
	return s.Copy(ctx, key, 0, func(to string) error {
		reportCopy(s, dir)
		return unpack.CopyTree(ctx, dir, to)
	})
}

// loadSquashFS stores the image of a SquashFS or SIF file: one layer, and the configuration
// that the file contains, if any.
func loadSquashFS(ctx context.Context, s *store.Store, file, name string) (string, error) {
	if name == "" {
		base := filepath.Base(file)
		name = strings.ToLower(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	var config []byte
	var notes []string
	img, err := s.RootImage(ctx, func(w io.Writer) (err error) {
		config, notes, err = unpack.SquashFSLayer(ctx, file, w)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("loading %s: %w", file, err)
	}
	reportSIF(file, notes)
	if config != nil {
		if img, err = withConfig(img, config); err != nil {
			return "", fmt.Errorf("loading %s: reading its configuration: %w", file, err)
		}
	}
	_, err = s.PutLoaded(ctx, name, img, file)
	return name, err
}

// reportSIF prints notes about parts of a SIF file that have no effect, and the signatures.
func reportSIF(file string, notes []string) {
	for _, n := range notes {
		say("warning: %s: %s", file, n)
	}
	if !sif.Is(file) {
		return
	}
	if img, err := sif.Open(file); err == nil {
		for _, n := range img.Signatures() {
			say("%s: %s", file, n)
		}
	}
}

// withConfig returns an image with the layers of img and the given configuration.
func withConfig(img v1.Image, config []byte) (v1.Image, error) {
	want, err := v1.ParseConfigFile(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	have, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	want.RootFS, want.History = have.RootFS, have.History
	if want.Architecture == "" { // a SIF file may not know it
		want.Architecture = have.Architecture
	}
	return mutate.ConfigFile(img, want)
}

// checkedTree returns the tree of an image after comparing it with the layers. Runs trust the tree,
// but copies that leave the store must not. If the tree differs, checkedTree moves it away and
// unpacks the image again.
func checkedTree(ctx context.Context, s *store.Store, img v1.Image) (string, error) {
	for again := false; ; again = true {
		tree, rep, err := unpack.Tree(ctx, s, img, unpack.Options{Owners: true})
		if err != nil {
			return "", err
		}
		err = unpack.CheckTree(ctx, img, tree)
		if err == nil {
			reportLeftOut(rep)
			return tree, nil
		}
		var differs *unpack.TreeError
		if again || !errors.As(err, &differs) {
			return "", err
		}
		moved := s.Discard(filepath.Join("trees", filepath.Base(tree)))
		if moved == "" {
			return "", text.Hint(err, "ask somebody who can write to the store to run hpcc gc --verify, which moves it away")
		}
		say("warning: %v; moved to %s and unpacked again", err, moved)
	}
}
