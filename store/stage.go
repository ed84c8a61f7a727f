package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Stage holds copies of images on storage of this node alone, shared by all
// processes of the user on it. It is a store of its own, in which nothing has a
// name: what was not used for long goes.
type Stage struct{ s *Store }

// stagePlace is the directory in which a stage is: $HPCC_STAGE when that is a
// path, else what the job has on the node, else the node's /tmp. Memory
// (/dev/shm) counts against the job, so it is only for those who name it.
func stagePlace() string {
	for _, name := range []string{"HPCC_STAGE", "SLURM_TMPDIR", "TMPDIR"} {
		if d := os.Getenv(name); filepath.IsAbs(d) {
			return filepath.Clean(d)
		}
	}
	return "/tmp"
}

// OpenStage opens the user's stage on this node, the directory hpcc-UID in
// $HPCC_STAGE, $SLURM_TMPDIR, $TMPDIR or /tmp, and makes it when make says so;
// else a stage that is not there is fs.ErrNotExist. In a directory where others
// can write, theirs could stand in its place: it must be a directory, the
// user's own and closed to others.
func OpenStage(make bool) (*Stage, error) {
	place := stagePlace()
	dir := filepath.Join(place, "hpcc-"+strconv.Itoa(os.Geteuid()))
	fail := func(err error) (*Stage, error) {
		return nil, fmt.Errorf("opening the node's copies of images in %q: %w; set HPCC_STAGE to a directory of this node that only you can write to", place, err)
	}
	above, err := os.Stat(place)
	if err != nil {
		return fail(err)
	}
	if above.Mode().Perm()&0o002 != 0 && above.Mode()&fs.ModeSticky == 0 {
		return fail(errors.New("everybody may rename what is in it (no sticky bit)"))
	}
	if make {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fail(err)
		}
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fail(err)
	}
	uid := int(fi.Sys().(*syscall.Stat_t).Uid)
	switch {
	case !fi.IsDir():
		return fail(fmt.Errorf("%s is no directory", dir))
	case uid != os.Geteuid():
		return fail(fmt.Errorf("%s belongs to user %d", dir, uid))
	case fi.Mode().Perm()&0o077 != 0:
		return fail(fmt.Errorf("%s is open to others (mode %o)", dir, fi.Mode().Perm()))
	}
	s, err := Open(dir)
	if err != nil {
		return nil, err
	}
	return &Stage{s}, nil
}

// Dir is the stage's directory.
func (g *Stage) Dir() string { return g.s.dir }

// Copy returns the directory with this key and has it filled when it is not
// there. However many processes ask for it together, one fills it and the others
// wait; when that one is killed, another goes on. need is how many bytes fill
// will write at least; where there is less room it is not called, and the error
// is ENOSPC. What nobody used for a week is removed before.
func (g *Stage) Copy(ctx context.Context, key string, need int64, fill func(dir string) error) (string, error) {
	rel := filepath.Join("trees", key)
	final := g.s.path(rel)
	if used(final) {
		return final, nil
	}
	release := g.s.Alone(ctx, "stage", key)
	defer release()
	if used(final) {
		return final, nil
	}
	if _, err := g.s.GC(ctx, GCOptions{}); err != nil {
		return "", err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(g.s.dir, &st); err == nil && int64(st.Bavail)*st.Bsize < need {
		return "", fmt.Errorf("copying %d bytes to %s, where %d are free: %w", need, g.s.dir, int64(st.Bavail)*st.Bsize, syscall.ENOSPC)
	}
	dir, err := g.s.Once(ctx, rel, fill)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return "", fmt.Errorf("copying to %s: the file system became full: %w", g.s.dir, syscall.ENOSPC)
	}
	return dir, err
}

// used says whether a copy is there, and notes its use for GC.
func used(dir string) bool {
	now := time.Now()
	mark := filepath.Join(dir, ".hpcc")
	if os.Chtimes(mark, now, now) == nil {
		return true
	}
	return os.Chtimes(dir, now, now) == nil
}

// Empty is an empty directory, as a place for mounts that others do not see.
func (g *Stage) Empty(ctx context.Context) (string, error) {
	return g.s.Once(ctx, "cache/mount/empty", func(string) error { return nil })
}

// GC removes copies that nobody used for long, as [Store.GC].
func (g *Stage) GC(ctx context.Context, o GCOptions) (GCReport, error) { return g.s.GC(ctx, o) }

// FileKey names a copy of a file or directory: by its device, inode, size and
// times, so that one that was changed is another.
func FileKey(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("opening %q: %w", path, err)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), nil
}
