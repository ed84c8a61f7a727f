package build

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/rogpeppe/go-internal/txtar"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
	"hpcc/unpack"
)

// testdata/corpora/dockerfile/README.md describes the format of the table of Dockerfiles.

var (
	update   = flag.Bool("update", false, "rewrite the expectations in the table and in docs/dockerfile.md")
	caseFlag = flag.String("case", "", "run only the table cases whose TOPIC/NAME matches this regular expression")
)

const tableDir = "../testdata/corpora/dockerfile"

// specialFiles are the files of a case that do not belong to its build context.
var specialFiles = []string{"flags", "setup", "base", "want", "error", "absent", "differs"}

// A topic is one file of the table.
type topic struct {
	name, title string
	archive     *txtar.Archive
	cases       []*tableCase
}

// A tableCase is one Dockerfile with its expected image or error.
type tableCase struct {
	topic   *topic
	name    string
	special map[string]string // contents of specialFiles, by name
	files   []txtar.File      // the build context
}

func (c *tableCase) id() string { return c.topic.name + "/" + c.name }

// set changes one of specialFiles, in place or at the end of the case. The text "" removes the
// file.
func (c *tableCase) set(file, text string) {
	c.special[file] = text
	fs := c.topic.archive.Files
	full := c.name + "/" + file
	at := slices.IndexFunc(fs, func(f txtar.File) bool { return f.Name == full })
	switch {
	case at >= 0 && text == "":
		fs = slices.Delete(fs, at, at+1)
	case at >= 0:
		fs[at].Data = []byte(text)
	case text != "":
		for i, f := range fs {
			if strings.HasPrefix(f.Name, c.name+"/") {
				at = i
			}
		}
		fs = slices.Insert(fs, at+1, txtar.File{Name: full, Data: []byte(text)})
	}
	c.topic.archive.Files = fs
}

// readTable reads all topics of the table.
func readTable(t testing.TB) []*topic {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(tableDir, "*.txtar"))
	if err != nil || len(names) == 0 {
		t.Fatalf("finding the files of the table: %v, %v", names, err)
	}
	var out []*topic
	for _, name := range names {
		a, err := txtar.ParseFile(name)
		testenv.Check(t, err)
		title, _, _ := strings.Cut(string(a.Comment), "\n")
		tp := &topic{name: strings.TrimSuffix(filepath.Base(name), ".txtar"), title: title, archive: a}
		byName := map[string]*tableCase{}
		for _, f := range a.Files {
			name, rest, ok := strings.Cut(f.Name, "/")
			if !ok {
				t.Fatalf("%s: file %q belongs to no case: write CASE/FILE", tp.name, f.Name)
			}
			c := byName[name]
			if c == nil {
				c = &tableCase{topic: tp, name: name, special: map[string]string{}}
				byName[name] = c
				tp.cases = append(tp.cases, c)
			}
			if slices.Contains(specialFiles, rest) {
				c.special[rest] = string(f.Data)
			} else {
				c.files = append(c.files, txtar.File{Name: rest, Data: f.Data})
			}
		}
		out = append(out, tp)
	}
	return out
}

// chosen returns the cases that -case selects.
func chosen(t testing.TB, table []*topic) []*tableCase {
	t.Helper()
	re, err := regexp.Compile(*caseFlag)
	testenv.Check(t, err)
	var out []*tableCase
	for _, tp := range table {
		for _, c := range tp.cases {
			if re.MatchString(c.id()) {
				out = append(out, c)
			}
		}
	}
	return out
}

// contextTime is the time of the files of a build context, unless setup sets another one.
var contextTime = time.Date(2020, 2, 2, 0, 0, 0, 0, time.UTC)

// context writes the build context of the case below dir, and runs the script setup in it.
func (c *tableCase) context(t testing.TB, dir string) string {
	t.Helper()
	started := time.Now().Add(-time.Second)
	ctx := filepath.Join(dir, "context")
	for _, f := range append(slices.Clone(c.files), txtar.File{Name: "."}) {
		p := filepath.Join(ctx, f.Name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		switch {
		case err != nil || f.Name == ".":
		case strings.HasSuffix(f.Name, "/"):
			err = os.MkdirAll(p, 0o755)
		default:
			err = os.WriteFile(p, f.Data, 0o644)
		}
		testenv.Check(t, err)
	}
	if c.special["setup"] != "" {
		cmd := exec.Command("sh", "-eu")
		cmd.Dir, cmd.Stdin = ctx, strings.NewReader("umask 022\n"+c.special["setup"])
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("setup: %v\n%s", err, out)
		}
	}
	testenv.Check(t, filepath.WalkDir(ctx, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if fi, err := d.Info(); err != nil || fi.ModTime().Before(started) {
			return err
		}
		return unpack.SetTime(p, contextTime)
	}))
	return ctx
}

