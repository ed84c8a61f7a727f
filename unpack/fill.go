package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"hpcc/files"
)

// On a network file system, each of the four or five calls for a file waits for a server. So a
// tree creates files in the order of the archive, but writes the content of small ones, and sets
// their attributes, several at a time.

// smallFile is the size in bytes from which a file is written in the order of the archive. Smaller
// files have no holes.
const smallFile = holeSize

// maxFills is the maximum number of files that are written at the same time.
const maxFills = 16

// A newFile is an empty file with its content and attributes to come.
type newFile struct {
	name  string // of the entry
	fd    int
	data  []byte
	head  *tar.Header
	mode  uint32
	chmod bool // the file does not have its mode yet
}

// fills are the files that are being written. The zero value has none.
type fills struct {
	queue   chan newFile // nil: no goroutine runs
	pending sync.WaitGroup
	buffers chan []byte // no longer in use

	mu  sync.Mutex
	err error // the first error
}

// errStopped ends the reading of an archive after the failure of an earlier entry.
var errStopped = errors.New("an earlier entry failed")

// each calls do for each member of an archive, and returns when all files are written.
func (t *tree) each(ctx context.Context, tr *tar.Reader, do func(h *tar.Header) error) error {
	err := eachEntry(ctx, tr, func(h *tar.Header) error {
		if t.failed() != nil {
			return errStopped
		}
		return do(h)
	})
	if failed := t.drain(); failed != nil {
		return failed
	}
	return err
}

// small reads the content of a small file. ok is false if the file is not a small one.
func (t *tree) small(h *tar.Header, r io.Reader) (data []byte, ok bool, err error) {
	if h.Typeflag != tar.TypeReg || h.Size >= smallFile || hasSparseRecord(h) {
		return nil, false, nil
	}
	select {
	case data = <-t.fills.buffers:
	default:
	}
	for {
		b, err := t.piece(r)
		data = append(data, b...)
		if errors.Is(err, io.EOF) {
			return data, true, nil
		}
		if err != nil {
			return nil, true, err
		}
	}
}

// begin fills a file concurrently. It blocks while too many files are being written.
func (t *tree) begin(f newFile) {
	if t.fills.queue == nil {
		t.fills.queue, t.fills.buffers = make(chan newFile), make(chan []byte, maxFills)
		for range files.MaxParallel(maxFills, 8) {
			go t.fillAll(t.fills.queue)
		}
	}
	t.fills.pending.Add(1)
	t.fills.queue <- f
}

func (t *tree) fillAll(queue <-chan newFile) {
	for f := range queue {
		err := t.complete(f, pwrite(f.fd, f.data, 0))
		select {
		case t.fills.buffers <- f.data[:0]:
		default:
		}
		t.fills.mu.Lock()
		if err != nil && t.fills.err == nil {
			t.fills.err = fmt.Errorf("entry %.200q: %w", f.name, err)
		}
		t.fills.mu.Unlock()
		t.fills.pending.Done()
	}
}

// failed returns the first error of a file that was written concurrently.
func (t *tree) failed() error {
	t.fills.mu.Lock()
	defer t.fills.mu.Unlock()
	return t.fills.err
}

// drain waits until all files are written.
func (t *tree) drain() error {
	t.fills.pending.Wait()
	return t.failed()
}

// complete sets the attributes of a file whose content was written with the result err, and closes
// it.
func (t *tree) complete(f newFile, err error) error {
	if err == nil && (!plain(f.head) || t.notes.InMemory()) {
		t.notes.keep(f.fd, f.head, true)
	}
	if err == nil && f.chmod {
		err = unix.Fchmod(f.fd, f.mode)
	}
	if err == nil {
		err = t.setTimes(f.fd, timespec(f.head.ModTime))
	}
	// On network file systems and with quotas, close reports a full disk.
	if cerr := unix.Close(f.fd); err == nil {
		err = cerr
	}
	return err
}
