package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"hpcc/unpack"
)

// A copyJob is a COPY or ADD with its sources found.
type copyJob struct {
	dest     string     // absolute, inside the image
	isDir    bool       // dest must be a directory: it was written with a slash
	chmod    modeChange // nil: modes stay
	sources  []sourceSet
	inline   []instructions.SourceContent // here-documents
	extract  bool                         // ADD: archives are unpacked
	chown    string                       // --chown as written
	owner    *ownership                   // what it comes to in this image
	keep     bool                         // sources are of an image: their owners stay
	modeText string                       // --chmod as written
}

// copy carries out COPY.
func (st *stage) copy(ctx context.Context, c *instructions.CopyCommand) (bool, error) {
	job, err := st.copyJob(c.SourcesAndDest, c.Chmod)
	if err != nil {
		return false, err
	}
	job.chown, job.keep = c.Chown, c.From != ""
	text := "COPY " + strings.Join(append(append([]string{}, c.SourcePaths...), c.DestPath), " ")
	if c.From == "" {
		if job.sources, err = st.b.context.find(c.SourcePaths, c.ExcludePatterns, c.Parents); err != nil {
			return false, err
		}
		return st.place(ctx, text, fmt.Sprint("COPY ", c.Parents), job)
	}
	if dir, ok := st.b.directory(c.From); ok {
		src, err := openContext(dir, "")
		if err != nil {
			return false, err
		}
		src.of, job.keep = "context "+strconv.Quote(c.From), false
		if job.sources, err = src.find(c.SourcePaths, c.ExcludePatterns, c.Parents); err != nil {
			return false, err
		}
		return st.place(ctx, text, fmt.Sprint("COPY ", c.Parents), job)
	}
	key, open, err := st.otherTree(ctx, c.From)
	if err != nil {
		return false, err
	}
	key = digestOf(append([]string{st.key, "COPY --from", key, job.dest, strconv.FormatBool(job.isDir), c.Chmod, c.Chown, strconv.FormatBool(c.Parents),
		strings.Join(c.ExcludePatterns, "\x00"), job.text()}, c.SourcePaths...)...)
	return st.change(ctx, text, key, func(dir string) error {
		from, done, err := open()
		if err != nil {
			return err
		}
		defer done()
		src := &contextDir{dir: from, of: strconv.Quote(c.From)}
		if job.sources, err = src.find(c.SourcePaths, c.ExcludePatterns, c.Parents); err != nil {
			return err
		}
		return job.into(ctx, st.b, dir)
	})
}

// add carries out ADD: local files and archives, addresses, repositories.
func (st *stage) add(ctx context.Context, c *instructions.AddCommand) (bool, error) {
	job, err := st.copyJob(c.SourcesAndDest, c.Chmod)
	if err != nil {
		return false, err
	}
	job.chown = c.Chown
	job.extract = c.Unpack == nil || *c.Unpack
	var local []string
	kind := fmt.Sprintf("ADD %v", job.extract)
	for _, w := range c.SourcePaths {
		switch {
		case !isRemote(w):
			local = append(local, w)
			continue
		case len(c.SourcePaths) > 1 && c.Checksum != "":
			return false, errors.New("--checksum is for one address alone")
		}
		var set sourceSet
		var is string
		if isGit(w) {
			set, is, err = st.b.repository(ctx, w, c.KeepGitDir != nil && *c.KeepGitDir)
		} else if set, is, err = st.b.download(ctx, w, c.Checksum); err == nil && set.name == "" && job.isDir {
			err = fmt.Errorf("adding %q: the address gives the file no name; write the destination with one", w)
		}
		if err != nil {
			return false, err
		}
		set.remote = c.Unpack == nil || !*c.Unpack // only local archives are unpacked unasked
		kind += " " + is
		job.sources = append(job.sources, set)
	}
	if c.Checksum != "" && len(local) > 0 {
		return false, errors.New("--checksum is for an address, not for files of the build context")
	}
	if len(local) > 0 {
		found, err := st.b.context.find(local, c.ExcludePatterns, false)
		if err != nil {
			return false, err
		}
		job.sources = append(job.sources, found...)
	}
	text := "ADD " + strings.Join(append(append([]string{}, c.SourcePaths...), c.DestPath), " ")
	return st.place(ctx, text, kind, job)
}

