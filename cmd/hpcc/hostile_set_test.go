package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// The hostile set consists of archives and layouts that an attacker might write. Tests pass each
// file or directory to "hpcc unpack" and "hpcc load".

// A hostile is a member of the set. In lines, "../@" climbs from the tree to a directory that must
// stay untouched, and ABS is the path of that directory.
type hostile struct {
	name  string
	file  func(t *testing.T, path string) // writes it
	error string                          // part of the message; "" for a harmless one, "*" for any result
}

// entries returns an archive from lines as in the tests of unpack: "d path", "f path content",
// "l path target", "h path target", "c path", "p path".
func entries(lines ...string) []byte {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, line := range lines {
		f := strings.SplitN(line+"  ", " ", 3)
		h := &tar.Header{Name: f[1], ModTime: time.Unix(1e9, 0), Mode: 0o644}
		arg := strings.TrimSpace(f[2])
		switch f[0] {
		case "d":
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		case "d0":
			h.Typeflag, h.Mode = tar.TypeDir, 0
		case "f":
			h.Typeflag, h.Size = tar.TypeReg, int64(len(arg))
		case "s":
			h.Typeflag, h.Size, h.Mode = tar.TypeReg, int64(len(arg)), 0o6755
		case "l":
			h.Typeflag, h.Linkname = tar.TypeSymlink, arg
		case "h":
			h.Typeflag, h.Linkname = tar.TypeLink, arg
		case "c":
			h.Typeflag = tar.TypeChar
		case "p":
			h.Typeflag = tar.TypeFifo
		}
		if err := tw.WriteHeader(h); err != nil {
			panic(err)
		}
		if h.Typeflag == tar.TypeReg {
			tw.Write([]byte(arg))
		}
	}
	tw.Close()
	return buf.Bytes()
}

// raw returns a header with arbitrary fields, followed by its data. The size field has at most 12
// bytes.
func raw(name string, kind byte, size, link string, data ...byte) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:136], size)
	copy(b[136:], "07346545000\x00        ")
	b[156] = kind
	copy(b[157:257], link)
	copy(b[257:], "ustar\x0000")
	return append(sum(b), pad(data)...)
}

// sum writes a header's checksum.
func sum(b []byte) []byte {
	n := 0
	for _, c := range b {
		n += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", n))
	return b
}

func pad(data []byte) []byte {
	return append(data[:len(data):len(data)], make([]byte, (512-len(data)%512)%512)...)
}

// pax returns an extended header of kind 'x' (for the next member) or 'g' (for all members).
func pax(kind byte, records ...string) []byte {
	var data []byte
	for _, r := range records {
		n := len(r) + 3
		for len(fmt.Sprint(n))+len(r)+2 != n {
			n = len(fmt.Sprint(n)) + len(r) + 2
		}
		data = fmt.Appendf(data, "%d %s\n", n, r)
	}
	return raw("PaxHeaders/x", kind, fmt.Sprintf("%011o", len(data)), "", data...)
}

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// closed returns a complete archive of raw members.
func closed(parts ...[]byte) []byte { return append(joined(parts...), make([]byte, 1024)...) }

func zipped(data []byte) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	z.Write(data)
	z.Close()
	return buf.Bytes()
}

// content returns a function that writes data unchanged. text returns a function that writes an
// archive of lines, aimed at the directory of "../@". A NUL byte also ends a line.
func content(data []byte) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		testenv.Check(t, os.WriteFile(path, data, 0o644))
	}
}

func archiveOf(lines ...string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		victim := filepath.Join(filepath.Dir(path), "victim")
		aimed := strings.NewReplacer("../@", strings.Repeat("../", 20)+victim[1:], "ABS", victim)
		var all []string
		for _, l := range lines {
			all = append(all, strings.Split(aimed.Replace(l), "\x00")...)
		}
		content(entries(all...))(t, path)
	}
}

// lines returns n lines from a pattern with %d.
func lines(n int, pattern string) (out []string) {
	for i := range n {
		out = append(out, strings.ReplaceAll(pattern, "%d", fmt.Sprint(i)))
	}
	return out
}

// A liar writes an OCI layout in which any part may be wrong.
type liar struct{ files map[string][]byte }

func (l *liar) blob(data []byte) map[string]any {
	h := sha256.Sum256(data)
	d := "sha256:" + hex.EncodeToString(h[:])
	l.files["blobs/sha256/"+d[7:]] = data
	return map[string]any{"digest": d, "size": len(data)}
}

