package conda

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/program"
	"hpcc/text"
)

// maxReplaced limits files with a placeholder, which are held in memory, in bytes.
const maxReplaced = 1 << 30

// target returns the destination of a file, below the prefix. Files of noarch python
// packages go to the installed python's directories, those of a sysroot to the system's.
// It returns "" for files that are left out.
func (p *pkg) target(src string) string {
	if p.dsts != nil {
		return p.dsts[src]
	}
	if p.meta.index.NoarchKind() != "python" || p.in.plan.python == "" {
		return src
	}
	if rest, ok := strings.CutPrefix(src, "site-packages/"); ok {
		return path.Join(p.in.plan.site, rest)
	}
	if rest, ok := strings.CutPrefix(src, "python-scripts/"); ok {
		return path.Join("bin", rest)
	}
	return src
}

// An installed is a file as conda-meta records it (CEP 32).
type installed struct {
	Path           string `json:"_path"`
	Type           string `json:"path_type"`
	SHA256         string `json:"sha256,omitempty"`
	SHA256InPrefix string `json:"sha256_in_prefix,omitempty"`
	Size           *int64 `json:"size_in_bytes,omitempty"`
	Mode           string `json:"file_mode,omitempty"`
	Placeholder    string `json:"prefix_placeholder,omitempty"`
}

