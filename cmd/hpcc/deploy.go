package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"hpcc/store"
	"hpcc/text"
)

func deployCommand() *cli.Command {
	a := new(deployArgs)
	return &cli.Command{
		Name: "deploy", Usage: "build an image and push it to a registry in creds.yaml", ArgsUsage: "[CONTEXT | IMAGE]",
		Description: `Builds an image like "hpcc build" and pushes it, with all its platforms, to the registry that
creds.yaml calls NAME. Without --tag, pushes an image from the store. Prints the reference by
digest. Registry "none" is the local store.

   hpcc deploy -r lab -t base --platform linux/amd64,linux/ppc64le .
   hpcc deploy -r lab base

Registries come from ~/.config/hpcc/creds.yaml and ./creds.yaml:

   - name: lab
     url: https://registry.example.org/team
     username: alice
     password: ${LAB_TOKEN}    # or password_file: FILE`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "registry", Aliases: []string{"r"}, Usage: "push to registry `NAME` in creds.yaml",
				Destination: &a.registry},
			&cli.StringFlag{Name: "creds", EnvVars: []string{"HPCC_CREDS"},
				Usage: "read registries from `FILE` (default ~/.config/hpcc/creds.yaml and ./creds.yaml)", Destination: &a.build.creds},
			&cli.BoolFlag{Name: "json", Usage: "print the reference as JSON", Destination: &a.json},
		}, a.buildFlags()...),
		Action: action(a.parse),
	}
}

// deployArgs is the command line of "hpcc deploy".
type deployArgs struct {
	image    string    // name in the store
	build    buildArgs // builds the image first, if it has tags
	registry string    // name in creds.yaml
	json     bool
}

// buildFlags returns the flags that are those of "hpcc build".
func (a *deployArgs) buildFlags() []cli.Flag {
	return slices.DeleteFunc(a.build.flags(), func(f cli.Flag) bool {
		return slices.Contains([]string{"check", "dry-run", "json"}, f.Names()[0])
	})
}

// parse checks the command line.
func (a *deployArgs) parse(c *cli.Context) (*deployArgs, error) {
	tags := a.build.Tags
	if len(tags) > 1 {
		return nil, text.Usagef("deploy takes one --tag").Hint("hpcc build -t %s -t %s, then hpcc deploy for each", tags[0], tags[1])
	}
	if a.registry == "" {
		return nil, unnamedRegistry(a.build.creds)
	}
	if a.image = strings.Join(tags, ""); a.image != "" {
		_, err := a.build.parse(c)
		return a, err
	}
	for _, f := range a.buildFlags() {
		if n := f.Names()[0]; c.IsSet(n) && n != "store" {
			return nil, text.Usagef("--%s applies only to a build, which needs --tag", n).
				Hint("add -t NAME, or leave --%s out to push an image from the store", n)
		}
	}
	args, err := parseArguments(c, 1, 1, "IMAGE, or -t NAME [CONTEXT]")
	if err != nil {
		return nil, err
	}
	a.image, a.build.store = args[0], c.String("store")
	return a, nil
}

// unnamedRegistry returns the error for a missing --registry, with a list of the registries.
func unnamedRegistry(creds string) error {
	e := text.Usagef("deploy needs --registry")
	if rs, err := store.ReadRegistries(creds); err == nil && len(rs.Files) > 0 {
		return e.Hint("add -r NAME with a registry from %s: %s", rs.Where(), strings.Join(rs.Names(), ", "))
	}
	return e.Hint("define a registry in creds.yaml and add -r NAME; \"hpcc deploy --help\" shows an example")
}

