package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
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

func readOutputs(c *cli.Context) ([]output, error) {
	var out []output
	for _, arg := range c.StringSlice("output") {
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

// built is what a build came to: images, each with what it was made from, and the
// layers that are unpacked already.
type built struct {
	imgs   []v1.Image
	inputs []*build.Inputs
	parts  *unpack.Parts
}

// keepBuilt names what was built, an image or an index of one for each
// platform, unpacks it and sends it where the flags say, and a deployment.
func keepBuilt(c *cli.Context, s *store.Store, b built, wanted *attestations, outputs []output, to *deployment) error {
	notes, err := pairs(c, "annotation")
	if err != nil {
		return err
	}
	for i := range b.imgs {
		if len(notes) > 0 {
			b.imgs[i] = mutate.Annotations(b.imgs[i], notes).(v1.Image)
		}
	}
	digest, err := b.put(c, s, wanted)
	if err != nil {
		return err
	}
	mine := b.imgs[0]
	for _, img := range b.imgs {
		if cfg, err := img.ConfigFile(); err == nil && cfg.Architecture == goruntime.GOARCH {
			mine = img
		}
	}
	if err := unpackTree(c.Context, s, mine, b.parts); err != nil {
		return err
	}
	for _, o := range outputs {
		if err := o.write(c, s, mine); err != nil {
			return err
		}
	}
	if err := tellBuilt(c, mine, digest); err != nil {
		return err
	}
	if to != nil {
		return to.send(c, s)
	}
	_, err = fmt.Println(digest)
	return err
}

// put keeps an image alone, for every tool can read that; an index where
// there are several platforms, or attestations that need one.
func (b built) put(c *cli.Context, s *store.Store, wanted *attestations) (v1.Hash, error) {
	if len(b.imgs) == 1 && !wanted.any() {
		return s.Put(c.Context, c.String("tag"), b.imgs[0])
	}
	var about [][]attest.Statement
	for i, img := range b.imgs {
		if !wanted.any() {
			break
		}
		st, err := wanted.statements(c.Context, s, img, b.inputs[i], b.parts)
		if err != nil {
			return v1.Hash{}, err
		}
		about = append(about, st)
	}
	idx, err := attest.Index(b.imgs, about)
	if err != nil {
		return v1.Hash{}, err
	}
	return s.PutIndex(c.Context, c.String("tag"), idx)
}

// tellBuilt writes the files that say what was built.
func tellBuilt(c *cli.Context, img v1.Image, digest v1.Hash) error {
	if file := c.String("iidfile"); file != "" {
		if err := os.WriteFile(file, []byte(digest.String()), 0o644); err != nil {
			return fmt.Errorf("writing the image's digest: %w", err)
		}
	}
	file := c.String("metadata-file")
	if file == "" {
		return nil
	}
	config, err := img.ConfigName()
	if err != nil {
		return err
	}
	// The names are those of docker build, whose readers shall find them.
	b, err := json.MarshalIndent(map[string]string{"containerimage.digest": digest.String(), "containerimage.config.digest": config.String(), "image.name": c.String("tag")}, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the metadata: %w", err)
	}
	return nil
}

// write writes an image to the output.
func (o output) write(c *cli.Context, s *store.Store, img v1.Image) error {
	switch o.kind {
	case "oci":
		return s.Save(c.Context, c.String("tag"), o.dest)
	case "docker":
		return s.SaveDocker(c.String("tag"), o.dest)
	case "dir":
		_, err := unpack.Image(c.Context, img, o.dest, unpack.Options{})
		return err
	}
	return o.tar(c, s, img)
}

// tar writes the image's files as one archive, owners included: what the tree
// differs from an empty one.
func (o output) tar(c *cli.Context, s *store.Store, img v1.Image) error {
	tree, err := checkedTree(c.Context, s, img)
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