// install writes the package's files to a layer.
func (p *pkg) install(ctx context.Context, w *layer.Writer) error {
	p.stale = p.stalePyc()
	p.done = map[string]*installed{}
	var order []*installed
	err := walk(p.file, p.meta.unpacked(p.rec.Size), nil, func(h *tar.Header, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := p.meta.paths[h.Name]
		if e == nil || p.stale[h.Name] || p.target(h.Name) == "" {
			return nil // only listed files are installed
		}
		if _, twice := p.done[h.Name]; twice {
			return errors.New("duplicate entry")
		}
		x, err := p.put(w, e, h, r)
		if err != nil {
			return err
		}
		if p.done[h.Name] = x; x != nil {
			order = append(order, x)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, src := range p.meta.order {
		if _, ok := p.done[src]; ok || p.stale[src] || p.target(src) == "" {
			continue
		}
		if p.meta.paths[src].Type != "directory" {
			return fmt.Errorf("path %q is listed, but not in the package", text.Short(src))
		}
		x := &installed{Path: p.target(src), Type: "directory"}
		if p.lost[x.Path] {
			continue
		}
		if err := w.Header(&tar.Header{Typeflag: tar.TypeDir, Name: x.Path, Mode: 0o755, ModTime: layer.Epoch}); err != nil {
			return err
		}
		order = append(order, x)
	}
	points, err := p.putCommands(w)
	if err != nil {
		return err
	}
	if len(p.outward) > 0 {
		p.note("%s outside of the environment: %s",
			text.Count(len(p.outward), "link of "+p.rec.Name+" points", "links of "+p.rec.Name+" point"), input.List(p.outward))
	}
	return p.record(w, append(order, points...))
}

// stalePyc lists compiled files whose source changes by prefix replacement. Python would
// consider them current, because it compares times.
func (p *pkg) stalePyc() map[string]bool {
	out := map[string]bool{}
	for _, src := range p.meta.order {
		ext := path.Ext(src)
		if ext != ".pyc" && ext != ".pyo" {
			continue
		}
		dir, base := path.Split(src)
		dir = path.Clean(dir)
		source := path.Join(dir, strings.TrimSuffix(base, ext)+".py") // python 2
		if path.Base(dir) == "__pycache__" {
			mod, _, _ := strings.Cut(base, ".")
			source = path.Join(path.Dir(dir), mod+".py")
		}
		if e := p.meta.paths[source]; e != nil && e.Placeholder != "" {
			out[src] = true
		}
	}
	return out
}

// put writes one file. It returns nil if the file is left out.
func (p *pkg) put(w *layer.Writer, e *pathEntry, h *tar.Header, r io.Reader) (*installed, error) {
	dst := p.target(e.Path)
	x := &installed{Path: dst, Type: e.Type, SHA256: e.SHA256, Size: e.Size}
	out := &tar.Header{Typeflag: h.Typeflag, Name: dst, Mode: h.Mode & 0o777, ModTime: h.ModTime.Truncate(time.Second)}
	if (h.Typeflag == tar.TypeDir) != (e.Type == "directory") && !(e.Type == "" && h.Typeflag == tar.TypeDir) {
		return nil, fmt.Errorf("type mismatch: %q in the archive, %q in info/paths.json", h.Typeflag, e.Type)
	}
	if p.lost[dst] {
		return nil, p.spare(h, r)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		x.Type = "directory"
		return x, w.Header(out)
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return nil, errors.New("link with an empty target")
		}
		x.Type = "softlink"
		out.Linkname, out.Mode = h.Linkname, 0o777
		if p.dsts != nil {
			if out.Linkname = p.relink(e.Path, h.Linkname); out.Linkname == "" {
				return nil, nil
			}
		}
		if p.in.plan.sysroot == nil && leaves(dst, h.Linkname, p.in.plan.Prefix) {
			p.outward = append(p.outward, dst+" to "+text.Short(h.Linkname))
		}
		p.learned.Links = append(p.learned.Links, x.Path)
		return x, w.Header(out)
	case tar.TypeLink:
		return p.putLink(w, e, x, out, h)
	case tar.TypeReg, tar.TypeGNUSparse:
	default:
		return nil, fmt.Errorf("unsupported file type %q", h.Typeflag)
	}
	x.Type = "hardlink"
	out.Typeflag = tar.TypeReg
	if e.Size != nil && *e.Size != h.Size {
		return nil, fmt.Errorf("size mismatch: %d bytes, info/paths.json lists %d", h.Size, *e.Size)
	}
	if h.Mode&0o6000 != 0 {
		p.note("%s of %s: removed the setuid or setgid bit", dst, p.rec.Name)
	}
	if e.Placeholder != "" || wanted(dst) {
		return x, p.putReplaced(w, e, x, out, h.Size, r)
	}
	out.Size = h.Size
	if err := w.Header(out); err != nil {
		return nil, err
	}
	sum := sha256.New()
	if _, err := w.Copy(r, sum); err != nil {
		return nil, err
	}
	x.SHA256InPrefix = hex.EncodeToString(sum.Sum(nil))
	if err := checkSum(e, x.SHA256InPrefix); err != nil {
		return nil, err
	}
	x.SHA256 = x.SHA256InPrefix
	return x, nil
}

// leaves reports whether a symbolic link at dst, below the prefix, leads out of it. Such
// links are often intended, and harmless: they point into the image, not to this host.
func leaves(dst, target, prefix string) bool {
	if path.IsAbs(target) {
		return !strings.HasPrefix(path.Clean(target)+"/", prefix+"/")
	}
	to := path.Join(path.Dir(dst), target)
	return to == ".." || strings.HasPrefix(to, "../")
}

// putLink writes a hard link to a file of the same package.
func (p *pkg) putLink(w *layer.Writer, e *pathEntry, x *installed, out, h *tar.Header) (*installed, error) {
	target, err := input.CleanPath(h.Linkname)
	if err != nil {
		return nil, fmt.Errorf("hard link to %q: %w", text.Short(h.Linkname), err)
	}
	if s, ok := p.spares[target]; ok { // another package owns that path
		own := *s.h
		own.Name = h.Name
		return p.put(w, e, &own, bytes.NewReader(s.data))
	}
	if p.stale[target] {
		return nil, nil
	}
	to, te := p.done[target], p.meta.paths[target]
	if to == nil || to.Type != "hardlink" {
		return nil, fmt.Errorf("hard link to %q: target was not installed before", text.Short(h.Linkname))
	}
	if te.Placeholder != e.Placeholder || (e.Placeholder != "" && te.Mode != e.Mode) {
		return nil, fmt.Errorf("hard link to %q: different placeholder", text.Short(h.Linkname))
	}
	if err := checkSum(e, to.SHA256); err != nil {
		return nil, err
	}
	*x = installed{x.Path, "hardlink", to.SHA256, to.SHA256InPrefix, to.Size, to.Mode, to.Placeholder}
	out.Linkname = w.InLayer(to.Path)
	return x, w.Header(out)
}

// A spareFile is a file that is left out because another package owns its path. Hard
// links to it may follow.
type spareFile struct {
	h    *tar.Header
	data []byte
}

// maxSpare limits the size of spare files per package, in bytes.
const maxSpare = 64 << 20

// spare keeps the content of a file that is left out.
func (p *pkg) spare(h *tar.Header, r io.Reader) error {
	if h.Typeflag != tar.TypeReg || h.Size > maxSpare-p.spared {
		return nil
	}
	data, err := io.ReadAll(r)
	if p.spares == nil {
		p.spares = map[string]*spareFile{}
	}
	p.spares[h.Name] = &spareFile{h, data}
	p.spared += h.Size
	return err
}

// Directories of the scripts and variables for activation.
const (
	varsDir    = "etc/conda/env_vars.d/"
	scriptsDir = "etc/conda/activate.d/"
)

// wanted reports whether the installer itself needs a file's content.
func wanted(dst string) bool {
	return (strings.HasPrefix(dst, varsDir) && strings.HasSuffix(dst, ".json")) ||
		(strings.HasPrefix(dst, scriptsDir) && strings.HasSuffix(dst, ".sh"))
}

// checkSum compares a file with the digest that its package lists.
func checkSum(e *pathEntry, got string) error {
	if e.SHA256 != "" && got != e.SHA256 {
		return fmt.Errorf("sha256 mismatch: %s, info/paths.json lists %s", got, e.SHA256)
	}
	return nil
}

// putReplaced writes a file and replaces the placeholder by the prefix.
func (p *pkg) putReplaced(w *layer.Writer, e *pathEntry, x *installed, out *tar.Header, size int64, r io.Reader) error {
	if size > maxReplaced {
		return fmt.Errorf("file with a placeholder: %d bytes, limit %d", size, maxReplaced)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	x.SHA256 = hex.EncodeToString(sum[:])
	if err := checkSum(e, x.SHA256); err != nil {
		return err
	}
	if e.Placeholder != "" {
		if data, err = replacePrefix(data, e.Mode, e.Placeholder, p.in.plan.Prefix); err != nil {
			return err
		}
		x.Mode, x.Placeholder = e.Mode, e.Placeholder
	}
	if wanted(x.Path) {
		if p.learned.Files == nil {
			p.learned.Files = map[string][]byte{}
		}
		p.learned.Files[x.Path] = data
	}
	sum = sha256.Sum256(data)
	x.SHA256InPrefix = hex.EncodeToString(sum[:])
	out.Size = int64(len(data))
	if err := w.Header(out); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// A command is the script of an entry point of a noarch python package.
type command struct {
	name string
	text []byte
}

// commands returns the scripts of the entry points. The last of several with the same
// name wins.
func (p *pkg) commands() ([]command, error) {
	if p.meta.index.NoarchKind() != "python" {
		return nil, nil
	}
	var out []command
	for _, spec := range p.meta.entryPoints {
		e, err := program.Parse(spec)
		if err != nil {
			return nil, fmt.Errorf("entry point %w", err)
		}
		out = slices.DeleteFunc(out, func(c command) bool { return c.name == e.Name })
		out = append(out, command{e.Name, e.CondaText(p.in.plan.Prefix + "/bin/python" + p.in.plan.python)})
	}
	return out, nil
}

// putCommands writes the scripts of the entry points.
func (p *pkg) putCommands(w *layer.Writer) ([]*installed, error) {
	var out []*installed
	for _, c := range p.points {
		dst := "bin/" + c.name
		if p.lostPoints[dst] {
			continue
		}
		sum := sha256.Sum256(c.text)
		if err := w.File(dst, 0o755, c.text, seconds(p.meta.index.Timestamp)); err != nil {
			return nil, err
		}
		out = append(out, &installed{Path: dst, Type: "unix_python_entry_point", SHA256InPrefix: hex.EncodeToString(sum[:])})
	}
	return out, nil
}

// seconds converts a package's timestamp: milliseconds, or seconds in old packages.
func seconds(t int64) int64 {
	if t > 1<<37 {
		return t / 1000
	}
	return t
}

// record writes conda-meta/<name-version-build>.json (CEP 32). Fields for local paths are
// empty.
func (p *pkg) record(w *layer.Writer, done []*installed) error {
	type link struct {
		Source string `json:"source"`
		Type   int    `json:"type"`
	}
	type paths struct {
		Paths   []*installed `json:"paths"`
		Version int          `json:"paths_version"`
	}
	rec := struct {
		description
		Files         []string `json:"files"`
		PathsData     paths    `json:"paths_data"`
		Link          link     `json:"link"`
		RequestedSpec string   `json:"requested_spec"`
		Extracted     string   `json:"extracted_package_dir"`
		Tarball       string   `json:"package_tarball_full_path"`
	}{description: describe(p.rec), Files: []string{}, PathsData: paths{nonNil(done), 1}, Link: link{Type: 1}}
	for _, x := range done {
		rec.Files = append(rec.Files, x.Path)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(rec); err != nil {
		return err
	}
	r := p.rec
	return w.File("conda-meta/"+r.Name+"-"+r.Version+"-"+r.Build+".json", 0o644, buf.Bytes(), 0)
}

// nonNil returns an empty list for nil, which JSON would encode as null. conda accepts no null.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
