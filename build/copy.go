package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"hpcc/build/git"
	"hpcc/build/source"
	"hpcc/unpack"
)

// A copyJob is a COPY or ADD with resolved sources.
type copyJob struct {
	dest     string     // absolute path in the image
	isDir    bool       // dest must be a directory, because it was written with a slash
	chmod    modeChange // nil: keep the modes
	sources  []source.Set
	inline   []instructions.SourceContent // here-documents
	extract  bool                         // ADD: unpack archives
	chown    string                       // --chown as written
	owner    *ownership                   // resolved --chown
	keep     bool                         // keep the owners, because the sources are of an image
	notes    *unpack.Notes                // notes of that image's tree, with keep
	modeText string                       // --chmod as written
	link     bool                         // --link: the layer is independent of the layers below
	reader   source.Reader                // for the sources
	buf      []byte                       // buffer for file contents
}

// copy returns the change of COPY.
func (st *stage) copy(ctx context.Context, c *instructions.CopyCommand) (*change, error) {
	job, err := st.copyJob(c.SourcesAndDest, c.Chmod)
	if err != nil {
		return nil, err
	}
	for _, w := range c.SourcePaths {
		if source.IsRemote(w) {
			return nil, fmt.Errorf("%q is a URL; use ADD to download it", w)
		}
	}
	job.chown = c.Chown
	if err := job.linked(c.Link); err != nil {
		return nil, err
	}
	text := "COPY " + strings.Join(append(append([]string{}, c.SourcePaths...), c.DestPath), " ")
	src, err := st.b.contextOf(ctx, c.From)
	if err != nil {
		return nil, err
	}
	if src == nil {
		job.keep = true
		return st.copyFrom(ctx, c, job, text)
	}
	if job.sources, err = src.Find(c.SourcePaths, c.ExcludePatterns, c.Parents); err != nil {
		return nil, err
	}
	return st.copyLocal(text, fmt.Sprint("COPY ", c.Parents), job)
}

// copyFrom returns the change of COPY --from a stage or image. Its key includes the copied bytes, so a
// rebuilt stage with the same files invalidates no later step. It reads the files only if
// the result for the stage's definition is unknown.
func (st *stage) copyFrom(ctx context.Context, c *instructions.CopyCommand, job *copyJob, text string) (*change, error) {
	key, open, err := st.otherTree(ctx, c.From)
	if err != nil {
		return nil, err
	}
	defined := digestOf(append([]string{job.parent(st), "COPY --from", key, job.dest,
		strconv.FormatBool(job.isDir), c.Chmod, c.Chown, strconv.FormatBool(c.Parents),
		strings.Join(c.ExcludePatterns, "\x00"), job.text()}, c.SourcePaths...)...)
	with := func(use func() error) error {
		from, done, err := open()
		if err != nil {
			return err
		}
		defer done()
		src := &source.Dir{Dir: from, Of: strconv.Quote(c.From)}
		if job.notes, err = unpack.OpenNotes(from); err != nil {
			return err
		}
		if job.sources, err = src.Find(c.SourcePaths, c.ExcludePatterns, c.Parents); err != nil {
			return err
		}
		return use()
	}
	key, err = st.same(ctx, defined, func() (same string, err error) {
		err = with(func() error {
			parts, err := job.keyParts(st.b)
			same = digestOf(append([]string{job.parent(st), "COPY --from", job.dest, strconv.FormatBool(job.isDir), c.Chmod, c.Chown,
				job.text()}, parts...)...)
			return err
		})
		return same, err
	})
	if err != nil {
		return nil, err
	}
	return job.change(st, text, key, func(ctx context.Context, dir string, w *unpack.LayerWriter) error {
		return with(func() error { return job.into(ctx, st.b, dir, w) })
	}), nil
}

// keyParts returns strings that identify the sources' content: bytes, modes, owners.
func (j *copyJob) keyParts(b *builder) ([]string, error) {
	var parts []string
	for i := range j.sources {
		d, err := j.sources[i].Digest()
		if err != nil {
			return nil, fmt.Errorf("reading the files to copy: %w", err)
		}
		parts = append(parts, d)
		if !j.keep {
			continue
		}
		h := sha256.New()
		for _, it := range j.sources[i].Items {
			e := j.header(b, it, "")
			fmt.Fprintf(h, "%o %d %d %q\n", e.Mode, e.Uid, e.Gid, e.PAXRecords)
			if b.Reproducible { // the times are inputs, and the same everywhere
				fmt.Fprintln(h, e.ModTime.Unix())
			}
		}
		parts = append(parts, string(h.Sum(nil)))
	}
	return parts, nil
}

