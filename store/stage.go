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

// A Stage holds copies of images on storage of this node alone, shared by all
// processes of the user on it. It is a store of its own, in which nothing has a
// name: what was not used for long goes.
type Stage struct {
	s      *Store
	shared bool // s is the user's store of images too
}

// OpenStage opens the user's stage, the directory hpcc-UID in place, and makes it
// if create is set; else a stage that is not there is [fs.ErrNotExist]. [owndir.Place]
// has accepted place: nobody else can exchange it, and "" has OpenStage look for it
// ([owndir.NodeLocal]). If another user holds the name, the stage has a longer one.
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

// InStore returns a stage that keeps its copies in s, for a node where no other
// directory serves. It does not collect garbage.
func InStore(s *Store) *Stage { return &Stage{s: s, shared: true} }

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
	if !g.shared {
		if _, err := g.s.GC(ctx, GCOptions{}); err != nil {
			return "", err
		}
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
