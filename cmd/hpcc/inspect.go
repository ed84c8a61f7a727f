package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build/attest"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
	"hpcc/unpack/sif"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name: "inspect", Usage: "show an image's configuration as JSON", ArgsUsage: "NAME|FILE.sif",
		Description: `Shows the digest, the layers and the configuration of an image, or its provenance. Shows the
objects of a SIF file, the signatures among them, and the configuration of its image.

   hpcc inspect sci
   hpcc inspect --provenance sci | jq .buildDefinition.resolvedDependencies`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "provenance", Usage: "show the provenance attestation (SLSA)"},
			platformFlag(), storeFlag(),
		},
		Action: action(parseInspect),
	}
}

type inspectArgs struct {
	name       string
	provenance bool
	platform   *v1.Platform
	store      string
}

func parseInspect(c *cli.Context) (*inspectArgs, error) {
	names, err := parseArguments(c, 1, 1, "NAME")
	if err != nil {
		return nil, err
	}
	a := &inspectArgs{name: names[0], provenance: c.Bool("provenance"), store: c.String("store")}
	a.platform, err = parsePlatformFlag(c)
	return a, err
}

func (a *inspectArgs) run(ctx context.Context) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	if (ready.IsPath(a.name) || ready.NamesImageFile(a.name)) && sif.Is(a.name) {
		about, err := a.sifFile(ctx)
		if err != nil {
			return fmt.Errorf("inspecting %s: %w", a.name, err)
		}
		return enc.Encode(about)
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	if a.provenance {
		predicate, err := s.Attestation(a.name, a.platform, attest.Provenance, attest.ProvenanceV0)
		if err != nil {
			return err
		}
		enc.SetEscapeHTML(false)
		return enc.Encode(predicate)
	}
	about, err := a.image(s)
	if err != nil {
		return err
	}
	return enc.Encode(about)
}

// sifFile returns the fields of a SIF file that inspect prints. Its root file system may be one
// that hpcc cannot read.
func (a *inspectArgs) sifFile(ctx context.Context) (map[string]any, error) {
	if a.provenance {
		return nil, text.Usagef("SIF files have no attestations").Hint("leave --provenance out")
	}
	img, err := sif.Open(a.name)
	if err != nil {
		return nil, err
	}
	notes := append([]string{}, img.Signatures()...)
	config, more, err := unpack.SquashFSLayer(ctx, a.name, io.Discard)
	if err != nil {
		return map[string]any{"sif": img, "image": nil, "notes": append(append(notes, img.Ignored()...), err.Error())}, ctx.Err()
	}
	return map[string]any{"sif": img, "image": json.RawMessage(config), "notes": append(notes, more...)}, nil
}

// image returns the fields of an image that inspect prints.
func (a *inspectArgs) image(s *store.Store) (map[string]any, error) {
	img, err := s.Get(a.name, a.platform)
	if err != nil {
		return nil, err
	}
	d, err := img.Digest()
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	about := map[string]any{"digest": d.String(), "layers": m.Layers, "image": cfg, "pushed": nil}
	ref, err := s.Pushed(a.name)
	var local *store.NotPushedError
	switch {
	case errors.As(err, &local):
	case err != nil:
		return nil, err
	default:
		about["pushed"] = ref
	}
	return about, nil
}