// add returns the change of ADD, for local files and archives, URLs and repositories.
func (st *stage) add(ctx context.Context, c *instructions.AddCommand) (*change, error) {
	job, err := st.copyJob(c.SourcesAndDest, c.Chmod)
	if err != nil {
		return nil, err
	}
	job.chown = c.Chown
	if err := job.linked(c.Link); err != nil {
		return nil, err
	}
	job.extract = c.Unpack == nil || *c.Unpack
	var local []string
	kind := fmt.Sprintf("ADD %v", job.extract)
	for _, w := range c.SourcePaths {
		switch {
		case !source.IsRemote(w):
			local = append(local, w)
			continue
		case len(c.SourcePaths) > 1 && c.Checksum != "":
			return nil, errors.New("--checksum needs exactly one URL")
		}
		var set source.Set
		var is string
		if git.IsAddress(w) {
			set, is, err = st.b.repository(ctx, w, c.Checksum, c.KeepGitDir != nil && *c.KeepGitDir)
		} else if set, is, err = st.b.download(ctx, w, c.Checksum, st.fetching()); err == nil && set.Name == "" && job.isDir {
			err = fmt.Errorf("adding %q: the URL has no file name; add a file name to the destination", w)
		}
		if err != nil {
			return nil, err
		}
		set.Remote = c.Unpack == nil || !*c.Unpack // by default, only local archives are unpacked
		kind += " " + is
		job.sources = append(job.sources, set)
	}
	if c.Checksum != "" && len(local) > 0 {
		return nil, errors.New("--checksum needs a URL, not a file of the build context")
	}
	if len(local) > 0 {
		found, err := st.b.context.Find(local, c.ExcludePatterns, false)
		if err != nil {
			return nil, err
		}
		job.sources = append(job.sources, found...)
	}
	text := "ADD " + strings.Join(append(append([]string{}, c.SourcePaths...), c.DestPath), " ")
	return st.copyLocal(text, kind, job)
}

// copyJob parses destination and mode.
func (st *stage) copyJob(sd instructions.SourcesAndDest, chmod string) (*copyJob, error) {
	j := &copyJob{dest: st.absolute(sd.DestPath), inline: sd.SourceContents, buf: make([]byte, source.SmallFile)}
	// A variable may make the destination empty: it is then the working directory.
	j.isDir = strings.HasSuffix(sd.DestPath, "/") || sd.DestPath == "" || sd.DestPath == "." || strings.HasSuffix(sd.DestPath, "/.")
	if chmod != "" {
		var err error
		if j.chmod, err = parseMode(chmod); err != nil {
			return nil, err
		}
		j.modeText = chmod
	}
	return j, nil
}

// copyLocal returns the change of a job with local sources. The key includes their bytes.
func (st *stage) copyLocal(text, kind string, j *copyJob) (*change, error) {
	parts, err := j.keyParts(st.b)
	if err != nil {
		return nil, err
	}
	parts = append([]string{j.parent(st), "COPY", kind, j.dest, strconv.FormatBool(j.isDir), j.modeText, j.chown, j.text()}, parts...)
	return j.change(st, text, digestOf(parts...),
		func(ctx context.Context, dir string, w *unpack.LayerWriter) error { return j.into(ctx, st.b, dir, w) }), nil
}

// linked sets --link. It refuses names in --chown, which cannot be looked up in an empty
// tree. With --chmod, BuildKit copies as without --link.
func (j *copyJob) linked(link bool) error {
	if link && j.chown != "" && !numeric(j.chown) {
		return fmt.Errorf("--chown=%s: names cannot be looked up with --link; give numbers, USER:GROUP", j.chown)
	}
	j.link = link && j.chmod == nil
	return nil
}

// parent returns the key of what the job depends on in the stage: everything before it, or
// with --link only the type of its layers.
func (j *copyJob) parent(st *stage) string {
	if j.link {
		return "--link " + string(st.layerType()) + st.b.dateKey()
	}
	return st.key
}

