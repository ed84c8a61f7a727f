package main

import (
	"context"
	"encoding/json"
	"fmt"
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
		if a.provenance {
			return text.Usagef("inspecting %s: SIF files have no attestations", a.name).Hint("leave --provenance out")
		}
		about, err := unpack.DescribeSIF(ctx, a.name)
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
	about, err := s.Describe(a.name, a.platform)
	if err != nil {
		return err
	}
	return enc.Encode(about)
}