func (a *deployArgs) run(ctx context.Context) error {
	d := &deployment{deployArgs: a}
	if len(a.build.Tags) > 0 {
		return a.build.build(ctx, d)
	}
	s, err := store.OpenToRead(a.build.store)
	if err != nil {
		return err
	}
	if _, err := s.Digest(a.image); err != nil {
		if fi, serr := os.Stat(a.image); serr == nil && fi.IsDir() {
			return text.Usagef("%q is a directory, and a build needs --tag", a.image).
				Hint("hpcc deploy -r %s -t NAME %s", a.registry, a.image)
		}
		return err
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	return d.send(ctx, s)
}

// secretFiles returns the files that must not get into an image, and warns about those that it cannot read.
func secretFiles(creds string) []string {
	secret, warnings := store.SecretFiles(creds)
	warn(warnings)
	return secret
}

// A deployment pushes one image to a registry in creds.yaml.
type deployment struct {
	*deployArgs
	to     *store.Registry
	remote store.Remote
	ref    string // reference of the image by tag; "" if nothing is pushed
}

// prepare finds the registry and checks that it accepts a push, before anything is built.
func (d *deployment) prepare(ctx context.Context) error {
	rs, err := store.ReadRegistries(d.build.creds)
	if err != nil {
		return &text.Error{Err: err, Status: text.StatusUsage}
	}
	if d.to, err = rs.Find(d.registry); err != nil {
		e := text.Usagef("--registry: %w", err)
		if len(rs.Files) == 0 {
			return e.Hint("define it in ./creds.yaml or ~/.config/hpcc/creds.yaml; \"hpcc deploy --help\" shows an example")
		}
		return e.Hint("add an entry, or use one of these; %q is the local store", store.StaysLocal)
	}
	if file := rs.Exposed(); file != "" {
		say("warning: %s contains a password, and other users may read it: run chmod 600 %s", file, file)
	}
	if slices.Contains(rs.Shadowed, d.to.Name) {
		say("note: ./creds.yaml also has an entry %q; your own is used (--creds ./creds.yaml uses the other)", d.to.Name)
	}
	if d.to.Name == store.StaysLocal {
		return nil
	}
	if d.ref, err = d.to.Reference(d.image); err != nil {
		return text.Usagef("deploying %s: %w", d.image, err).Hint("\"hpcc push %s REF\" pushes it to any reference", d.image)
	}
	if d.remote, err = d.to.Remote(); err != nil {
		return fmt.Errorf("deploying %s: %w", d.image, err)
	}
	say("deploying to %s (%s)", d.ref, d.to.From())
	if err := store.MayPush(ctx, d.ref, d.remote); err != nil {
		return fmt.Errorf("deploying %s: %w", d.image, err)
	}
	return nil
}

// A deployed is the JSON object for a deployed image.
type deployed struct {
	Type      string `json:"type"` // "deployed"
	Name      string `json:"name"` // in the store
	Registry  string `json:"registry"`
	Reference string `json:"reference"`     // by digest
	Tag       string `json:"tag,omitempty"` // reference by tag; empty if nothing is pushed
	Digest    string `json:"digest"`
	Sent      int64  `json:"sent"`  // transferred bytes
	Bytes     int64  `json:"bytes"` // size of the image
}

// send pushes the image and prints its reference.
func (d *deployment) send(ctx context.Context, s *store.Store) error {
	out := deployed{Type: "deployed", Name: d.image, Registry: d.to.Name, Tag: d.ref}
	if d.ref == "" {
		digest, err := s.Digest(d.image)
		if err != nil {
			return err
		}
		out.Reference, out.Digest = store.ByDigest(d.image, digest), digest.String()
		say("%s stays in the local store: nothing was pushed", d.image)
	} else {
		p, err := push(ctx, s, d.image, d.ref, d.remote)
		if err != nil {
			return text.Hint(err, "the image is in the store; try again with \"hpcc deploy -r %s %s\"", d.to.Name, d.image)
		}
		out.Reference, out.Digest, out.Sent, out.Bytes = p.Reference, p.Digest.String(), p.Sent, p.Size
	}
	if d.json {
		return json.NewEncoder(os.Stdout).Encode(out)
	}
	_, err := fmt.Println(out.Reference)
	return err
}
