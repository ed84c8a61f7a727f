package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apexlog "github.com/apex/log"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/umoci/oci/cas/dir"
	"github.com/opencontainers/umoci/oci/casext"
	"github.com/opencontainers/umoci/oci/layer"
	"github.com/opencontainers/umoci/pkg/fseval"
	rootless "github.com/rootless-containers/proto/go-proto"
	"github.com/vbatts/go-mtree"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"hpcc/testdata/helpers/testenv"
)

// The tests in this file compare trees and layers with those of umoci, the reference
// implementation, which runs in the same process as an ordinary user. TestUmociDiffers lists
// the differences that are intended.

// rootlessFormat describes trees of umoci that an ordinary user writes.
func rootlessFormat() layer.DirRootfs {
	return layer.DirRootfs{MapOptions: layer.MapOptions{
		UIDMappings: []specs.LinuxIDMapping{{HostID: uint32(os.Geteuid()), Size: 1}},
		GIDMappings: []specs.LinuxIDMapping{{HostID: uint32(os.Getegid()), Size: 1}},
		Rootless:    true,
	}}
}

// umociRoot unpacks an image with umoci to a new directory below top, and returns the directory.
func umociRoot(t *testing.T, img v1.Image, top string) string {
	t.Helper()
	apexlog.SetLevel(apexlog.ErrorLevel)
	p, err := layout.Write(filepath.Join(top, "oci"), empty.Index)
	testenv.Check(t, err)
	cfg, err := img.ConfigFile()
	testenv.Check(t, err)
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", "amd64"
	img, err = mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON), cfg)
	testenv.Check(t, err)
	testenv.Check(t, p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "x"})))
	engine, err := dir.Open(filepath.Join(top, "oci"))
	testenv.Check(t, err)
	defer engine.Close()
	found, err := casext.NewEngine(engine).ResolveReference(context.Background(), "x")
	testenv.Check(t, err)
	blob, err := casext.NewEngine(engine).FromDescriptor(context.Background(), found[0].Descriptor())
	testenv.Check(t, err)
	root := filepath.Join(top, "umoci")
	o := &layer.UnpackOptions{OnDiskFormat: rootlessFormat()}
	if err := layer.UnpackRootfs(context.Background(), engine, root, blob.Data.(ispec.Manifest), o); err != nil {
		t.Fatalf("umoci: %v", err)
	}
	return root
}

// umociApply applies a layer to a tree with umoci.
func umociApply(t *testing.T, root string, changes []byte) {
	t.Helper()
	apexlog.SetLevel(apexlog.ErrorLevel)
	if err := layer.UnpackLayer(root, bytes.NewReader(changes), &layer.UnpackOptions{OnDiskFormat: rootlessFormat()}); err != nil {
		t.Fatalf("umoci: %v", err)
	}
}

// umociDiff returns the layer that umoci writes for what change does to a tree of umoci.
func umociDiff(t *testing.T, root string, change func()) []byte {
	t.Helper()
	keywords := []mtree.Keyword{"size", "type", "uid", "gid", "mode", "link", "nlink", "tar_time", "sha256digest", "xattr"} // umoci.MtreeKeywords
	before, err := mtree.Walk(root, nil, keywords, fseval.Rootless)
	testenv.Check(t, err)
	change()
	after, err := mtree.Walk(root, nil, keywords, fseval.Rootless)
	testenv.Check(t, err)
	deltas, err := mtree.Compare(before, after, keywords)
	testenv.Check(t, err)
	r, err := layer.GenerateLayer(root, deltas, &layer.RepackOptions{OnDiskFormat: rootlessFormat()})
	testenv.Check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("umoci: %v", err)
	}
	return b
}

// A described tree holds the type, mode, owner, time, hard link and content of each path, as
// in the image. Trees of umoci hold owners in another attribute than those of hpcc. Links and
// FIFOs have no owner, because umoci cannot record one.
type described map[string]description

type description struct {
	what string // type, mode, owner and content
	time int64
	same string // first path of a hard link's file
}

