package main

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
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
	rewrite    *bool    // docker's word for --reproducible; nil: not given
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
			return nil, text.Usagef("--output %q: needs type=oci, docker, tar or dir, and dest=; or type=image", arg).Hint(outputHint)
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
				return o, text.Usagef("--output %q: %s is not true or false", arg, kv).Hint("write %s=true", k)
			}
			if k == "platform-split" {
				o.split = &yes
			} else {
				o.rewrite = &yes
			}
		case "push":
			return o, text.Usagef("--output %q: a build does not push", arg).Hint("push the image afterwards: hpcc push NAME")
		default:
			return o, text.Usagef("--output %q: unknown option %q; options are type, dest, name, platform-split and rewrite-timestamp", arg, k).Hint(outputHint)
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
// or provenance need an index.
func (b *builder) put(ctx context.Context) (v1.Hash, error) {
	if len(b.images) == 1 && b.provenance == nil {
		return b.store.Put(ctx, b.tags[0], b.images[0])
	}
	b.statements = nil
	if b.provenance != nil {
		for _, in := range b.inputs {
			b.statements = append(b.statements, in.Provenance(*b.provenance))
		}
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
	img        v1.Image
	below      string // directory in the output, "" for its root
	provenance []byte // nil: none
	file       string // path of the provenance in the output
}

// place sets where the tree is in an output of several ones, and the provenance next to it.
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
	t.file = path.Join(t.below, "provenance"+suffix+".json") // as docker build names it
	for i, img := range b.images {
		if img != t.img || i >= len(b.statements) {
			continue
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		if t.provenance, err = b.statements[i].Encode(digest); err != nil {
			return err
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
			if t.provenance != nil {
				if err := os.WriteFile(filepath.Join(root, t.file), t.provenance, 0o644); err != nil {
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
	defer files.RemoveAll(empty)
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
// provenance.
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
	if t.provenance == nil {
		return nil
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: t.file, Mode: 0o644, Size: int64(len(t.provenance))}); err != nil {
		return err
	}
	_, err := w.Write(t.provenance)
	return err
}

// attestFlags are the flags for provenance. As in docker, --provenance is short for --attest.
func attestFlags() []cli.Flag {
	return inSection(attestSection,
		&cli.GenericFlag{Name: "provenance", Value: new(provenanceFlag), DefaultText: "none",
			Usage: "attach provenance (SLSA); =mode=min, =mode=max, =false"},
		&cli.StringSliceFlag{Name: "attest", Usage: "attach attestation `type=TYPE`: provenance"},
	)
}

// A provenanceFlag is the value of --provenance, which is optional and follows "=".
type provenanceFlag struct {
	options *build.ProvenanceOptions // nil for no provenance
}

func (f *provenanceFlag) Set(s string) (err error) {
	f.options, err = parseProvenance(s)
	return err
}
func (f *provenanceFlag) String() string   { return "" }
func (f *provenanceFlag) IsBoolFlag() bool { return true }

// parseProvenance reads the value of --provenance. It returns nil for no provenance.
func parseProvenance(s string) (*build.ProvenanceOptions, error) {
	switch s {
	case "false", "disabled=true":
		return nil, nil
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
			return nil, text.Usagef("provenance: %q is not mode=min, mode=max, builder-id=URI or version=v1", kv)
		}
	}
	return o, nil
}

// parseAttestations reads the flags of attestFlags. It returns nil for no provenance.
func parseAttestations(c *cli.Context) (o *build.ProvenanceOptions, err error) {
	o = c.Generic("provenance").(*provenanceFlag).options
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
			o, err = parseProvenance(value)
		case "sbom":
			return nil, text.Usagef("--attest %q: hpcc does not list packages", arg).Hint("%s", packagesHabit)
		default:
			err = text.Usagef("the type is not provenance")
		}
		if err != nil {
			return nil, text.Usagef("--attest %q: %w", arg, err).Hint("write --attest type=provenance,mode=max")
		}
	}
	return o, nil
}
