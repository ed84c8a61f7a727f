package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/urfave/cli/v2"

	"hpcc/build/attest"
	"hpcc/store"
	"hpcc/unpack"
)

// outputFlags say what becomes of an image that was built.
func outputFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "output", Aliases: []string{"o"}, Usage: "write the image to `type=oci|docker|tar|dir,dest=FILE` as well (repeatable)"},
		&cli.StringSliceFlag{Name: "annotation", Usage: "annotate the manifest `NAME=VALUE` (repeatable)"},
		&cli.StringFlag{Name: "iidfile", Usage: "write the image's digest to `FILE`"},
		&cli.StringFlag{Name: "metadata-file", Usage: "write digests and names as JSON to `FILE`"},
	}
}

// An output is one --output.
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

// keep names what was built, an image or an index of one for each platform, unpacks
// it and sends it where the flags say.
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
	mine := b.images[0]
	for _, img := range b.images {
		if cfg, err := img.ConfigFile(); err == nil && cfg.Architecture == goruntime.GOARCH {
			mine = img
		}
	}
	if err := unpackTree(ctx, b.store, mine, b.parts); err != nil {
		return err
	}
	for _, o := range b.outputs {
		if err := o.write(ctx, b.store, b.tag, mine); err != nil {
			return err
		}
	}
	if err := b.writeDigests(mine, digest); err != nil {
		return err
	}
	if b.to != nil {
		return b.to.send(ctx, b.store)
	}
	_, err = fmt.Println(digest)
	return err
}

// put keeps an image alone, for every tool can read that; an index where
// there are several platforms, or attestations that need one.
func (b *builder) put(ctx context.Context) (v1.Hash, error) {
	if len(b.images) == 1 && !b.attest.any() {
		return b.store.Put(ctx, b.tag, b.images[0])
	}
	var about [][]attest.Statement
	for i, img := range b.images {
		if !b.attest.any() {
			break
		}
		st, err := b.attest.statements(ctx, b.store, img, b.inputs[i], b.parts)
		if err != nil {
			return v1.Hash{}, err
		}
		about = append(about, st)
	}
	idx, err := attest.Index(b.images, about)
	if err != nil {
		return v1.Hash{}, err
	}
	return b.store.PutIndex(ctx, b.tag, idx)
}

// writeDigests writes the files that say what was built.
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
	data, err := json.MarshalIndent(map[string]string{"containerimage.digest": digest.String(), "containerimage.config.digest": config.String(), "image.name": b.tag}, "", "  ")
	if err == nil {
		err = os.WriteFile(b.metadataFile, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the metadata: %w", err)
	}
	return nil
}

// write writes an image of the store, called tag there, to the output.
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

// tar writes the image's files as one archive, owners included: what the tree
// differs from an empty one.
func (o output) tar(ctx context.Context, s *store.Store, img v1.Image) error {
	tree, err := checkedTree(ctx, s, img)
	if err != nil {
		return fmt.Errorf("writing %q: %w", o.dest, err)
	}
	empty, err := s.TempDir()
	if err != nil {
		return err
	}
	defer store.RemoveAll(empty)
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