func (l *liar) object(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// with returns a copy of a descriptor with changed fields.
func with(d map[string]any, kv ...any) map[string]any {
	out := map[string]any{}
	for k, v := range d {
		out[k] = v
	}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i].(string)] = kv[i+1]
	}
	return out
}

// image returns the descriptor of a manifest. change may spoil the manifest and its configuration
// before they are written.
func (l *liar) image(layer []byte, change func(manifest, config map[string]any)) map[string]any {
	d := with(l.blob(layer), "mediaType", layerType)
	config := map[string]any{"os": "linux", "architecture": "amd64", "rootfs": map[string]any{"type": "layers", "diff_ids": []any{d["digest"]}}}
	manifest := map[string]any{"schemaVersion": 2, "mediaType": manifestType, "layers": []any{d}}
	if change != nil {
		change(manifest, config)
	}
	if manifest["config"] == nil {
		manifest["config"] = with(l.blob(l.object(config)), "mediaType", configType)
	}
	return with(l.blob(l.object(manifest)), "mediaType", manifestType)
}

func (l *liar) index(manifests ...any) []byte {
	return l.object(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests})
}

// layout returns a function that writes a layout with the blobs and with the result of make as
// index.json.
func layout(make func(l *liar) []byte) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		l := &liar{map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
		l.files["index.json"] = make(l)
		for n, data := range l.files {
			testenv.Check(t, os.MkdirAll(filepath.Dir(filepath.Join(path, n)), 0o755))
			content(data)(t, filepath.Join(path, n))
		}
	}
}

// spoiled returns a layout with an image that change spoils.
func spoiled(change func(manifest, config map[string]any)) func(*testing.T, string) {
	return layout(func(l *liar) []byte { return l.index(l.image(entries("f a 1"), change)) })
}

// descriptor returns a layout whose index has wrong fields for the image.
func descriptor(kv ...any) func(*testing.T, string) {
	return layout(func(l *liar) []byte { return l.index(with(l.image(entries("f a 1"), nil), kv...)) })
}

// dockerArchive returns a docker archive with the given manifest.json and further lines.
func dockerArchive(manifest string, lines ...string) func(*testing.T, string) {
	return content(entries(append([]string{"f manifest.json " + manifest}, lines...)...))
}

const noDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func hostileSet() []hostile {
	var all []hostile
	for _, part := range [][]hostile{hostileNames(), hostileHeaders(), hostilePacking(), hostileLayouts(), hostileDocker()} {
		all = append(all, part...)
	}
	return all
}

