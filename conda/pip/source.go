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
	"hpcc/store/bounded"
)

// sourceKinds are the archives that sources come in: sdists are the first (PEP 625);
// old ones, and those of repositories, are others.
var sourceKinds = []string{".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz"}

// sourceKind is the end of a file's name that says which archive of sources it is; ""
// is none.
func sourceKind(file string) string {
	for _, k := range sourceKinds {
		if strings.HasSuffix(file, k) {
			return k
		}
	}
	return ""
}

// sourceName reads the name of an sdist: NAME-VERSION.tar.gz. In old ones NAME may
// have a "-" in it.
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

// Bounds of sources, in bytes: the largest sdists of PyPI unpack to a tenth.
const (
	maxSources   = 4 << 30
	maxPyproject = 256 << 10
)

// sources are an archive of sources, as far as they say what they are.
type sources struct {
	file, kind string
	top        string // the one directory that all is in
	meta       *distMeta
	build      buildSystem
}

// A buildSystem is what pyproject.toml says of how a wheel is built (PEP 517, 518).
type buildSystem struct {
	Requires []string `toml:"requires"`
	Backend  string   `toml:"build-backend"`
	Path     []string `toml:"backend-path"`
}

// Sources without a build system are built by setuptools, as with pip.
const (
	legacyBackend  = "setuptools.build_meta:__legacy__"
	legacyRequires = "setuptools>=40.8.0"
)

// readSources reads what sources say of themselves; subdir is where the package
// is below their top.
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
		return nil, errors.New("they have neither pyproject.toml nor setup.py, so that nothing says how to build them")
	}
	if info != nil {
		s.meta, err = parseDistMeta(info) // metadata that cannot be used is built, as if it were missing
		if err != nil {
			s.meta = nil
		}
	}
	s.build, err = parseBuildSystem(project)
	return s, err
}

// parseBuildSystem reads the build-system of pyproject.toml; nil is not a file.
func parseBuildSystem(project []byte) (buildSystem, error) {
	var f struct {
		Build *buildSystem `toml:"build-system"`
	}
	if _, err := bounded.TOML(string(project), &f); err != nil {
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
		return b, fmt.Errorf("reading pyproject.toml: the build-backend %q is no object of python", input.Text(b.Backend))
	}
	for i, p := range b.Path {
		var err error
		if b.Path[i], err = input.CleanPath(p); err != nil {
			return b, fmt.Errorf("reading pyproject.toml: backend-path %q: %w", input.Text(p), err)
		}
	}
	return b, nil
}

// static says whether what the sources say of themselves holds for all wheels that are
// built of them: as far as it counts here (PEP 643).
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

// walk calls fn for each entry of the archive, within bounds, with names checked, and
// finds the one directory that all is in.
func (s *sources) walk(fn func(h *tar.Header, r io.Reader) error) error {
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	each := func(h *tar.Header, r io.Reader) error {
		if h.Typeflag == tar.TypeXGlobalHeader {
			return nil // git has the commit there
		}
		top, _, _ := strings.Cut(h.Name, "/")
		if s.top == "" {
			s.top = top
		}
		if top != s.top {
			return fmt.Errorf("it does not lie in %q as the entries before do", input.Text(s.top))
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

// walkZip calls fn for each file of a zip archive, as for entries of a tar.
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
		return fmt.Errorf("it holds more than %d files", input.MaxFiles)
	}
	total := int64(0)
	for _, e := range z.File {
		clean, err := input.CleanPath(e.Name)
		if err == nil && strings.ContainsRune(e.Name, '\\') {
			err = errors.New("its name has a backslash")
		}
		size := int64(min(e.UncompressedSize64, maxSources+1))
		if total += size; err == nil && total > maxSources {
			err = fmt.Errorf("the archive unpacks to more than %d bytes", int64(maxSources))
		}
		if err == nil {
			err = zipEntry(e, clean, size, fn)
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", input.Text(e.Name), err)
		}
	}
	return nil
}

// zipEntry hands one file on. Its size is not to be believed: a reader gets no
// more than it, and an error where there is more.
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
		return errors.New("it is no file, directory or link")
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

// put writes the sources as a layer's files below dir, without their top.
func (s *sources) put(w *layer.Writer, dir string) error {
	files := map[string]bool{}
	return s.walk(func(h *tar.Header, r io.Reader) error {
		rest, _ := strings.CutPrefix(h.Name, s.top)
		out := &tar.Header{Typeflag: h.Typeflag, Name: path.Join(dir, rest), Mode: h.Mode&0o755 | 0o600, ModTime: h.ModTime}
		if name := strings.TrimPrefix(rest, "/"); h.Typeflag != tar.TypeDir {
			if files[name] {
				return errors.New("it stands in the archive twice")
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
				return fmt.Errorf("hard link to %q: %w", input.Text(h.Linkname), err)
			}
			below, ok := strings.CutPrefix(to, s.top+"/")
			if !ok || !files[below] {
				return fmt.Errorf("hard link to %q, which is no file before it", input.Text(h.Linkname))
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
				err = fmt.Errorf("it has %d bytes, not %d", n, h.Size)
			}
			return err
		}
		return errors.New("it is no file, directory or link")
	})
}
