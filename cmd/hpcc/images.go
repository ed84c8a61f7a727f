package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/store"
	"hpcc/store/wait"
	"hpcc/unpack"
	"hpcc/unpack/squashfs"
)

// openStore opens the store that the command line names.
func openStore(c *cli.Context) (*store.Store, error) { return store.Open(c.String("store")) }

// findStore opens it for a command that makes nothing there: the place may be
// read-only, and who only asks is not to find a directory afterwards.
func findStore(c *cli.Context) (*store.Store, error) { return store.OpenToRead(c.String("store")) }

// platformFlag chooses one platform of an image.
func platformFlag() cli.Flag {
	return &cli.StringFlag{Name: "platform", Usage: "take `OS/ARCH`, such as linux/ppc64le (default: this machine's)"}
}

func platform(c *cli.Context) (*v1.Platform, error) {
	if c.String("platform") == "" {
		return nil, nil
	}
	return parsePlatform(c.String("platform"))
}

func parsePlatform(s string) (*v1.Platform, error) {
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return nil, usagef("--platform %q is not OS/ARCH", s).hint("write linux/amd64, linux/arm64 or linux/ppc64le")
	}
	return p, nil
}

func plainHTTPFlag() cli.Flag {
	return &cli.BoolFlag{Name: "plain-http", Usage: "the registry speaks http without TLS (loopback always may)"}
}

func pullCommand() *cli.Command {
	return &cli.Command{
		Name: "pull", Usage: "fetch an image from a registry and unpack it", ArgsUsage: "REF [NAME]",
		Description: `Fetches REF and keeps it as NAME (default: REF itself), unpacked and ready to run.

   hpcc pull debian:12
   hpcc pull --platform linux/ppc64le registry.example.org/lab/sci:1 sci`,
		Flags: []cli.Flag{platformFlag(), plainHTTPFlag(), storeFlag()},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 2, "REF [NAME]")
			if err != nil {
				return err
			}
			s, err := openStore(c)
			if err != nil {
				return err
			}
			p, err := platform(c)
			if err != nil {
				return err
			}
			bar := progress("pulling " + a[0])
			img, err := s.Pull(c.Context, a[0], store.Remote{Platform: p, PlainHTTP: c.Bool("plain-http"), Name: second(a), Progress: bar.bytes})
			bar.end()
			if err != nil {
				return err
			}
			if err := unpackTree(c.Context, s, img, nil); err != nil {
				return err
			}
			return printDigest(img)
		},
	}
}

// second is the second argument, or "".
func second(a []string) string {
	if len(a) > 1 {
		return a[1]
	}
	return ""
}

func printDigest(img v1.Image) error {
	d, err := img.Digest()
	if err == nil {
		_, err = fmt.Println(d)
	}
	return err
}

// unpackTree makes the image's shared tree, so that the first run finds it, and
// says what of the image an ordinary user cannot have.
func unpackTree(ctx context.Context, s *store.Store, img v1.Image, parts *unpack.Parts) error {
	bar := progress("unpacking")
	_, rep, err := unpack.Tree(ctx, s, img, unpack.Options{Progress: bar.bytes, Parts: parts})
	bar.end()
	if err == nil {
		tellReport(rep)
	}
	return err
}

func tellReport(rep unpack.Report) {
	if rep.Devices > 0 {
		say("left out %d device nodes, which a user cannot make; /dev is the host's", rep.Devices)
	}
	if rep.FIFOs > 0 {
		say("left out %d FIFOs, which the file system does not have", rep.FIFOs)
	}
	if rep.Copies > 0 {
		say("copied %d files in place of hard links, which the file system does not have", rep.Copies)
	}
}

func pushCommand() *cli.Command {
	return &cli.Command{
		Name: "push", Usage: "send an image to a registry", ArgsUsage: "NAME [REF]",
		Description: `Sends NAME to REF (default: NAME itself). Credentials are those of "hpcc login" or docker.

   hpcc push sci registry.example.org/lab/sci:1`,
		Flags: []cli.Flag{plainHTTPFlag(), storeFlag()},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 2, "NAME [REF]")
			if err != nil {
				return err
			}
			s, err := findStore(c)
			if err != nil {
				return err
			}
			ref := a[0]
			if len(a) == 2 {
				ref = a[1]
			}
			p, err := push(c, s, a[0], ref, store.Remote{PlainHTTP: c.Bool("plain-http")})
			if err != nil {
				return err
			}
			_, err = fmt.Println(p.Digest)
			return err
		},
	}
}