// copyJob reads destination and mode.
func (st *stage) copyJob(sd instructions.SourcesAndDest, chmod string) (*copyJob, error) {
	j := &copyJob{dest: st.absolute(sd.DestPath), inline: sd.SourceContents}
	j.isDir = strings.HasSuffix(sd.DestPath, "/") || sd.DestPath == "." || strings.HasSuffix(sd.DestPath, "/.")
	if chmod != "" {
		var err error
		if j.chmod, err = parseMode(chmod); err != nil {
			return nil, err
		}
		j.modeText = chmod
	}
	return j, nil
}

// place makes the step of a job whose sources are at hand: the key is of their bytes.
func (st *stage) place(ctx context.Context, text, kind string, j *copyJob) (bool, error) {
	words := []string{st.key, "COPY", kind, j.dest, strconv.FormatBool(j.isDir), j.modeText, j.chown}
	for i := range j.sources {
		d, err := j.sources[i].digest()
		if err != nil {
			return false, fmt.Errorf("reading what is to be copied: %w", err)
		}
		words = append(words, d)
	}
	words = append(words, j.text())
	return st.change(ctx, text, digestOf(words...), func(dir string) error { return j.into(ctx, st.b, dir) })
}

// otherTree finds the stage or image that --from names: the key of its
// content, and a way to look at it.
func (st *stage) otherTree(ctx context.Context, from string) (string, func() (string, func(), error), error) {
	_, given := st.b.Contexts[from]
	if i, ok := st.b.stageNamed(from, st.index); ok && !given {
		other, err := st.b.finished(ctx, i)
		if err != nil {
			return "", nil, err
		}
		return other.key, func() (string, func(), error) { return other.tree.look(ctx) }, nil
	}
	img, err := st.b.baseImage(ctx, from, st.platform)
	if err != nil {
		return "", nil, err
	}
	d, err := img.Digest()
	if err != nil {
		return "", nil, err
	}
	return d.String(), func() (string, func(), error) {
		dir, err := st.imageTree(ctx, img)
		return dir, func() {}, err
	}, nil
}

func (st *stage) imageTree(ctx context.Context, img v1.Image) (string, error) {
	dir, _, err := unpack.Tree(ctx, st.b.store, img, unpack.Options{})
	return dir, err
}

// into copies the sources into the tree dir.
func (j *copyJob) into(ctx context.Context, b *builder, dir string) error {
	if n := len(j.sources) + len(j.inline); n > 1 && !j.isDir {
		return fmt.Errorf("%d sources need a directory as destination: write %q", n, j.dest+"/")
	}
	if j.chown != "" {
		var err error
		if j.owner, err = parseOwner(dir, j.chown); err != nil {
			return err
		}
	}
	for _, s := range j.sources {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := j.copySet(ctx, b, dir, s); err != nil {
			return err
		}
	}
	for _, f := range j.inline {
		to, err := j.fileTarget(dir, path.Base(f.Path))
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if j.chmod != nil {
			mode = j.chmod(mode, false)
		}
		if err := b.write(to, func(p string) error { return b.writeText(p, f.Data, mode) }); err != nil {
			return err
		}
		if err := j.own("", to); err != nil {
			return err
		}
	}
	return nil
}

// copySet copies one source.
func (j *copyJob) copySet(ctx context.Context, b *builder, dir string, s sourceSet) error {
	if !s.dir {
		src := s.items[0]
		if j.extract && !s.remote {
			layer, ok, err := archive(src.path)
			if err != nil {
				return fmt.Errorf("unpacking %q: %w", s.name, err)
			}
			if ok {
				return j.unpack(ctx, dir, layer)
			}
		}
		to, err := j.fileTarget(dir, path.Join(s.keep, s.name))
		if err != nil {
			return err
		}
		return j.copyItem(b, src, to)
	}
	top, err := j.dirTarget(dir, s.keep)
	if err != nil {
		return err
	}
	in, parent := "", top // the directory of the item before, and where that is
	for _, it := range s.items {
		if it.rel == "" {
			continue
		}
		if d := path.Dir(it.rel); d != in && !(d == "." && in == "") {
			// A directory of the image may be a link to another one: follow it inside.
			if parent, err = securejoin.SecureJoin(dir, filepath.Join(inTree(dir, top), d)); err != nil {
				return err
			}
			if err := os.MkdirAll(parent, 0o755); err != nil {
				return err
			}
			in = d
		}
		if err := j.copyItem(b, it, filepath.Join(parent, path.Base(it.rel))); err != nil {
			return err
		}
	}
	return nil
}

// inTree is the path of full below dir.
func inTree(dir, full string) string {
	return strings.TrimPrefix(strings.TrimPrefix(full, dir), "/")
}