// change returns the change of the job; with --link it sees an empty tree.
func (j *copyJob) change(st *stage, text, key string, write func(ctx context.Context, dir string, w *unpack.LayerWriter) error) *change {
	c := &change{text: text, key: key, make: st.fill(j.link, write)}
	if j.link {
		c.next = digestOf(st.key, "--link", key)
	}
	return c
}

// otherTree returns the key of the stage or image that --from names, and a function that
// opens its tree.
func (st *stage) otherTree(ctx context.Context, from string) (string, func() (string, func(), error), error) {
	_, given := st.b.named(from)
	if i, ok := st.b.stageNamed(from, st.index); ok && !given {
		other, err := st.b.finished(ctx, i)
		if err != nil {
			return "", nil, err
		}
		return other.key, func() (string, func(), error) { return other.tree.readOnlyView(ctx) }, nil
	}
	img, err := st.b.baseImage(ctx, from, st.platform, st.fetching())
	if err != nil && !strings.ContainsAny(from, "/:@") {
		err = fmt.Errorf("no earlier stage is named %q, and %w", from, err)
	}
	if err != nil {
		return "", nil, err
	}
	d, err := img.Digest()
	if err != nil {
		return "", nil, err
	}
	return d.String(), func() (string, func(), error) {
		dir, _, err := unpack.Tree(ctx, st.b.store, img, unpack.Options{Owners: true})
		return dir, func() {}, err
	}, nil
}

