package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"hpcc/testdata/helpers/testenv"
)

// damages are the ways in which a disk damages a file.
var damages = map[string]func(b []byte) []byte{
	"one bit":   func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
	"cut to 0":  func([]byte) []byte { return nil },
	"all zeros": func(b []byte) []byte { return make([]byte, len(b)) },
}

// A damagedStore creates copies of a store with one damaged file.
type damagedStore struct {
	top    string
	app    v1.Hash // the manifest of the image app
	config v1.Hash // its configuration
	ref    string  // the reference to which it was pushed
	job    string
}

// newDamagedStore fills a store with all kinds of files.
func newDamagedStore(t *testing.T) *damagedStore {
	t.Helper()
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	d := &damagedStore{top: t.TempDir()}
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", d.top).Run() })
	d.ref = newRegistry(t) + "/app:1"
	script := `mkdir -p r/bin r/d context work && cp "$0" r/bin/busybox
for c in sh true cat seq; do ln -s busybox r/bin/$c; done
seq 2000 >r/d/data; tar cf root.tar -C r .
seq 3000 >context/data; mkdir context/more; seq 10 >context/more/x
printf 'FROM base\nCOPY . /ctx\nRUN seq 5000 >/made\n' >context/Dockerfile
printf 'FROM app\nCOPY --from=base /d/data /again\nRUN cat /again /ctx/data >/dev/null\n' >second
hpcc load root.tar base
sleep 0.2 # the digests of younger files are not kept
hpcc build -t app context
hpcc build -t second -f second context
hpcc push app "$1"
hpcc pull "$1" pulled
cd work && hpcc submit --to local --wait --name j base -- /bin/seq 3
mkdir -p "$HPCC_STORE/cache/conda"
seq 100 >pkg && mv pkg "$HPCC_STORE/cache/conda/$(sha256sum <pkg | cut -d' ' -f1)-p-1-0.conda"`
	cmd := exec.Command("sh", "-ec", script, busy, d.ref)
	cmd.Dir, cmd.Env = d.top, d.env(filepath.Join(d.top, "store"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	jobs, err := filepath.Glob(filepath.Join(d.top, "store/jobs/j-*"))
	if err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	d.job = filepath.Base(jobs[0])
	r, err := name.ParseReference(d.ref, name.Insecure)
	testenv.Check(t, err)
	img, err := remote.Image(r)
	testenv.Check(t, err)
	if d.app, err = img.Digest(); err != nil {
		t.Fatal(err)
	}
	if d.config, err = img.ConfigName(); err != nil {
		t.Fatal(err)
	}
	return d
}

func newRegistry(t *testing.T) (host string) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func (d *damagedStore) env(store string) []string {
	return append(os.Environ(), "HPCC_STORE="+store, "PATH="+bin+":"+os.Getenv("PATH"), "HPCC_STAGE=")
}

// files are one file of each kind, relative to the store.
func (d *damagedStore) files(t *testing.T) map[string]string {
	t.Helper()
	store := filepath.Join(d.top, "store")
	one := func(pattern string) string {
		found, err := filepath.Glob(filepath.Join(store, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("the store has no %s", pattern)
		}
		rel, err := filepath.Rel(store, found[0])
		testenv.Check(t, err)
		return rel
	}
	b, err := os.ReadFile(filepath.Join(store, "blobs/sha256", d.app.Hex))
	testenv.Check(t, err)
	m, err := v1.ParseManifest(bytes.NewReader(b))
	testenv.Check(t, err)
	blob := func(h v1.Hash) string { return "blobs/sha256/" + h.Hex }
	return map[string]string{
		"version": "version", "README": "README",
		"manifest": blob(d.app), "configuration": blob(m.Config.Digest),
		"layer of the base": blob(m.Layers[0].Digest), "layer of COPY": blob(m.Layers[1].Digest), "layer of RUN": blob(m.Layers[2].Digest),
		"name": "refs/app", "push note": "pushed/app",
		"file of a tree": "trees/" + d.app.Hex + "/ctx/data", "configuration of a tree": "trees/" + d.app.Hex + "/.hpcc/image.json",
		"cached step": one("cache/build/*"), "record of the context": one("cache/context/*"), "package": one("cache/conda/*"),
		"job": "jobs/" + d.job + "/job.json", "script": "jobs/" + d.job + "/script", "record of a task": "jobs/" + d.job + "/task.0.json",
	}
}

// copy makes a copy of the store in which one file is damaged.
func (d *damagedStore) copy(t *testing.T, file string, damage func([]byte) []byte) (store string) {
	t.Helper()
	store = filepath.Join(t.TempDir(), "store")
	// Hard links suffice, because hpcc changes no file of a store in place.
	if out, err := exec.Command("cp", "-al", filepath.Join(d.top, "store"), store).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("chmod", "-R", "u+rwX", store).Run() })
	if file == "" {
		return store
	}
	p := filepath.Join(store, file)
	b, err := os.ReadFile(p)
	testenv.Check(t, err)
	testenv.Check(t, errors.Join(os.Remove(p), os.WriteFile(p, damage(bytes.Clone(b)), 0o644)))
	return store
}

// hpcc runs a command and fails the test if it crashes.
func (d *damagedStore) hpcc(t *testing.T, store string, args ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "hpcc"), args...)
	cmd.Dir, cmd.Env = filepath.Join(d.top, "work"), d.env(store)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	out, status = string(b), cmd.ProcessState.ExitCode()
	if strings.Contains(out, "goroutine ") || strings.Contains(out, "panic:") || status < 0 {
		t.Errorf("hpcc %q crashed with status %d: %s", args, status, out)
	}
	return out, status
}

