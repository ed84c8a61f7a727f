package main

import (
	"context"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/build/attest"
	"hpcc/store"
	"hpcc/unpack"
)

// attestations are what the command line wants attested of an image.
type attestations struct {
	provenance *build.ProvenanceOptions // nil: none
	sbom       bool
}

func (a *attestations) any() bool { return a.provenance != nil || a.sbom }

// attestFlags are docker's, whose --provenance and --sbom are short for --attest.
func attestFlags() []cli.Flag {
	return []cli.Flag{
		&cli.GenericFlag{Name: "provenance", Value: &attestFlag{set: (*attestations).setProvenance}, DefaultText: "none",
			Usage: "attest how the image was built (SLSA provenance): alone, or with `=mode=min|=mode=max|=false`"},
		&cli.GenericFlag{Name: "sbom", Value: &attestFlag{set: (*attestations).setSBOM}, DefaultText: "none",
			Usage: "attest which packages the image holds (SPDX): alone, or with `=true|=false`"},
		&cli.StringSliceFlag{Name: "attest", Usage: "attest `type=provenance[,mode=max][,builder-id=URI]|type=sbom` (repeatable)"},
	}
}

// An attestFlag can stand alone or have a value behind "=".
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
			return usagef("provenance: %q is none of mode=min, mode=max, builder-id=URI and version=v1", kv)
		}
	}
	a.provenance = o
	return nil
}

func (a *attestations) setSBOM(s string) error {
	if s != "true" && s != "false" {
		return usagef("%q is neither true nor false; hpcc itself lists the packages, there is no generator to choose", s)
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
		words := strings.Split(arg, ",")
		disabled := slices.Contains(words, "disabled=true")
		kind := ""
		words = slices.DeleteFunc(words, func(w string) bool {
			t, ok := strings.CutPrefix(w, "type=")
			if ok {
				kind = t
			}
			return ok || w == "disabled=false" || w == "disabled=true"
		})
		value := strings.Join(words, ",")
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
			err = usagef("its type is neither provenance nor sbom")
		}
		if err != nil {
			return a, usagef("--attest %q: %w", arg, err).hint("write --attest type=provenance,mode=max or --attest type=sbom")
		}
	}
	return a, nil
}

// statements are what is attested of an image that was built from inputs.
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
			say("warning: the list of packages is not complete: %s", n)
		}
		out = append(out, st)
	}
	if a.provenance != nil {
		out = append(out, inputs.Provenance(*a.provenance))
	}
	return out, nil
}
