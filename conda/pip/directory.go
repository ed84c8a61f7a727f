package pip

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/files"
	"hpcc/text"
)

// Limits of a directory of sources. Larger ones hold data or environments besides the sources.
const (
	maxSourceBytes   = 1 << 30 // bytes
	maxSourceEntries = 100_000
)

// ignoredDirectories hold no sources: repositories, caches, and environments of tools.
var ignoredDirectories = []string{".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache",
	".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox", ".pixi"}

// A sourceDirectory is a directory of sources that a row names.
type sourceDirectory struct {
	root    *os.Root
	entries []sourceEntry // in the order of their names
	left    []string      // links out of the directory, sockets and the like
}

// A sourceEntry is a file, directory or link in a directory of sources.
type sourceEntry struct {
	name, link string
	mode       fs.FileMode
	size       int64
}

// locateDirectory makes the sources in a directory the only candidate for their distribution. The
// archive of a copy has a digest, unlike the directory. It returns false if it refuses the row.
func (r *resolver) locateDirectory(w *demand, u *url.URL) bool {
	row := w.Requirement
	if r.options.Build == nil {
		r.refuse(row, "", "it is a directory of sources, which has to be built%s; in a Dockerfile COPY it and RUN %s -m pip install --no-deps PATH", r.because(), r.target.interpreter())
		return false
	}
	dir := strings.TrimSuffix(u.Path, "/")
	f, err := locatedFile(u)
	if err == nil {
		f.wheel, err = nil, r.copyDirectory(w, f, dir)
	}
	if err != nil {
		r.refuse(row, "", "%v", err)
		return false
	}
	return r.useFile(w, f)
}

// copyDirectory adds an archive of the directory to the cache and describes it in f.
func (r *resolver) copyDirectory(w *demand, f *indexFile, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the directory: %w", err)
	}
	defer root.Close()
	d := &sourceDirectory{root: root}
	if err := d.list(r.ctx); err != nil {
		return fmt.Errorf("reading the directory: %w", err)
	}
	if w.name == "" {
		name, err := projectName(func(name string) string { return d.read(path.Join(f.subdir, name)) })
		if err != nil {
			return err
		}
		w.Name, w.name = name, NormalName(name)
	}
	f.name = strings.ReplaceAll(w.name, "-", "_") + ".tar.gz" // without "-", it names no version
	sum, size, err := r.fetch.keepDirectory(r.ctx, f.name, d)
	if err != nil {
		return fmt.Errorf("copying the directory: %w", err)
	}
	listed := func(h string) bool { return strings.HasPrefix(h, "sha256:") }
	if slices.ContainsFunc(w.Hashes, listed) && !slices.Contains(w.Hashes, "sha256:"+sum) {
		return fmt.Errorf("the directory has changed: its copy has sha256:%s, the list has %s; write the lock file again", sum, input.List(w.Hashes))
	}
	f.hashes, f.size = append(f.hashes, "sha256:"+sum), size
	if w.Editable {
		r.notes = append(r.notes, fmt.Sprintf("%s is installed as a copy, not as an editable package: build again after a change", w.Requirement))
	}
	if len(d.left) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%s: links out of the directory and special files are left out: %s",
			display(w.URL), input.List(d.left)))
	}
	return nil
}

// list finds the entries of the directory, before anything is read.
func (d *sourceDirectory) list(ctx context.Context) error {
	total := int64(0)
	return fs.WalkDir(d.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		e := sourceEntry{name: name, mode: info.Mode()}
		switch kind := info.Mode().Type(); {
		case name == ".":
			return nil
		case entry.IsDir():
			if d.ignores(name) {
				return fs.SkipDir
			}
		case kind == fs.ModeSymlink:
			if e.link, err = d.root.Readlink(name); err != nil {
				return err
			}
			if path.IsAbs(e.link) || !fs.ValidPath(path.Join(path.Dir(name), e.link)) {
				d.left = append(d.left, name)
				return nil
			}
		case kind != 0:
			d.left = append(d.left, name)
			return nil
		default:
			e.size = info.Size()
		}
		d.entries = append(d.entries, e)
		if total += e.size; total > maxSourceBytes || len(d.entries) > maxSourceEntries {
			return fmt.Errorf("it has more than %d MB or %d files; move data out of it, or create an archive with \"python -m build --sdist\" and name that", maxSourceBytes>>20, maxSourceEntries)
		}
		return nil
	})
}