// cure matches the advice that a message about a failure must contain.
var cure = regexp.MustCompile(`hint: |echo 1 >|restore job.json|remove the file|hpcc rerun`)

// A damageCheck is a command that reads the store. check verifies the result of a successful
// command. flat removes the trees first.
type damageCheck struct {
	args  string
	flat  bool
	check func(t *testing.T, d *damagedStore, dir, registry string)
}

// imageChecks read images, and jobChecks read jobs. The first ones run for every kind of damage.
// The others use the same functions to read, so they run for one flipped bit only.
var (
	imageChecks = []damageCheck{
		{args: "run app -- /bin/true", flat: true}, {args: "save app DIR/app.tar", check: sameLayoutTar}, {args: "push app REGISTRY/app:1", check: samePushed},
		{args: "build -t app ../context", flat: true}, {args: "pull REF pulled"}, {args: "images"},

		{args: "run app -- /bin/true"}, {args: "unpack app DIR/tree", check: sameTree}, {args: "unpack --bundle app DIR/bundle"},
		{args: "save app DIR/layout/", check: sameLayout}, {args: "save app DIR/app.docker.tar", check: sameDocker}, {args: "save app DIR/app.sqfs", check: sameSquashFS},
		{args: "build -t app ../context"}, {args: "build -t second -f ../second ../context", flat: true}, {args: "build --cache-to REGISTRY/cache -t new ../context"},
		{args: "build --output type=tar,dest=DIR/files.tar -t new ../context"},
		{args: "inspect app"}, {args: "check app"}, {args: "gc"}, {args: "load ../root.tar base"}, {args: "rm app"},
	}
	jobChecks = []damageCheck{
		{args: "status"}, {args: "logs JOB"}, {args: "wait JOB"}, {args: "rerun --wait JOB"},

		{args: "report JOB"}, {args: "cancel JOB"}, {args: "gc"}, {args: "images"},
	}
)

// imageFront and jobFront are the numbers of checks that run for every kind of damage.
const imageFront, jobFront = 6, 4

// TestDamagedStore damages one file of each kind. Every command must repair it, name the cure or
// work without it. Output must be correct or absent, and "gc --verify" must report the file.
func TestDamagedStore(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	needs(t, "busybox", "userns")
	d := newDamagedStore(t)
	if out, status := d.hpcc(t, filepath.Join(d.top, "store"), "gc", "--verify"); status != 0 || !strings.Contains(out, ": 0 damaged") {
		t.Fatalf("a store without damage: status %d: %s", status, out)
	}
	for kind, file := range d.files(t) {
		for how, damage := range damages {
			t.Run(kind+" "+how, func(t *testing.T) {
				t.Parallel()
				d.verified(t, kind, file, damage)
				checks, front := imageChecks, imageFront
				if strings.HasPrefix(file, "jobs/") {
					checks, front = jobChecks, jobFront
				}
				if how != "one bit" {
					checks = checks[:front]
				}
				for _, c := range checks {
					d.run(t, c, file, damage)
				}
			})
		}
	}
}

