package results

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// umask returns the umask of this process.
var umask = sync.OnceValue(func() fs.FileMode {
	b, err := os.ReadFile("/proc/self/status")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			var mask uint32
			if n, _ := fmt.Sscanf(line, "Umask: %o", &mask); n == 1 {
				return fs.FileMode(mask) & 0o777
			}
		}
	}
	return 0o077
})

// Send writes the file or directory at file as a tar archive, with name as the first element of
// all paths. It does not follow links, and leaves out devices, sockets and pipes.
func Send(ctx context.Context, w io.Writer, file, name string) error {
	t := tar.NewWriter(w)
	if err := add(ctx, t, file, name); err != nil {
		return err
	}
	return t.Close()
}

// add adds a file or directory to an archive, like [Send].
func add(ctx context.Context, t *tar.Writer, file, name string) error {
	fi, err := os.Stat(file) // the file itself may be a link
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return addFile(t, func() (*os.File, error) { return os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) }, name)
	}
	root, err := os.OpenRoot(file)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		return addEntry(t, root, p, path.Join(name, p), d)
	})
}

// addEntry adds one entry of a directory.
func addEntry(t *tar.Writer, root *os.Root, p, name string, d fs.DirEntry) error {
	switch {
	case d.Type().IsRegular():
		return addFile(t, func() (*os.File, error) {
			return root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		}, name)
	case !d.IsDir() && d.Type() != fs.ModeSymlink:
		return nil
	}
	fi, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	if d.Type() == fs.ModeSymlink {
		if target, err = root.Readlink(p); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, target)
	if err != nil {
		return err
	}
	h.Name = name
	if d.IsDir() {
		h.Name += "/"
	}
	return t.WriteHeader(anonymous(h))
}

// addFile adds a regular file. A file that shrinks meanwhile is an error.
func addFile(t *tar.Writer, open func() (*os.File, error), name string) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "reading", Path: f.Name(), Err: errors.New("not a regular file or directory")}
	}
	if err != nil {
		return err
	}
	h, err := tar.FileInfoHeader(fi, "")
	if err != nil {
		return err
	}
	h.Name = name
	if err := t.WriteHeader(anonymous(h)); err != nil {
		return err
	}
	n, err := io.CopyN(t, f, fi.Size())
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: has %d bytes less than at the start: the program is still writing it", f.Name(), fi.Size()-n)
	}
	return err
}

// anonymous removes what names users of this machine.
func anonymous(h *tar.Header) *tar.Header {
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.Format = tar.FormatPAX
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	return h
}

// Join adds the file or directory of a tar stream to an archive, with name instead of the first
// element of its paths. It closes r.
func Join(t *tar.Writer, r io.ReadCloser, name string) error {
	end := &endReader{r: r}
	err := join(t, tar.NewReader(end), name)
	if err == nil {
		_, err = io.Copy(io.Discard, end)
	}
	if err == nil && end.zeros < trailer {
		err = io.ErrUnexpectedEOF
	}
	if cerr := r.Close(); cerr != nil {
		return cerr
	}
	return err
}

func join(t *tar.Writer, r *tar.Reader, name string) error {
	renamed := func(p string) string {
		_, rest, below := strings.Cut(strings.TrimPrefix(p, "./"), "/")
		if !below {
			return name
		}
		return name + "/" + rest
	}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if h.Name = renamed(h.Name); h.Typeflag == tar.TypeLink {
			h.Linkname = renamed(h.Linkname)
		}
		if err := t.WriteHeader(anonymous(h)); err != nil {
			return err
		}
		if _, err := io.Copy(t, r); err != nil {
			return err
		}
	}
}

// Pipe returns the stream that write writes. Close returns its error.
func Pipe(write func(w io.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	p := &pipe{PipeReader: r, done: make(chan error, 1)}
	go func() {
		err := write(w)
		w.CloseWithError(err)
		p.done <- err
	}()
	return p
}

type pipe struct {
	*io.PipeReader
	done chan error
}

// Close ends the writer, and returns its error unless it only lost its reader.
func (p *pipe) Close() error {
	p.PipeReader.Close()
	if err := <-p.done; !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// Run starts a command and returns the stream that it writes to standard output. Close ends the command.
// If the end of the stream was read, it returns the error of the command as failed words it.
func Run(cmd *exec.Cmd, failed func(error) error) (io.ReadCloser, error) {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	return &output{ReadCloser: out, cmd: cmd, failed: failed}, nil
}

type output struct {
	io.ReadCloser
	cmd    *exec.Cmd
	failed func(error) error
	all    bool // the end was read
}

func (o *output) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	o.all = o.all || errors.Is(err, io.EOF)
	return n, err
}

func (o *output) Close() error {
	if !o.all {
		_ = o.cmd.Process.Kill()
		_ = o.cmd.Wait()
		return nil
	}
	if err := o.cmd.Wait(); err != nil {
		return o.failed(err)
	}
	return nil
}
