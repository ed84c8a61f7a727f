package build

import (
	"archive/tar"
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// An Output is the value of one --output: where a build writes the image besides the store.
type Output struct {
	Dest    string   // file or directory; "-" is standard output, "": only the store
	Names   []string // further names of the image
	Rewrite *bool    // docker's word for --reproducible; nil: not given
	kind    string   // oci, docker, tar, dir or image
	split   *bool    // one directory for each platform; nil: if there are several
}

// outputHint is the hint about a wrong --output.
const outputHint = "write --output type=oci,dest=FILE"

// ParseOutput reads the value of --output, a directory or KEY=VALUE,…, as in docker build.
func ParseOutput(arg string) (o Output, err error) {
	pairs := strings.Split(arg, ",")
	if !strings.Contains(arg, "=") {
		o.kind, o.Dest, pairs = "dir", arg, nil
	}
	for _, kv := range pairs {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "type":
			o.kind = v
		case "dest":
			o.Dest = v
		case "name":
			o.Names = append(o.Names, v)
		case "rewrite-timestamp", "platform-split":
			yes, perr := strconv.ParseBool(v)
			if perr != nil {
				return o, text.Usagef("--output %q: %s is not true or false", arg, kv).Hint("write %s=true", k)
			}
			if k == "platform-split" {
				o.split = &yes
			} else {
				o.Rewrite = &yes
			}
		case "push":
			return o, text.Usagef("--output %q: a build does not push", arg).Hint("push the image afterwards: hpcc push NAME")
		default:
			return o, text.Usagef("--output %q: unknown option %q; options are type, dest, name, platform-split and rewrite-timestamp", arg, k).Hint(outputHint)
		}
	}
	if o.kind == "local" {
		o.kind = "dir"
	}
	if (o.kind != "image" || o.Dest != "") && (o.Dest == "" || !strings.Contains(" oci docker tar dir ", " "+o.kind+" ")) {
		return o, text.Usagef("--output %q: needs type=oci, docker, tar or dir, and dest=; or type=image", arg).Hint(outputHint)
	}
	return o, nil
}

// write writes the images of a build, which are in the store under tag, to the output.
func (o Output) write(ctx context.Context, w *work, native v1.Image) error {
	switch o.kind {
	case "image":
		return nil
	case "oci":
		return w.store.Save(ctx, w.Tags[0], o.Dest, w.Tags[1:]...)
	case "docker":
		return w.store.SaveDocker(w.Tags[0], o.Dest)
	}
	parts := []exportedTree{{img: native}}
	if len(w.images) > 1 || (o.split != nil && *o.split) {
		parts = nil
		for _, img := range w.images {
			parts = append(parts, exportedTree{img: img})
		}
	}
	for i := range parts {
		if err := parts[i].place(w, o, len(parts)); err != nil {
			return err
		}
	}
	if o.kind == "dir" {
		return writeTrees(ctx, o.Dest, parts)
	}
	return w.writeTar(ctx, o.Dest, parts)
}

// An exportedTree is the part of an output that comes from the image of one platform.
type exportedTree struct {
	img        v1.Image
	below      string // directory in the output, "" for its root
	provenance []byte // nil: none
	file       string // path of the provenance in the output
}

// place sets where the tree is in an output of several ones, and the provenance next to it.
func (t *exportedTree) place(w *work, o Output, trees int) error {
	cfg, err := t.img.ConfigFile()
	if err != nil {
		return err
	}
	platform := strings.ReplaceAll(cfg.Platform().String(), "/", "_")
	split := trees > 1
	if o.split != nil {
		split = *o.split
	}
	suffix := ""
	if split {
		t.below = platform
	} else if trees > 1 {
		suffix = "." + platform
	}
	t.file = path.Join(t.below, "provenance"+suffix+".json") // as docker build names it
	for i, img := range w.images {
		if img != t.img || i >= len(w.statements) {
			continue
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		if t.provenance, err = w.statements[i].Encode(digest); err != nil {
			return err
		}
	}
	return nil
}

// writeTrees writes the trees to a new directory.
func writeTrees(ctx context.Context, dest string, trees []exportedTree) error {
	return unpack.NewDir(dest, func(root string) error {
		for _, t := range trees {
			dir := filepath.Join(root, t.below)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			// Trees in the same directory all bring the configuration of their image.
			if err := os.RemoveAll(filepath.Join(dir, filepath.Dir(unpack.ConfigFile))); err != nil {
				return err
			}
			if _, err := unpack.Fill(ctx, t.img, dir, unpack.Options{}); err != nil {
				return err
			}
			if t.provenance != nil {
				if err := os.WriteFile(filepath.Join(root, t.file), t.provenance, 0o644); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// writeTar writes the files of the trees with their owners as one archive.
func (w *work) writeTar(ctx context.Context, dest string, trees []exportedTree) error {
	empty, err := w.store.TempDir()
	if err != nil {
		return err
	}
	defer files.RemoveAll(empty)
	err = store.NewFile(dest, func(f *os.File) error {
		buffered := bufio.NewWriterSize(f, 1<<20)
		archive := tar.NewWriter(buffered)
		for _, t := range trees {
			tree, err := unpack.CheckedTree(ctx, w.store, t.img, w.Say)
			if err == nil {
				err = appendTree(archive, empty, tree, t)
			}
			if err != nil {
				return err
			}
		}
		if err := archive.Close(); err != nil {
			return err
		}
		return buffered.Flush()
	})
	if err != nil {
		return fmt.Errorf("writing %q: %w", dest, err)
	}
	return nil
}

// appendTree writes the entries of a tree, which are its difference from an empty one, and the
// provenance.
func appendTree(w *tar.Writer, empty, tree string, t exportedTree) error {
	r, pipe := io.Pipe()
	defer r.Close()
	go func() {
		_, err := unpack.Compare(pipe, empty, tree, unpack.DiffOptions{Skip: []string{filepath.Dir(unpack.ConfigFile)}})
		pipe.CloseWithError(err)
	}()
	if t.below != "" {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: t.below + "/", Mode: 0o755}); err != nil {
			return err
		}
	}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		h.Name = path.Join(t.below, h.Name) + strings.Repeat("/", strings.Count(h.Name[len(h.Name)-1:], "/"))
		if h.Typeflag == tar.TypeLink {
			h.Linkname = path.Join(t.below, h.Linkname)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, in); err != nil {
			return err
		}
	}
	if t.provenance == nil {
		return nil
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: t.file, Mode: 0o644, Size: int64(len(t.provenance))}); err != nil {
		return err
	}
	_, err := w.Write(t.provenance)
	return err
}
