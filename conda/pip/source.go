package pip

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/ulikunitz/xz"

	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/program"
	"hpcc/files"
	"hpcc/text"
)

// sourceKinds are the suffixes of source archives. Sdists have the first (PEP 625); old
// ones and those of repositories have the others.
var sourceKinds = []string{".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz"}

// sourceKind returns the suffix that marks a file as a source archive, or "".
func sourceKind(file string) string {
	for _, k := range sourceKinds {
		if strings.HasSuffix(file, k) {
			return k
		}
	}
	return ""
}

// sourceName parses the name of an sdist, NAME-VERSION.tar.gz. In old ones NAME may
// contain "-".
func sourceName(file string) (dist string, v pyVersion, ok bool) {
	kind := sourceKind(file)
	stem := strings.TrimSuffix(file, kind)
	i := strings.LastIndexByte(stem, '-')
	if kind == "" || i < 0 || !nameText().MatchString(stem[:i]) {
		return "", v, false
	}
	v, err := parseVersion(stem[i+1:])
	return stem[:i], v, err == nil
}

// Limits of sources, in bytes. The largest sdists on PyPI unpack to a tenth of that.
const (
	maxSources   = 4 << 30
	maxPyproject = 256 << 10
)

// sources is a source archive and its metadata.
type sources struct {
	file, kind string
	top        string // the single top directory
	meta       *distMeta
	build      buildSystem
}

// A buildSystem is the [build-system] table of pyproject.toml (PEP 517, 518).
type buildSystem struct {
	Requires []string `toml:"requires"`
	Backend  string   `toml:"build-backend"`
	Path     []string `toml:"backend-path"`
}

// Defaults for sources without a build system, as in pip.
const (
	legacyBackend  = "setuptools.build_meta:__legacy__"
	legacyRequires = "setuptools>=40.8.0"
)

// readSources reads the metadata of a source archive. subdir is the directory of the
// package below the top directory.
func readSources(file, kind, subdir string) (*sources, error) {
	s := &sources{file: file, kind: kind}
	var info, project []byte
	setup := false
	err := s.walk(func(h *tar.Header, r io.Reader) error {
		var err error
		switch rest, below := strings.CutPrefix(h.Name, path.Join(s.top, subdir)+"/"); {
		case !below || h.Typeflag != tar.TypeReg:
		case rest == "PKG-INFO":
			info, err = input.ReadAll(r, maxMetadata)
		case rest == "pyproject.toml":
			project, err = input.ReadAll(r, maxPyproject)
		case rest == "setup.py" || rest == "setup.cfg":
			setup = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if project == nil && !setup {
		return nil, errors.New("no pyproject.toml or setup.py: unknown build system")
	}
	if info != nil {
		s.meta, err = parseDistMeta(info) // unusable metadata counts as missing: the build replaces it
		if err != nil {
			s.meta = nil
		}
	}
	s.build, err = parseBuildSystem(project)
	return s, err
}

// parseBuildSystem parses the build-system of pyproject.toml; nil: no such file.
func parseBuildSystem(project []byte) (buildSystem, error) {
	var f struct {
		Build *buildSystem `toml:"build-system"`
	}
	if _, err := files.TOML(string(project), &f); err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			err = fmt.Errorf("line %d: %s", pe.Position.Line, pe.Message)
		}
		return buildSystem{}, fmt.Errorf("reading pyproject.toml: %w", err)
	}
	b := buildSystem{Requires: []string{legacyRequires}}
	if f.Build != nil {
		b = *f.Build
	}
	if b.Backend == "" {
		b.Backend, b.Path = legacyBackend, nil
	}
	module, object, named := strings.Cut(b.Backend, ":")
	if !program.IsDotted(module) || (named && !program.IsDotted(object)) {
		return b, fmt.Errorf("reading pyproject.toml: build-backend %q: not the name of a Python object", text.Short(b.Backend))
	}
	for i, p := range b.Path {
		var err error
		if b.Path[i], err = input.CleanPath(p); err != nil {
			return b, fmt.Errorf("reading pyproject.toml: backend-path %q: %w", text.Short(p), err)
		}
	}
	return b, nil
}

// static reports whether the metadata of the sources holds for every wheel built from
// them, in the fields that hpcc uses (PEP 643).
func (s *sources) static() bool {
	if s.meta == nil {
		return false
	}
	major, minor, err := twoNumbers(s.meta.format)
	if err != nil || major < 2 || (major == 2 && minor < 2) {
		return false
	}
	return !slices.ContainsFunc(s.meta.dynamic, func(f string) bool {
		return f == "requires-dist" || f == "provides-extra" || f == "requires-python"
	})
}

// walk calls fn for each entry of the archive, with checked names and limited size, and
// finds the single top directory.
func (s *sources) walk(fn func(h *tar.Header, r io.Reader) error) error {
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	each := func(h *tar.Header, r io.Reader) error {
		if h.Typeflag == tar.TypeXGlobalHeader {
			return nil // git archive stores the commit here
		}
		top, _, _ := strings.Cut(h.Name, "/")
		if s.top == "" {
			s.top = top
		}
		if top != s.top {
			return fmt.Errorf("it is outside of the top directory %q", text.Short(s.top))
		}
		return fn(h, r)
	}
	buffered := bufio.NewReaderSize(f, 1<<20)
	var plain io.Reader
	switch s.kind {
	case ".zip":
		return walkZip(f, each)
	case ".tar.bz2":
		plain = bzip2.NewReader(buffered)
	case ".tar.xz":
		plain, err = xz.NewReader(buffered)
	default:
		plain, err = gzip.NewReader(buffered)
	}
	if err != nil {
		return fmt.Errorf("opening the archive: %w", err)
	}
	return input.WalkTar(plain, maxSources, each)
}

// walkZip calls fn for each file of a zip archive, as if for the entries of a tar.
func walkZip(f *os.File, fn func(h *tar.Header, r io.Reader) error) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	z, err := zip.NewReader(f, fi.Size())
	if err != nil {
		return fmt.Errorf("opening the archive: %w", err)
	}
	if len(z.File) > input.MaxFiles {
		return fmt.Errorf("more than %d files", input.MaxFiles)
	}
	total := int64(0)
	for _, e := range z.File {
		clean, err := input.CleanPath(e.Name)
		if err == nil && strings.ContainsRune(e.Name, '\\') {
			err = errors.New("backslash in the name")
		}
		size := int64(min(e.UncompressedSize64, maxSources+1))
		if total += size; err == nil && total > maxSources {
			err = fmt.Errorf("the archive unpacks to more than %d bytes", int64(maxSources))
		}
		if err == nil {
			err = zipEntry(e, clean, size, fn)
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", text.Short(e.Name), err)
		}
	}
	return nil
}

