package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// The layouts and docker archives of the hostile set (hostile_set_test.go).

func hostileLayouts() []hostile {
	good := entries("f a 1")
	var wide func(l *liar, depth, n int) map[string]any
	wide = func(l *liar, depth, n int) map[string]any {
		if depth == 0 {
			return l.image(good, nil)
		}
		d := wide(l, depth-1, n)
		return with(l.blob(l.index(repeat(d, n)...)), "mediaType", indexType)
	}
	config := func(data []byte, kv ...any) func(*testing.T, string) {
		return layout(func(l *liar) []byte {
			return l.index(l.image(good, func(m, _ map[string]any) {
				m["config"] = with(l.blob(data), append([]any{"mediaType", configType}, kv...)...)
			}))
		})
	}
	return []hostile{
		{"index.json of garbage", layout(func(*liar) []byte { return []byte("{") }), "index.json"},
		{"index.json without images", layout(func(l *liar) []byte { return l.index() }), "lists no image"},
		{"index.json of null", layout(func(*liar) []byte { return []byte("null") }), "lists no image"},
		{"index.json of 20 MB", layout(func(l *liar) []byte { return append(bytes.Repeat([]byte(" "), 20<<20), l.index()...) }), "larger than"},
		{"digest of something else", descriptor("digest", noDigest), noDigest},
		{"digest that climbs", descriptor("digest", "sha256:../../../../@/secret"), "*"},
		{"digest of another kind", descriptor("digest", "sha512:"+strings.Repeat("0", 128)), "not sha256"},
		{"digest in capitals", descriptor("digest", strings.ToUpper(noDigest)), "*"},
		{"size that is too small", descriptor("size", 10), "bytes"},
		{"size that is too large", descriptor("size", 100000), "bytes"},
		{"size below zero", descriptor("size", -5), "*"},
		{"size that is huge", descriptor("size", int64(1)<<62), "larger than"},
		{"size that is not a number", descriptor("size", "ten"), "index.json"},
		{"a manifest called an index", descriptor("mediaType", indexType), "*"},
		{"a manifest called a layer", descriptor("mediaType", layerType), "which is not an image"},
		{"a manifest without a type", descriptor("mediaType", ""), "*"},
		{"a layer called a manifest", layout(func(l *liar) []byte { return l.index(with(l.blob(good), "mediaType", manifestType)) }), "manifest"},
		{"an index called a manifest", layout(func(l *liar) []byte {
			return l.index(with(l.blob(l.index(l.image(good, nil))), "mediaType", manifestType))
		}), "*"},
		{"an index in itself", layout(func(l *liar) []byte {
			d := with(l.blob([]byte("placeholder")), "mediaType", indexType)
			hexname := d["digest"].(string)[7:]
			l.files["blobs/sha256/"+hexname] = l.index(d)
			return l.index(d)
		}), "bytes"},
		{"indexes nested deeply", layout(func(l *liar) []byte { return l.index(wide(l, 12, 1)) }), "nested deeper"},
		{"indexes that name one image ten million times", layout(func(l *liar) []byte { return l.index(wide(l, 4, 56)) }), "*"},
		{"wrong diff id", spoiled(func(_, c map[string]any) { c["rootfs"] = map[string]any{"diff_ids": []any{noDigest}} }), "the content has digest"},
		{"other bytes that unpack to the same", layout(func(l *liar) []byte {
			layer := zipped(good)
			d := l.image(layer, nil)
			sum := sha256.Sum256(layer)
			other := bytes.Clone(layer)
			other[9] ^= 1 // the operating system in the gzip header
			l.files["blobs/sha256/"+hex.EncodeToString(sum[:])] = other
			return l.index(d)
		}), "digest"},
		{"no diff ids", spoiled(func(_, c map[string]any) { delete(c, "rootfs") }), "lists 1 layers, the configuration 0"},
		{"invalid diff ids", spoiled(func(_, c map[string]any) { c["rootfs"] = map[string]any{"diff_ids": []any{"../@"}} }), "*"},
		{"too many diff ids", spoiled(func(_, c map[string]any) { c["rootfs"] = map[string]any{"diff_ids": []any{noDigest, noDigest}} }), "lists 1 layers, the configuration 2"},
		{"configuration of garbage", config([]byte("garbage")), "configuration"},
		{"configuration of 20 MB", config(bytes.Repeat([]byte(" "), 20<<20)), "larger than"},
		{"configuration with a wrong digest", config([]byte("{}"), "digest", noDigest), noDigest},
		{"no configuration", spoiled(func(m, _ map[string]any) { m["config"] = map[string]any{} }), "*"},
		{"layer with a wrong digest", spoiled(func(m, _ map[string]any) {
			m["layers"] = []any{map[string]any{"mediaType": layerType, "digest": noDigest, "size": 5}}
		}), noDigest},
		{"layer whose size lies", spoiled(func(m, _ map[string]any) {
			m["layers"] = []any{with(m["layers"].([]any)[0].(map[string]any), "size", 3)}
		}), "bytes"},
		{"layer that stands elsewhere", spoiled(func(m, _ map[string]any) {
			m["layers"] = []any{with(m["layers"].([]any)[0].(map[string]any), "urls", []any{"file:///etc/passwd"}, "mediaType", "application/vnd.oci.image.layer.nondistributable.v1.tar")}
		}), "*"},
		{"layer of an unknown type", spoiled(func(m, _ map[string]any) {
			m["layers"] = []any{with(m["layers"].([]any)[0].(map[string]any), "mediaType", "text/html")}
		}), "*"},
		{"manifest whose layers are not a list", spoiled(func(m, _ map[string]any) { m["layers"] = "all" }), "manifest"},
		{"hostile layer in a layout", layout(func(l *liar) []byte { return l.index(l.image(entries("l a ../@", "h b a/secret"), nil)) }), "layer sha256:"},
		{"name that climbs", descriptor("annotations", map[string]string{"org.opencontainers.image.ref.name": "../../@/secret:1"}), "*"},
		{"blob that is a link to outside", planted(func(blob string) error { return os.Symlink("../../../../victim/secret", blob) }), "*"},
		{"blob that is a pipe", planted(func(blob string) error { return syscall.Mkfifo(blob, 0o644) }), "not a regular file"},
		{"blob that is a directory", planted(func(blob string) error { return os.Mkdir(blob, 0o755) }), "not a regular file"},
		{"layout as a tar, with links for blobs", content(entries("f oci-layout {}", "l blobs ../../@", "l blobs/sha256 ../../@", "l index.json ../../@/secret", "f blobs/sha256/"+noDigest[7:]+" x")), "index.json"},
		{"layout as a tar, with names that climb", content(entries("f oci-layout {}", "f blobs/sha256/../../../../@/f bad", "f ../@/f bad", "f index.json {}")), "lists no image"},
		{"layout as a tar, with a sparse blob of 8 EiB", content(closed(raw("oci-layout", '0', "00000000000\x00", ""),
			pax('x', "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=blobs/sha256/"+noDigest[7:], "GNU.sparse.realsize=9223372036854775000"),
			raw("x", '0', "00000001000\x00", "", []byte("0\n")...))), "sparse"},
	}
}

