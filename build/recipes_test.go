package build

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"hpcc/testdata/helpers/testenv"
)

// recipesVariable is the environment variable that names a directory with the repositories of
// testdata/corpora/dockerfile/recipes.txt, each in OWNER/NAME at its commit, and enables TestRecipes.
const recipesVariable = "HPCC_TEST_RECIPES"

// A recipe is a Dockerfile of a public repository.
type recipe struct {
	repository, path string
	image            string // its name as a base of later recipes
}

// A variation is a path whose content or owner differs between two builds of the same recipe.
type variation struct {
	line *regexp.Regexp // matches lines of describe
	used bool
}

// readRecipes reads the list of recipes and of variations.
func readRecipes(t *testing.T) (recipes []recipe, variations []*variation) {
	t.Helper()
	f, err := os.Open(filepath.Join(tableDir, "recipes.txt"))
	testenv.Check(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case fields[0] == "differs" && len(fields) > 2: // with the reason
			variations = append(variations, &variation{line: regexp.MustCompile(fields[1])})
		case len(fields) == 3 || len(fields) == 4:
			r := recipe{repository: fields[0], path: fields[2], image: fmt.Sprint("recipe-", len(recipes))}
			if len(fields) == 4 {
				r.image = fields[3]
			}
			recipes = append(recipes, r)
		default:
			t.Fatalf("recipes.txt: cannot read the line %q", s.Text())
		}
	}
	return recipes, variations
}

// TestRecipes builds the recipes with hpcc as an ordinary user, and with buildah as root. It
// compares configurations and trees, and logs the processor time of both.
func TestRecipes(t *testing.T) {
	dir := os.Getenv(recipesVariable)
	if dir == "" {
		t.Skipf("needs root, buildah, an archive of Debian and public repositories: %s names their directory", recipesVariable)
	}
	recipes, variations := readRecipes(t)
	b := newBuilders(t)
	var ratios, saved []float64
	choice, err := regexp.Compile(*caseFlag)
	testenv.Check(t, err)
	for _, r := range recipes {
		if !choice.MatchString(r.repository + "/" + r.path) {
			continue
		}
		t.Run(r.repository+"/"+r.path, func(t *testing.T) {
			file := filepath.Join(dir, r.repository, r.path)
			b.addBase(t, file)
			ours, theirs := b.build(t, file, r.image)
			t.Logf("hpcc %v, buildah %v: %.2f; with export %v, %v: %.2f", ours.build, theirs.build, ours.build.ratio(theirs.build),
				ours.exported(), theirs.exported(), ours.exported().ratio(theirs.exported()))
			ratios = append(ratios, ours.build.ratio(theirs.build))
			saved = append(saved, ours.exported().ratio(theirs.exported()))
			bases := map[string]v1.Image{"base": b.base}
			for line := range strings.Lines(lineDiff(describe(t, ours.image, bases), describe(t, theirs.image, bases))) {
				i := slices.IndexFunc(variations, func(v *variation) bool { return v.line.MatchString(line[2:]) })
				if i < 0 {
					t.Errorf("the images differ (-hpcc +buildah): %s", strings.TrimSpace(line))
					continue
				}
				variations[i].used = true
			}
		})
	}
	t.Logf("processor time of hpcc as a multiple of buildah's, median of %d recipes: %.2f, with export %.2f", len(ratios), median(ratios), median(saved))
	for _, v := range variations {
		if !v.used && !t.Failed() && len(ratios) == len(recipes) {
			t.Errorf("no image differs in %v; remove it from recipes.txt", v.line)
		}
	}
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// A cost is the processor time of a command and of its children, and its duration.
type cost struct{ processor, wall time.Duration }

func (c cost) String() string {
	return fmt.Sprintf("%.1f s (%.1f s wall)", c.processor.Seconds(), c.wall.Seconds())
}

// ratio returns c's processor time as a multiple of other's.
func (c cost) ratio(other cost) float64 { return float64(c.processor) / float64(other.processor) }

// A built is an image that a builder made, with the costs.
type built struct {
	image         v1.Image
	build, export cost
}

func (b built) exported() cost {
	return cost{b.build.processor + b.export.processor, b.build.wall + b.export.wall}
}

// builders are hpcc, run by an ordinary user, and buildah, run by root, with stores in the same
// file system.
type builders struct {
	dir     string // belongs to the user
	hpcc    string
	buildah *judge
	base    v1.Image
	known   map[string]bool // base images that exist
}

// ordinary is the ID of the user and group that run hpcc: nobody, without subordinate IDs.
const ordinary = 65534

func newBuilders(t *testing.T) *builders {
	t.Helper()
	archive, err := os.ReadFile(os.Getenv("HPCC_TEST_DEBIAN"))
	testenv.Need(t, "an archive of Debian", err)
	dir, err := os.MkdirTemp("", "hpcc-recipes-") // t.TempDir's parents are closed to others
	testenv.Check(t, err)
	b := &builders{dir: filepath.Join(dir, "user"), hpcc: filepath.Join(dir, "hpcc"), known: map[string]bool{}}
	b.buildah = &judge{dir: filepath.Join(dir, "root"), driver: "overlay"}
	t.Cleanup(func() {
		_, _ = b.buildah.buildah("rm", "--all")
		_, _ = b.buildah.buildah("rmi", "--all", "--force")
		_ = exec.Command("umount", b.buildah.path("root/overlay")).Run()
		_ = os.RemoveAll(dir)
	})
	testenv.Check(t, os.Chmod(dir, 0o755))
	testenv.Check(t, os.MkdirAll(filepath.Join(b.dir, "base"), 0o755))
	testenv.Check(t, os.Chown(b.dir, ordinary, ordinary))
	b.buildah.prepare(t)
	if out, err := exec.Command("go", "build", "-o", b.hpcc, "hpcc/cmd/hpcc").CombinedOutput(); err != nil {
		t.Fatalf("building hpcc: %v\n%s", err, out)
	}
	// Without apt's own user, so that both builders create the same files.
	const dockerfile = "FROM scratch\nADD debian.tar /\n" +
		`RUN printf 'APT::Sandbox::User "root";\nAcquire::Check-Valid-Until "false";\nAcquire::Check-Date "false";\n' >/etc/apt/apt.conf.d/99test` + "\n"
	testenv.Check(t, os.WriteFile(filepath.Join(b.dir, "base/debian.tar"), archive, 0o644))
	testenv.Check(t, os.WriteFile(filepath.Join(b.dir, "base/Dockerfile"), []byte(dockerfile), 0o644))
	b.run(t, "build", "-t", "base", filepath.Join(b.dir, "base"))
	layout := filepath.Join(b.dir, "base.layout")
	b.run(t, "save", "base", layout+"/")
	b.base = imageIn(t, layout)
	b.runBuildah(t, "pull", "oci:"+layout)
	b.runBuildah(t, "tag", b.imageID(t), "base")
	return b
}

// imageID returns the ID of buildah's only image.
func (b *builders) imageID(t *testing.T) string {
	t.Helper()
	out, err := b.buildah.buildah("images", "-q")
	testenv.Check(t, err)
	return strings.TrimSpace(out)
}

// addBase gives the base image the names that a Dockerfile uses.
func (b *builders) addBase(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	testenv.Check(t, err)
	for _, m := range regexp.MustCompile(`(?im)^FROM (debian:\S+)`).FindAllStringSubmatch(string(text), -1) {
		if name := m[1]; !b.known[name] {
			b.run(t, "tag", "base", name)
			b.runBuildah(t, "tag", "base", "docker.io/library/"+name)
			b.known[name] = true
		}
	}
}

// run runs hpcc as the ordinary user.
func (b *builders) run(t *testing.T, args ...string) cost {
	t.Helper()
	cmd := exec.Command(b.hpcc, args...)
	cmd.Dir = b.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "HPCC_STORE=" + filepath.Join(b.dir, "store")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	return timed(t, cmd)
}

// runBuildah runs buildah as root.
func (b *builders) runBuildah(t *testing.T, args ...string) cost {
	t.Helper()
	return timed(t, b.buildah.command(args...))
}

// timed runs a command and returns its cost.
func timed(t *testing.T, cmd *exec.Cmd) cost {
	t.Helper()
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return cost{cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), time.Since(began)}
}

