package build

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"hpcc/testdata/helpers/testenv"
)

// defaultPath is the PATH that BuildKit gives an image without one.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// describe returns an image's configuration, and the differences between its tree and that of
// its base image, with the dates of files that the build did not write.
func describe(t testing.TB, img v1.Image, bases map[string]v1.Image) string {
	t.Helper()
	below, shared := map[string]node{}, 0
	for _, b := range bases { // "base" is built from busybox; use the base with more layers
		if n := sharedLayers(t, img, b); n > shared {
			var err error
			below, err = flattened(b)
			testenv.Check(t, err)
			shared = n
		}
	}
	tree := maps.Clone(below)
	testenv.Check(t, flatten(tree, img, shared))
	raw, err := img.RawConfigFile()
	testenv.Check(t, err)
	conf, err := describeConfig(raw)
	testenv.Check(t, err)
	return strings.Join(append(conf, describeTree(tree, below)...), "")
}

// sharedLayers returns the number of layers of base if img is built on it, or else 0.
func sharedLayers(t testing.TB, img, base v1.Image) int {
	t.Helper()
	a, err := img.ConfigFile()
	testenv.Check(t, err)
	b, err := base.ConfigFile()
	testenv.Check(t, err)
	over, under := a.RootFS.DiffIDs, b.RootFS.DiffIDs
	if len(under) == 0 || len(over) < len(under) || !slices.Equal(over[:len(under)], under) {
		return 0
	}
	return len(under)
}

// A healthcheck is a health check, including the fields that go-containerregistry's type lacks.
type healthcheck struct {
	Test                                          []string
	Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries                                       int
}

// describeConfig lists the settings of an image's configuration, one per line. It omits the
// defaults: BuildKit's PATH, the working directory / and this machine's platform.
func describeConfig(raw []byte) ([]string, error) {
	cfg, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	var more struct {
		Config struct{ Healthcheck *healthcheck }
	}
	if err := json.Unmarshal(raw, &more); err != nil {
		return nil, err
	}
	var out []string
	line := func(name, value string) {
		if value != "" {
			out = append(out, name+" "+value+"\n")
		}
	}
	lineOfList := func(name string, list []string) {
		if len(list) > 0 {
			line(name, quoted(list))
		}
	}
	if p := (v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture, Variant: cfg.Variant}); p.String() != hostPlatform().String() {
		line("Platform", singleLine(p.String()))
	}
	line("Author", cfg.Author)
	c := cfg.Config
	if !slices.ContainsFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }) {
		line("Env", "without PATH")
	}
	for _, kv := range c.Env {
		if kv != defaultPath {
			line("Env", singleLine(kv))
		}
	}
	lineOfList("Entrypoint", c.Entrypoint)
	lineOfList("Cmd", c.Cmd)
	if c.WorkingDir != "/" {
		line("WorkingDir", singleLine(c.WorkingDir))
	}
	line("User", singleLine(c.User))
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		line("Label", singleLine(k+"="+c.Labels[k]))
	}
	for _, p := range slices.Sorted(maps.Keys(c.ExposedPorts)) {
		line("Expose", p)
	}
	for _, v := range slices.Sorted(maps.Keys(c.Volumes)) {
		line("Volume", v)
	}
	line("StopSignal", c.StopSignal)
	lineOfList("Shell", c.Shell)
	if h := more.Config.Healthcheck; h != nil {
		line("Healthcheck", h.String())
	}
	for _, b := range c.OnBuild {
		line("OnBuild", singleLine(b))
	}
	return out, nil
}

func (h *healthcheck) String() string {
	s := quoted(h.Test)
	for _, o := range []struct {
		name string
		d    time.Duration
	}{{"interval", h.Interval}, {"timeout", h.Timeout}, {"start-period", h.StartPeriod}, {"start-interval", h.StartInterval}} {
		if o.d != 0 {
			s += fmt.Sprintf(" %s=%v", o.name, o.d)
		}
	}
	if h.Retries != 0 {
		s += fmt.Sprintf(" retries=%d", h.Retries)
	}
	return s
}

