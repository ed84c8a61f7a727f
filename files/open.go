package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollInterval is the interval for checking signals during a wait, in milliseconds.
const pollInterval = 50

// A File is an open file whose reads SIGINT and SIGTERM can interrupt.
type File struct{ file *os.File }

// Open opens a file for reading. It waits for the writer of a FIFO, and reads wait for data,
// until SIGINT or SIGTERM arrives; the error is then [context.Canceled]. open(2) and read(2)
// alone would keep waiting, because the program handles these signals.
func Open(name string) (*File, error) {
	var fd int
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
		err = waitReadable(fd) // before the first writer, a read would return EOF
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &File{os.NewFile(uintptr(fd), name)}, nil
}

// ReadFile reads a file that may have at most limit bytes. It waits as [Open] does.
func ReadFile(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := ReadAll(f, limit)
	if errors.As(err, new(sizeError)) {
		err = &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return b, err
}

// sizeError is the limit, in bytes, of something that is larger.
type sizeError int64

func (e sizeError) Error() string { return fmt.Sprintf("the file has more than %d bytes", int64(e)) }

// ReadAll is [io.ReadAll] for something that may have at most limit bytes.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, sizeError(limit)
	}
	return b, err
}

// Stdin returns standard input, with reads that SIGINT and SIGTERM can interrupt.
func Stdin() *File { return &File{os.Stdin} }

// Read implements [io.Reader].
func (f *File) Read(p []byte) (int, error) {
	if err := waitReadable(int(f.file.Fd())); err != nil {
		return 0, &fs.PathError{Op: "read", Path: f.file.Name(), Err: err}
	}
	return f.file.Read(p)
}

// Stat describes the file.
func (f *File) Stat() (fs.FileInfo, error) { return f.file.Stat() }

// Close implements [io.Closer].
func (f *File) Close() error { return f.file.Close() }

// waitReadable waits until a file has data or has ended. A FIFO that no process has opened
// for writing yet has neither data nor an end.
func waitReadable(fd int) error {
	if ready(fd, 0) {
		return nil
	}
	ctx, stop := UntilSignal(context.Background())
	defer stop()
	for !ready(fd, pollInterval) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// ready reports whether a read would not block, after waiting for at most timeout
// milliseconds. If poll(2) fails, it returns true, and the read reports the error.
func ready(fd, timeout int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeout)
	return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
}

// Interrupted is the error of a wait that a signal ended. It matches [context.Canceled].
type Interrupted struct{ Signal syscall.Signal }

func (Interrupted) Error() string { return "interrupted" }

// Is reports whether target is [context.Canceled].
func (Interrupted) Is(target error) bool { return target == context.Canceled }

// UntilSignal returns a context that SIGINT or SIGTERM cancels, with the cause
// [Interrupted]. An ignored SIGINT, as in a script's background job, stays ignored. stop
// restores the signals' default effect.
func UntilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ending := []os.Signal{syscall.SIGTERM, os.Interrupt}
	if signal.Ignored(os.Interrupt) {
		ending = ending[:1]
	}
	ctx, cancel := context.WithCancelCause(parent)
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, ending...)
	go func() {
		select {
		case sig := <-arrived:
			number, _ := sig.(syscall.Signal)
			cancel(Interrupted{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(arrived)
		cancel(context.Canceled)
	}
}