// into writes the layer that adds the sources to the tree dir.
func (j *copyJob) into(ctx context.Context, b *builder, dir string, w *unpack.LayerWriter) error {
	if j.chown != "" {
		var err error
		if j.owner, err = parseOwner(dir, j.chown); err != nil {
			return fmt.Errorf("--chown=%s: %w", j.chown, err)
		}
		w.Owner, w.OwnAll = [2]int{j.owner.uid, j.owner.gid}, true
	}
	if isOctal(j.modeText) { // also of new parent directories, as in BuildKit
		w.DirMode = int64(toBits(j.chmod(0, true)))
	}
	defer j.reader.Close()
	for _, s := range j.sources {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := j.putSet(ctx, b, w, s); err != nil {
			return err
		}
	}
	for _, f := range j.inline {
		to, err := j.fileTarget(w, path.Base(f.Path))
		if err != nil {
			return err
		}
		it := source.Item{Mode: 0o644, When: b.now()}
		h := j.header(b, it, to)
		h.Size = int64(len(f.Data))
		if err := w.Put(h, strings.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

// putSet writes one source.
func (j *copyJob) putSet(ctx context.Context, b *builder, w *unpack.LayerWriter, s source.Set) error {
	if !s.Dir {
		src := s.Items[0]
		if j.extract && !s.Remote {
			r, ok, err := source.Archive(src.Path)
			if err == nil && ok {
				err = w.Archive(ctx, j.dest, tar.NewReader(r))
				r.Close()
			}
			if err != nil {
				return fmt.Errorf("unpacking %q: %w", s.Name, err)
			}
			if ok {
				return nil
			}
		}
		if err := j.keepDirs(b, w, s); err != nil {
			return err
		}
		to, err := j.fileTarget(w, path.Join(s.Keep, s.Name))
		if err != nil {
			return err
		}
		return j.putItem(b, w, src, to)
	}
	if err := j.keepDirs(b, w, s); err != nil {
		return err
	}
	top := path.Join(j.dest, s.Keep)
	if err := w.Dir(top); err != nil {
		return err
	}
	for i, it := range s.Items {
		if i%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if it.Rel == "" {
			continue
		}
		if err := j.putItem(b, w, it, path.Join(top, it.Rel)); err != nil {
			return err
		}
	}
	return nil
}

// keepDirs writes the directories that --parents keeps, with the modes and owners of the
// originals.
func (j *copyJob) keepDirs(b *builder, w *unpack.LayerWriter, s source.Set) error {
	if s.Keep == "" || s.Keep == "." {
		return nil
	}
	from := s.Items[0].Path
	if !s.Dir {
		from = path.Dir(from)
	}
	for n := strings.Count(s.Keep, "/"); n > 0; n-- {
		from = path.Dir(from)
	}
	at := ""
	for _, name := range strings.Split(s.Keep, "/") {
		if at != "" {
			from = path.Join(from, name)
		}
		at = path.Join(at, name)
		fi, err := os.Stat(from)
		if err != nil || !fi.IsDir() {
			continue // the image has a link; create the directory like any other
		}
		dir := source.Item{Path: from, Mode: fi.Mode()}
		if !b.Reproducible {
			dir.When = fi.ModTime()
		}
		if err := j.putItem(b, w, dir, path.Join(j.dest, at)); err != nil {
			return err
		}
	}
	return nil
}

// fileTarget returns the destination of a file with this name.
func (j *copyJob) fileTarget(w *unpack.LayerWriter, name string) (string, error) {
	at, kind, err := w.Resolve(j.dest)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	switch {
	case err == nil && kind.IsDir(), err != nil && j.isDir:
		return path.Join(j.dest, name), nil
	case j.isDir:
		return "", fmt.Errorf("%s is a file in the image, not a directory", j.dest)
	}
	if n := len(j.sources) + len(j.inline); n > 1 {
		return "", fmt.Errorf("%d sources need a directory as destination: write %q", n, j.dest+"/")
	}
	return at, nil // if the destination is a link, its target is replaced
}

// putItem writes one file, link or directory to the path to.
func (j *copyJob) putItem(b *builder, w *unpack.LayerWriter, it source.Item, to string) error {
	h := j.header(b, it, to)
	switch {
	case !it.Mode.IsRegular():
		return w.Put(h, nil)
	case it.Data != nil:
		h.Size = int64(len(it.Data))
		return w.Put(h, bytes.NewReader(it.Data))
	}
	f, err := j.reader.Open(it.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.ReadFull(f, j.buf)
	if source.AtEnd(err) {
		h.Size = int64(n)
		return w.Put(h, bytes.NewReader(j.buf[:n]))
	}
	if err == nil {
		h.Size, err = f.Size()
	}
	if err != nil {
		return fmt.Errorf("reading %q: %w", it.Path, err)
	}
	return w.Put(h, io.MultiReader(bytes.NewReader(j.buf), f))
}

// header returns the tar header of an item, with its time. In a reproducible build only files of
// another stage or image keep their times: those of a context differ from clone to clone, and a
// directory that no layer describes has the time at which it was unpacked.
func (j *copyJob) header(b *builder, it source.Item, to string) *tar.Header {
	mode := it.Mode & (fs.ModePerm | fs.ModeSticky)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: int64(toBits(mode)), ModTime: it.Time()}
	if b.Reproducible && !(j.keep && it.Mode.IsRegular()) {
		h.ModTime = b.stamp
	}
	if j.keep {
		if fi, err := os.Lstat(it.Path); err == nil {
			j.notes.Describe(h, it.Path, fi)
		}
	}
	if !it.When.IsZero() {
		h.ModTime = it.When
	}
	if j.chmod != nil {
		h.Mode = int64(toBits(j.chmod(source.FromBits(uint32(h.Mode)), it.Mode.IsDir())))
	}
	switch {
	case it.Mode.IsDir():
		h.Typeflag = tar.TypeDir
	case it.Mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, it.Link, 0o777
	}
	if j.owner != nil {
		h.Uid, h.Gid = j.owner.uid, j.owner.gid
	}
	return h
}

// text returns the here-documents of the instruction, for its key.
func (j *copyJob) text() string {
	var b strings.Builder
	for _, f := range j.inline {
		fmt.Fprintf(&b, "%q %q\n", f.Path, f.Data)
	}
	return b.String()
}

// workdir returns the change of WORKDIR, which creates the directory if it does not exist. The root
// always does.
func (st *stage) workdir(c *instructions.WorkdirCommand) *change {
	p := st.absolute(c.Path)
	if p == "/" {
		return nil
	}
	st.config.Config.WorkingDir = p
	user := st.config.Config.User
	write := func(_ context.Context, dir string, w *unpack.LayerWriter) error {
		if o, err := parseOwner(dir, user); err == nil && user != "" { // unknown users count as root
			w.Owner = [2]int{o.uid, o.gid}
		}
		return w.Dir(p)
	}
	return &change{text: "WORKDIR " + p, key: digestOf(st.key, "WORKDIR", p, user), make: st.fill(false, write)}
}