// build builds a Dockerfile with both builders, without their caches, and exports the images.
func (b *builders) build(t *testing.T, file, name string) (ours, theirs built) {
	t.Helper()
	ctx := filepath.Dir(file)
	flags := []string{"--no-cache", "-f", file}
	if proxy := os.Getenv("http_proxy"); proxy != "" {
		flags = append(flags, "--build-arg", "http_proxy="+proxy)
	}
	layout := filepath.Join(b.dir, "layout")
	testenv.Check(t, os.RemoveAll(layout))
	ours.build = b.run(t, append(append([]string{"build", "-t", name}, flags...), ctx)...)
	ours.export = b.run(t, "save", name, layout+"/")
	ours.image = imageIn(t, layout)

	layout = b.buildah.path("layout")
	testenv.Check(t, os.RemoveAll(layout))
	bud := []string{"bud", "--layers", "--pull-never", "--isolation", "chroot", "--network", "host", "--identity-label=false", "-t", "docker.io/library/" + name}
	theirs.build = b.runBuildah(t, append(append(bud, flags...), ctx)...)
	theirs.export = b.runBuildah(t, "push", "docker.io/library/"+name, "oci:"+layout+":x")
	theirs.image = imageIn(t, layout)
	return ours, theirs
}

// imageIn returns the only image of an OCI layout.
func imageIn(t *testing.T, dir string) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	testenv.Check(t, err)
	m, err := index.IndexManifest()
	testenv.Check(t, err)
	img, err := index.Image(m.Manifests[0].Digest)
	testenv.Check(t, err)
	return img
}
