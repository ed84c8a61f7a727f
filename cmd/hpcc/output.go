package main

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/attest"
	"hpcc/store"
	"hpcc/store/disk"
	"hpcc/unpack"
)

// outputFlags are the flags for the results of a build besides the image in the store.
func outputFlags() []cli.Flag {
	return inSection(outputSection,
		&cli.StringSliceFlag{Name: "output", Aliases: []string{"o"}, Usage: "also write the image as `type=TYPE,dest=FILE` (oci, docker, tar, dir)"},
		&cli.StringSliceFlag{Name: "annotation", Usage: "add annotation `NAME=VALUE` to the manifest"},
		&cli.StringFlag{Name: "iidfile", Usage: "write the image's digest to `FILE`"},
		&cli.StringFlag{Name: "metadata-file", Usage: "write digests and names as JSON to `FILE`"},
	)
}

// An output is the value of one --output.
type output struct {
	kind, dest string
	names      []string // further names of the image
	rewrite    bool     // clamp the times of files to SOURCE_DATE_EPOCH
	split      *bool    // one directory for each platform; nil: if there are several
}

// outputHint is the hint about a wrong --output.
const outputHint = "write --output type=oci,dest=FILE"

func parseOutputs(list []string) ([]output, error) {
	var out []output
	for _, arg := range list {
		o := output{kind: "dir", dest: arg}
		if strings.Contains(arg, "=") {
			var err error
			if o, err = parseOutput(arg); err != nil {
				return nil, err
			}
		}
		if o.kind == "local" {
			o.kind = "dir"
		}
		if o.kind == "image" && o.dest == "" {
			out = append(out, o)
			continue
		}
		if o.dest == "" || !strings.Contains(" oci docker tar dir ", " "+o.kind+" ") {
			return nil, usagef("--output %q: needs type=oci, docker, tar or dir, and dest=; or type=image", arg).hint(outputHint)
		}
		out = append(out, o)
	}
	return out, nil
}

// parseOutput reads KEY=VALUE,…, as in docker build.
func parseOutput(arg string) (o output, err error) {
	for _, kv := range strings.Split(arg, ",") {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "type":
			o.kind = v
		case "dest":
			o.dest = v
		case "name":
			o.names = append(o.names, v)
		case "rewrite-timestamp", "platform-split":
			yes, perr := strconv.ParseBool(v)
			if perr != nil {
				return o, usagef("--output %q: %s is not true or false", arg, kv).hint("write %s=true", k)
			}
			if o.rewrite = o.rewrite || (yes && k == "rewrite-timestamp"); k == "platform-split" {
				o.split = &yes
			}
		case "push":
			return o, usagef("--output %q: a build does not push", arg).hint("push the image afterwards: hpcc push NAME")
		default:
			return o, usagef("--output %q: unknown option %q; options are type, dest, name, platform-split and rewrite-timestamp", arg, k).hint(outputHint)
		}
	}
	return o, nil
}

// keep stores the image, or the index of the images of several platforms, under its names. It
// unpacks the image, writes the outputs and deploys the image.
func (b *builder) keep(ctx context.Context) error {
	for i := range b.images {
		if len(b.annotations) > 0 {
			b.images[i] = mutate.Annotations(b.images[i], b.annotations).(v1.Image)
		}
	}
	digest, err := b.put(ctx)
	if err != nil {
		return err
	}
	for _, tag := range b.tags[1:] {
		if err := b.store.Tag(b.tags[0], tag); err != nil {
			return err
		}
	}
	native := b.images[0]
	for _, img := range b.images {
		if cfg, err := img.ConfigFile(); err == nil && cfg.Architecture == goruntime.GOARCH {
			native = img
		}
	}
	report, end := b.steps.unpacking()
	_, left, err := unpack.Tree(ctx, b.store, native, unpack.Options{Progress: report, Parts: b.parts})
	if end(); err != nil {
		return err
	}
	reportLeftOut(left)
	for _, o := range b.outputs {
		if err := o.write(ctx, b, native); err != nil {
			return err
		}
	}
	if err := b.writeDigests(native, digest); err != nil {
		return err
	}
	b.steps.built()
	if b.to != nil {
		return b.to.send(ctx, b.store)
	}
	_, err = fmt.Println(digest)
	return err
}

// put stores a single image without an index, because every tool can read that. Several platforms
// or attestations need an index.
func (b *builder) put(ctx context.Context) (v1.Hash, error) {
	if len(b.images) == 1 && !b.attest.any() {
		return b.store.Put(ctx, b.tags[0], b.images[0])
	}
	b.statements = nil
	for i, img := range b.images {
		if !b.attest.any() {
			break
		}
		st, err := b.attest.statements(ctx, b.store, img, b.inputs[i], b.parts)
		if err != nil {
			return v1.Hash{}, err
		}
		b.statements = append(b.statements, st)
	}
	idx, err := attest.Index(b.images, b.statements)
	if err != nil {
		return v1.Hash{}, err
	}
	return b.store.PutIndex(ctx, b.tags[0], idx)
}