// zipEntry passes one file to fn. The size in the archive is not trusted: the reader
// stops at it and fails if there is more.
func zipEntry(e *zip.File, name string, size int64, fn func(h *tar.Header, r io.Reader) error) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: int64(e.Mode().Perm()), ModTime: layer.Epoch}
	if e.Modified.After(layer.Epoch) {
		h.ModTime = e.Modified.UTC()
	}
	switch m := e.Mode(); {
	case m.IsDir():
		h.Typeflag, h.Size = tar.TypeDir, 0
		return fn(h, strings.NewReader(""))
	case m&fs.ModeSymlink != 0:
		h.Typeflag, h.Size = tar.TypeSymlink, 0
	case !m.IsRegular():
		return errors.New("not a file, directory or link")
	}
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if h.Typeflag == tar.TypeSymlink {
		to, err := input.ReadAll(r, 4096)
		if err != nil {
			return err
		}
		h.Linkname = string(to)
		return fn(h, strings.NewReader(""))
	}
	return fn(h, io.LimitReader(r, size))
}

// put writes the sources into a layer below dir, without their top directory.
func (s *sources) put(w *layer.Writer, dir string) error {
	files := map[string]bool{}
	return s.walk(func(h *tar.Header, r io.Reader) error {
		rest, _ := strings.CutPrefix(h.Name, s.top)
		out := &tar.Header{Typeflag: h.Typeflag, Name: path.Join(dir, rest), Mode: h.Mode&0o755 | 0o600, ModTime: h.ModTime}
		if name := strings.TrimPrefix(rest, "/"); h.Typeflag != tar.TypeDir {
			if files[name] {
				return errors.New("duplicate entry")
			}
			files[name] = true
		}
		switch h.Typeflag {
		case tar.TypeDir:
			out.Mode |= 0o700
			return w.Header(out)
		case tar.TypeSymlink:
			out.Linkname = h.Linkname
			return w.Header(out)
		case tar.TypeLink:
			to, err := input.CleanPath(h.Linkname)
			if err != nil {
				return fmt.Errorf("hard link to %q: %w", text.Short(h.Linkname), err)
			}
			below, ok := strings.CutPrefix(to, s.top+"/")
			if !ok || !files[below] {
				return fmt.Errorf("hard link to %q: target is not an earlier file", text.Short(h.Linkname))
			}
			out.Linkname = w.InLayer(path.Join(dir, below))
			return w.Header(out)
		case tar.TypeReg, tar.TypeGNUSparse:
			out.Typeflag, out.Size = tar.TypeReg, h.Size
			if err := w.Header(out); err != nil {
				return err
			}
			n, err := w.Copy(r)
			if err == nil && n != h.Size {
				err = fmt.Errorf("size mismatch: %d bytes, not %d", n, h.Size)
			}
			return err
		}
		return errors.New("not a file, directory or link")
	})
}
