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
)

// A wheel is an archive of one distribution that is being installed (PEP 427).
type wheel struct {
	io.Closer
	zip      *zip.Reader
	name     *wheelName
	info     string // NAME-VERSION.dist-info
	meta     *distMeta
	files    []*wheelEntry // sorted by where they go
	programs []program.Program
}

// A wheelEntry is a file of a wheel.
type wheelEntry struct {
	zip    *zip.File
	dst    string // below the prefix
	sum    string // as RECORD has it, such as "sha256=…"; "" for signatures
	size   int64
	script bool // its #!python becomes the environment's
	exec   bool
}

// Bounds of a wheel's own files, in bytes.
const (
	maxRecordFile = 64 << 20
	maxUnpacked1  = 64 << 30 // all files together
	maxMetadata   = 16 << 20
	maxDirectory  = 64 << 20
)

// openArchive opens a wheel's file and checks the names in it.
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

// openWheel reads what a wheel says of itself and checks the paths of all its
// files. Their content is checked when it is written. t says where they go.
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
	b, err := w.small(files, "METADATA", maxMetadata)
	if err != nil {
		return err
	}
	if w.meta, err = parseDistMeta(b); err != nil {
		return err
	}
	if NormalName(w.meta.name) != NormalName(w.name.dist) || w.meta.version.compare(w.name.version) != 0 {
		return fmt.Errorf("it holds %s %s", w.meta.name, w.meta.version)
	}
	if !w.meta.runsOn(t.Python) {
		return fmt.Errorf("it needs python %s, the environment has %s", w.meta.python, t.Python)
	}
	if err := w.readPoints(files, t); err != nil {
		return err
	}
	return w.readRecord(files, t)
}

// members lists the files of the archive, with names checked.
func (w *wheel) members() (map[string]*zip.File, error) {
	if len(w.zip.File) > input.MaxFiles {
		return nil, fmt.Errorf("it holds more than %d files", input.MaxFiles)
	}
	out := map[string]*zip.File{}
	for _, f := range w.zip.File {
		clean, err := input.CleanPath(f.Name)
		if err == nil && (strings.ContainsRune(f.Name, '\\') || !utf8.ValidString(f.Name)) {
			err = errors.New("its name has a backslash or is no UTF-8")
		}
		// The kind of file that Unix archivers note (4.5.7 of the format).
		kind := f.ExternalAttrs >> 16 & 0o170000
		switch dir := strings.HasSuffix(f.Name, "/"); {
		case err != nil:
		case dir && f.UncompressedSize64 == 0:
			continue
		case dir || clean != f.Name || clean == ".":
			err = errors.New("its name is not the plain path of a file")
		case kind != 0 && kind != 0o100000:
			err = errors.New("it is a link or something special, which wheels cannot hold")
		case f.Flags&1 != 0:
			err = errors.New("it is encrypted")
		case out[clean] != nil:
			err = errors.New("it stands in the wheel twice")
		}
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", input.Text(f.Name), err)
		}
		out[clean] = f
	}
	return out, nil
}

// infoDir finds the one directory NAME-VERSION.dist-info.
func infoDir(files map[string]*zip.File, name *wheelName) (string, error) {
	found := ""
	for f := range files {
		dir, _, ok := strings.Cut(f, "/")
		if !ok || !strings.HasSuffix(dir, ".dist-info") || dir == found {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("it has two of *.dist-info: %q and %q", input.Text(min(found, dir)), input.Text(max(found, dir)))
		}
		found = dir
	}
	dist, _, _ := strings.Cut(strings.TrimSuffix(found, ".dist-info"), "-")
	if NormalName(dist) != NormalName(name.dist) {
		return "", fmt.Errorf("its *.dist-info is %q", input.Text(found))
	}
	return found, nil
}

