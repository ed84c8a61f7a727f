package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	oci "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/testdata/helpers/testenv"
)

// manyImages writes a layout whose images have these tags and platforms, and returns it with
// their digests. The platform of "TAG@ARCH" is only in the configuration, that of "TAG=ARCH"
// also in the index.
func manyImages(t *testing.T, names ...string) (dir string, digests map[string]string) {
	t.Helper()
	dir, digests = filepath.Join(t.TempDir(), "layout"), map[string]string{}
	p, err := oci.Write(dir, empty.Index)
	testenv.Check(t, err)
	for _, n := range names {
		img, err := random.Image(500, 1)
		testenv.Check(t, err)
		tag, arch, listed := strings.Cut(n, "=")
		if !listed {
			tag, arch, _ = strings.Cut(n, "@")
		}
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: rootFS(t, img)})
		testenv.Check(t, err)
		o := []oci.Option{oci.WithAnnotations(map[string]string{refAnnotation: tag})}
		if listed {
			o = append(o, oci.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		}
		testenv.Check(t, p.AppendImage(img, o...))
		d, err := img.Digest()
		testenv.Check(t, err)
		digests[n] = d.String()
	}
	return dir, digests
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	c, err := img.ConfigFile()
	testenv.Check(t, err)
	return c.RootFS
}

// LAYOUT:TAG and --platform select one of several images. Without a selection the message
// lists them.
func TestSelect(t *testing.T) {
	dir, digests := manyImages(t, "a@amd64", "a@arm64", "b=ppc64le", "docker.io/x/y:c=arm64", "docker.io/x/y:d=s390x")
	for _, c := range []struct{ tag, platform, want string }{
		{"a", "linux/amd64", "a@amd64"},
		{"a", "linux/arm64", "a@arm64"},
		{"b", "", "b=ppc64le"},
		{"c", "", "docker.io/x/y:c=arm64"},
		{"docker.io/x/y:c", "", "docker.io/x/y:c=arm64"},
		{"", "linux/ppc64le", "b=ppc64le"},
		{"", "linux/s390x", "docker.io/x/y:d=s390x"},
		{"", "linux/arm64", ""}, // two
		{"", "linux/riscv64", ""},
		{"nothing", "", ""},
		{"a", "linux/s390x", ""},
	} {
		var p *v1.Platform
		if c.platform != "" {
			var err error
			p, err = v1.ParsePlatform(c.platform)
			testenv.Check(t, err)
		}
		name := c.tag + " " + c.platform
		img, err := Layout(dir, c.tag, p)
		if c.want == "" {
			var choice *choiceError
			if !errors.As(err, &choice) || !strings.Contains(err.Error(), `"a", "a", "b" (linux/ppc64le), "docker.io/x/y:c" (linux/arm64)`) {
				t.Errorf("%s: %v; want a list of the images", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d, err := img.Digest(); err != nil || d.String() != digests[c.want] {
			t.Errorf("%s: %s, %v; want %s", name, d, err, digests[c.want])
		}
		s, err := Open(filepath.Join(t.TempDir(), "store"))
		testenv.Check(t, err)
		if _, err := s.LoadOne(context.Background(), dir+":"+c.tag, "x", p, nil); c.tag != "" && err != nil {
			t.Errorf("%s: loading it: %v", name, err)
		} else if c.tag != "" {
			if img, err = s.Get("x", p); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if d, _ := img.Digest(); d.String() != digests[c.want] {
				t.Errorf("%s: %s was loaded; want %s", name, d, digests[c.want])
			}
		}
	}
}

func TestSplitTag(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"plain", "with:colon"} {
		testenv.Check(t, os.Mkdir(filepath.Join(dir, n), 0o755))
	}
	for arg, want := range map[string][2]string{
		"plain":            {"plain", ""},
		"plain:v1":         {"plain", "v1"},
		"plain:x.org/y:v1": {"plain", "x.org/y:v1"},
		"with:colon":       {"with:colon", ""},
		"with:colon:v1":    {"with:colon", "v1"},
		"absent:v1":        {"absent:v1", ""},
	} {
		file, tag := SplitTag(filepath.Join(dir, arg))
		if file != filepath.Join(dir, want[0]) || tag != want[1] {
			t.Errorf("SplitTag(%q) = %q, %q; want %q, %q", arg, file, tag, want[0], want[1])
		}
	}
}

// TestLoadProgress checks that loading reports progress up to the end, for each kind of file.
func TestLoadProgress(t *testing.T) {
	img, err := random.Image(4<<20, 2)
	testenv.Check(t, err)
	s := open(t)
	_, err = s.Put(t.Context(), "a", img)
	testenv.Check(t, err)
	dir := t.TempDir()
	for _, file := range []string{"layout/", "layout.tar", "a.docker.tar"} {
		file = filepath.Join(dir, file) + strings.Repeat("/", strings.Count(file, "/"))
		if strings.HasSuffix(file, ".docker.tar") {
			err = s.SaveDocker("a", file)
		} else {
			err = s.Save(t.Context(), "a", file)
		}
		testenv.Check(t, err)
		calls, last := 0, int64(0)
		_, err := open(t).Load(t.Context(), file, "b", func(done, total int64) {
			if calls++; done < last || (total > 0 && done > total) {
				t.Errorf("%s: %d of %d after %d", file, done, total, last)
			}
			last = done
		})
		if err != nil || calls < 10 || last < 4<<20 {
			t.Errorf("%s: %v; %d calls up to %d", file, err, calls, last)
		}
	}
}