// ignores reports whether a directory holds no sources, by its name or as an environment.
func (d *sourceDirectory) ignores(name string) bool {
	_, venv := d.root.Lstat(name + "/pyvenv.cfg")
	_, conda := d.root.Lstat(name + "/conda-meta")
	return venv == nil || conda == nil || slices.Contains(ignoredDirectories, path.Base(name))
}

// keepDirectory adds an archive of a directory to the cache. Equal files give an equal archive: it
// has no times and owners, and is not compressed.
func (f *fetcher) keepDirectory(ctx context.Context, name string, d *sourceDirectory) (sum string, size int64, err error) {
	tmp, err := f.store.TempDir()
	if err != nil {
		return "", 0, err
	}
	defer files.RemoveAll(tmp)
	from, to := io.Pipe()
	defer from.Close()
	go func() { to.CloseWithError(d.write(to)) }()
	file := &fetch.File{FileName: name, URL: name}
	_, err = file.Keep(ctx, from, f.dir, tmp, func(int64) {})
	return file.SHA256, file.Size, err
}

// write writes the entries as an archive with one top directory.
func (d *sourceDirectory) write(out io.Writer) error {
	z, err := gzip.NewWriterLevel(out, gzip.NoCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	for _, e := range d.entries {
		if err := d.writeEntry(w, e); err != nil {
			return fmt.Errorf("%s: %w", text.Short(e.name), err)
		}
	}
	return errors.Join(w.Close(), z.Close())
}

func (d *sourceDirectory) writeEntry(w *tar.Writer, e sourceEntry) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "source/" + e.name, Mode: 0o644, Size: e.size, ModTime: layer.Epoch}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Mode = tar.TypeDir, 0o755
		return w.WriteHeader(h)
	case e.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		return w.WriteHeader(h)
	case e.mode&0o111 != 0:
		h.Mode = 0o755
	}
	f, err := d.root.Open(e.name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != e.size {
		return errors.Join(err, errors.New("the file changed while it was read"))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, e.size)
	return err
}

// Names in setup.cfg and in a call of setup().
var (
	cfgName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)^\[metadata\]\s*(?:\n[^\[].*)*?\nname\s*=\s*(\S+)`)
	})
	setupName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bname\s*=\s*["']([^"']+)["']`) })
)

// read returns the text of a project file, or "" if there is none.
func (d *sourceDirectory) read(name string) string {
	f, err := d.root.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := input.ReadAll(f, maxPyproject)
	if err != nil {
		return ""
	}
	return string(b)
}

// projectName returns the name of the distribution in the project files that read returns. A build
// checks the name, so that a wrong one cannot install anything.
func projectName(read func(file string) string) (string, error) {
	var project struct {
		Project struct{ Name string }
		Tool    struct {
			Poetry struct{ Name string }
			Flit   struct {
				Metadata struct {
					Module   string
					DistName string `toml:"dist-name"`
				}
			}
		}
	}
	text := read("pyproject.toml")
	found := text != ""
	// An error in pyproject.toml is reported when the sources are read.
	_, _ = files.TOML(text, &project)
	names := []string{project.Project.Name, project.Tool.Poetry.Name, project.Tool.Flit.Metadata.DistName,
		project.Tool.Flit.Metadata.Module}
	for _, in := range []struct {
		file string
		name *regexp.Regexp
	}{{"setup.cfg", cfgName()}, {"setup.py", setupName()}} {
		text := read(in.file)
		found = found || text != ""
		if m := in.name.FindStringSubmatch(text); m != nil {
			names = append(names, m[1])
		}
	}
	for _, n := range names {
		if nameText().MatchString(n) {
			return n, nil
		}
	}
	if !found {
		return "", errors.New("the directory has no pyproject.toml, setup.cfg or setup.py: it is not a Python project")
	}
	return "", errors.New("the name of the package is unknown; write NAME @ DIRECTORY")
}