func describe(t *testing.T, root string) described {
	t.Helper()
	notes, err := OpenNotes(root)
	testenv.Check(t, err)
	out, first := described{}, map[uint64]string{}
	testenv.Check(t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, p)
		if rel == configDir {
			return fs.SkipDir
		}
		if err != nil || rel == "." {
			return err
		}
		fi, err := e.Info()
		testenv.Check(t, err)
		if fi.Mode().IsRegular() && fi.Mode()&0o400 == 0 { // attributes can be read from readable files only
			testenv.Check(t, unix.Chmod(p, 0o600))
			defer os.Chmod(p, fi.Mode())
		}
		h := &tar.Header{}
		notes.Describe(h, p, fi)
		d := description{time: fi.ModTime().Unix()}
		switch {
		case fi.Mode()&fs.ModeSymlink != 0:
			d.what, err = os.Readlink(p)
			testenv.Check(t, err)
			d.what = "link to " + d.what
		case fi.IsDir():
			d.what = "dir " + owned(t, p, h)
		case fi.Mode()&fs.ModeNamedPipe != 0:
			d.what = fmt.Sprintf("pipe %o", h.Mode)
		default:
			b, err := os.ReadFile(p)
			testenv.Check(t, err)
			d.what = fmt.Sprintf("file %s %q", owned(t, p, h), b)
		}
		var st unix.Stat_t
		testenv.Check(t, unix.Lstat(p, &st))
		if st.Nlink > 1 && !fi.IsDir() {
			if d.same = first[st.Ino]; d.same == "" {
				d.same, first[st.Ino] = rel, rel
			}
		}
		out[rel] = d
		return nil
	}))
	return out
}

// owned returns the mode, the owner and the attributes of a file in the image.
func owned(t *testing.T, p string, h *tar.Header) string {
	t.Helper()
	if text := getAttr(p, rootless.Keyname); text != "" {
		var r rootless.Resource
		testenv.Check(t, proto.Unmarshal([]byte(text), &r))
		h.Uid, h.Gid = 0, 0
		if r.Uid != rootless.NoopID {
			h.Uid = int(r.Uid)
		}
		if r.Gid != rootless.NoopID {
			h.Gid = int(r.Gid)
		}
	}
	out := fmt.Sprintf("%o %d:%d", h.Mode, h.Uid, h.Gid)
	b := make([]byte, 4096)
	n, err := unix.Llistxattr(p, b)
	testenv.Check(t, err)
	for _, name := range strings.Split(string(b[:n]), "\x00") {
		if strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, notePrefix) && name != rootless.Keyname {
			out += fmt.Sprintf(" %s=%q", name, getAttr(p, name))
		}
	}
	return out
}

// sameTree compares two trees.
func sameTree(t *testing.T, who string, got, want described) {
	t.Helper()
	paths := map[string]bool{}
	for p := range got {
		paths[p] = true
	}
	for p := range want {
		paths[p] = true
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		if got[p] != want[p] {
			t.Errorf("%s: %s is %+v; want %+v", who, p, got[p], want[p])
		}
	}
}

// varied returns the layer with random owners, modes and times.
func varied(t *testing.T, r *rand.Rand, archive []byte) []byte {
	t.Helper()
	modes := []int64{0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1644} // see TestUmociDiffers
	dirModes := []int64{0o755, 0o700, 0o1777, 0o2775, 0o4711}
	ids := []int{0, 0, 5, 1000, 70000}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testenv.Check(t, err)
		h.Uid, h.Gid = ids[r.Intn(len(ids))], ids[r.Intn(len(ids))]
		h.ModTime = then.Add(time.Duration(r.Intn(1e6)-5e5) * time.Second)
		switch h.Typeflag {
		case tar.TypeDir:
			h.Mode = dirModes[r.Intn(len(dirModes))]
		case tar.TypeReg, tar.TypeFifo:
			h.Mode = modes[r.Intn(len(modes))]
		}
		testenv.Check(t, w.WriteHeader(h))
		_, err = io.Copy(w, tr)
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	return out.Bytes()
}

// layerBytes returns a layer's archive.
func layerBytes(t *testing.T, l v1.Layer) []byte {
	t.Helper()
	r, err := l.Uncompressed()
	testenv.Check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	testenv.Check(t, err)
	return b
}

// copied returns a copy of a tree.
func copied(t *testing.T, from, to string) string {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copying the tree: %v: %s", err, out)
	}
	return to
}

