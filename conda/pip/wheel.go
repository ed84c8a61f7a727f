package pip

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/program"
	"hpcc/text"
)

// A wheel is the open archive of a distribution that is being installed (PEP 427).
type wheel struct {
	io.Closer
	zip      *zip.Reader
	name     *wheelName
	info     string // NAME-VERSION.dist-info
	meta     *distMeta
	files    []*wheelEntry // sorted by destination
	programs []program.Program
}

// A wheelEntry is a file of a wheel.
type wheelEntry struct {
	zip    *zip.File
	dst    string // destination, relative to the prefix
	sum    string // digest in RECORD, such as "sha256=…"; "" for signatures
	size   int64
	script bool // its #!python line is replaced by the environment's python
	exec   bool
}

// Limits of files in a wheel, in bytes.
const (
	maxRecordFile = 64 << 20
	maxUnpacked   = 64 << 30 // of all files together
	maxMetadata   = 16 << 20
	maxDirectory  = 64 << 20
)

// openArchive opens a wheel and checks the names of its files.
func openArchive(file string, name *wheelName) (*wheel, map[string]*zip.File, error) {
	z, err := input.OpenZip(file, maxDirectory)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the wheel: %w", err)
	}
	w := &wheel{Closer: z, zip: z.Reader, name: name}
	files, err := w.contents()
	if err != nil {
		z.Close()
		return nil, nil, err
	}
	return w, files, nil
}

// contents checks the names of the files and finds the dist-info directory.
func (w *wheel) contents() (files map[string]*zip.File, err error) {
	if files, err = w.members(); err == nil {
		w.info, err = infoDir(files, w.name)
	}
	return files, err
}

// openWheel reads the metadata of a wheel and checks the destinations of its files in t.
// The content is verified when it is written.
func openWheel(file string, name *wheelName, t *Target) (*wheel, error) {
	w, files, err := openArchive(file, name)
	if err != nil {
		return nil, err
	}
	if err := w.read(files, t); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// read reads the wheel's METADATA, WHEEL, RECORD and entry points.
func (w *wheel) read(files map[string]*zip.File, t *Target) error {
	if err := w.readWheelFile(files); err != nil {
		return err
	}
	b, err := w.readInfoFile(files, "METADATA", maxMetadata)
	if err != nil {
		return err
	}
	if w.meta, err = parseDistMeta(b); err != nil {
		return err
	}
	if NormalName(w.meta.name) != NormalName(w.name.dist) || w.meta.version.compare(w.name.version) != 0 {
		return fmt.Errorf("it contains %s %s", w.meta.name, w.meta.version)
	}
	if !w.meta.runsOn(t.Python) {
		return fmt.Errorf("it needs python %s, but the environment has %s", w.meta.python, t.Python)
	}
	if err := w.readEntryPoints(files, t); err != nil {
		return err
	}
	return w.readRecord(files, t)
}

// members checks the entries of the archive and returns its files by name.
func (w *wheel) members() (map[string]*zip.File, error) {
	if len(w.zip.File) > input.MaxFiles {
		return nil, fmt.Errorf("more than %d files", input.MaxFiles)
	}
	out := map[string]*zip.File{}
	for _, f := range w.zip.File {
		clean, err := input.CleanPath(f.Name)
		if err == nil && (strings.ContainsRune(f.Name, '\\') || !utf8.ValidString(f.Name)) {
			err = errors.New("the name has a backslash or is not UTF-8")
		}
		// The file type that Unix archivers record (section 4.5.7 of the format).
		kind := f.ExternalAttrs >> 16 & 0o170000
		switch dir := strings.HasSuffix(f.Name, "/"); {
		case err != nil:
		case dir && f.UncompressedSize64 == 0:
			continue
		case dir || clean != f.Name || clean == ".":
			err = errors.New("the name is not a plain file path")
		case kind != 0 && kind != 0o100000:
			err = errors.New("wheels cannot contain links or special files")
		case f.Flags&1 != 0:
			err = errors.New("it is encrypted")
		case out[clean] != nil:
			err = errors.New("duplicate entry")
		}
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", text.Short(f.Name), err)
		}
		out[clean] = f
	}
	return out, nil
}

// infoDir returns the archive's only directory NAME-VERSION.dist-info.
func infoDir(files map[string]*zip.File, name *wheelName) (string, error) {
	found := ""
	for f := range files {
		dir, _, ok := strings.Cut(f, "/")
		if !ok || !strings.HasSuffix(dir, ".dist-info") || dir == found {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("more than one *.dist-info directory: %q and %q", text.Short(min(found, dir)),
				text.Short(max(found, dir)))
		}
		found = dir
	}
	dist, _, _ := strings.Cut(strings.TrimSuffix(found, ".dist-info"), "-")
	switch {
	case found == "":
		return "", errors.New("no *.dist-info directory")
	case NormalName(dist) != NormalName(name.dist):
		return "", fmt.Errorf("its *.dist-info directory %q belongs to another distribution", text.Short(found))
	}
	return found, nil
}

