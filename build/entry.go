package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/envfile"
	"hpcc/runtime/check"
	"hpcc/store"
	"hpcc/unpack"
)

// EntryFile is the path in the image of the entry program, which is [Options.Entry].
const EntryFile = "/usr/local/bin/hpcc-entry"

// entryArgs are prepended to the image's ENTRYPOINT.
var entryArgs = []string{EntryFile, "entry", "--"}

// withEntry returns img with the entry program as its entry point, like [Dockerfile]. It
// ignores the options that concern the Dockerfile.
func withEntry(ctx context.Context, s *store.Store, img v1.Image, o Options) (v1.Image, error) {
	b, err := begin(s, o)
	if err == nil {
		err = b.useDate(b.Args[epochArg])
	}
	if err != nil {
		return nil, err
	}
	defer b.closeWork()
	if err := b.openWork(); err != nil {
		return nil, err
	}
	d, err := img.Digest()
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	st := &stage{b: b, platform: b.Platform, state: state{key: digestOf("image", d.String())}}
	st.start(img, cfg.DeepCopy())
	defer st.tree.close()
	if _, err := st.addEntry(ctx); err != nil {
		return nil, err
	}
	return st.image()
}

// entryStep runs the implicit last step of a Dockerfile, which adds the entry program.
func (st *stage) entryStep(ctx context.Context) error {
	st.number++
	if err := st.reported(ctx, entryText, func() (bool, error) { return st.addEntry(ctx) }); err != nil {
		return fmt.Errorf("adding %s: %w", EntryFile, err)
	}
	return nil
}

// entryText is the text of the step that adds the entry program.
const entryText = "hpcc entry"

// addEntry adds a layer with the entry program, and sets the entry point. If the image already
// has this entry point, it only replaces the program. cached reports whether the layer comes
// from the cache.
func (st *stage) addEntry(ctx context.Context) (cached bool, err error) {
	cfg := &st.config.Config
	if cfg.User, err = st.numericUser(ctx, cfg.User); err != nil {
		return false, err
	}
	dirs := entryDirs(cfg)
	command := entryArgs[:2] // flags may follow
	if !slices.Equal(cfg.Entrypoint[:min(len(cfg.Entrypoint), len(command))], command) {
		cfg.Entrypoint = slices.Concat(entryArgs, cfg.Entrypoint)
	}
	key := digestOf(append([]string{st.key, "entry", entryDigest(st.b.Entry), cfg.User}, dirs...)...)
	return st.step(ctx, &change{text: entryText, key: key,
		make: st.fill(false, func(_ context.Context, dir string, w *unpack.LayerWriter) error {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: EntryFile, Mode: 0o755, Size: int64(len(st.b.Entry)), ModTime: st.b.now()}
			if err := w.Put(h, bytes.NewReader(st.b.Entry)); err != nil {
				return err
			}
			for _, d := range dirs {
				if err := st.b.shareDir(dir, d, userOf(dir, cfg.User).UID, w); err != nil {
					return fmt.Errorf("giving group 0 access to %s: %w", d, err)
				}
			}
			return nil
		})})
}

// entryDigest returns the digest of an entry program, "sha256:HEX".
func entryDigest(program []byte) string {
	sum := sha256.Sum256(program)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// numericUser returns an image's USER as UID:GID. It replaces root, and an empty USER, with
// [check.AnyUser]. A user without a group gets group 0, which owns the directories (shareDir).
func (st *stage) numericUser(ctx context.Context, user string) (string, error) {
	name, group, _ := strings.Cut(user, ":")
	if n, err := accountNumber(name); name == "" || (err == nil && n == 0) {
		return check.AnyUser, nil
	}
	if _, err := strconv.Atoi(name); err == nil && numeric(user) {
		if group == "" {
			user = name + ":0"
		}
		return user, nil
	}
	key := digestOf(st.key, "user", user)
	if b, err := st.b.store.Cached("build", key); err == nil && numeric(string(b)) && !st.ignoresCache() {
		return string(b), nil
	}
	dir, done, err := st.tree.readOnlyView(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	o, err := parseOwner(dir, user)
	if err != nil {
		return "", fmt.Errorf("USER %s: %w", user, err)
	}
	if o.uid == 0 {
		return check.AnyUser, nil
	}
	if group == "" {
		o.gid = 0
	}
	ids := fmt.Sprintf("%d:%d", o.uid, o.gid)
	return ids, st.b.store.Cache("build", key, []byte(ids))
}

// entryDirs returns the directories that the image's program may need to write to: volumes,
// the working directory and the home directory.
func entryDirs(cfg *v1.Config) []string {
	found := append(slices.Sorted(maps.Keys(cfg.Volumes)), cfg.WorkingDir, envfile.Lookup(cfg.Env, "HOME"))
	var out []string
	for _, d := range found {
		if d = path.Clean(d); path.IsAbs(d) && !check.IsSystemDir(d) && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// maxShared limits the number of files and directories that shareDir visits.
const maxShared = 1_000_000

// shareDir writes a layer that gives group 0 the owner's rights to a directory tree, like
// chgrp -R 0 and chmod -R g=u. It skips files that group 0 can read, to avoid copying them
// into the layer. If the directory is missing, shareDir creates it, owned by uid.
func (b *builder) shareDir(tree, dir string, uid int, w *unpack.LayerWriter) error {
	at, kind, err := w.Resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return w.Put(&tar.Header{Typeflag: tar.TypeDir, Name: at, Mode: 0o775, Uid: uid, ModTime: b.now()}, nil)
	}
	if err != nil || kind != fs.ModeDir || check.IsSystemDir("/"+at) {
		return err
	}
	notes, err := unpack.OpenNotes(tree)
	if err != nil {
		return err
	}
	seen := 0
	return filepath.WalkDir(filepath.Join(tree, at), func(full string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if seen++; seen > maxShared {
			return fmt.Errorf("more than %d files; use another WORKDIR, or add RUN chmod -R g=u %s to the Dockerfile and build without --entry", maxShared, dir)
		}
		fi, err := e.Info()
		if err != nil || (!fi.IsDir() && !fi.Mode().IsRegular()) {
			return err
		}
		rel, err := filepath.Rel(tree, full)
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(fi, "")
		if err != nil {
			return err
		}
		notes.Describe(h, full, fi)
		shared := h.Mode | h.Mode&0o700>>3
		readable := h.Mode&0o004 != 0 || (h.Gid == 0 && h.Mode&0o040 != 0)
		if (h.Gid == 0 && shared == h.Mode) || (!fi.IsDir() && readable) {
			return nil
		}
		h.Name, h.Gid, h.Mode, h.Uname, h.Gname = rel, 0, shared, "", ""
		if b.Reproducible && fi.IsDir() { // see copyJob.header
			h.ModTime = b.stamp
		}
		if fi.IsDir() {
			return w.Put(h, nil)
		}
		f, err := os.Open(full)
		if err != nil {
			return err
		}
		defer f.Close()
		return w.Put(h, f)
	})
}
