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
)

func deployCommand() *cli.Command {
	return &cli.Command{
		Name: "deploy", Usage: "build an image and push it to a registry of creds.yaml", ArgsUsage: "[CONTEXT | IMAGE]",
		Description: `Builds an image like "hpcc build" and pushes it, with all its platforms, to the registry that
creds.yaml calls NAME. Without --tag, pushes an image of the store. Prints the reference by
digest. Registry "none" is the local store.

   hpcc deploy -r lab -t base --platform linux/amd64,linux/ppc64le .
   hpcc deploy -r lab base

Registries come from ~/.config/hpcc/creds.yaml and ./creds.yaml:

   - name: lab
     url: https://registry.example.org/team
     username: alice
     password: ${LAB_TOKEN}    # or password_file: FILE`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "registry", Aliases: []string{"r"}, Usage: "push to registry `NAME` of creds.yaml"},
			&cli.StringFlag{Name: "creds", EnvVars: []string{"HPCC_CREDS"}, Usage: "read registries from `FILE` (default ~/.config/hpcc/creds.yaml and ./creds.yaml)"},
			&cli.BoolFlag{Name: "json", Usage: "print the reference as JSON"},
		}, deployFlags()...),
		Action: action(parseDeploy),
	}
}

// deployFlags are those of a build that makes an image for one registry.
func deployFlags() []cli.Flag {
	return slices.DeleteFunc(buildFlags(), func(f cli.Flag) bool {
		return slices.Contains([]string{"check", "dry-run", "json"}, f.Names()[0])
	})
}

// deployArgs is the command line of "hpcc deploy".
type deployArgs struct {
	image    string     // of the store
	build    *buildArgs // makes the image first; nil if it exists
	store    string
	registry string // name in creds
	creds    string // file of registries; "" is the user's and the directory's
	json     bool
}

func parseDeploy(c *cli.Context) (*deployArgs, error) {
	tags := c.StringSlice("tag")
	if len(tags) > 1 {
		return nil, usagef("deploy takes one --tag").hint("hpcc build -t %s -t %s, then hpcc deploy for each", tags[0], tags[1])
	}
	a := &deployArgs{image: strings.Join(tags, ""), store: c.String("store"), registry: c.String("registry"), creds: c.String("creds"), json: c.Bool("json")}
	if a.registry == "" {
		return nil, unnamedRegistry(a.creds)
	}
	if a.image != "" {
		var err error
		a.build, err = parseBuild(c)
		return a, err
	}
	for _, f := range deployFlags() {
		if n := f.Names()[0]; c.IsSet(n) && n != "store" {
			return nil, usagef("--%s is for a build, and the image that it makes needs a name", n).hint("add -t NAME, or leave --%s out to send an image of the store", n)
		}
	}
	words, err := parseArguments(c, 1, 1, "IMAGE, or -t NAME [CONTEXT]")
	if err != nil {
		return nil, err
	}
	a.image = words[0]
	return a, nil
}

// unnamedRegistry asks for --registry, and lists the registries.
func unnamedRegistry(creds string) error {
	e := usagef("the registry needs a name")
	if rs, err := store.ReadRegistries(creds); err == nil && len(rs.Files) > 0 {
		return e.hint("-r NAME, of these in %s: %s", rs.Where(), strings.Join(rs.Names(), ", "))
	}
	return e.hint("-r NAME, of a creds.yaml; \"hpcc deploy --help\" shows one")
}

func (a *deployArgs) run(ctx context.Context) error {
	d := &deployment{deployArgs: a}
	if a.build != nil {
		return a.build.build(ctx, d)
	}
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	if _, err := s.Digest(a.image); err != nil {
		if fi, serr := os.Stat(a.image); serr == nil && fi.IsDir() {
			return usagef("%q is a directory to build from, and the image needs a name", a.image).hint("hpcc deploy -r %s -t NAME %s", a.registry, a.image)
		}
		return err
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	return d.send(ctx, s)
}

// secretFiles are files that no image shall hold: each creds.yaml that could be
// meant, and the files of passwords that they name.
func secretFiles(creds string) []string {
	var secret []string
	for _, f := range append(store.CredsPlaces(), creds, os.Getenv("HPCC_CREDS")) {
		if fi, err := os.Stat(f); err != nil || !fi.Mode().IsRegular() { // COPY takes no others along
			continue
		}
		rs, err := store.ReadRegistries(f)
		if err != nil {
			say("warning: %s may get into the image: %v", f, err)
			continue
		}
		secret = append(secret, rs.Secrets()...)
	}
	return secret
}

// A deployment sends one image to a registry that creds.yaml knows by name.
type deployment struct {
	*deployArgs
	to     *store.Registry
	remote store.Remote
	ref    string // reference of the image by tag; "" if nothing is pushed
}

// prepare finds the registry and asks it whether it would take the image, before
// anything is built.
func (d *deployment) prepare(ctx context.Context) error {
	rs, err := store.ReadRegistries(d.creds)
	if err != nil {
		return &message{err: err, status: exitUsage}
	}
	if d.to, err = rs.Find(d.registry); err != nil {
		e := usagef("--registry: %w", err)
		if len(rs.Files) == 0 {
			return e.hint("write it to ./creds.yaml or ~/.config/hpcc/creds.yaml; \"hpcc deploy --help\" shows one")
		}
		return e.hint("add an entry, or take one of these; %q is this store alone", store.StaysLocal)
	}
	if file := rs.Exposed(); file != "" {
		say("warning: %s holds a password, and others may read it: chmod 600 %s", file, file)
	}
	if slices.Contains(rs.Shadowed, d.to.Name) {
		say("note: ./creds.yaml also has an entry %q; your own is used (--creds ./creds.yaml uses the other)", d.to.Name)
	}
	if d.to.Name == store.StaysLocal {
		return nil
	}
	if d.ref, err = d.to.Reference(d.image); err != nil {
		return usagef("deploying %s: %w", d.image, err).hint("\"hpcc push %s REF\" sends it anywhere", d.image)
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

// A deployed image, for programs.
type deployed struct {
	Type      string `json:"type"` // "deployed"
	Name      string `json:"name"` // in the store
	Registry  string `json:"registry"`
	Reference string `json:"reference"`     // by digest
	Tag       string `json:"tag,omitempty"` // reference by tag; empty if nothing is pushed
	Digest    string `json:"digest"`
	Sent      int64  `json:"sent"`  // bytes that went over
	Bytes     int64  `json:"bytes"` // of the whole image
}

// send sends the image and prints where it lies.
func (d *deployment) send(ctx context.Context, s *store.Store) error {
	out := deployed{Type: "deployed", Name: d.image, Registry: d.to.Name, Tag: d.ref}
	if d.ref == "" {
		digest, err := s.Digest(d.image)
		if err != nil {
			return err
		}
		out.Reference, out.Digest = store.ByDigest(d.image, digest), digest.String()
		say("%s stays in this store: nothing was sent", d.image)
	} else {
		p, err := push(ctx, s, d.image, d.ref, d.remote)
		if err != nil {
			return (&message{err: err}).hint("the image is in the store: \"hpcc deploy -r %s %s\" sends it again", d.to.Name, d.image)
		}
		out.Reference, out.Digest, out.Sent, out.Bytes = p.Reference, p.Digest.String(), p.Sent, p.Size
	}
	if d.json {
		return json.NewEncoder(os.Stdout).Encode(out)
	}
	_, err := fmt.Println(out.Reference)
	return err
}