// readInfoFile reads a file of the dist-info directory. most is its maximum size in bytes.
func (w *wheel) readInfoFile(files map[string]*zip.File, name string, most int64) ([]byte, error) {
	f := files[w.info+"/"+name]
	if f == nil {
		return nil, fmt.Errorf("missing %s", name)
	}
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	defer r.Close()
	b, err := input.ReadAll(r, most)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return b, nil
}

// readWheelFile checks the format version. Root-Is-Purelib is ignored, since purelib and
// platlib are the same directory in conda environments.
func (w *wheel) readWheelFile(files map[string]*zip.File) error {
	b, err := w.readInfoFile(files, "WHEEL", maxMetadata)
	if err != nil {
		return err
	}
	version := ""
	if err := input.Fields(b, func(key, value string) error {
		if key == "wheel-version" {
			version = value
		}
		return nil
	}); err != nil {
		return fmt.Errorf("reading WHEEL: %w", err)
	}
	if major, _, _ := strings.Cut(version, "."); major != "1" {
		return fmt.Errorf("unsupported Wheel-Version %q: want 1", text.Short(version))
	}
	return nil
}

// readEntryPoints sets the programs of the wheel. A GUI program replaces a console program of
// the same name.
func (w *wheel) readEntryPoints(files map[string]*zip.File, t *Target) error {
	if files[w.info+"/entry_points.txt"] == nil {
		return nil
	}
	b, err := w.readInfoFile(files, "entry_points.txt", maxMetadata)
	if err != nil {
		return err
	}
	console, gui, err := program.ParseAll(b)
	if err != nil {
		return err
	}
	isGUI := map[string]bool{}
	for _, p := range gui {
		isGUI[p.Name] = true
	}
	w.programs = append(program.Drop(program.Versioned(console, Minor(t.Python)), func(name string) bool { return isGUI[name] }), gui...)
	return nil
}

// writtenByInstaller reports whether the installer writes this dist-info file itself and
// ignores the file of the wheel (PEP 376, 610).
func (w *wheel) writtenByInstaller(name string) bool {
	switch strings.TrimPrefix(name, w.info+"/") {
	case "RECORD", "INSTALLER", "REQUESTED", "direct_url.json":
		return true
	}
	return false
}

// readRecord compares RECORD with the archive: every file must be listed with a digest,
// and every listed file must exist. Then it sets the destinations of the files.
func (w *wheel) readRecord(files map[string]*zip.File, t *Target) error {
	b, err := w.readInfoFile(files, "RECORD", maxRecordFile)
	if err != nil {
		return err
	}
	rows, err := parseRecord(b)
	if err != nil {
		return err
	}
	for name := range rows {
		if files[name] == nil && !w.writtenByInstaller(name) {
			return fmt.Errorf("RECORD lists %q, which is not in the wheel", text.Short(name))
		}
	}
	isEntryPoint := map[string]bool{}
	for _, p := range w.programs {
		isEntryPoint[p.Name] = true
	}
	taken := map[string]string{}
	total := int64(0)
	for name, f := range files {
		if w.writtenByInstaller(name) {
			continue
		}
		e := &wheelEntry{zip: f, exec: f.ExternalAttrs>>16&0o111 != 0}
		if err := e.checkRecord(name, rows, w.info); err != nil {
			return fmt.Errorf("entry %q: %w", text.Short(name), err)
		}
		if total += e.size; e.size > maxUnpacked || total > maxUnpacked {
			return fmt.Errorf("the wheel unpacks to more than %d bytes", int64(maxUnpacked))
		}
		if err := e.setDestination(name, w, t); err != nil {
			return fmt.Errorf("entry %q: %w", text.Short(name), err)
		}
		if e.script && isEntryPoint[scriptName(e.dst)] {
			continue // a wrapper that older tools generated for the entry point
		}
		if other, twice := taken[e.dst]; twice {
			return fmt.Errorf("entries %q and %q have the same destination %q", text.Short(min(name, other)),
				text.Short(max(name, other)), text.Short(e.dst))
		}
		taken[e.dst] = name
		w.files = append(w.files, e)
	}
	sort.Slice(w.files, func(i, j int) bool { return w.files[i].dst < w.files[j].dst })
	return nil
}

// scriptName returns the name of the entry point for which older tools generated the script dst.
func scriptName(dst string) string {
	n := path.Base(dst)
	return strings.TrimSuffix(strings.TrimSuffix(n, ".exe"), "-script.py")
}