// writeDigests writes the files of --iidfile and --metadata-file.
func (b *builder) writeDigests(img v1.Image, digest v1.Hash) error {
	if b.iidFile != "" {
		if err := os.WriteFile(b.iidFile, []byte(digest.String()), 0o644); err != nil {
			return fmt.Errorf("writing the image's digest: %w", err)
		}
	}
	if b.metadataFile == "" {
		return nil
	}
	config, err := img.ConfigName()
	if err != nil {
		return err
	}
	// The keys are those of docker build.
	data, err := json.MarshalIndent(map[string]string{"containerimage.digest": digest.String(), "containerimage.config.digest": config.String(), "image.name": strings.Join(b.tags, ",")}, "", "  ")
	if err == nil {
		err = os.WriteFile(b.metadataFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the metadata: %w", err)
	}
	return nil
}

// write writes the images of a build, which are in the store under tag, to the output.
func (o output) write(ctx context.Context, b *builder, native v1.Image) error {
	switch o.kind {
	case "image":
		return nil
	case "oci":
		return b.store.Save(ctx, b.tags[0], o.dest, b.tags[1:]...)
	case "docker":
		return b.store.SaveDocker(b.tags[0], o.dest)
	}
	parts := []exportedTree{{img: native}}
	if len(b.images) > 1 || (o.split != nil && *o.split) {
		parts = nil
		for _, img := range b.images {
			parts = append(parts, exportedTree{img: img})
		}
	}
	for i := range parts {
		if err := parts[i].place(b, o, len(parts)); err != nil {
			return err
		}
	}
	if o.kind == "dir" {
		return writeTrees(ctx, o.dest, parts)
	}
	return writeTar(ctx, b.store, o.dest, parts)
}

// An exportedTree is the part of an output that comes from the image of one platform.
type exportedTree struct {
	img   v1.Image
	below string            // directory in the output, "" for its root
	files map[string][]byte // attestations, by their path in the output
}

// place sets where the tree is in an output of several ones, and the attestations next to it.
func (t *exportedTree) place(b *builder, o output, trees int) error {
	cfg, err := t.img.ConfigFile()
	if err != nil {
		return err
	}
	platform := strings.ReplaceAll(cfg.Platform().String(), "/", "_")
	split := trees > 1
	if o.split != nil {
		split = *o.split
	}
	suffix := ""
	if split {
		t.below = platform
	} else if trees > 1 {
		suffix = "." + platform
	}
	t.files = map[string][]byte{}
	for i, img := range b.images {
		if img != t.img || i >= len(b.statements) {
			continue
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		for _, st := range b.statements[i] {
			name, data, err := st.File(digest)
			if err != nil {
				return err
			}
			base, ext, _ := strings.Cut(name, ".")
			t.files[path.Join(t.below, base+suffix+"."+ext)] = data
		}
	}
	return nil
}

// writeTrees writes the trees to a new directory.
func writeTrees(ctx context.Context, dest string, trees []exportedTree) error {
	return unpack.NewDir(dest, func(root string) error {
		for _, t := range trees {
			dir := filepath.Join(root, t.below)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			// Trees in the same directory all bring the configuration of their image.
			if err := os.RemoveAll(filepath.Join(dir, filepath.Dir(unpack.ConfigFile))); err != nil {
				return err
			}
			if _, err := unpack.Fill(ctx, t.img, dir, unpack.Options{}); err != nil {
				return err
			}
			for name, data := range t.files {
				if err := os.WriteFile(filepath.Join(root, name), data, 0o644); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// writeTar writes the files of the trees with their owners as one archive.
func writeTar(ctx context.Context, s *store.Store, dest string, trees []exportedTree) error {
	empty, err := s.TempDir()
	if err != nil {
		return err
	}
	defer disk.RemoveAll(empty)
	err = store.NewFile(dest, func(f *os.File) error {
		buffered := bufio.NewWriterSize(f, 1<<20)
		w := tar.NewWriter(buffered)
		for _, t := range trees {
			tree, err := checkedTree(ctx, s, t.img)
			if err == nil {
				err = appendTree(w, empty, tree, t)
			}
			if err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil {
			return err
		}
		return buffered.Flush()
	})
	if err != nil {
		return fmt.Errorf("writing %q: %w", dest, err)
	}
	return nil
}

// appendTree writes the entries of a tree, which are its difference from an empty one, and the
// attestations.
func appendTree(w *tar.Writer, empty, tree string, t exportedTree) error {
	r, pipe := io.Pipe()
	defer r.Close()
	go func() {
		_, err := unpack.Compare(pipe, empty, tree, unpack.DiffOptions{Skip: []string{filepath.Dir(unpack.ConfigFile)}})
		pipe.CloseWithError(err)
	}()
	if t.below != "" {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: t.below + "/", Mode: 0o755}); err != nil {
			return err
		}
	}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		h.Name = path.Join(t.below, h.Name) + strings.Repeat("/", strings.Count(h.Name[len(h.Name)-1:], "/"))
		if h.Typeflag == tar.TypeLink {
			h.Linkname = path.Join(t.below, h.Linkname)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, in); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		data := t.files[name]
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// attestations are the attestations of an image that the command line requests.
type attestations struct {
	provenance *build.ProvenanceOptions // nil for no provenance
	sbom       bool
}

func (a *attestations) any() bool { return a.provenance != nil || a.sbom }

// attestFlags are the flags for attestations. As in docker, --provenance and --sbom are short
// for --attest.
func attestFlags() []cli.Flag {
	return inSection(attestSection,
		&cli.GenericFlag{Name: "provenance", Value: &attestFlag{set: (*attestations).setProvenance}, DefaultText: "none",
			Usage: "attach provenance (SLSA); =mode=min, =mode=max, =false"},
		&cli.GenericFlag{Name: "sbom", Value: &attestFlag{set: (*attestations).setSBOM}, DefaultText: "none",
			Usage: "attach a package list (SPDX); =false switches it off"},
		&cli.StringSliceFlag{Name: "attest", Usage: "attach attestation `type=TYPE`: provenance or sbom"},
	)
}

// An attestFlag is the value of --provenance or --sbom, which is optional and follows "=".
type attestFlag struct {
	set   func(*attestations, string) error
	value string // "" if the flag was not given
}

func (f *attestFlag) Set(s string) error {
	f.value = s
	return f.set(new(attestations), s)
}
func (f *attestFlag) String() string   { return "" }
func (f *attestFlag) IsBoolFlag() bool { return true }

func (a *attestations) setProvenance(s string) error {
	switch s {
	case "false", "disabled=true":
		a.provenance = nil
		return nil
	case "true":
		s = "mode=min"
	}
	o := &build.ProvenanceOptions{}
	for _, kv := range strings.Split(s, ",") {
		k, v, _ := strings.Cut(kv, "=")
		switch {
		case k == "mode" && (v == "min" || v == "max"):
			o.Max = v == "max"
		case k == "builder-id" && strings.Contains(v, ":"):
			o.BuilderID = v
		case k == "version" && v == "v1":
		default:
			return usagef("provenance: %q is not mode=min, mode=max, builder-id=URI or version=v1", kv)
		}
	}
	a.provenance = o
	return nil
}

func (a *attestations) setSBOM(s string) error {
	if s != "true" && s != "false" {
		return usagef("%q is not true or false; hpcc lists the packages itself and supports no other generator", s)
	}
	a.sbom = s == "true"
	return nil
}

// parseAttestations reads the flags of attestFlags.
func parseAttestations(c *cli.Context) (a attestations, err error) {
	for _, name := range []string{"provenance", "sbom"} {
		if f := c.Generic(name).(*attestFlag); f.value != "" {
			if err := f.set(&a, f.value); err != nil {
				return a, err
			}
		}
	}
	for _, arg := range c.StringSlice("attest") {
		items := strings.Split(arg, ",")
		disabled := slices.Contains(items, "disabled=true")
		kind := ""
		items = slices.DeleteFunc(items, func(w string) bool {
			t, ok := strings.CutPrefix(w, "type=")
			if ok {
				kind = t
			}
			return ok || w == "disabled=false" || w == "disabled=true"
		})
		value := strings.Join(items, ",")
		switch {
		case disabled:
			value = "false"
		case value == "":
			value = "true"
		}
		switch kind {
		case "provenance":
			err = a.setProvenance(value)
		case "sbom":
			err = a.setSBOM(value)
		default:
			err = usagef("the type is not provenance or sbom")
		}
		if err != nil {
			return a, usagef("--attest %q: %w", arg, err).hint("write --attest type=provenance,mode=max or --attest type=sbom")
		}
	}
	return a, nil
}

// statements returns the attestations of an image that was built from inputs.
func (a *attestations) statements(ctx context.Context, s *store.Store, img v1.Image, inputs *build.Inputs, parts *unpack.Parts) ([]attest.Statement, error) {
	var out []attest.Statement
	if a.sbom {
		dir, _, err := unpack.Tree(ctx, s, img, unpack.Options{Parts: parts})
		if err != nil {
			return nil, err
		}
		st, notes, err := build.SBOM(ctx, dir, img)
		if err != nil {
			return nil, err
		}
		for _, n := range notes {
			say("warning: the package list is incomplete: %s", n)
		}
		out = append(out, st)
	}
	if a.provenance != nil {
		out = append(out, inputs.Provenance(*a.provenance))
	}
	return out, nil
}