// push sends an image and tells how much of it went.
func push(c *cli.Context, s *store.Store, n, ref string, o store.Remote) (*store.Pushed, error) {
	bar := progress("pushing " + n)
	o.Progress = bar.bytes
	p, err := s.Push(c.Context, n, ref, o)
	bar.end()
	if err != nil {
		return nil, err
	}
	if p.NotNoted != nil {
		say("warning: the store cannot note where %s lies now, so that \"hpcc submit --to kubernetes\" has to be told: %v", n, p.NotNoted)
	}
	if had := p.Size - p.Sent; had > 0 {
		say("sent %s of %s; the registry had the rest", size(p.Sent), size(p.Size))
	} else {
		say("sent %s", size(p.Sent))
	}
	return p, nil
}

func imagesCommand() *cli.Command {
	return &cli.Command{
		Name: "images", Usage: "list the images",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}, storeFlag()},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, "no arguments"); err != nil {
				return err
			}
			s, err := findStore(c)
			if err != nil {
				return err
			}
			list, err := s.Images()
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(e store.Entry) bool {
				if e.Problem != nil {
					say("warning: image %s: %s", e.Name, cleaned(oneProblem(e.Problem)))
				}
				return e.Digest.Hex == "" // its name cannot be read
			})
			if c.Bool("json") {
				enc := json.NewEncoder(os.Stdout)
				for _, e := range list {
					if err := enc.Encode(map[string]any{"type": "image", "name": e.Name, "digest": e.Digest.String(),
						"platforms": e.Platforms, "bytes": e.Size, "created": e.Created.UTC().Format(time.RFC3339)}); err != nil {
						return err
					}
				}
				return nil
			}
			w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tDIGEST\tPLATFORM\tSIZE")
			for _, e := range list {
				rowf(w, "%s\t%.12s\t%s\t%s\n", e.Name, e.Digest.Hex, strings.Join(e.Platforms, ","), size(e.Size))
			}
			return w.Flush()
		},
	}
}

// oneProblem is an error on one line, with what to do about it.
func oneProblem(err error) string {
	advice, _ := adviceFor(err)
	if advice != "" {
		advice = "; " + advice
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ") + advice
}

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name: "inspect", Usage: "show an image's configuration as JSON", ArgsUsage: "NAME",
		Description: `Shows the digest, the layers and the configuration, or what is attested of the image.

   hpcc inspect --sbom sci | jq -r '.packages[] | .name + " " + .versionInfo'`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "provenance", Usage: "show how the image was built, as it was attested (SLSA)"},
			&cli.BoolFlag{Name: "sbom", Usage: "show the packages in the image, as they were attested (SPDX)"},
			platformFlag(), storeFlag(),
		},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			switch {
			case c.Bool("provenance") && c.Bool("sbom"):
				return usagef("--provenance and --sbom together: each is a document of its own").hint("ask for one, then for the other")
			case c.Bool("provenance") || c.Bool("sbom"):
				return printAttestation(c, a[0])
			}
			img, err := getImage(c, a[0])
			if err != nil {
				return err
			}
			d, err := img.Digest()
			if err != nil {
				return err
			}
			cfg, err := img.ConfigFile()
			if err != nil {
				return err
			}
			m, err := img.Manifest()
			if err != nil {
				return err
			}
			about := map[string]any{"digest": d.String(), "layers": m.Layers, "image": cfg}
			if about["pushed"], err = pushedAs(c, a[0]); err != nil {
				return err
			}
			enc := json.NewEncoder(os.Stdout)
			enc.SetIndent("", "  ")
			return enc.Encode(about)
		},
	}
}