// A recordRow is a line of RECORD.
type recordRow struct{ sum, size string }

func parseRecord(b []byte) (map[string]recordRow, error) {
	r := csv.NewReader(bytes.NewReader(b))
	r.FieldsPerRecord = -1
	r.ReuseRecord = true
	out := map[string]recordRow{}
	for {
		f, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading RECORD: %w", err)
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("reading RECORD: row with %d fields: want 3", len(f))
		}
		if _, twice := out[f[0]]; twice {
			return nil, fmt.Errorf("reading RECORD: duplicate row %q", text.Short(f[0]))
		}
		out[strings.Clone(f[0])] = recordRow{strings.Clone(f[1]), strings.Clone(f[2])}
	}
}

// checkRecord checks the file's size against its row in RECORD and sets its digest and size.
// Only signatures of RECORD may lack a row.
func (e *wheelEntry) checkRecord(name string, rows map[string]recordRow, info string) error {
	row, ok := rows[name]
	if name == info+"/RECORD.jws" || name == info+"/RECORD.p7s" {
		e.size = int64(min(e.zip.UncompressedSize64, maxMetadata))
		return nil
	}
	if !ok {
		return errors.New("RECORD does not list it")
	}
	if _, err := recordHash(row.sum); err != nil {
		return err
	}
	size, err := strconv.ParseInt(row.size, 10, 64)
	switch {
	case row.size == "": // older tools omit the size; the digest covers it
		size = int64(min(e.zip.UncompressedSize64, maxUnpacked))
	case err != nil || size < 0:
		return fmt.Errorf("invalid size %q in RECORD", text.Short(row.size))
	case uint64(size) != e.zip.UncompressedSize64:
		return fmt.Errorf("size mismatch: %d bytes, RECORD lists %d", e.zip.UncompressedSize64, size)
	}
	e.sum, e.size = row.sum, size
	return nil
}

// recordHash returns the hash function of a digest such as "sha256=…". It refuses functions
// weaker than SHA-256 (PEP 427).
func recordHash(sum string) (hash.Hash, error) {
	switch alg, _, _ := strings.Cut(sum, "="); alg {
	case "sha256":
		return sha256.New(), nil
	case "sha384":
		return sha512.New384(), nil
	case "sha512":
		return sha512.New(), nil
	case "":
		return nil, errors.New("no digest in RECORD")
	default:
		return nil, fmt.Errorf("unsupported digest %q in RECORD: want sha256, sha384 or sha512", text.Short(alg))
	}
}

// recordSum formats a digest for RECORD.
func recordSum(alg string, sum []byte) string {
	return alg + "=" + base64.RawURLEncoding.EncodeToString(sum)
}

// setDestination sets the destination of the file, and whether it is a script or executable.
func (e *wheelEntry) setDestination(name string, w *wheel, t *Target) error {
	site := t.site()
	top, rest, _ := strings.Cut(name, "/")
	if !strings.HasSuffix(top, ".data") {
		e.dst = path.Join(site, name)
		return nil
	}
	if top != strings.TrimSuffix(w.info, ".dist-info")+".data" {
		return fmt.Errorf("the directory belongs to a distribution other than %q", text.Short(w.info))
	}
	scheme, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return errors.New("it is directly in the .data directory")
	}
	switch scheme {
	case "purelib", "platlib":
		e.dst = path.Join(site, rest)
	case "headers":
		e.dst = path.Join("include/python"+Minor(t.Python), w.meta.name, rest)
	case "scripts":
		e.dst, e.script, e.exec = path.Join("bin", rest), true, true
	case "data":
		e.dst = rest
	default:
		return fmt.Errorf("unknown scheme %q: want purelib, platlib, headers, scripts or data", text.Short(scheme))
	}
	if e.dst == "conda-meta" || strings.HasPrefix(e.dst, "conda-meta/") {
		return errors.New("it would overwrite the environment's conda-meta")
	}
	return nil
}

// modTime returns the modification time in the archive, in whole seconds. It returns
// layer.Epoch if the time is missing or out of range.
func (e *wheelEntry) modTime() time.Time {
	if t := e.zip.Modified; t.After(layer.Epoch) && t.Year() < 2108 {
		return t.Truncate(time.Second).UTC()
	}
	return layer.Epoch
}

// shebang replaces a first line "#!python…" by one with the path of the interpreter, and
// reports whether there was such a line.
func shebang(data []byte, python string) ([]byte, bool) {
	if !bytes.HasPrefix(data, []byte("#!python")) {
		return data, false
	}
	_, rest, _ := bytes.Cut(data, []byte("\n"))
	return append([]byte("#!"+python+"\n"), rest...), true
}
