package unpack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// NotesFile is the file of a tree's notes if its file system does not support user extended
// attributes. Layers cannot write below its directory.
const NotesFile = configDir + "/" + notesName

const (
	notesName = "notes"
	notesHead = "hpcc notes 1\n"
	// maxNotesFile bounds the size of a notes file, in bytes.
	maxNotesFile = 1 << 30
)

// Notes record metadata of an image's files that the disk cannot hold: owners, modes that
// would lock the user out, set-id bits, capabilities.
//
// They are extended attributes of the files. On a file system without these, they are a
// table in memory that behaves the same: it is keyed by inode, so that a note follows a
// renamed file or one with several names. [Notes.Save] writes the table to [NotesFile],
// keyed by path, so that the notes survive moving or copying the tree, and [OpenNotes] reads
// it. Notes are safe for concurrent use.
type Notes struct {
	mu    sync.Mutex
	table map[inode]*noteEntry // nil: extended attributes
}

// A noteEntry holds the attributes of one inode. A file system may reuse an inode number,
// but never a handle.
type noteEntry struct {
	handle string // name_to_handle_at(2); empty without file system support
	attrs  map[string]string
}

// OpenNotes opens the notes of the tree in dir: its notes file if it exists, else extended
// attributes.
func OpenNotes(dir string) (*Notes, error) {
	f, err := openNotesFile(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if supportsAttributes(dir) {
			return &Notes{}, nil
		}
		return &Notes{table: map[inode]*noteEntry{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the owners of %s: %w", dir, err)
	}
	defer f.Close()
	n := &Notes{table: map[inode]*noteEntry{}}
	if err := n.read(io.LimitReader(f, maxNotesFile), dir); err != nil {
		return nil, fmt.Errorf("reading the owners of %s: %s: %w; unpack the image again", dir, NotesFile, err)
	}
	return n, nil
}

// NewNotes returns empty notes for a new tree in dir.
func NewNotes(dir string) *Notes {
	const trial = notePrefix + "trial"
	if err := unix.Setxattr(dir, trial, []byte("1"), 0); err == nil {
		_ = unix.Removexattr(dir, trial)
		return &Notes{}
	}
	return &Notes{table: map[inode]*noteEntry{}}
}

// supportsAttributes reports whether the file system of dir has user extended attributes.
func supportsAttributes(dir string) bool {
	_, err := unix.Getxattr(dir, ownerAttr, nil)
	return err == nil || errors.Is(err, unix.ENODATA)
}

// hasNotesFile reports whether the tree in dir keeps its notes in a file.
func hasNotesFile(dir string) bool {
	f, err := openNotesFile(dir)
	if err == nil {
		f.Close()
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// HasAttributes reports whether notes are extended attributes both in a tree and in work, a
// directory for changes to it.
func HasAttributes(work, tree string) bool { return supportsAttributes(work) && !hasNotesFile(tree) }

// InMemory reports whether the notes are a table that [Notes.Save] has to write.
func (n *Notes) InMemory() bool { return n.table != nil }

// openConfigDir opens the directory of hpcc's own files in a tree. It does not follow links,
// because a build's program may have replaced the directory by one.
func openConfigDir(dir string) (*os.File, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, configDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = unix.ENOENT
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir, configDir), Err: err}
	}
	return os.NewFile(uintptr(fd), configDir), nil
}

func openNotesFile(dir string) (*os.File, error) { return openOurs(dir, notesName) }

// openOurs opens one of hpcc's own files in a tree for reading.
func openOurs(dir, name string) (*os.File, error) {
	d, err := openConfigDir(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir, configDir, name), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// A noteLine is one attribute in a notes file.
type noteLine struct{ path, attr, value string }

// parseNoteLine reads a line: a quoted path below the tree's root, the name of an
// attribute without its prefix, and its quoted value.
func parseNoteLine(line string) (noteLine, error) {
	var l noteLine
	quoted, err := strconv.QuotedPrefix(line)
	if err != nil {
		return l, errors.New("no quoted path")
	}
	if l.path, err = strconv.Unquote(quoted); err != nil {
		return l, err
	}
	name, value, ok := strings.Cut(strings.TrimPrefix(line[len(quoted):], " "), " ")
	if !ok {
		return l, errors.New("no value")
	}
	if l.value, err = strconv.Unquote(value); err != nil {
		return l, fmt.Errorf("value %.100q: %w", value, err)
	}
	l.attr = notePrefix + name
	if !slices.Contains(noteAttrs, l.attr) {
		return l, fmt.Errorf("unknown attribute %.100q", name)
	}
	clean, err := cleanName(l.path)
	if err != nil || clean != l.path {
		return l, fmt.Errorf("path %.100q is not below the tree", l.path)
	}
	return l, nil
}

// read fills the table from a notes file of the tree in dir. Files that are
// missing from the tree are left out.
func (n *Notes) read(r io.Reader, dir string) error {
	b := bufio.NewReader(r)
	head, err := b.ReadString('\n')
	if err != nil || head != notesHead {
		return errors.New("not a notes file of this version of hpcc")
	}
	for number := 2; ; number++ {
		line, err := b.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		l, err := parseNoteLine(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := n.set(filepath.Join(dir, l.path), l.attr, l.value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
}

// Save writes notes in memory atomically to the notes file of the tree in dir. Extended
// attributes need no saving.
func (n *Notes) Save(dir string) error {
	if n.table == nil {
		return nil
	}
	if err := n.save(dir); err != nil {
		return fmt.Errorf("saving the owners of %s: %w", dir, err)
	}
	return nil
}

func (n *Notes) save(dir string) error {
	own := filepath.Join(dir, configDir)
	if fi, err := os.Lstat(own); err == nil && !fi.IsDir() {
		if err := os.Remove(own); err != nil { // created by a program of a build
			return err
		}
	}
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := openConfigDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	at, temporary := int(d.Fd()), notesName+".new"
	if err := unix.Unlinkat(at, temporary, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(at, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temporary)
	w := bufio.NewWriter(f)
	_, _ = w.WriteString(notesHead)
	err = n.each(dir, func(l noteLine) {
		fmt.Fprintf(w, "%s %s %s\n", strconv.Quote(l.path), strings.TrimPrefix(l.attr, notePrefix), strconv.Quote(l.value))
	})
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(at, temporary, at, notesName)
	}
	return err
}

// each calls do for every attribute in the table of a file in dir, sorted by path. For a
// file with several names it uses the first.
func (n *Notes) each(dir string, do func(noteLine)) error {
	n.mu.Lock()
	left := len(n.table)
	n.mu.Unlock()
	if left == 0 {
		return nil
	}
	seen := map[inode]bool{}
	return filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&^fs.ModeDir != 0 { // other kinds have no attributes
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if rel == configDir {
			return filepath.SkipDir
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		id, entry := n.entry(p)
		if entry == nil || seen[id] {
			return nil
		}
		seen[id] = true
		for _, attr := range slices.Sorted(maps.Keys(entry.attrs)) {
			do(noteLine{rel, attr, entry.attrs[attr]})
		}
		return nil
	})
}

// entry returns the table's entry of a file, or nil. It drops an entry whose inode was
// removed.
func (n *Notes) entry(file string) (inode, *noteEntry) {
	var st unix.Stat_t
	if len(n.table) == 0 || unix.Stat(file, &st) != nil {
		return inode{}, nil
	}
	id := inode{uint64(st.Dev), st.Ino}
	e := n.table[id]
	if e != nil && e.handle != handleOf(file) {
		delete(n.table, id)
		e = nil
	}
	return id, e
}

// handleOf returns a file's handle, which no other file ever gets, or "" without file system
// support.
func handleOf(file string) string {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return ""
	}
	return fmt.Sprint(h.Type(), " ", string(h.Bytes()))
}

// get returns an attribute of a file, or "". It follows links.
func (n *Notes) get(file, attr string) string {
	if n.table == nil {
		return getAttr(file, attr)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, e := n.entry(file); e != nil {
		return e.attrs[attr]
	}
	return ""
}

// set sets an attribute of a file. It follows links.
func (n *Notes) set(file, attr, value string) error {
	if n.table == nil {
		return unix.Setxattr(file, attr, []byte(value), 0)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, e := n.entry(file)
	if e == nil {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			return err
		}
		if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return unix.EPERM // as for attributes, xattr(7)
		}
		e = &noteEntry{handleOf(file), map[string]string{}}
		n.table[inode{uint64(st.Dev), st.Ino}] = e
	}
	e.attrs[attr] = value
	return nil
}

// remove removes an attribute of a file. It returns ENODATA if there is none.
func (n *Notes) remove(file, attr string) error {
	if n.table == nil {
		return unix.Removexattr(file, attr)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	id, e := n.entry(file)
	if e == nil || e.attrs[attr] == "" {
		return unix.ENODATA
	}
	if delete(e.attrs, attr); len(e.attrs) == 0 {
		delete(n.table, id)
	}
	return nil
}

// forget drops the table's entry of a new file: without handles, its inode may be a reused
// one.
func (n *Notes) forget(fd int) {
	if n.table == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var st unix.Stat_t
	if len(n.table) > 0 && unix.Fstat(fd, &st) == nil {
		delete(n.table, inode{uint64(st.Dev), st.Ino})
	}
}

// list returns the names of a file's attributes in the table.
func (n *Notes) list(file string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, e := n.entry(file); e != nil {
		return slices.Sorted(maps.Keys(e.attrs))
	}
	return nil
}

func getAttr(file, attr string) string {
	b := make([]byte, 64)
	n, err := unix.Getxattr(file, attr, b)
	if errors.Is(err, unix.ERANGE) {
		b = make([]byte, maxNote)
		n, err = unix.Getxattr(file, attr, b)
	}
	if err != nil {
		return ""
	}
	return string(b[:n])
}