func hostileNames() []hostile {
	return []hostile{
		{"climbing name", archiveOf("f ../@/f bad"), "path leaves the root"},
		{"climbing inside", archiveOf("f a/../../@/f bad"), "path leaves the root"},
		{"absolute and climbing", archiveOf("f /../../@/f bad"), "path leaves the root"},
		{"only dots", archiveOf("f .. bad"), "path leaves the root"},
		{"dots that stay", archiveOf("f ././a/../b good"), ""},
		{"maze", archiveOf("l a ..", "l a/b ..", "l a/b/c ..", "f a/b/c/@/f bad"), "*"},
		{"chain", archiveOf("d x", "l x/y ../..", "l z x/y/..", "f z/@/f bad"), ""},
		{"long chain", archiveOf(append(append([]string{"l n0 ../@"}, lines(38, "l m%d n0")...), "f m37/f bad")...), ""},
		{"chain of forty", archiveOf(append(append([]string{"d end"}, chain(39)...), "f c39/f x")...), "*"},
		{"chain that is too long", archiveOf(append(append([]string{"l c0 ../@"}, chain(200)...), "f c200/f bad")...), "*"},
		{"absolute link to outside", archiveOf("l a ABS", "f a/secret bad"), ""},
		{"link to a file outside", archiveOf("l a ../@/secret", "f a bad"), ""},
		{"link, then a directory on it", archiveOf("l a ../@", "d0 a", "f a/f bad"), ""},
		{"link, then a hard link through it", archiveOf("l a ../@", "h b a/secret"), "does not exist"},
		{"hard link to outside", archiveOf("h a ../@/secret"), "path leaves the root"},
		{"hard link to an absolute name", archiveOf("h a ABS/secret", "f a bad"), "does not exist"},
		{"hard link to a link, then written", archiveOf("l a ../@/secret", "h b a", "f b bad"), ""},
		{"hard link to a link, then entered", archiveOf("l a ../@", "h b a", "f b/f bad"), ""},
		{"hard link to a directory", archiveOf("d a", "h b a"), "is a directory"},
		{"hard link to nothing", archiveOf("h a nowhere"), "does not exist"},
		{"hard link to itself", archiveOf("h a a"), ""},
		{"link onto itself", archiveOf("l a a", "f a/b x"), "*"},
		{"mutual links", archiveOf("l a b", "l b a", "f a/x bad"), "*"},
		{"directory becomes a link", archiveOf("d a", "f a/f 1", "l a ../@", "f a/secret bad"), ""},
		{"file becomes a link", archiveOf("f a 1", "l a ../@/secret", "f a bad"), ""},
		{"parent becomes a link late", archiveOf("d p", "d p/q", "f p/q/f 1", "l p ../@", "f p/q/secret bad", "f p/secret bad"), ""},
		{"back and forth", archiveOf(lines(50, "l a ../@\x00f a/f bad\x00f a x\x00d a")...), "*"},
		{"below a file", archiveOf("f a 1", "f a/b 2"), ""},
		{"below a device", archiveOf("c a", "f a/b 2"), ""},
		{"devices and pipes", archiveOf("c null", "p pipe", "f a 1"), ""},
		{"whiteout outside", archiveOf("l a ../@", "f a/.wh.secret"), ""},
		{"whiteout of the parent", archiveOf("d d", "f d/.wh..."), ""},
		{"whiteout that climbs", archiveOf("d d", "f d/.wh.../@"), "*"},
		{"whiteout of nothing", archiveOf("f .wh.", "f .wh..", "f a/.wh."), ""},
		{"whiteout with a name below", archiveOf("f .wh.a/b 1"), "*"},
		{"whiteout of a link", archiveOf("l a ../@", "f .wh.a", "f a/f 1"), ""},
		{"opaque through a link", archiveOf("l a ../@", "f a/.wh..wh..opq"), ""},
		{"opaque root", archiveOf("l a ../@", "f .wh..wh..opq"), ""},
		{"notes of aufs", archiveOf("f .wh..wh.aufs 1", "d .wh..wh.plnk", "f .wh..wh.plnk/1.2 x"), "*"},
		{"duplicate names", archiveOf(lines(20, "f a %d")...), ""},
		{"names that clash in case", archiveOf("f A 1", "f a 2", "d B", "l b ../@", "f B/f 3"), ""},
		{"names that clash in form", archiveOf("f \u00e9 1", "f e\u0301 2"), ""},
		{"path of 4,000 bytes", archiveOf("f " + strings.Repeat("nine-byte/", 400) + "f 1"), "*"},
		{"path of 4,000 bytes, long parts", archiveOf("f " + strings.Repeat(strings.Repeat("x", 249)+"/", 15) + "f 1"), "*"},
		{"path of 5,000 bytes", archiveOf("f " + strings.Repeat("x/", 2500) + "f 1"), "name has"},
		{"part of 300 bytes", archiveOf("f " + strings.Repeat("x", 300) + " 1"), "entry \"xxx"},
		{"link target of 5,000 bytes", archiveOf("l a " + strings.Repeat("x/", 2500)), "link target has"},
		{"signs for the terminal", archiveOf("f ../\x1b[31m\x1b]0;owned\x07\r 1"), "path leaves the root"},
		{"line ends in a name", archiveOf("f ../a\nhpcc:\u00a0fine 1"), "path leaves the root"},
		{"backslashes", archiveOf(`f ..\..\@\f 1`), ""},
		{"our own directory", archiveOf("l .hpcc ../@", "f .hpcc/image.json {}", "d .hpcc"), ""},
		{"our own directory, hidden", archiveOf("d x", "l y .", "f y/.hpcc/image.json {}", "f .wh..hpcc"), "*"},
		{"set-id bits", archiveOf("s su x"), ""},
		{"locked directories", archiveOf("d0 a", "d0 a/b", "f a/b/f x", "l a/b/l ../@"), ""},
	}
}

// chain returns n links, each to the one before.
func chain(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("l c%d c%d", i+1, i))
	}
	return out
}