// singleLine returns a value on one line. It quotes a value with blanks at an end, or with
// unprintable characters but no quotes and no backslashes.
func singleLine(s string) string {
	q := fmt.Sprintf("%q", s)
	hasUnprintable := q != `"`+s+`"` && !strings.ContainsAny(s, `"\`)
	if hasUnprintable || s != strings.TrimSpace(s) {
		return q
	}
	return s
}

// quoted returns a list as JSON.
func quoted(list []string) string {
	b := &bytes.Buffer{}
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(list)
	return strings.TrimSpace(b.String())
}

// A node is one file of an image's tree.
type node struct {
	kind     byte // type of tar: TypeReg, TypeDir, TypeSymlink, …
	mode     int64
	uid, gid int
	date     string // day of the modification, or "" if the build wrote the file
	link     string // target of a link
	text     string // content of a file, see contentOf
}

var trees sync.Map // of base images, by digest

// flattened returns the tree of a base image, which many cases share.
func flattened(img v1.Image) (map[string]node, error) {
	d, err := img.Digest()
	if err != nil {
		return nil, err
	}
	if t, ok := trees.Load(d); ok {
		return t.(map[string]node), nil
	}
	tree := map[string]node{}
	err = flatten(tree, img, 0)
	trees.Store(d, tree)
	return tree, err
}

// flatten applies an image's layers, starting with the layer first, to a tree (image-spec,
// "layer").
func flatten(tree map[string]node, img v1.Image, first int) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers[first:] {
		r, err := l.Uncompressed()
		if err != nil {
			return err
		}
		h := sha256.New()
		tee := io.TeeReader(r, h)
		err = applyNodes(tree, tar.NewReader(tee))
		if err == nil {
			_, err = io.Copy(io.Discard, tee)
		}
		r.Close()
		if err != nil {
			return err
		}
		if id, err := l.DiffID(); err != nil || id.Hex != hex.EncodeToString(h.Sum(nil)) {
			return fmt.Errorf("the content of a layer does not match its diff ID %v (%v)", id, err)
		}
	}
	return nil
}

// applyNodes applies one layer to a tree, whiteouts first.
func applyNodes(tree map[string]node, tr *tar.Reader) error {
	added := map[string]node{}
	var names []string
	remove := func(p string, self bool) {
		for q := range tree {
			if (q == p && self) || strings.HasPrefix(q, p+"/") {
				delete(tree, q)
			}
		}
	}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		p := path.Clean("/" + h.Name)
		dir, base := path.Split(p)
		switch {
		case p == "/":
			continue
		case base == ".wh..wh..opq":
			remove(path.Clean(dir), false)
			continue
		case strings.HasPrefix(base, ".wh."):
			remove(path.Join(dir, strings.TrimPrefix(base, ".wh.")), true)
			continue
		}
		n := node{date: dateOf(h.ModTime), kind: h.Typeflag, mode: h.Mode & 0o7777, uid: h.Uid, gid: h.Gid, link: h.Linkname}
		switch h.Typeflag {
		case tar.TypeReg:
			if n.text, err = contentOf(tr); err != nil {
				return err
			}
		case tar.TypeLink:
			from := path.Clean("/" + h.Linkname)
			to, ok := added[from]
			if !ok {
				to = tree[from]
			}
			n = to
		}
		added[p] = n
		names = append(names, p)
	}
	for _, p := range names {
		if added[p].kind != tar.TypeDir {
			remove(p, false)
		}
		tree[p] = added[p]
	}
	return nil
}

// contentOf returns the quoted content of a file, or its size and digest if it is large.
func contentOf(r io.Reader) (string, error) {
	b, err := io.ReadAll(r)
	if len(b) > 400 {
		return fmt.Sprintf("%d bytes, sha256:%.16x", len(b), sha256.Sum256(b)), err
	}
	return fmt.Sprintf("%q", b), err
}

// describeTree lists the differences between a tree and the tree below, sorted, one per line.
func describeTree(tree, below map[string]node) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(below)) {
		_, parent := below[path.Dir(p)]
		if _, ok := tree[p]; !ok {
			if _, left := tree[path.Dir(p)]; left || !parent {
				out = append(out, p+" is gone\n")
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(tree)) {
		if n := tree[p]; n != below[p] {
			out = append(out, p+n.String()+"\n")
		}
	}
	return out
}

// dateOf returns the day of a time, or "" for a time of today or yesterday.
func dateOf(t time.Time) string {
	if time.Since(t) < 24*time.Hour {
		return ""
	}
	return t.UTC().Format(" 2006-01-02")
}

func (n node) String() string {
	owner := n.date
	if n.uid|n.gid != 0 {
		owner = fmt.Sprintf(" %d:%d%s", n.uid, n.gid, n.date)
	}
	switch n.kind {
	case tar.TypeDir:
		return fmt.Sprintf("/ %04o%s", n.mode, owner)
	case tar.TypeReg:
		return fmt.Sprintf(" %04o%s %s", n.mode, owner, n.text)
	case tar.TypeSymlink:
		return fmt.Sprintf(" -> %s%s", n.link, owner)
	}
	return fmt.Sprintf(" of type %q %04o%s", n.kind, n.mode, owner)
}

// checkAbsent checks that no part of the image contains a word in the case's file absent.
func (c *tableCase) checkAbsent(t testing.TB, img v1.Image) {
	t.Helper()
	texts := strings.Fields(c.special["absent"])
	if len(texts) == 0 {
		return
	}
	var all bytes.Buffer
	raw, err := img.RawConfigFile()
	testenv.Check(t, err)
	all.Write(raw)
	layers, err := img.Layers()
	testenv.Check(t, err)
	for _, l := range layers {
		r, err := l.Uncompressed()
		testenv.Check(t, err)
		_, err = io.Copy(&all, r)
		testenv.Check(t, err)
		r.Close()
	}
	for _, w := range texts {
		if bytes.Contains(all.Bytes(), []byte(w)) {
			t.Errorf("the image contains %q", w)
		}
	}
}

// applets are the commands that busybox provides in the base image.
const applets = "[ ash base64 cat chgrp chmod chown cp cut date dirname echo env expr false find grep head hostname id ip ln ls mkdir mknod mktemp mv nc pwd readlink rm rmdir sed seq sh sleep sort stat tail tar test touch tr true uname wc whoami"

const passwd = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\napp:x:1000:1001:an application:/home/app:/bin/sh\n"
const group = "root:x:0:\ndaemon:x:1:\nwheel:x:10:root\nstaff:x:50:app\napp:x:1001:\n"

// busybox returns the base image of the table: a static busybox, some users and groups, and a
// few directories. Its configuration sets only PATH and the working directory.
func busybox(t testing.TB) v1.Image {
	t.Helper()
	img, err := busyboxImage()
	testenv.Need(t, "a static busybox", err)
	return img
}

var busyboxImage = sync.OnceValues(func() (v1.Image, error) {
	file, err := testenv.Busybox()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	var bad error
	put := func(kind byte, name string, mode int64, uid int, link string, data []byte) {
		h := &tar.Header{Typeflag: kind, Name: name, Mode: mode, Uid: uid, Gid: uid, Linkname: link, Size: int64(len(data)), ModTime: time.Unix(1e9, 0)}
		err := tw.WriteHeader(h)
		if err == nil {
			_, err = tw.Write(data)
		}
		bad = errors.Join(bad, err)
	}
	for _, d := range []string{"bin/", "etc/", "home/", "root/", "usr/", "usr/bin/", "var/", "var/log/", "dev/", "proc/", "run/", "sys/"} {
		put(tar.TypeDir, d, 0o755, 0, "", nil)
	}
	put(tar.TypeDir, "tmp/", 0o1777, 0, "", nil)
	put(tar.TypeDir, "home/app/", 0o750, 1000, "", nil)
	put(tar.TypeReg, "bin/busybox", 0o755, 0, "", program)
	for _, a := range strings.Fields(applets) {
		put(tar.TypeSymlink, "bin/"+a, 0o777, 0, "busybox", nil)
	}
	put(tar.TypeSymlink, "usr/bin/env", 0o777, 0, "../../bin/busybox", nil)
	for _, f := range []string{"hostname", "hosts", "resolv.conf"} { // builders mount their own files on these
		put(tar.TypeReg, "etc/"+f, 0o644, 0, "", nil)
	}
	put(tar.TypeReg, "etc/passwd", 0o644, 0, "", []byte(passwd))
	put(tar.TypeReg, "etc/group", 0o644, 0, "", []byte(group))
	if err := errors.Join(bad, tw.Close()); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config = hostPlatform().OS, hostPlatform().Architecture, v1.Config{Env: []string{defaultPath}, WorkingDir: "/"}
	return mutate.ConfigFile(img, cfg)
})