// diffOf returns the layer of the differences of two trees.
func diffOf(t *testing.T, lower, upper string) []byte {
	t.Helper()
	var b bytes.Buffer
	_, err := Compare(&b, lower, upper, DiffOptions{Skip: []string{configDir}})
	testenv.Check(t, err)
	return b.Bytes()
}

// TestUmociAgrees compares trees with umoci's for the same image.
func TestUmociAgrees(t *testing.T) {
	r := seeded(t)
	for range 15 {
		img, _, text := randomImage(t, r)
		layers, err := img.Layers()
		testenv.Check(t, err)
		for i, l := range layers {
			layers[i] = static.NewLayer(varied(t, r, layerBytes(t, l)), types.OCIUncompressedLayer)
		}
		img, top := imageOf(t, layers...), t.TempDir()
		_, err = Image(context.Background(), img, filepath.Join(top, "tree"), Options{})
		testenv.Check(t, err)
		sameTree(t, "hpcc", describe(t, filepath.Join(top, "tree")), describe(t, umociRoot(t, img, top)))
		if t.Failed() {
			t.Fatalf("the image is\n%s", text)
		}
	}
}

// TestUmociAgreesOnChanges compares what becomes of random changes to a tree: umoci applies the
// layer that hpcc writes to its own tree and to that of hpcc, and hpcc applies the layer that
// umoci writes.
func TestUmociAgreesOnChanges(t *testing.T) {
	testenv.Need(t, "user extended attributes", map[bool]error{false: errors.New("the file system has none")}[supportsAttributes(t.TempDir())])
	r := seeded(t)
	for range 15 {
		top := t.TempDir()
		at := func(name string) string { return filepath.Join(top, name) }
		_, err := Image(context.Background(), imageOf(t, static.NewLayer(varied(t, r, layerBytes(t, layerOf(t, overlayBase...))), types.OCIUncompressedLayer)), at("old"), Options{})
		testenv.Check(t, err)
		copied(t, at("old"), at("new"))
		steps := randomChanges(r)
		for _, line := range steps {
			if err := change(at("new"), line); err != nil && !expected(err) {
				t.Fatalf("%s: %v", line, err)
			}
		}
		testenv.Check(t, os.Mkdir(at("empty"), 0o755))
		complete, changes := diffOf(t, at("empty"), at("old")), diffOf(t, at("old"), at("new"))

		copied(t, at("old"), at("ours"))
		_, err = Apply(context.Background(), static.NewLayer(changes, types.OCIUncompressedLayer), at("ours"), &Notes{}, nil)
		testenv.Check(t, err)
		want := describe(t, at("ours"))
		changed := describe(t, at("new"))
		for p, d := range changed { // a layer holds neither a link to an old file nor only the time of a directory
			d.same, d.time = want[p].same, map[bool]int64{true: want[p].time, false: d.time}[strings.HasPrefix(d.what, "dir ")]
			changed[p] = d
		}
		sameTree(t, "the changed tree", changed, want)

		testenv.Check(t, os.Mkdir(at("umoci"), 0o755))
		umociApply(t, at("umoci"), complete)
		sameTree(t, "umoci, the complete tree", describe(t, at("umoci")), describe(t, at("old")))
		theirs := umociDiff(t, at("umoci"), func() { umociApply(t, at("umoci"), changes) })
		sameTree(t, "umoci, both layers", describe(t, at("umoci")), want)

		copied(t, at("old"), at("mixed"))
		umociApply(t, at("mixed"), changes)
		sameTree(t, "umoci on a tree of hpcc", describe(t, at("mixed")), want)

		_, err = Apply(context.Background(), static.NewLayer(theirs, types.OCIUncompressedLayer), at("old"), &Notes{}, nil)
		testenv.Check(t, err)
		sameTree(t, "hpcc with the layer of umoci", describe(t, at("old")), want)
		if t.Failed() {
			t.Fatalf("with the changes %q, the layer of hpcc\n%s\nand that of umoci\n%s", steps, strings.Join(members(t, changes), "\n"), strings.Join(members(t, theirs), "\n"))
		}
	}
}

