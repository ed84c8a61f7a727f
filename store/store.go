// Package store keeps images in a directory that many processes and nodes share, and
// transfers them from and to registries and files.
//
// Everything is written to tmp/ once and renamed into place: a file or directory under its
// final name is complete. Blobs, trees and records of the cache never change. The files of
// refs/, pushed/ and jobs/ are replaced whole, and the last writer wins. So readers need no
// lock, which would be unreliable on NFS or Lustre. If two processes create the same thing,
// one wins and the other uses the winner's. A killed process leaves files only in tmp/; GC
// removes them.
//
//	README  version
//	blobs/sha256/<hex>    manifests, configurations, layers
//	refs/<escaped name>   an OCI descriptor: what the name stands for
//	trees/<hex>/          the unpacked image with this manifest digest
//	cache/<kind>/<key>    small records, such as build steps
//	pushed/<escaped name> in which registry the image of the name lies
//	jobs/<id>/            records of submitted jobs
//	damaged/              what was found damaged, until GC removes it
//	tmp/                  work in progress
package store

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/store/ready"
	"hpcc/web"
)

// formatVersion is the layout described above.
const formatVersion = ready.Version

const readme = `This directory belongs to hpcc. Files appear in it whole and never change.
To free space: hpcc rm NAME; hpcc gc. To remove all of it, remove the directory.
`

// A Store is an open directory of images.
type Store struct {
	dir     string
	foreign bool // a foreign layout, in which not even times may change
}

// Open opens the store at dir ("" is [ready.Default]) and creates it if it is missing. It
// refuses a directory with other content, a store of a newer hpcc, and one that is
// [Exposed]. A read-only store can still be read.
func Open(dir string) (*Store, error) {
	s, there, err := find(dir)
	if err != nil || there {
		return s, err
	}
	return s, s.create()
}

// OpenToRead is [Open] for reading only: a missing store is not created, and counts
// as empty.
func OpenToRead(dir string) (*Store, error) {
	s, _, err := find(dir)
	return s, err
}

// find reports whether there is a store at dir. If err is nil, a missing one can be created.
func find(dir string) (s *Store, there bool, err error) {
	if dir == "" {
		if dir, err = ready.Default(); err != nil {
			return nil, false, err
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, false, fmt.Errorf("opening store: %w", err)
	}
	s = &Store{dir: dir}
	if err := Exposed(dir); err != nil {
		return nil, false, fmt.Errorf("opening store %q: %w", dir, err)
	}
	v, err := os.ReadFile(s.path("version"))
	switch {
	case err == nil && string(v) == formatVersion:
		return s, true, nil
	case err == nil:
		return nil, false, fmt.Errorf("opening store %q: its format is %q, this hpcc supports %q; use the hpcc that created it, or if %s was damaged: echo %s > %s", dir, strings.TrimSpace(string(v)), strings.TrimSpace(formatVersion), s.path("version"), strings.TrimSpace(formatVersion), s.path("version"))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, s.placeError(fmt.Errorf("opening store %q: %w", dir, err))
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("opening store %q: %w", s.dir, err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "README", "version", "blobs", "refs", "trees", "cache", "pushed", "jobs", "tmp", damagedDir:
		default:
			return nil, false, fmt.Errorf("opening store %q: it contains %q, which does not belong to hpcc; use an empty or new directory", s.dir, e.Name())
		}
	}
	return s, false, nil
}

// Exposed returns why users other than its owner could change the store at dir, and the
// remedy, or nil. Programs run from such a store could be anybody's. Parent directories that
// a group or a third user can change are not an error: many sites keep projects in such
// directories.
func Exposed(dir string) error {
	physical, exposed, err := files.Resolve(dir)
	for _, e := range exposed {
		if e.World() && e.Path != physical {
			return fmt.Errorf("%w; set HPCC_STORE to a directory that only you can write to", e)
		}
	}
	if err != nil {
		return nil // there is no store yet, or opening it reports the reason
	}
	fi, err := os.Stat(physical)
	if err != nil {
		return nil
	}
	if fi.Mode().Perm()&ready.Shared == 0 {
		above, err := os.Stat(filepath.Dir(physical))
		if foreign := int(fi.Sys().(*syscall.Stat_t).Uid) != os.Geteuid(); foreign && err == nil && above.Mode().Perm()&0o002 != 0 {
			return fmt.Errorf("another user created it in %q, in which everybody can create files; set HPCC_STORE to a directory that only you can write to", filepath.Dir(physical))
		}
		return nil
	}
	who := "its group"
	if fi.Mode().Perm()&0o002 != 0 {
		who = "everybody"
	}
	return fmt.Errorf("%s can write to it (mode %o) and change what is run from it; run \"chmod go-w %s\"", who, fi.Mode().Perm(), dir)
}

// create creates an empty store. It writes the version last.
func (s *Store) create() error {
	for _, d := range []string{"blobs/sha256", "refs", "trees", "cache", "jobs", "tmp"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return s.placeError(fmt.Errorf("creating store %q: %w", s.dir, err))
		}
	}
	if err := s.writeFile("README", []byte(readme)); err != nil {
		return err
	}
	return s.writeVersion()
}

