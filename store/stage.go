package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/store/owndir"
)

// A Stage holds copies of images in this node's local storage, shared by all processes of
// the user. It is a separate store without names: data that was not used for a while is
// removed.
type Stage struct {
	s      *Store
	shared bool // s is also the user's store of images
}

// OpenStage opens the user's stage, the directory hpcc-UID in place, and creates it if
// create is set. Otherwise a missing stage is [fs.ErrNotExist]. place must be a result of
// [owndir.Place], so that nobody else can replace it; for "" OpenStage uses
// [owndir.NodeLocal]. If another user holds the name, the stage has a longer one.
func OpenStage(place string, create bool) (*Stage, error) {
	fail := func(err error) (*Stage, error) {
		return nil, fmt.Errorf("opening the node's copies of images in %q: %w", cmp.Or(place, owndir.NodeLocal()), err)
	}
	safe := place
	var err error
	if place == "" {
		if safe, err = owndir.Place(owndir.NodeLocal()); err != nil {
			return fail(err)
		}
	}
	dir, err := owndir.Open(safe, "hpcc-"+strconv.Itoa(os.Geteuid()), create)
	if err != nil {
		return fail(err)
	}
	s, err := Open(dir)
	if err != nil {
		return nil, err
	}
	return &Stage{s: s}, nil
}

// InStore returns a stage that keeps its copies in s, for a node without another suitable
// directory. It does not collect garbage.
func InStore(s *Store) *Stage { return &Stage{s: s, shared: true} }

// Dir returns the stage's directory.
func (g *Stage) Dir() string { return g.s.dir }

// Copy returns the directory with this key and fills it if it is missing. Of concurrent
// processes, one fills it and the others wait; if that one is killed, another continues.
// need is the minimum number of bytes that fill writes; if less space is free, Copy returns
// ENOSPC without calling fill. It first removes copies that were unused for a week.
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
	if !g.shared {
		if _, err := g.s.GC(ctx, GCOptions{}); err != nil {
			return "", err
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(g.s.dir, &st); err == nil && int64(st.Bavail)*st.Bsize < need {
		return "", fmt.Errorf("copying %d bytes to %s, but only %d are free: %w", need, g.s.dir, int64(st.Bavail)*st.Bsize, syscall.ENOSPC)
	}
	dir, err := g.s.Once(ctx, rel, fill)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return "", fmt.Errorf("copying to %s: the file system became full: %w", g.s.dir, syscall.ENOSPC)
	}
	return dir, err
}

// used reports whether a copy exists, and records its use for GC.
func used(dir string) bool {
	now := time.Now()
	mark := filepath.Join(dir, ".hpcc")
	if os.Chtimes(mark, now, now) == nil {
		return true
	}
	return os.Chtimes(dir, now, now) == nil
}

// Empty returns an empty directory, as a mount point that others do not see.
func (g *Stage) Empty(ctx context.Context) (string, error) {
	return g.s.Once(ctx, "cache/mount/empty", func(string) error { return nil })
}

// GC removes copies that were unused for long, as [Store.GC] does.
func (g *Stage) GC(ctx context.Context, o GCOptions) (GCReport, error) { return g.s.GC(ctx, o) }