// run runs one command on a copy with one damaged file.
func (d *damagedStore) run(t *testing.T, c damageCheck, file string, damage func([]byte) []byte) {
	t.Helper()
	store, dir, host := d.copy(t, file, damage), t.TempDir(), newRegistry(t)
	if c.flat {
		if strings.HasPrefix(file, "trees/") {
			return
		}
		if out, err := exec.Command("sh", "-c", `chmod -R u+rwX "$0"/trees && rm -rf "$0"/trees/*`, store).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	args := strings.Fields(strings.NewReplacer("DIR", dir, "REGISTRY", host, "JOB", d.job, "REF", d.ref).Replace(c.args))
	out, status := d.hpcc(t, store, args...)
	entries, err := os.ReadDir(dir)
	testenv.Check(t, err)
	switch {
	case status != 0 && !cure.MatchString(out):
		t.Errorf("hpcc %s: status %d without a cure: %s", c.args, status, out)
	case status != 0 && strings.HasPrefix(c.args, "save") && !strings.HasSuffix(c.args, "/") && len(entries) > 0:
		t.Errorf("hpcc %s failed and left %v: %s", c.args, entries, out)
	case status == 0 && c.check != nil:
		c.check(t, d, dir, host)
	}
}

// byHand are the kinds of files that no command creates again.
var byHand = map[string]bool{"version": true, "push note": true, "job": true, "script": true, "record of a task": true}

// verified checks "gc --verify": it finds the file, and moves nothing with --dry-run. After it and
// the commands that create the images, the store is complete again.
func (d *damagedStore) verified(t *testing.T, kind, file string, damage func([]byte) []byte) {
	t.Helper()
	store := d.copy(t, file, damage)
	named := file
	if kind == "file of a tree" || kind == "configuration of a tree" {
		named = "trees/" + d.app.Hex
	}
	for _, args := range [][]string{{"gc", "--verify", "--dry-run"}, {"gc", "--verify"}} {
		out, status := d.hpcc(t, store, args...)
		if status != 1 || !strings.Contains(out, named) || (kind != "version" && !strings.Contains(out, ": 1 damaged") && !strings.Contains(out, ": 2 damaged")) {
			t.Errorf("hpcc %s: status %d: %s; want %s", strings.Join(args, " "), status, out, named)
		}
	}
	if byHand[kind] {
		return
	}
	for _, args := range []string{"load ../root.tar base", "build -t app ../context", "build -t second -f ../second ../context", "pull REF pulled", "run app -- /bin/true", "gc --verify"} {
		if out, status := d.hpcc(t, store, strings.Fields(strings.Replace(args, "REF", d.ref, 1))...); status != 0 {
			t.Errorf("healing with hpcc %s: status %d: %s", args, status, out)
		}
	}
}

// sameImage verifies an image with code that hpcc does not use.
func sameImage(t *testing.T, d *damagedStore, what string, img v1.Image, err error) {
	t.Helper()
	if err == nil {
		err = validate.Image(img)
	}
	var c v1.Hash
	if err == nil {
		c, err = img.ConfigName()
	}
	if err == nil && c != d.config {
		err = fmt.Errorf("its configuration is %s", c)
	}
	if err != nil {
		t.Errorf("%s is damaged: %v", what, err)
	}
}

func sameLayout(t *testing.T, d *damagedStore, dir, _ string) {
	t.Helper()
	layoutAt(t, d, filepath.Join(dir, "layout"))
}

func layoutAt(t *testing.T, d *damagedStore, dir string) {
	t.Helper()
	path, err := ggcrlayout.FromPath(dir)
	var img v1.Image
	if err == nil {
		img, err = path.Image(d.app)
	}
	sameImage(t, d, "the layout", img, err)
}

func sameLayoutTar(t *testing.T, d *damagedStore, dir, _ string) {
	t.Helper()
	if out, err := exec.Command("tar", "xf", filepath.Join(dir, "app.tar"), "-C", dir).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	layoutAt(t, d, dir)
}

func sameDocker(t *testing.T, d *damagedStore, dir, _ string) {
	t.Helper()
	img, err := tarball.ImageFromPath(filepath.Join(dir, "app.docker.tar"), nil)
	sameImage(t, d, "the docker archive", img, err)
}

func samePushed(t *testing.T, d *damagedStore, _, registry string) {
	t.Helper()
	r, err := name.ParseReference(registry+"/app:1", name.Insecure)
	var img v1.Image
	if err == nil {
		img, err = remote.Image(r)
	}
	sameImage(t, d, "what was pushed", img, err)
}

func sameSquashFS(t *testing.T, d *damagedStore, dir, _ string) {
	t.Helper()
	if out, status := d.hpcc(t, filepath.Join(d.top, "store"), "unpack", filepath.Join(dir, "app.sqfs"), filepath.Join(dir, "tree")); status != 0 {
		t.Errorf("unpacking the SquashFS file: status %d: %s", status, out)
	}
	sameTree(t, d, dir, "")
}

func sameTree(t *testing.T, d *damagedStore, dir, _ string) {
	t.Helper()
	if out, err := exec.Command("diff", "-r", "--no-dereference", filepath.Join(d.top, "store/trees", d.app.Hex), filepath.Join(dir, "tree")).CombinedOutput(); err != nil {
		t.Errorf("the tree differs: %v: %s", err, out)
	}
}