// writeVersion completes a new store. If several processes create it, the first one's file
// stays, because Alone locks it.
func (s *Store) writeVersion() error {
	tmp, err := s.TempDir()
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	f := filepath.Join(tmp, "version")
	if err := os.WriteFile(f, []byte(formatVersion), 0o644); err != nil {
		return s.placeError(fmt.Errorf("creating store %q: %w", s.dir, err))
	}
	final := s.path("version")
	err = os.Link(f, final)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil { // a file system without hard links
		return s.writeFile("version", []byte(formatVersion))
	}
	return nil
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

// Jobs returns the directory of the jobs' directories, which hold the records of tasks.
func (s *Store) Jobs() string { return s.path("jobs") }

func (s *Store) path(rel ...string) string {
	return filepath.Join(append([]string{s.dir}, rel...)...)
}

// writeFile atomically writes data to a name.
func (s *Store) writeFile(rel string, data []byte) error {
	f, err := s.tempFile()
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return s.finish(f, err, s.path(rel))
}

// finish closes a work file and, unless err is set, gives it its final name. The data is on
// disk before the name.
func (s *Store) finish(f *os.File, err error, final string) error {
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err := files.Commit(f, err, final, true); err != nil {
		return fmt.Errorf("writing %s: %w", final, s.diskError(err))
	}
	return nil
}

// diskError adds the file system and a remedy to the error of a full disk.
func (s *Store) diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w on the file system of %s; free space there, run \"hpcc gc\", or set HPCC_STORE", err, s.dir)
	}
	return err
}

// placeError adds a remedy to an error of creating something in the store if the store is
// not writable.
func (s *Store) placeError(err error) error {
	if errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; set HPCC_STORE to a directory that you can write to", err)
	}
	return s.diskError(err)
}

// Once creates the directory rel of the store if it is missing, and returns its path. make
// fills an empty directory, which is then renamed. If two processes create the same one, the
// later uses the earlier's.
func (s *Store) Once(ctx context.Context, rel string, make func(dir string) error) (string, error) {
	final := s.path(rel)
	if _, err := os.Lstat(final); err == nil {
		return final, nil
	}
	tmp, err := s.TempDir()
	if err != nil {
		return "", err
	}
	defer files.RemoveAll(tmp)
	dir := filepath.Join(tmp, "new")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", s.diskError(err)
	}
	if err := make(dir); err != nil {
		return "", s.diskError(err)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", s.diskError(err)
	}
	if err := renameDir(dir, final); err != nil {
		if _, serr := os.Lstat(final); serr == nil {
			return final, nil // another process was first
		}
		return "", fmt.Errorf("renaming to %s: %w", final, s.diskError(err))
	}
	return final, nil
}

// renameDir renames a directory even if its mode forbids it: to change "..", the kernel
// requires write permission on the directory itself. It does not replace a directory, not even
// an empty one, which another process may already use; some file systems, such as NFS, cannot
// exclude that.
func renameDir(from, to string) error {
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if fi.Mode().Perm()&0o200 == 0 {
		if err := os.Chmod(from, fi.Mode().Perm()|0o200); err != nil {
			return err
		}
	}
	err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0)
	}
	return err
}

// Cached reads a record of the cache, or returns fs.ErrNotExist. A damaged record, or one of
// an older version without a checksum, is removed and returns an error, so that the caller
// recreates it.
func (s *Store) Cached(kind, key string) ([]byte, error) {
	p := s.path("cache", kind, key)
	b, err := os.ReadFile(p)
	if err != nil {
		return nil, err
	}
	b, err = files.CheckText(b)
	switch {
	case errors.Is(err, files.ErrNoSum) && ignoreGone(os.Remove(p)) == nil:
		return nil, fmt.Errorf("%s: %w", p, fs.ErrNotExist)
	case err != nil:
		s.moveAway(p, kind+"-"+key)
		return nil, err
	}
	touch(p)
	return b, nil
}

// Cache stores a record. Digests in it ("sha256:…") protect their blobs from GC.
func (s *Store) Cache(kind, key string, data []byte) error {
	if err := os.MkdirAll(s.path("cache", kind), 0o755); err != nil {
		return s.diskError(err)
	}
	return s.writeFile(filepath.Join("cache", kind, key), files.SealText(data))
}

// How long Alone waits for another process: until it notifies the user, and in total. A
// stopped process, or one on a node that a network file system has lost, holds its lock
// forever.
const (
	aloneNotice = 10 * time.Second
	aloneTime   = time.Hour
)

// Alone waits until no other process, and no other part of this one, is between Alone and
// release with the same key, to avoid duplicate work. It is not a reliable lock: without
// lock support of the file system it does not wait, and it waits at most an hour. It locks a
// byte of the file "version" (fcntl(2), "Open file description locks"), which the kernel
// unlocks when the process dies.
func (s *Store) Alone(ctx context.Context, kind, key string) (release func()) {
	f, err := os.OpenFile(s.path("version"), os.O_RDWR, 0)
	if err != nil {
		return func() {}
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s", kind, key)
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(h.Sum64() >> 2), Len: 1}
	late, notice := time.NewTimer(aloneTime), time.NewTimer(aloneNotice)
	defer late.Stop()
	defer notice.Stop()
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return func() { f.Close() }
		}
		select {
		case <-ctx.Done():
			return func() { f.Close() }
		case <-notice.C:
			web.Notice(ctx, "another process does the same work in store %s; waiting for its result for up to %v", s.dir, aloneTime)
		case <-late.C:
			return func() { f.Close() }
		case <-time.After(20 * time.Millisecond):
		}
	}
}
