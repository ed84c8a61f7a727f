package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/unpack"
)

// bundleFlags are those of unpack that make an OCI bundle of the tree.
func bundleFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "bundle", Usage: "write an OCI bundle: DIR/config.json and DIR/rootfs"},
		&cli.StringSliceFlag{Name: "bind", Aliases: []string{"b"}, Usage: "with --bundle: show `SRC[:DST[:ro]]` of the host inside (repeatable)"},
		&cli.StringFlag{Name: "cd", Usage: "with --bundle: start in `DIR` inside"},
		&cli.BoolFlag{Name: "write", Aliases: []string{"w"}, Usage: "with --bundle: let the program change the bundle's rootfs"},
	}
}

// unpackBundle writes a bundle. Its configuration comes last: a directory
// without one is no bundle yet.
func unpackBundle(c *cli.Context, src, dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, runtime.ConfigName)); err == nil {
		return (&message{err: fmt.Errorf("writing bundle %q: there is one already", dir)}).hint("name another directory, or remove that one")
	}
	_, missing := os.Lstat(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the bundle's directory: %w", err)
	}
	root := filepath.Join(dir, runtime.BundleRoot)
	if err := unpackSource(c, src, root); err != nil {
		if missing != nil {
			os.Remove(dir)
		}
		return err
	}
	config, err := runtime.ReadImage(root, unpack.ConfigFile)
	if err != nil {
		return err
	}
	spec, err := runtime.Bundle(root, config.Config, runtime.Options{Binds: c.StringSlice("bind"), Dir: c.String("cd"), Write: c.Bool("write")})
	if err != nil {
		return fmt.Errorf("writing bundle %q: %w", dir, err)
	}
	return runtime.WriteBundle(dir, spec)
}

func otherRuntimeFlag() cli.Flag {
	return &cli.StringFlag{Name: "runtime", Usage: "hand over to the OCI runtime `NAME` (crun, runc) instead"}
}

// handOver runs the spec by another runtime.
func handOver(name string, s *specs.Spec) error {
	dir, err := stateDir("", true)
	if err == nil {
		err = runtime.HandOver(name, filepath.Join(dir, "bundles"), s)
	}
	var re *process.Error
	var m *message
	if errors.As(err, &m) || errors.As(err, &re) {
		return err
	}
	return fmt.Errorf("running with --runtime %s: %w", name, err)
}
