package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
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
type output struct{ kind, dest string }

func parseOutputs(list []string) ([]output, error) {
	var out []output
	for _, arg := range list {
		o := output{kind: "dir", dest: arg}
		if strings.Contains(arg, "=") {
			o = output{}
			for _, kv := range strings.Split(arg, ",") {
				switch k, v, _ := strings.Cut(kv, "="); k {
				case "type":
					o.kind = v
				case "dest":
					o.dest = v
				default:
					return nil, usagef("--output %q: %q is neither type= nor dest=", arg, kv).hint("write --output type=oci,dest=FILE")
				}
			}
		}
		if o.kind == "local" {
			o.kind = "dir"
		}
		if o.dest == "" || !strings.Contains(" oci docker tar dir ", " "+o.kind+" ") {
			return nil, usagef("--output %q: needs type=oci, docker, tar or dir, and dest=", arg).hint("write --output type=oci,dest=FILE")
		}
		out = append(out, o)
	}
	return out, nil
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
		if err := o.write(ctx, b.store, b.tags[0], native); err != nil {
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
	var statements [][]attest.Statement
	for i, img := range b.images {
		if !b.attest.any() {
			break
		}
		st, err := b.attest.statements(ctx, b.store, img, b.inputs[i], b.parts)
		if err != nil {
			return v1.Hash{}, err
		}
		statements = append(statements, st)
	}
	idx, err := attest.Index(b.images, statements)
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

// write writes an image of the store to the output. tag is its name in the store.
func (o output) write(ctx context.Context, s *store.Store, tag string, img v1.Image) error {
	switch o.kind {
	case "oci":
		return s.Save(ctx, tag, o.dest)
	case "docker":
		return s.SaveDocker(tag, o.dest)
	case "dir":
		_, err := unpack.Image(ctx, img, o.dest, unpack.Options{})
		return err
	}
	return o.tar(ctx, s, img)
}

// tar writes the image's files with their owners as one archive: the difference between the
// tree and an empty one.
func (o output) tar(ctx context.Context, s *store.Store, img v1.Image) error {
	tree, err := checkedTree(ctx, s, img)
	if err != nil {
		return fmt.Errorf("writing %q: %w", o.dest, err)
	}
	empty, err := s.TempDir()
	if err != nil {
		return err
	}
	defer disk.RemoveAll(empty)
	err = store.NewFile(o.dest, func(f *os.File) error {
		w := bufio.NewWriterSize(f, 1<<20)
		if _, err := unpack.Compare(w, empty, tree, unpack.DiffOptions{Skip: []string{filepath.Dir(unpack.ConfigFile)}}); err != nil {
			return err
		}
		return w.Flush()
	})
	if err != nil {
		return fmt.Errorf("writing %q: %w", o.dest, err)
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