// flags returns the command-line flags of the case, which its file flags lists one per line.
// $CTX is the directory ctx of the build context. If the Dockerfile uses $SERVED, the build
// argument SERVED is the URL of the case's files.
func (c *tableCase) flags(ctx, served string) []string {
	var out []string
	if strings.Contains(c.dockerfile(), "$SERVED") {
		out = append(out, "--build-arg", "SERVED="+served+"/"+c.id())
	}
	for _, line := range strings.Split(strings.TrimSpace(c.special["flags"]), "\n") {
		if flag, value, ok := strings.Cut(line, " "); ok {
			out = append(out, flag, strings.ReplaceAll(value, "$CTX", ctx))
		}
	}
	return out
}

func (c *tableCase) dockerfile() string {
	for _, f := range c.files {
		if f.Name == "Dockerfile" {
			return string(f.Data)
		}
	}
	return ""
}

// options converts flags of "hpcc build" to Options. It also creates the sockets of --ssh.
func (c *tableCase) options(t testing.TB, ctx string, flags []string) Options {
	t.Helper()
	o := Options{Context: ctx, Dockerfile: filepath.Join(ctx, "Dockerfile"),
		Args: map[string]string{}, Contexts: map[string]string{}, Labels: map[string]string{},
		Host: Host{Secrets: map[string]Secret{}, SSH: map[string]string{}}}
	pair := func(m map[string]string, v string) {
		k, v, _ := strings.Cut(v, "=")
		m[k] = v
	}
	for i := 0; i+1 < len(flags); i += 2 {
		var err error
		switch v := flags[i+1]; flags[i] {
		case "--build-arg":
			pair(o.Args, v)
		case "--build-context":
			pair(o.Contexts, v)
		case "--label":
			pair(o.Labels, v)
		case "--ssh":
			pair(o.SSH, v)
			_, socket, _ := strings.Cut(v, "=")
			var l net.Listener
			if l, err = net.Listen("unix", socket); err == nil {
				t.Cleanup(func() { l.Close() })
			}
		case "--target":
			o.Target = v
		case "-f":
			o.Dockerfile = v
		case "--platform":
			o.Platform, err = v1.ParsePlatform(v)
		case "--secret":
			var id string
			var s Secret
			id, s, err = ParseSecret(v)
			o.Secrets[id] = s
		default:
			err = fmt.Errorf("flag %s is not supported by the table", flags[i])
		}
		testenv.Check(t, err)
	}
	return o
}

