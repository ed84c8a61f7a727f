// Package results moves the results of jobs as tar streams.
//
//	Send ─► tar ─► ssh, kubectl exec ─► Receive ─► temporary sibling ─► rename
//
// The receiver does not trust the stream: the program that wrote the files also decides what tar
// reads. Every name is created below an open directory, no link leads out of the received file or
// directory, and sizes are bounded. A result appears complete, by rename, or not at all.
package results

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a stream, in addition to [Options].
const (
	maxNames = 10_000_000 // entries
	maxPath  = 4096       // bytes of a name
	maxFirst = 3          // names of entries that are left out
)

// DefaultMax is the limit of [Options] for the size of a result, in bytes.
const DefaultMax = 100e9

// Options change how a result is received.
type Options struct {
	Replace  bool              // replace an existing file or directory
	Max      int64             // bytes of all files; 0: DefaultMax
	Temp     string            // directory for a result that the sender must copy first; "": the default
	Progress func(bytes int64) // called with the number of bytes received; may be nil
}

// An ExistsError reports that a local file would be replaced.
type ExistsError struct{ Name string }

func (e *ExistsError) Error() string { return fmt.Sprintf("%q exists", e.Name) }

// Free returns an [ExistsError] if a result cannot get this name.
func (o Options) Free(final string) error {
	if _, err := os.Lstat(final); err == nil && !o.Replace {
		return &ExistsError{final}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Receive reads a tar stream with one file or directory, which becomes final. It closes r before
// the result appears: an error of r.Close means that the stream is incomplete. It leaves out devices,
// sockets and pipes, and returns their number and the first of their names.
func Receive(ctx context.Context, r io.ReadCloser, final string, o Options) (leftOut int, first []string, err error) {
	x := &receiver{ctx: ctx, dirs: map[string]time.Time{}, files: map[string]bool{}, o: o}
	err = create(final, o, func(tmp string) error {
		err := x.read(r, tmp)
		if cerr := r.Close(); cerr != nil {
			return cerr // it explains why the stream ended early
		}
		return err
	})
	return x.leftOut, x.first, err
}

// create creates final by calling fill, which creates a file or directory of another name. If fill
// fails, nothing remains. Without o.Replace an existing final is an [ExistsError].
func create(final string, o Options, fill func(tmp string) error) error {
	if err := o.Free(final); err != nil {
		return err
	}
	parent, err := os.MkdirTemp(filepath.Dir(final), ".hpcc-fetch-")
	if err != nil {
		return err
	}
	defer removeAll(parent)
	tmp := filepath.Join(parent, filepath.Base(final))
	if err := fill(tmp); err != nil {
		return err
	}
	return place(tmp, final, parent, o.Replace)
}

// place renames tmp to final. It moves an existing file or directory to parent, which the caller
// removes.
func place(tmp, final, parent string, replace bool) error {
	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist) && !replace:
		return &ExistsError{final}
	case errors.Is(err, unix.EINVAL) && !replace: // NFS and others lack the flag
		if _, err := os.Lstat(final); err == nil {
			return &ExistsError{final}
		}
		return os.Rename(tmp, final)
	case !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.EINVAL):
		return &os.LinkError{Op: "rename", Old: tmp, New: final, Err: err}
	}
	old := filepath.Join(parent, ".old")
	if err := os.Rename(final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return errors.Join(err, os.Rename(old, final))
	}
	return nil
}

// removeAll removes a directory, also below directories without write permission.
func removeAll(dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}

// A receiver creates the entries of one stream.
type receiver struct {
	ctx     context.Context
	o       Options
	root    *os.Root             // the parent of the result
	name    string               // of the result in root
	top     string               // the first element of all names in the stream; "" before the first entry
	dirs    map[string]time.Time // created directories and their times
	files   map[string]bool      // created regular files
	bytes   int64
	leftOut int      // entries
	first   []string // names of at most maxFirst of them
}

// read creates the entries of the stream as tmp.
func (x *receiver) read(r io.Reader, tmp string) (err error) {
	if x.root, err = os.OpenRoot(filepath.Dir(tmp)); err != nil {
		return err
	}
	defer x.root.Close()
	x.name = filepath.Base(tmp)
	end := &endReader{r: r}
	t := tar.NewReader(end)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n == maxNames {
			err = fmt.Errorf("more than %d files", maxNames)
		}
		if err == nil {
			err = x.ctx.Err()
		}
		if err == nil {
			err = x.entry(h, t)
		}
		if err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, end); err != nil { // padding
		return err
	}
	if end.zeros < trailer {
		return io.ErrUnexpectedEOF
	}
	if x.top == "" {
		return errors.New("nothing was received")
	}
	return x.finish()
}

// trailer is the number of zero bytes that end a tar archive.
const trailer = 1024