func repeat(v any, n int) (out []any) {
	for range n {
		out = append(out, v)
	}
	return out
}

// planted returns a valid layout in which plant replaces the blob of the manifest.
func planted(plant func(blob string) error) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		var digest string
		layout(func(l *liar) []byte {
			d := l.image(entries("f a 1"), nil)
			digest = d["digest"].(string)
			return l.index(d)
		})(t, path)
		blob := filepath.Join(path, "blobs/sha256", digest[7:])
		testenv.Check(t, os.Remove(blob))
		testenv.Check(t, plant(blob))
	}
}

func hostileDocker() []hostile {
	config := `f c.json {"rootfs":{"type":"layers","diff_ids":["` + noDigest + `"]}}`
	return []hostile{
		{"docker: manifest of garbage", dockerArchive("{"), "manifest.json"},
		{"docker: manifest of null", dockerArchive("null"), "*"},
		{"docker: no images", dockerArchive("[]"), "*"},
		{"docker: configuration outside", dockerArchive(`[{"Config":"../../@/secret","Layers":[]}]`), "../../@/secret"},
		{"docker: layer outside", dockerArchive(`[{"Config":"c.json","Layers":["../../@/secret"]}]`, config), "*"},
		{"docker: layer that is a link to outside", dockerArchive(`[{"Config":"c.json","Layers":["l.tar"]}]`, config, "l l.tar ../../@/secret"), "*"},
		{"docker: layer that is a link to itself", dockerArchive(`[{"Config":"c.json","Layers":["l.tar"]}]`, config, "l l.tar l.tar"), "*"},
		{"docker: invalid name", dockerArchive(`[{"Config":"c.json","RepoTags":["../../@/x"],"Layers":[]}]`, config), "*"},
		{"docker: wrong diff id", dockerArchive(`[{"Config":"c.json","Layers":["l.tar"]}]`, config, "f l.tar "+string(bytes.Trim(entries("f a 1"), "\x00"))), "*"},
		{"docker: more images than names", dockerArchive(`[{"Config":"c.json","Layers":[]},{"Config":"c.json","Layers":[]}]`, config), "*"},
	}
}
