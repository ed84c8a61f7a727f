package conda

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/bzip2"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"hpcc/conda/input"
	"hpcc/text"
)

// Limits of a package.
const (
	maxPackage  = 32 << 30  // bytes of the package file
	maxUnpacked = 64 << 30  // bytes of all files of one package
	slack       = 1 << 30   // bytes of an archive beyond the files that the package lists
	maxRatio    = 1000      // unpacked size per byte of the package file, beyond slack
	maxInfo     = 64 << 20  // bytes of one file below info/
	maxMembers  = 1 << 16   // bytes of the central directory of a .conda file, which has three members
	maxWindow   = 256 << 20 // bytes of a zstd window; "--ultra -22" uses 128 MiB
)

// walk calls info for each file below info/, and then member for each other file in the
// archive's order. Either function may be nil. limit is the maximum unpacked size in
// bytes. CEP 34 and 35 define the two formats.
func walk(file string, limit int64, info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
	if strings.HasSuffix(file, ".conda") {
		return walkConda(file, limit, info, member)
	}
	// info/ can be anywhere in a .tar.bz2, so it takes two passes.
	pass := func(info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		return input.WalkTar(bzip2.NewReader(bufio.NewReaderSize(f, 1<<20)), limit,
			func(h *tar.Header, r io.Reader) error { return onInfo(h, r, info, member) })
	}
	if info != nil {
		if err := pass(info, nil); err != nil {
			return err
		}
	}
	if member != nil {
		return pass(nil, member)
	}
	return nil
}

// onInfo passes an entry of a package to info or to member; a nil function skips its entries.
func onInfo(h *tar.Header, r io.Reader, info func(string, io.Reader) error, member func(*tar.Header, io.Reader) error) error {
	if rest, ok := strings.CutPrefix(h.Name, "info/"); ok || h.Name == "info" {
		if info != nil && h.Typeflag == tar.TypeReg {
			return info(rest, r)
		}
		return nil
	}
	if member == nil {
		return nil
	}
	return member(h, r)
}

func walkConda(file string, limit int64, info func(name string, r io.Reader) error, member func(h *tar.Header, r io.Reader) error) error {
	z, err := input.OpenZip(file, maxMembers)
	if err != nil {
		return fmt.Errorf("opening the package: %w", err)
	}
	defer z.Close()
	parts, err := condaParts(z.Reader.File)
	if err != nil {
		return err
	}
	if info != nil {
		if err := walkPart(parts[1], min(limit, slack),
			func(h *tar.Header, r io.Reader) error { return onInfo(h, r, info, nil) }); err != nil {
			return err
		}
	}
	if member != nil {
		return walkPart(parts[2], limit, func(h *tar.Header, r io.Reader) error { return onInfo(h, r, nil, member) })
	}
	return nil
}

// condaParts finds metadata.json, the info part and the pkg part. It refuses any other
// member.
func condaParts(files []*zip.File) ([3]*zip.File, error) {
	var parts [3]*zip.File
	for _, f := range files {
		i := -1
		switch {
		case f.Name == "metadata.json":
			i = 0
		case strings.HasPrefix(f.Name, "info-") && strings.HasSuffix(f.Name, ".tar.zst"):
			i = 1
		case strings.HasPrefix(f.Name, "pkg-") && strings.HasSuffix(f.Name, ".tar.zst"):
			i = 2
		}
		switch {
		case i < 0:
			return parts, fmt.Errorf("the package contains the unknown member %q", text.Short(f.Name))
		case parts[i] != nil:
			return parts, fmt.Errorf("the package contains a second member of the kind of %q", text.Short(f.Name))
		case f.Method != zip.Store:
			return parts, fmt.Errorf("%q is compressed twice", text.Short(f.Name))
		}
		parts[i] = f
	}
	if parts[0] == nil || parts[1] == nil || parts[2] == nil {
		return parts, errors.New("the package has no metadata.json, info or pkg member")
	}
	r, err := parts[0].Open()
	if err != nil {
		return parts, err
	}
	defer r.Close()
	var m struct {
		Version int `json:"conda_pkg_format_version"`
	}
	if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&m); err != nil {
		return parts, fmt.Errorf("reading metadata.json: %w", err)
	}
	if m.Version != 2 {
		return parts, fmt.Errorf("unsupported package format version %d: want 2", m.Version)
	}
	return parts, nil
}

// decoders are reused, because each has megabytes of buffers.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(err) // only invalid options fail
	}
	return d
}}

// walkPart reads the tar archive in one member of a .conda file.
func walkPart(f *zip.File, limit int64, fn func(h *tar.Header, r io.Reader) error) error {
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%s: %w", text.Short(f.Name), err)
	}
	defer r.Close()
	d := decoders.Get().(*zstd.Decoder)
	defer func() {
		_ = d.Reset(nil) // release the package
		decoders.Put(d)
	}()
	if err := d.Reset(r); err != nil {
		return fmt.Errorf("%s: %w", text.Short(f.Name), err)
	}
	if err := input.WalkTar(d, limit, fn); err != nil {
		return fmt.Errorf("%s: %w", text.Short(f.Name), err)
	}
	return nil
}
