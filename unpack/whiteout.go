package unpack

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// whiteout hides the lower layers' files of a name, or of a whole directory. Files of this
// layer stay, wherever the whiteout is in the archive.
func (t *tree) whiteout(dir, base string) error {
	if base == whOpaque {
		return t.hideLower(dir)
	}
	target := strings.TrimPrefix(base, whPrefix)
	if target == "" || target == "." || target == ".." || strings.HasPrefix(base, ".wh..wh.") {
		return nil // names without a meaning (aufs stores its own data in them)
	}
	name := path.Join(dir, target)
	if name == configDir {
		return nil
	}
	if t.created[name] {
		return t.hideLower(name)
	}
	if ok, err := t.hasDir(dir); err != nil || !ok {
		return err
	}
	return t.remove(name)
}

// hideLower removes the contents of directory p that the current layer did not create.
func (t *tree) hideLower(p string) error {
	if ok, err := t.hasDir(path.Dir(p)); err != nil || !ok {
		return err // nothing to hide
	}
	parent, err := t.dir(path.Dir(p))
	if err != nil {
		return err
	}
	if p != "." {
		if st, err := lstat(parent, path.Base(p)); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
	}
	d, err := t.dir(p)
	if err != nil {
		return err
	}
	names, err := readNames(d)
	if err != nil {
		return err
	}
	for _, n := range names {
		child := path.Join(p, n)
		if child == configDir {
			continue
		}
		if t.created[child] || t.createdBelow(child) {
			err = t.hideLower(child)
		} else {
			err = t.remove(child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
