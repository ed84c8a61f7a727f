package unpack

import (
	"context"
	"fmt"
	"math/rand"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A model computes a tree after some layers by the image specification's rules (layer.md,
// "Applying Changesets") only.
type model map[string]string // path → line of listing without the path: "d", "f content", "l target"

// apply applies a layer of layerOf's lines to the model. Whiteouts only affect lower layers,
// wherever they are in their own.
func (m model) apply(lines []string) {
	var own []string
	for _, line := range lines {
		f := strings.SplitN(line+"  ", " ", 3)
		if base := path.Base(f[1]); strings.HasPrefix(base, ".wh.") {
			if base == ".wh..wh..opq" {
				m.remove(path.Dir(f[1]), false)
			} else {
				m.remove(path.Join(path.Dir(f[1]), base[4:]), true)
			}
			continue
		}
		own = append(own, line)
	}
	for _, line := range own {
		f := strings.SplitN(line+"  ", " ", 3)
		kind, arg := f[0][:1], strings.TrimSpace(f[2])
		switch kind {
		case "d":
			if m[f[1]] != "d" {
				m.remove(f[1], true)
			}
			m[f[1]] = "d"
			continue
		case "h":
			kind, arg = "f", strings.TrimPrefix(m[arg], "f ")
		}
		m.remove(f[1], true)
		m[f[1]] = kind + " " + arg
	}
}

// remove removes a path and everything below it, or only the latter.
func (m model) remove(p string, itself bool) {
	for q := range m {
		if (q == p && itself) || p == "." || strings.HasPrefix(q, p+"/") {
			delete(m, q)
		}
	}
}

func (m model) String() string {
	var out []string
	for p, what := range m {
		kind, arg, _ := strings.Cut(what, " ")
		out = append(out, strings.TrimSpace(kind+" "+p+" "+arg))
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

// randomLayer returns a layer's lines. Every parent exists as a directory, and no name is
// created and removed in one layer. below is the model of the lower layers.
func randomLayer(r *rand.Rand, below model) []string {
	var lines []string
	mine := map[string]bool{}
	names := []string{"a", "b", "c", "d"}
	parents := func(p string) bool {
		for i, c := range p {
			if c != '/' {
				continue
			}
			if kind, ok := kindOf(lines, p[:i]); ok && kind != "d" {
				return false
			} else if !ok {
				lines = append(lines, "d "+p[:i])
				mine[p[:i]] = true
			}
		}
		return true
	}
	for n := r.Intn(12); n >= 0; n-- {
		p := names[r.Intn(4)]
		for r.Intn(2) == 0 && strings.Count(p, "/") < 3 {
			p += "/" + names[r.Intn(4)]
		}
		if mine[p] || !parents(p) {
			continue
		}
		switch r.Intn(9) {
		case 0, 1:
			lines = append(lines, "d "+p)
		case 2, 3, 4:
			lines = append(lines, fmt.Sprintf("f %s %d", p, r.Intn(1000)))
		case 5:
			lines = append(lines, fmt.Sprintf("l %s to%d", p, r.Intn(100)))
		case 6:
			if to := someFile(r, lines); to != "" {
				lines = append(lines, "h "+p+" "+to)
			}
		case 7:
			if below[p] != "" {
				lines = append(lines, "f "+path.Join(path.Dir(p), ".wh."+path.Base(p)))
			}
		case 8:
			if strings.HasPrefix(below[path.Dir(p)], "d") {
				lines = append(lines, "f "+path.Join(path.Dir(p), ".wh..wh..opq"))
				continue
			}
		}
		mine[p] = true
	}
	return lines
}

func kindOf(lines []string, p string) (string, bool) {
	for _, l := range lines {
		if f := strings.Fields(l); f[1] == p {
			return f[0], true
		}
	}
	return "", false
}

// someFile picks a file of the layer as the target of a hard link.
func someFile(r *rand.Rand, lines []string) string {
	var files []string
	for _, l := range lines {
		if f := strings.Fields(l); f[0] == "f" && !strings.Contains(f[1], ".wh.") {
			files = append(files, f[1])
		}
	}
	if len(files) == 0 {
		return ""
	}
	return files[r.Intn(len(files))]
}

// randomImage returns an image and its expected tree.
func randomImage(t *testing.T, r *rand.Rand) (v1.Image, model, string) {
	m := model{}
	var layers []v1.Layer
	var text []string
	for range 1 + r.Intn(5) {
		lines := randomLayer(r, m)
		m.apply(lines)
		layers = append(layers, layerOf(t, lines...))
		text = append(text, strings.Join(lines, "\n"))
	}
	return imageOf(t, layers...), m, strings.Join(text, "\n--\n")
}

// TestRandomImages compares trees with the model.
func TestRandomImages(t *testing.T) {
	r := seeded(t)
	for n := range 300 {
		img, m, text := randomImage(t, r)
		dir := filepath.Join(t.TempDir(), "tree")
		if _, err := Image(context.Background(), img, dir, Options{}); err != nil {
			t.Fatalf("image %d: %v\n%s", n, err, text)
		}
		got := listing(t, dir)
		if got != m.String() {
			t.Fatalf("image %d:\n%s\n\ngives\n%s\n\nwant\n%s", n, text, got, m)
		}
		if err := checkTree(context.Background(), img, dir); err != nil {
			t.Fatalf("image %d:\n%s\n\n%v", n, text, err)
		}
	}
}