// pushedAs is the reference by digest of an image in a registry; nil when it was
// not pushed.
func pushedAs(c *cli.Context, name string) (any, error) {
	s, err := findStore(c)
	if err != nil {
		return nil, err
	}
	ref, err := s.Pushed(name)
	var local *store.NotPushedError
	if errors.As(err, &local) {
		return nil, nil
	}
	return ref, err
}

// getImage finds an image by name, for the platform of the command line.
func getImage(c *cli.Context, name string) (v1.Image, error) {
	s, err := findStore(c)
	if err != nil {
		return nil, err
	}
	p, err := platform(c)
	if err != nil {
		return nil, err
	}
	return s.Get(name, p)
}

func rmCommand() *cli.Command {
	return &cli.Command{
		Name: "rm", Usage: "remove images by name", ArgsUsage: "NAME...",
		Description: `Removes names. What nothing names any more is removed by "hpcc gc".`,
		Flags:       []cli.Flag{storeFlag()},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1000, "NAME...")
			if err != nil {
				return err
			}
			s, err := findStore(c)
			if err != nil {
				return err
			}
			var all []error
			for _, n := range a {
				all = append(all, s.Remove(n))
			}
			return errors.Join(all...)
		},
	}
}

func gcCommand() *cli.Command {
	return &cli.Command{
		Name: "gc", Usage: "remove what no image needs",
		Description: `Removes blobs, trees and cached steps that no image names and that nobody used for the
given time, and what processes that were killed have left; also this node's copies (run --stage). It is safe beside other hpcc processes.

With --verify it removes nothing: it reads every file of the store, compares it with its digest or checksum, and
lists what is damaged with the command that replaces it. Damaged blobs, trees and cache entries are moved to the
store's directory damaged/ (not with --dry-run), so that the next command that needs them makes them again.

   hpcc gc --verify
   hpcc gc --verify --dry-run`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "age", Value: 7 * 24 * time.Hour, Usage: "keep what was used within this `TIME`; 0 keeps nothing"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would go, remove nothing"},
			&cli.BoolFlag{Name: "verify", Usage: "check every file of the store and remove nothing"}, storeFlag(),
		},
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, "no arguments"); err != nil {
				return err
			}
			if c.Bool("verify") {
				if c.IsSet("age") {
					return usagef("--age and --verify cannot be used together").hint("run hpcc gc --verify, then hpcc gc --age %v", c.Duration("age"))
				}
				return verifyStore(c)
			}
			s, err := openStore(c)
			if err != nil {
				return err
			}
			age := c.Duration("age")
			if age == 0 {
				age = -1
			}
			rep, err := s.GC(c.Context, store.GCOptions{Age: age, DryRun: c.Bool("dry-run")})
			if err != nil {
				return err
			}
			staged, err := gcStage(c, store.GCOptions{Age: age, DryRun: c.Bool("dry-run")})
			if err != nil {
				return err
			}
			rep.Trees, rep.Temps = rep.Trees+staged.Trees, rep.Temps+staged.Temps
			_, err = fmt.Printf("%s freed: %d blobs, %d trees, %d cache entries, %d leftovers\n", size(rep.Bytes), rep.Blobs, rep.Trees, rep.Records, rep.Temps)
			return err
		},
	}
}