// dirTarget is the directory that a directory's contents go to; keep is the part
// of its own path that --parents keeps.
func (j *copyJob) dirTarget(dir, keep string) (string, error) {
	to, err := securejoin.SecureJoin(dir, path.Join(j.dest, keep))
	if err != nil {
		return "", err
	}
	if fi, err := os.Lstat(to); err == nil && !fi.IsDir() {
		return "", fmt.Errorf("%s is a file in the image: a directory cannot be copied onto it", j.dest)
	}
	return to, os.MkdirAll(to, 0o755)
}

// fileTarget is where a file of this name goes.
func (j *copyJob) fileTarget(dir, name string) (string, error) {
	to, err := securejoin.SecureJoin(dir, j.dest)
	if err != nil {
		return "", err
	}
	fi, err := os.Lstat(to)
	if j.isDir || err == nil && fi.IsDir() {
		if err == nil && !fi.IsDir() {
			return "", fmt.Errorf("%s is a file in the image, not a directory", j.dest)
		}
		if to, err = securejoin.SecureJoin(dir, path.Join(j.dest, name)); err != nil {
			return "", err
		}
	}
	if fi, err := os.Lstat(to); err == nil && fi.IsDir() {
		return "", fmt.Errorf("%s is a directory in the image: a file cannot replace it", "/"+inTree(dir, to))
	}
	return to, os.MkdirAll(filepath.Dir(to), 0o755)
}

// copyItem copies one file, link or directory to the path to.
func (j *copyJob) copyItem(b *builder, it item, to string) error {
	mode := it.mode & (fs.ModePerm | fs.ModeSticky)
	if j.chmod != nil {
		mode = j.chmod(mode, it.mode.IsDir())
	}
	switch {
	case it.mode.IsDir():
		if fi, err := os.Stat(to); err == nil && !fi.IsDir() {
			return fmt.Errorf("%s is a file in the image: a directory cannot be copied onto it", filepath.Base(to))
		} else if err != nil {
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
		}
		if err := os.Chmod(to, mode); err != nil {
			return err
		}
		return j.own(it.path, to)
	case it.mode&fs.ModeSymlink != 0:
		return b.write(to, func(p string) error { return os.Symlink(it.link, p) })
	}
	if err := b.write(to, func(p string) error { return copyFile(it.path, p, mode, b.stamp) }); err != nil {
		return err
	}
	return j.own(it.path, to)
}

// writeText makes a file of a here-document, with the build's time.
func (b *builder) writeText(p, text string, mode fs.FileMode) error {
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Chmod(p, mode); err != nil {
		return err
	}
	return os.Chtimes(p, b.stamp, b.stamp)
}

// text is what the here-documents of the instruction hold, for its key.
func (j *copyJob) text() string {
	var b strings.Builder
	for _, f := range j.inline {
		fmt.Fprintf(&b, "%q %q\n", f.Path, f.Data)
	}
	return b.String()
}

// own gives a copied file its owner: that of --chown, or of a file of another
// image; else it is 0:0.
func (j *copyJob) own(from, to string) error {
	switch {
	case j.owner != nil:
		return unpack.SetOwner(to, j.owner.uid, j.owner.gid)
	case j.keep:
		return unpack.CopyOwner(from, to)
	}
	return nil
}

// write puts a file or link in the place of whatever file is there, never
// through it.
func (b *builder) write(to string, make func(p string) error) error {
	if fi, err := os.Lstat(to); err == nil {
		if fi.IsDir() {
			return fmt.Errorf("%s is a directory in the image: a file cannot replace it", filepath.Base(to))
		}
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	return make(to)
}

// unpack extracts an archive of ADD into the destination.
func (j *copyJob) unpack(ctx context.Context, dir string, layer v1.Layer) error {
	to, err := j.dirTarget(dir, "")
	if err != nil {
		return err
	}
	_, err = unpack.Apply(ctx, layer, to)
	return err
}

// workdir carries out WORKDIR: the directory is made when it is not there.
func (st *stage) workdir(ctx context.Context, c *instructions.WorkdirCommand) (bool, error) {
	p := st.absolute(c.Path)
	st.config.Config.WorkingDir = p
	if p == "/" {
		st.record("WORKDIR "+p, nil)
		return true, nil
	}
	return st.change(ctx, "WORKDIR "+p, digestOf(st.key, "WORKDIR", p), func(dir string) error {
		full, err := securejoin.SecureJoin(dir, p)
		if err != nil {
			return err
		}
		return os.MkdirAll(full, 0o755)
	})
}