func hostileHeaders() []hostile {
	file := raw("a", '0', "00000000001\x00", "", 'x')
	return []hostile{
		{"negative size", content(closed(raw("a", '0', "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", ""))), "not an OCI layout"},
		{"size of 8 EiB", content(closed(raw("a", '0', "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff", "", 'x'))), "not an OCI layout"},
		{"size beyond the end", content(raw("a", '0', "00000177777\x00", "", 'x')), "unexpected EOF"},
		{"size that is not a number", content(closed(raw("a", '0', "99999999999\x00", ""))), "not an OCI layout"},
		{"wrong checksum", content(closed(append([]byte("b"), file[1:]...))), "not an OCI layout"},
		{"unknown type", content(closed(raw("a", 'Z', "00000000000\x00", ""))), "unknown type"},
		{"contiguous file", content(closed(raw("a", '7', "00000000001\x00", "", 'x'))), ""},
		{"no name", content(closed(raw("", '0', "00000000001\x00", "", 'x'))), "*"},
		{"global header with a path", content(closed(pax('g', "path=../../@/f"), file)), "*"},
		{"record with a climbing path", content(closed(pax('x', "path=../../@/f"), file)), "path leaves the root"},
		{"record with a climbing link", content(closed(pax('x', "linkpath=../../@/secret"), raw("a", '1', "00000000000\x00", "b"))), "path leaves the root"},
		{"record with a NUL", content(closed(pax('x', "path=a\x00/../../@"), file)), "not an OCI layout"},
		{"record with a negative size", content(closed(pax('x', "size=-1"), file)), "not an OCI layout"},
		{"record with a huge size", content(closed(pax('x', "size=9223372036854775807"), file)), "not an OCI layout"},
		{"record with a wrong length", content(closed(raw("PaxHeaders/x", 'x', "00000000013\x00", "", []byte("99 path=abc\n")...), file)), "not an OCI layout"},
		{"record with an odd time", content(closed(pax('x', "mtime=-99999999999999999999.5"), file)), "*"},
		{"record with a time at the end of days", content(closed(pax('x', "mtime=9223372036854775807"), file)), "*"},
		{"records that forge notes", content(closed(pax('x', "SCHILY.xattr.user.hpcc.owner=1:1", "SCHILY.xattr.trusted.overlay.redirect=/@", "SCHILY.xattr.security.capability=x"), file)), "*"},
		{"GNU name that climbs", content(closed(raw("././@LongLink", 'L', "00000000013\x00", "", []byte("../../@/f\x00\x00")...), file)), "*"},
		{"GNU name that is huge", content(raw("././@LongLink", 'L', "77777777777\x00", "")), "not an OCI layout"},
		{"GNU link that climbs", content(closed(raw("././@LongLink", 'K', "00000000016\x00", "", []byte("../../@/secret")...), raw("a", '1', "00000000000\x00", ""))), "path leaves the root"},
		{"sparse of 8 EiB", content(closed(pax('x', "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=a", "GNU.sparse.realsize=9223372036854775000"), raw("GNUSparseFile.0/a", '0', "00000001000\x00", "", []byte("0\n")...))), "entr"},
		{"sparse with parts in disorder", content(closed(pax('x', "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=a", "GNU.sparse.realsize=100"), raw("GNUSparseFile.0/a", '0', "00000001000\x00", "", []byte("2\n50\n10\n0\n10\n")...))), "not an OCI layout"},
		{"sparse whose name climbs", content(closed(pax('x', "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=../../@/f", "GNU.sparse.realsize=0"), raw("GNUSparseFile.0/a", '0', "00000001000\x00", "", []byte("0\n")...))), "path leaves the root"},
		{"members behind the end", content(joined(closed(file), closed(raw("../../@/f", '0', "00000000001\x00", "", 'x')))), ""},
		{"cut in a header", content(entries("f a 1", "f b 2")[:1024+300]), "EOF"},
		{"cut in a file", content(entries("f a " + strings.Repeat("x", 2000))[:1000]), "unexpected EOF"},
		{"no archive", content([]byte(strings.Repeat("no archive\n", 200))), "not an OCI layout"},
		{"nothing", content(nil), "*"},
	}
}

func hostilePacking() []hostile {
	good := entries("f a 1")
	return []hostile{
		{"gzip cut short", content(zipped(good)[:40]), "EOF"},
		{"gzip in two parts", content(joined(zipped(good[:700]), zipped(good[700:]))), ""},
		{"gzip with something behind", content(joined(zipped(good), []byte("garbage garbage"))), "*"},
		{"gzip with a wrong sum", content(func() []byte { b := zipped(good); b[len(b)-6] ^= 1; return b }()), "checksum"},
		{"gzip in gzip", content(zipped(zipped(good))), "not an OCI layout"},
		{"gzip head alone", content([]byte{0x1f, 0x8b}), "EOF"},
		{"zstd of garbage", content(append([]byte{0x28, 0xb5, 0x2f, 0xfd}, bytes.Repeat([]byte{0xff}, 600)...)), "*"},
		{"zstd that wants 3 GiB of memory", content([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00}), "*"},
		{"zeros without end", content(zipped(joined(good, make([]byte, 96<<20)))), "*"},
		{"a file of zeros", content(zipped(closed(raw("a", '0', "01000000000\x00", "", make([]byte, 128<<20)...)))), "*"},
	}
}