func loadCommand() *cli.Command {
	return &cli.Command{
		Name: "load", Usage: "take images from a file or directory", ArgsUsage: "FILE [NAME]",
		Description: `FILE is an OCI layout (a directory or a tar), a docker archive, a tar of a root file
system (plain, gzip or zstd), or a SquashFS file; - is standard input. LAYOUT:TAG takes one image
of an OCI layout.

   hpcc load rootfs.tar.gz debian:12
   hpcc load ./layout:v2 sci`,
		Flags: []cli.Flag{storeFlag()},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 2, "FILE [NAME]")
			if err != nil {
				return err
			}
			s, err := openStore(c)
			if err != nil {
				return err
			}
			file, done, err := spooled(s, a[0])
			if err != nil {
				return err
			}
			defer done()
			names, err := loadAny(c.Context, s, file, second(a))
			if err != nil {
				return err
			}
			for _, n := range names {
				img, err := s.Get(n, nil)
				if err != nil {
					return err
				}
				if err := unpackTree(c.Context, s, img, nil); err != nil {
					return err
				}
				if _, err := fmt.Println(n); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// spooled is the file of an argument; standard input is kept in the store's own
// directory until done is called, since archives are read more than once.
func spooled(s *store.Store, arg string) (file string, done func(), err error) {
	if arg != "-" {
		return arg, func() {}, nil
	}
	dir, err := s.TempDir()
	if err != nil {
		return "", nil, err
	}
	done = func() { store.RemoveAll(dir) }
	file = filepath.Join(dir, "image")
	f, err := os.Create(file)
	if err == nil {
		_, err = io.Copy(f, wait.Stdin())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		done()
		return "", nil, onDisk(fmt.Errorf("reading standard input: %w", err), s.Dir())
	}
	return file, done, nil
}

func saveCommand() *cli.Command {
	return &cli.Command{
		Name: "save", Usage: "write an image to a file or directory", ArgsUsage: "NAME FILE",
		Description: `Writes an OCI layout: a directory when FILE ends in "/" or is one, else a tar.
FILE - is standard output, a tar. One that ends in .docker.tar becomes a docker archive; one that ends in .sqfs one file
system that "hpcc run FILE" mounts or unpacks (SquashFS, docs/squashfs.md).`,
		Flags: []cli.Flag{platformFlag(), storeFlag()},
		Action: func(c *cli.Context) error {
			a, err := args(c, 2, 2, "NAME FILE")
			if err != nil {
				return err
			}
			if filepath.Ext(a[1]) == ".sqfs" {
				return saveSquashFS(c, a[0], a[1])
			}
			if c.String("platform") != "" {
				return usagef("--platform is for FILE.sqfs; other files hold all platforms of an image").hint("leave it out")
			}
			s, err := findStore(c)
			if err != nil {
				return err
			}
			if a[1] == "-" {
				if term.IsTerminal(int(os.Stdout.Fd())) {
					return usagef("- is standard output, and that is a terminal").hint("hpcc save %s FILE.tar, or | ssh HOST hpcc load -", a[0])
				}
				return s.SaveTo(c.Context, a[0], os.Stdout)
			}
			if strings.HasSuffix(a[1], ".docker.tar") {
				return onDisk(s.SaveDocker(a[0], a[1]), a[1])
			}
			return onDisk(s.Save(c.Context, a[0], a[1]), a[1])
		},
	}
}

func unpackCommand() *cli.Command {
	return &cli.Command{
		Name: "unpack", Usage: "flatten an image into a directory tree", ArgsUsage: "SOURCE DIR",
		Description: `SOURCE is an image's name, or a file or directory as "hpcc load" takes it. DIR is made and
can be used by "hpcc run DIR", ch-run or chroot. Any architecture can be unpacked.

   hpcc unpack --platform linux/ppc64le sci ./sci-ppc64le
   hpcc unpack ./layout:v2 ./v2
   hpcc unpack --bundle sci ./bundle && crun run --bundle ./bundle sci`,
		Flags: append([]cli.Flag{platformFlag(), storeFlag()}, bundleFlags()...),
		Action: func(c *cli.Context) error {
			a, err := args(c, 2, 2, "SOURCE DIR")
			if err != nil {
				return err
			}
			if c.Bool("bundle") {
				return onDisk(unpackBundle(c, a[0], a[1]), a[1])
			}
			return onDisk(unpackSource(c, a[0], a[1]), a[1])
		},
	}
}

// unpackSource unpacks an image by name, or what is in a file or layout.
func unpackSource(c *cli.Context, src, dir string) error {
	if namesSquashFS(src) || (isPath(src) && squashfs.Is(src)) {
		if c.String("platform") != "" {
			return usagef("--platform is for images; a SquashFS file holds one platform").hint("leave it out")
		}
		rep, err := unpack.SquashFS(c.Context, src, dir)
		tellReport(rep)
		return err
	}
	img, err := sourceImage(c, src)
	if err != nil {
		return err
	}
	bar := progress("unpacking " + src)
	rep, err := unpack.Image(c.Context, img, dir, unpack.Options{Progress: bar.bytes})
	bar.end()
	tellReport(rep)
	return err
}

// sourceImage is an image by name, in an OCI layout, where it stays, or from
// another file, whose blobs are taken into the store. The name of a file need not
// be one that an image could have.
func sourceImage(c *cli.Context, src string) (v1.Image, error) {
	if !isPath(src) {
		img, err := getImage(c, src)
		if err == nil {
			return img, nil
		}
		file, _ := store.SplitTag(src)
		if _, serr := os.Stat(file); serr != nil {
			return nil, err
		}
	}
	p, err := platform(c)
	if err != nil {
		return nil, err
	}
	file, tag := store.SplitTag(src)
	if fi, err := os.Stat(file); err == nil && fi.IsDir() {
		if img, err := store.Layout(file, tag, p); !errors.Is(err, fs.ErrNotExist) {
			return img, err
		}
	}
	s, err := openStore(c)
	if err != nil {
		return nil, err
	}
	// Under a name of its own, and not for long: the user asked for a tree, and
	// may have an image of the file's name. The blobs go with the next gc.
	own := fmt.Sprintf("hpcc-unpack-%d", os.Getpid())
	if squashfs.Is(src) {
		_, err = loadSquashFS(c.Context, s, src, own)
	} else {
		_, err = s.LoadOne(c.Context, src, own, p)
	}
	if err != nil {
		return nil, err
	}
	img, err := s.Get(own, p)
	if rerr := s.Remove(own); err == nil {
		err = rerr
	}
	return img, err
}

// imageDir is the directory of IMAGE: a path, or the tree of a name, which is
// made when it is not there yet.
func imageDir(c *cli.Context, image string) (string, error) {
	if isPath(image) {
		return image, nil
	}
	s, err := findStore(c)
	if err != nil {
		return "", err
	}
	dir, err := s.TreeOf(image)
	var missing *store.NotFoundError
	var flat *store.NoTreeError
	switch {
	case err == nil:
		if c.Bool("write") {
			return "", usagef("--write would change %q for everybody who uses it", image).hint("hpcc unpack %s DIR; hpcc run --write ./DIR ...", image)
		}
		return dir, nil
	case errors.As(err, &missing):
		if fi, serr := os.Stat(image); serr == nil && fi.IsDir() {
			return image, nil
		}
		return "", err
	case errors.As(err, &flat):
		img, err := s.Get(image, nil)
		if err != nil {
			return "", err
		}
		if err := unpackTree(c.Context, s, img, nil); err != nil {
			return "", onReadOnly(err, s.Dir(), "--stage unpacks it to storage of this node instead")
		}
		return s.TreeOf(image)
	}
	return "", err
}

func loginCommand() *cli.Command {
	return &cli.Command{
		Name: "login", Usage: "keep credentials for a registry", ArgsUsage: "HOST",
		Description: `Reads a password from standard input (or the terminal, unseen) and keeps it in docker's
configuration file, ~/.docker/config.json, which hpcc, docker, podman and skopeo read.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "username", Aliases: []string{"u"}, Required: true, Usage: "log in as `NAME`"}},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "HOST")
			if err != nil {
				return err
			}
			password, err := readPassword(c.Context)
			if err != nil {
				return err
			}
			return store.Login(a[0], c.String("username"), password)
		},
	}
}

// readPassword asks on a terminal, else takes the first line of standard input.
func readPassword(ctx context.Context) (string, error) {
	if fd := int(os.Stdin.Fd()); term.IsTerminal(fd) {
		// The terminal's read does not end with the signals that main handles.
		state, err := term.GetState(fd)
		if err != nil {
			return "", err
		}
		defer context.AfterFunc(ctx, func() {
			_ = term.Restore(fd, state)
			fmt.Fprintln(os.Stderr)
			os.Exit(tellError(context.Cause(ctx)))
		})()
		fmt.Fprint(os.Stderr, "Password: ")
		b, err := term.ReadPassword(fd)
		fmt.Fprintln(os.Stderr)
		return string(b), err
	}
	line, err := bufio.NewReader(io.LimitReader(wait.Stdin(), 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading the password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}
