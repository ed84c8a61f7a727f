package build

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"hpcc/testdata/helpers/testenv"
)

// judgeMark is the environment variable that enables TestJudge, which needs root and buildah.
const judgeMark = "HPCC_TEST_JUDGE"

// judges is the number of buildah processes that run at a time, each with its own storage.
const judges = 2

// TestJudge builds the table with "buildah bud" as root and compares the images with those
// that the table expects. The file "differs" of a case lists the known differences, with
// the reason. An unlisted difference fails the test, and so does a listed one that no
// longer exists.
func TestJudge(t *testing.T) {
	if os.Getenv(judgeMark) == "" {
		t.Skipf("needs root and buildah: %s=1 asks for it", judgeMark)
	}
	table := readTable(t)
	served := serveCases(t, table)
	work := make(chan *tableCase)
	var wg sync.WaitGroup
	for n := range judges {
		j := newJudge(t, filepath.Join(t.TempDir(), fmt.Sprint(n)))
		wg.Go(func() {
			for c := range work {
				t.Run(c.id(), func(t *testing.T) { j.judge(t, c, served) })
			}
		})
	}
	for _, c := range chosen(t, table) {
		work <- c
	}
	close(work)
	wg.Wait()
	if *update {
		writeTable(t, table)
	}
}

// A judge is buildah with its storage below dir.
type judge struct{ dir, driver string }

func newJudge(t *testing.T, dir string) *judge {
	t.Helper()
	j := &judge{dir, "vfs"}
	j.prepare(t)
	tag, err := name.NewTag("docker.io/library/busybox:latest")
	testenv.Check(t, err)
	testenv.Check(t, tarball.WriteToFile(j.path("busybox.tar"), tag, busybox(t)))
	if out, err := j.buildah("pull", "docker-archive:"+j.path("busybox.tar")); err != nil {
		t.Fatalf("giving buildah its base: %v\n%s", err, out)
	}
	t.Cleanup(func() { _, _ = j.buildah("rm", "--all") })
	return j
}

// prepare makes the directory with buildah's settings.
func (j *judge) prepare(t *testing.T) {
	t.Helper()
	testenv.Check(t, os.MkdirAll(j.path("tmp"), 0o755))
	testenv.Check(t, os.WriteFile(j.path("registries.conf"), []byte("unqualified-search-registries = [\"docker.io\"]\n"), 0o644))
}

func (j *judge) path(name string) string { return filepath.Join(j.dir, name) }

// startFault is what buildah prints when the kernel refuses to seal buildah's
// copy of its own program with EBUSY. It says nothing about the Dockerfile, and
// the next start succeeds.
const startFault = "sealing memfd copy: Device or resource busy"

// buildah runs buildah and returns its output. It makes up to three attempts because of
// startFault.
func (j *judge) buildah(args ...string) (string, error) {
	for try := 1; ; try++ {
		out, err := j.command(args...).CombinedOutput()
		if err == nil || try == 3 || !strings.Contains(string(out), startFault) {
			return string(out), err
		}
	}
}

// command returns a command of buildah.
func (j *judge) command(args ...string) *exec.Cmd {
	cmd := exec.Command("buildah", append([]string{"--root", j.path("root"), "--runroot", j.path("run"), "--storage-driver", j.driver}, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_REGISTRIES_CONF="+j.path("registries.conf"), "TMPDIR="+j.path("tmp"), "LC_ALL=C") // caches are below TMPDIR
	return cmd
}

// build builds an image with "buildah bud".
func (j *judge) build(file, ctx string, flags []string, as string) (v1.Image, string, error) {
	archive := j.path(as + ".tar")
	if err := os.Remove(archive); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", err
	}
	args := []string{"bud", "--layers=false", "--pull-never", "--isolation", "chroot", "--format", "docker", "--identity-label=false",
		"-t", "docker-archive:" + archive + ":docker.io/library/" + as + ":latest"}
	if !slices.Contains(flags, "-f") { // it would read both
		args = append(args, "-f", file)
	}
	if out, err := j.buildah(append(append(args, flags...), ctx)...); err != nil {
		return nil, out, err
	}
	img, err := tarball.ImageFromPath(archive, nil)
	return img, "", err
}

// judge compares one case.
func (j *judge) judge(t *testing.T, c *tableCase, served string) {
	dir := t.TempDir()
	bases := map[string]v1.Image{"busybox": busybox(t)}
	if text := c.special["base"]; text != "" {
		file := filepath.Join(dir, "base")
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o644))
		img, out, err := j.build(file, dir, nil, "base")
		if err == nil {
			out, err = j.buildah("pull", "docker-archive:"+j.path("base.tar"))
		}
		if err != nil { // dependent images would fail too
			c.judged(t, failed, out)
			return
		}
		bases["base"] = img
	}
	ctx := c.context(t, dir)
	flags := c.flags(ctx, served)
	c.options(t, ctx, flags) // creates the sockets
	file := filepath.Join(ctx, "Dockerfile")
	got := failed
	img, out, err := j.build(file, ctx, flags, "case")
	if err == nil {
		got = describe(t, img, bases)
	}
	c.judged(t, got, out)
}

// failed is the outcome of a failed build. Builders may differ in their messages.
const failed = "fails\n"

// varies replaces the lines of a difference that changes from run to run or from machine
// to machine.
const varies = "? varies\n"

// judged compares buildah's outcome with the table and with the listed differences of the
// case. out is buildah's output.
func (c *tableCase) judged(t *testing.T, got, out string) {
	reason, listed := c.differs()
	diff := lineDiff(c.special["want"], got)
	switch fails := c.special["error"] != ""; {
	case fails && got == failed:
		diff = ""
	case fails:
		diff = "- " + failed
	case got == failed:
		diff = "+ " + failed
	}
	switch {
	case listed == varies && reason != "":
	case *update && diff == "":
		c.set("differs", "")
	case *update:
		if reason == "" {
			reason = "TODO\n"
			t.Logf("differs:\n%s%s", diff, out)
		}
		c.set("differs", reason+diff)
	case diff == "" && listed != "":
		t.Errorf("buildah and the table agree; remove \"differs\":\n%s", listed)
	case diff != listed:
		t.Errorf("buildah differs (-table +buildah):\n%s\"differs\" lists:\n%s\nbuildah prints:\n%s", diff, listed, out)
	case diff != "" && (reason == "" || strings.HasPrefix(reason, "TODO")):
		t.Errorf("\"differs\" gives no reason for\n%s", diff)
	}
}

// differs returns the listed differences of buildah: the reason, and the lines.
func (c *tableCase) differs() (reason, lines string) {
	for line := range strings.Lines(c.special["differs"]) {
		if strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "+ ") || line == varies {
			lines += line
		} else {
			reason += line
		}
	}
	return reason, lines
}