// serveCases starts a server that answers GET /TOPIC/CASE/FILE with the file of the case. It
// returns the URL of the server.
func serveCases(t testing.TB, table []*topic) string {
	t.Helper()
	files := map[string][]byte{}
	for _, tp := range table {
		for _, c := range tp.cases {
			for _, f := range c.files {
				files["/"+c.id()+"/"+f.Name] = f.Data
			}
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestTable builds every Dockerfile in the table, and compares the image or the error with
// the expected one.
func TestTable(t *testing.T) {
	table := readTable(t)
	if os.Getenv(insideMark) == "" {
		cases, names := 0, map[string]bool{}
		for _, c := range chosen(t, table) {
			cases++
			if names[c.id()] {
				t.Errorf("%s: two cases have this name", c.id())
			}
			names[c.id()] = true
		}
		t.Logf("%d cases", cases)
		t.Log(runInside(t, cloneForBuild, "-case="+*caseFlag, fmt.Sprintf("-update=%v", *update)))
		return
	}
	served, shared := serveCases(t, table), newStore(t)
	t.Run("cases", func(t *testing.T) {
		for _, c := range chosen(t, table) {
			t.Run(c.id(), func(t *testing.T) {
				t.Parallel()
				c.check(t, served, shared)
			})
		}
	})
	if *update {
		writeTable(t, table)
	}
}

// writeTable writes the topics to their files.
func writeTable(t testing.TB, table []*topic) {
	t.Helper()
	for _, tp := range table {
		testenv.Check(t, os.WriteFile(filepath.Join(tableDir, tp.name+".txtar"), txtar.Format(tp.archive), 0o644))
	}
}

// check builds one case. Cases that fail, or that have a base, use a separate store. The others
// share a store and its cache, because the image must be the same whether a step runs or is
// cached.
func (c *tableCase) check(t *testing.T, served string, s *store.Store) {
	dir := t.TempDir()
	separate := c.special["error"] != "" || c.special["want"] == "" || c.special["base"] != ""
	if separate {
		s = newStore(t)
	}
	bases := c.bases(t, s)
	ctx := c.context(t, dir)
	before := ""
	if separate {
		before = listing(t, s)
	}
	img, err := Dockerfile(context.Background(), s, c.options(t, ctx, c.flags(ctx, served)))
	got := &outcome{}
	if err != nil {
		got.err = strings.ReplaceAll(err.Error(), ctx+"/", "") + "\n"
		got.err = strings.ReplaceAll(got.err, served, "SERVED")
		got.err = regexp.MustCompile(`layer sha256:[0-9a-f]+`).ReplaceAllString(got.err, "layer")
		if c.checkLocation(t, err); separate {
			c.checkFailed(t, s, before)
		}
	} else {
		if err := validate.Image(img, validate.Fast); err != nil { // flatten reads the layers
			t.Errorf("invalid image: %v", err)
		}
		got.image = describe(t, img, bases)
		c.checkAbsent(t, img)
	}
	if *update {
		c.set("want", got.image)
		c.set("error", got.err)
		return
	}
	if d := lineDiff(c.special["error"], got.err); d != "" {
		t.Errorf("the error differs (-want +got):\n%s", d)
	}
	if d := lineDiff(c.special["want"], got.image); d != "" {
		t.Errorf("the image differs (-want +got):\n%s", d)
	}
}

// An outcome is the result of a build: the description of the image, or the error.
type outcome struct{ image, err string }

// bases adds the base images of the case to the store, and returns them by name.
func (c *tableCase) bases(t testing.TB, s *store.Store) map[string]v1.Image {
	t.Helper()
	bases := map[string]v1.Image{"busybox": busybox(t)}
	if !strings.Contains(c.dockerfile()+c.special["base"]+c.special["flags"], "busy") {
		return bases
	}
	_, err := s.Put(context.Background(), "busybox", bases["busybox"])
	testenv.Check(t, err)
	if text := c.special["base"]; text != "" {
		bases["base"], _ = mustBuild(t, s, text, Options{})
		_, err := s.Put(context.Background(), "base", bases["base"])
		testenv.Check(t, err)
	}
	return bases
}

// listing lists the files of a store, except the trees of base images and the digests of contexts, which
// a store keeps only for files that are older than a moment.
func listing(t testing.TB, s *store.Store) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(s.Dir(), func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "trees" || p == filepath.Join(s.Dir(), "cache/context")) {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() {
			out = append(out, p)
		}
		return err
	})
	testenv.Check(t, err)
	return strings.Join(out, "\n")
}

// checkLocation checks that an error is a LineError, or at least names the Dockerfile or
// .dockerignore.
func (c *tableCase) checkLocation(t testing.TB, err error) {
	t.Helper()
	var le *LineError
	if !errors.As(err, &le) && !strings.Contains(err.Error(), "Dockerfile") && !strings.Contains(err.Error(), ".dockerignore") {
		t.Errorf("the error %q names neither the Dockerfile nor .dockerignore", err)
	}
}

// checkFailed checks that a failed build leaves only the cached steps before the failed one.
func (c *tableCase) checkFailed(t testing.TB, s *store.Store, before string) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(left) > 0 {
		t.Errorf("the failed build leaves temporary files %v (%v)", left, err)
	}
	steps := regexp.MustCompile(`(?im)^\s*(RUN|COPY|ADD|WORKDIR)\b`).FindAllStringIndex(c.dockerfile(), -1)
	if len(steps) > 1 {
		return
	}
	if after := listing(t, s); after != before {
		t.Errorf("the failed build changes the store:\n%s", lineDiff(before, after))
	}
}

// lineDiff returns the lines that are in only one of two texts, or "" if the texts are equal.
func lineDiff(want, got string) string {
	if want == got {
		return ""
	}
	a, b := strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n")
	var out bytes.Buffer
	note := func(sign, line string) {
		if line != "" {
			fmt.Fprintf(&out, "%s %s\n", sign, strings.TrimSuffix(line, "\n"))
		}
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(a) > 0 && len(b) > 0 && a[0] == b[0]:
			a, b = a[1:], b[1:]
		case len(a) > 0 && (len(b) == 0 || !slices.Contains(b, a[0])):
			note("-", a[0])
			a = a[1:]
		case len(b) > 0 && (len(a) == 0 || !slices.Contains(a, b[0])):
			note("+", b[0])
			b = b[1:]
		default: // the same lines in another order
			note("-", a[0])
			note("+", b[0])
			a, b = a[1:], b[1:]
		}
	}
	return out.String()
}