// small reads a file of the dist-info directory, of at most so many bytes.
func (w *wheel) small(files map[string]*zip.File, name string, most int64) ([]byte, error) {
	f := files[w.info+"/"+name]
	if f == nil {
		return nil, fmt.Errorf("it has no %s", name)
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

// readWheelFile checks the version of the format. Where purelib and platlib are
// one directory, as on conda, Root-Is-Purelib makes no difference.
func (w *wheel) readWheelFile(files map[string]*zip.File) error {
	b, err := w.small(files, "WHEEL", maxMetadata)
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
		return fmt.Errorf("its Wheel-Version is %q; 1 is known", input.Text(version))
	}
	return nil
}

func (w *wheel) readPoints(files map[string]*zip.File, t *Target) error {
	if files[w.info+"/entry_points.txt"] == nil {
		return nil
	}
	b, err := w.small(files, "entry_points.txt", maxMetadata)
	if err != nil {
		return err
	}
	console, gui, err := program.ParseAll(b)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, p := range gui {
		named[p.Name] = true
	}
	w.programs = append(program.Drop(program.Versioned(console, Minor(t.Python)), func(name string) bool { return named[name] }), gui...)
	return nil
}

// ours are the files of dist-info that the installer writes, whatever the wheel
// has (PEP 376, 610).
func (w *wheel) ours(name string) bool {
	switch strings.TrimPrefix(name, w.info+"/") {
	case "RECORD", "INSTALLER", "REQUESTED", "direct_url.json":
		return true
	}
	return false
}

// readRecord holds RECORD against the archive: each file stands there with a
// digest, none is missing. Then it decides where the files go.
func (w *wheel) readRecord(files map[string]*zip.File, t *Target) error {
	b, err := w.small(files, "RECORD", maxRecordFile)
	if err != nil {
		return err
	}
	rows, err := parseRecord(b)
	if err != nil {
		return err
	}
	for name := range rows {
		if files[name] == nil && !w.ours(name) {
			return fmt.Errorf("RECORD lists %q, which the wheel does not hold", input.Text(name))
		}
	}
	program := map[string]bool{}
	for _, p := range w.programs {
		program[p.Name] = true
	}
	taken := map[string]string{}
	total := int64(0)
	for name, f := range files {
		if w.ours(name) {
			continue
		}
		e := &wheelEntry{zip: f, exec: f.ExternalAttrs>>16&0o111 != 0}
		if err := e.recorded(name, rows, w.info); err != nil {
			return fmt.Errorf("entry %q: %w", input.Text(name), err)
		}
		if total += e.size; e.size > maxUnpacked1 || total > maxUnpacked1 {
			return fmt.Errorf("it unpacks to more than %d bytes", int64(maxUnpacked1))
		}
		if err := e.aim(name, w, t); err != nil {
			return fmt.Errorf("entry %q: %w", input.Text(name), err)
		}
		if e.script && program[scriptName(e.dst)] {
			continue // what older tools made for the same entry point
		}
		if other, twice := taken[e.dst]; twice {
			return fmt.Errorf("its entries %q and %q both go to %q", input.Text(min(name, other)), input.Text(max(name, other)), input.Text(e.dst))
		}
		taken[e.dst] = name
		w.files = append(w.files, e)
	}
	sort.Slice(w.files, func(i, j int) bool { return w.files[i].dst < w.files[j].dst })
	return nil
}

// scriptName is the entry point that a script of older tools belongs to.
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
			return nil, fmt.Errorf("reading RECORD: a row of %d fields; 3 are known", len(f))
		}
		if _, twice := out[f[0]]; twice {
			return nil, fmt.Errorf("reading RECORD: %q stands there twice", input.Text(f[0]))
		}
		out[strings.Clone(f[0])] = recordRow{strings.Clone(f[1]), strings.Clone(f[2])}
	}
}

// recorded takes what RECORD says of the file. Signatures of RECORD alone may be
// missing there.
func (e *wheelEntry) recorded(name string, rows map[string]recordRow, info string) error {
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
	case row.size == "": // older tools leave it out; the digest decides
		size = int64(min(e.zip.UncompressedSize64, maxUnpacked1))
	case err != nil || size < 0:
		return fmt.Errorf("its size in RECORD is %q", input.Text(row.size))
	case uint64(size) != e.zip.UncompressedSize64:
		return fmt.Errorf("it has %d bytes, RECORD says %d", e.zip.UncompressedSize64, size)
	}
	e.sum, e.size = row.sum, size
	return nil
}

// recordHash finds the hash of "sha256=…"; weaker ones are refused (PEP 427).
func recordHash(sum string) (hash.Hash, error) {
	switch alg, _, _ := strings.Cut(sum, "="); alg {
	case "sha256":
		return sha256.New(), nil
	case "sha384":
		return sha512.New384(), nil
	case "sha512":
		return sha512.New(), nil
	case "":
		return nil, errors.New("it has no digest in RECORD")
	default:
		return nil, fmt.Errorf("its digest in RECORD is %q; sha256, sha384 and sha512 are known", input.Text(alg))
	}
}

// recordSum writes a digest as RECORD has it.
func recordSum(alg string, sum []byte) string {
	return alg + "=" + base64.RawURLEncoding.EncodeToString(sum)
}

// aim decides where the file goes.
func (e *wheelEntry) aim(name string, w *wheel, t *Target) error {
	site := t.site()
	top, rest, _ := strings.Cut(name, "/")
	if !strings.HasSuffix(top, ".data") {
		e.dst = path.Join(site, name)
		return nil
	}
	if top != strings.TrimSuffix(w.info, ".dist-info")+".data" {
		return fmt.Errorf("its directory is of another distribution than %q", input.Text(w.info))
	}
	scheme, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return errors.New("it stands in no directory of the .data directory")
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
		return fmt.Errorf("%q is none of purelib, platlib, headers, scripts, data", input.Text(scheme))
	}
	if e.dst == "conda-meta" || strings.HasPrefix(e.dst, "conda-meta/") {
		return errors.New("it goes to where the record of the environment is kept")
	}
	return nil
}

// modTime is the time of the file in the archive; stamp where there is none.
func (e *wheelEntry) modTime() time.Time {
	if t := e.zip.Modified; t.After(layer.Epoch) && t.Year() < 2108 {
		return t.Truncate(time.Second).UTC()
	}
	return layer.Epoch
}

// shebang puts the environment's python into a script's first line.
func shebang(data []byte, python string) ([]byte, bool) {
	if !bytes.HasPrefix(data, []byte("#!python")) {
		return data, false
	}
	_, rest, _ := bytes.Cut(data, []byte("\n"))
	return append([]byte("#!"+python+"\n"), rest...), true
}