// TestUmociAgreesOnInserts compares trees after the layers of umoci's insert, which can be opaque.
func TestUmociAgreesOnInserts(t *testing.T) {
	for _, opaque := range []bool{false, true} {
		top := t.TempDir()
		at := func(name string) string { return filepath.Join(top, name) }
		img := imageOf(t, layerOf(t, overlayBase...))
		_, err := Image(context.Background(), img, at("tree"), Options{})
		testenv.Check(t, err)
		theirs := umociRoot(t, img, top)
		testenv.Check(t, os.MkdirAll(at("new/s"), 0o755))
		testenv.Check(t, os.WriteFile(at("new/s/z"), []byte("z"), 0o644))
		r := layer.GenerateInsertLayer(at("new"), "d", opaque, &layer.RepackOptions{OnDiskFormat: rootlessFormat()})
		changes, err := io.ReadAll(r)
		testenv.Check(t, err)
		umociApply(t, theirs, changes)
		_, err = Apply(context.Background(), static.NewLayer(changes, types.OCIUncompressedLayer), at("tree"), &Notes{}, nil)
		testenv.Check(t, err)
		got := describe(t, at("tree"))
		sameTree(t, fmt.Sprintf("opaque %v", opaque), got, describe(t, theirs))
		if _, ok := got["d/a"]; ok == opaque || got["d/s/z"].what == "" {
			t.Errorf("opaque %v: the tree is %v", opaque, got)
		}
	}
}

// TestUmociDiffers lists the intended differences between trees of hpcc and of umoci as an
// ordinary user. The owners of links are another one: see described.
func TestUmociDiffers(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("umoci writes other trees as root")
	}
	at := time.Unix(1, 0)
	for _, c := range []struct {
		reason       string
		header       tar.Header
		hpcc, theirs string // "" if the name does not exist
	}{
		{"umoci writes an empty file for a device, which a diff would record as a file; hpcc leaves devices out and counts them",
			tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3}, "", `file 666 0:0 ""`},
		{"umoci sets the owner after the mode, which fails for a file without write permission",
			tar.Header{Typeflag: tar.TypeReg, Name: "read", Mode: 0o440, Uid: 5, Gid: 6}, `file 440 5:6 ""`, `file 440 0:0 ""`},
		{"only root can set capabilities; hpcc notes them",
			tar.Header{Typeflag: tar.TypeReg, Name: "ping", Mode: 0o755, PAXRecords: map[string]string{capsRecord: capability}},
			`file 755 0:0 "" caps`, `file 755 0:0 ""`},
		{"hpcc keeps no attributes of users: they would depend on the file system, and an image could imitate notes",
			tar.Header{Typeflag: tar.TypeReg, Name: "attr", Mode: 0o644, PAXRecords: map[string]string{xattrRecord + "user.x": "y", xattrRecord + ownerAttr: "7:7"}},
			`file 644 0:0 ""`, `file 644 7:7 user.x="y" ""`},
		{"the directory of hpcc's own files does not come from images",
			tar.Header{Typeflag: tar.TypeReg, Name: ".hpcc/image.json", Mode: 0o644}, "", `file 644 0:0 ""`},
	} {
		top := t.TempDir()
		c.header.ModTime = at
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		testenv.Check(t, w.WriteHeader(&c.header))
		testenv.Check(t, w.Close())
		for who, want := range map[string]string{"hpcc": c.hpcc, "umoci": c.theirs} {
			root := filepath.Join(top, who)
			testenv.Check(t, os.Mkdir(root, 0o755))
			if who == "umoci" {
				umociApply(t, root, b.Bytes())
			} else {
				_, err := Apply(context.Background(), static.NewLayer(b.Bytes(), types.OCIUncompressedLayer), root, NewNotes(root), nil)
				testenv.Check(t, err)
			}
			if who == "umoci" && strings.HasPrefix(c.header.Name, configDir) { // describe leaves it out
				if _, err := os.Lstat(filepath.Join(root, c.header.Name)); err != nil {
					t.Errorf("umoci does not write %s: %v", c.header.Name, err)
				}
				continue
			}
			want, caps := strings.CutSuffix(want, " caps")
			got := describe(t, root)[c.header.Name].what
			if has := getAttr(filepath.Join(root, c.header.Name), capsAttr) != ""; got != want || has != caps {
				t.Errorf("%s: %s writes %s (capability %v); want %s (%v)", c.reason, who, got, has, want, caps)
			}
		}
	}
}