// An endReader counts the zero bytes at the end of what was read: [tar.Reader] accepts a stream
// that was cut off between two entries.
type endReader struct {
	r     io.Reader
	zeros int64
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	i := n
	for i > 0 && p[i-1] == 0 {
		i--
	}
	if i > 0 {
		e.zeros = 0
	}
	e.zeros += int64(n - i)
	return n, err
}

// local returns the path of an entry in root. All entries have the same first element, which
// becomes the name of the result.
func (x *receiver) local(name string) (string, error) {
	clean := path.Clean(name)
	if len(name) > maxPath || strings.ContainsRune(name, 0) || !filepath.IsLocal(clean) || clean == "." {
		return "", fmt.Errorf("entry %q: not a path below the directory", name)
	}
	top, rest, _ := strings.Cut(clean, "/")
	if x.top == "" {
		x.top = top
	}
	if top != x.top {
		return "", fmt.Errorf("entry %q is not in %q", name, x.top)
	}
	return path.Join(x.name, rest), nil
}

// entry creates one entry of the stream.
func (x *receiver) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := x.local(h.Name)
	if err != nil {
		return err
	}
	if err := x.makeParents(path.Dir(name)); err != nil {
		return fmt.Errorf("entry %q: %w", h.Name, err)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if _, ok := x.dirs[name]; !ok {
			err = x.root.Mkdir(name, 0o700)
		}
		x.dirs[name] = h.ModTime
	case tar.TypeReg, tar.TypeGNUSparse:
		err = x.file(name, h, content)
	case tar.TypeSymlink:
		if err = x.checkLink(name, h.Linkname); err == nil {
			err = x.root.Symlink(h.Linkname, name)
		}
	case tar.TypeLink:
		var old string
		if old, err = x.local(h.Linkname); err == nil && !x.files[old] {
			err = fmt.Errorf("hard link to %q, which is not a file before it", h.Linkname)
		}
		if err == nil {
			err = x.root.Link(old, name)
		}
		x.files[name] = true
	default:
		if x.leftOut++; x.leftOut <= maxFirst {
			x.first = append(x.first, h.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("entry %q: %w", h.Name, err)
	}
	return nil
}

// makeParents creates the directories above an entry that have no entries themselves. A path
// through a link is an error, because only created directories count.
func (x *receiver) makeParents(dir string) error {
	if _, ok := x.dirs[dir]; ok || dir == "." {
		return nil
	}
	if err := x.makeParents(path.Dir(dir)); err != nil {
		return err
	}
	x.dirs[dir] = time.Time{}
	return x.root.Mkdir(dir, 0o700)
}

// file creates a regular file.
func (x *receiver) file(name string, h *tar.Header, content io.Reader) error {
	most := x.o.Max
	if most == 0 {
		most = DefaultMax
	}
	if h.Size > most-x.bytes {
		return &TooLargeError{most}
	}
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, &counted{x, content})
	if err == nil { // never open to more users than the umask leaves
		err = f.Chmod((h.FileInfo().Mode().Perm() | 0o600) &^ umask())
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = x.root.Chtimes(name, h.ModTime, h.ModTime)
	}
	x.files[name] = true
	return err
}

// A TooLargeError reports that the files of a result exceed the limit.
type TooLargeError struct{ Max int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the files have more than %d bytes", e.Max)
}

// counted counts the bytes of files that are read from r, until the context ends.
type counted struct {
	x *receiver
	r io.Reader
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.x.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.x.bytes += int64(n)
	if c.x.o.Progress != nil {
		c.x.o.Progress(c.x.bytes)
	}
	return n, err
}

// checkLink refuses a link that leads out of the result. The target may begin with "..", but not
// contain it later: there the meaning of ".." depends on other links.
func (x *receiver) checkLink(name, target string) error {
	rest := target
	for strings.HasPrefix(rest, "../") {
		rest = strings.TrimLeft(rest[3:], "/")
	}
	inside := path.Join(path.Dir(name), target)
	climbs := rest != ".." && (strings.Contains("/"+rest+"/", "/../"))
	if path.IsAbs(target) || len(target) > maxPath || climbs || !filepath.IsLocal(inside) ||
		(inside != x.name && !strings.HasPrefix(inside, x.name+"/")) {
		return &LinkError{target}
	}
	return nil
}

// A LinkError reports a symbolic link that leads out of the result.
type LinkError struct{ Target string }

func (e *LinkError) Error() string {
	return fmt.Sprintf("the link to %q leads out of what is fetched", e.Target)
}

// finish sets the modes and times of the directories.
func (x *receiver) finish() error {
	mode := 0o777 &^ umask()
	for dir, at := range x.dirs {
		if err := x.root.Chmod(dir, mode|0o700); err != nil {
			return err
		}
		if at.IsZero() {
			continue
		}
		if err := x.root.Chtimes(dir, at, at); err != nil {
			return err
		}
	}
	return nil
}
