package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/testdata/helpers/testenv"
)

// seeded returns a random generator, seeded by HPCC_TEST_SEED if set.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := time.Now().UnixNano()
	if s := os.Getenv("HPCC_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseInt(s, 10, 64)
		testenv.Check(t, err)
	}
	t.Logf("HPCC_TEST_SEED=%d", seed)
	return rand.New(rand.NewSource(seed))
}

// TestExtractAgrees compares trees with the output of mutate.Extract for the same images.
// mutate.Extract works from the top layer down and does not support opaque directories,
// directories that are recreated after a removal, or hard links whose target changes later.
// Images with these are compared with the model only.
func TestExtractAgrees(t *testing.T) {
	r := seeded(t)
	for compared := 0; compared < 200; {
		img, _, text := randomImage(t, r)
		if beyondExtract(text) {
			continue
		}
		compared++
		dir := filepath.Join(t.TempDir(), "tree")
		if _, err := Image(context.Background(), img, dir, Options{}); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if got, want := listing(t, dir), extracted(t, img); got != want {
			t.Fatalf("the image\n%s\n\ngives\n%s\n\nmutate.Extract has\n%s", text, got, want)
		}
	}
}

// beyondExtract reports whether an image, as randomImage describes it, uses features that
// mutate.Extract does not support.
func beyondExtract(text string) bool {
	was, targets := map[string]byte{}, map[string]bool{}
	for _, layer := range strings.Split(text, "\n--\n") {
		now := map[string]bool{}
		for _, line := range strings.Split(layer, "\n") {
			f := strings.Fields(line)
			if len(f) == 0 {
				continue
			}
			p, kind := f[1], f[0][0]
			if base := path.Base(p); base == whOpaque {
				return true
			} else if strings.HasPrefix(base, whPrefix) {
				p, kind = path.Join(path.Dir(p), base[len(whPrefix):]), 'w'
			}
			if kind == 'd' && was[p] != 0 && was[p] != 'd' {
				return true
			}
			for to := range targets {
				if kind != 'd' && (p == to || strings.HasPrefix(to, p+"/")) {
					return true
				}
			}
			was[p] = kind
			if kind == 'h' {
				now[f[2]] = true
			}
		}
		for to := range now {
			targets[to] = true
		}
	}
	return false
}

// extracted returns the listing of mutate.Extract's output. It adds directories without an
// entry and lists hard links as files.
func extracted(t *testing.T, img v1.Image) string {
	t.Helper()
	m, links := model{}, map[string]string{}
	r := mutate.Extract(img)
	defer r.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testenv.Check(t, err)
		b, err := io.ReadAll(tr)
		testenv.Check(t, err)
		p := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			m[p] = "d"
		case tar.TypeReg:
			m[p] = "f " + string(b)
		case tar.TypeSymlink:
			m[p] = "l " + h.Linkname
		case tar.TypeLink:
			links[p] = h.Linkname
		default:
			t.Fatalf("mutate.Extract writes %q of type %c", h.Name, h.Typeflag)
		}
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if m[d] == "" {
				m[d] = "d"
			}
		}
	}
	for p, to := range links {
		m[p] = m[to]
	}
	return m.String()
}

// TestUmociAgreesOnLinks compares trees of archives whose entries have links in their paths,
// as with a merged /usr and from careless tools.
func TestUmociAgreesOnLinks(t *testing.T) {
	r := seeded(t)
	for n := range 12 {
		var layers []v1.Layer
		var text []string
		for range 1 + r.Intn(3) {
			lines := []string{"d a", "d a/c", "d b"}
			for _, l := range []string{"l l1 a", "l l2 /b", "l l3 ../a/c", "l a/up ..", "l b/far l4", "l l4 l1/c"} {
				if r.Intn(3) > 0 {
					lines = append(lines, l)
				}
			}
			for i := range r.Intn(10) {
				dir := []string{"a", "a/c", "b", "l1", "l2", "l3", "l4", "a/up", "a/up/b", "b/far", "l1/c", "a/up/l2"}[r.Intn(12)]
				switch r.Intn(4) {
				case 0:
					lines = append(lines, fmt.Sprintf("d %s/n%d", dir, r.Intn(4)))
				case 1:
					lines = append(lines, fmt.Sprintf("l %s/n%d to%d", dir, r.Intn(4), i))
				default:
					lines = append(lines, fmt.Sprintf("f %s/n%d %d", dir, r.Intn(4), i))
				}
			}
			layers, text = append(layers, layerOf(t, lines...)), append(text, strings.Join(lines, "\n"))
		}
		img, top := imageOf(t, layers...), t.TempDir()
		want := listing(t, umociRoot(t, img, top))
		if _, err := Image(context.Background(), img, filepath.Join(top, "tree"), Options{}); err != nil {
			t.Fatalf("%v\n%s", err, strings.Join(text, "\n--\n"))
		}
		if got := listing(t, filepath.Join(top, "tree")); got != want {
			t.Fatalf("image %d:\n%s\n\ngives\n%s\n\numoci has\n%s", n, strings.Join(text, "\n--\n"), got, want)
		}
	}
}
