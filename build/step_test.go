package build

import (
	"archive/tar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/testdata/helpers/testenv"
	"hpcc/unpack"
)

func TestDigestOf(t *testing.T) {
	seen := map[string]int{}
	for i, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"a", "b", ""}} {
		d := digestOf(parts...)
		if j, ok := seen[d]; ok {
			t.Errorf("lists %d and %d have the same key", i, j)
		}
		if again := digestOf(parts...); again != d {
			t.Errorf("digestOf(%q) = %s, then %s", parts, d, again)
		}
		seen[d] = i
	}
}

// TestCacheKeys checks which changes make a step run again.
func TestCacheKeys(t *testing.T) {
	if !inside(t) {
		return
	}
	const text = "FROM scratch AS one\nARG A\nCOPY d /x/\nWORKDIR /w\nCOPY <<EOF /doc\n${A}\nEOF\nADD a.tar /t/\nFROM scratch\nCOPY --from=one /x /y\n"
	const all = "COPY d WORKDIR COPY <<EOF ADD COPY --from=one"
	tarball := archiveOf(t, "f in tar")
	for _, c := range []struct {
		name   string
		text   string
		change func(p func(string) string) error
		o      Options
		want   string // instructions of the steps that run again
		same   bool   // the image is the same
	}{
		{"nothing", text, nil, Options{}, "", true},
		{"touched", text, func(p func(string) string) error { return os.Chtimes(p("d/a"), time.Now(), time.Now()) }, Options{}, "", true},
		{"written again", text, func(p func(string) string) error { return os.WriteFile(p("d/a"), []byte("1"), 0o644) }, Options{}, "", true},
		{"another file", text, func(p func(string) string) error { return os.WriteFile(p("z"), []byte("1"), 0o644) }, Options{}, "", true},
		{"an ignored file", text, func(p func(string) string) error { return os.WriteFile(p("d/z.log"), []byte("1"), 0o644) }, Options{}, "", true},
		{"a byte", text, func(p func(string) string) error { return os.WriteFile(p("d/a"), []byte("2"), 0o644) }, Options{}, all, false},
		{"a mode", text, func(p func(string) string) error { return os.Chmod(p("d/a"), 0o755) }, Options{}, all, false},
		{"a name", text, func(p func(string) string) error { return os.Rename(p("d/a"), p("d/b")) }, Options{}, all, false},
		{"the archive", text, func(p func(string) string) error {
			return os.WriteFile(p("a.tar"), archiveOf(t, "f in other"), 0o644)
		}, Options{}, "ADD", true}, // the last stage does not contain it
		{"not unpacked", strings.Replace(text, "ADD a", "ADD --unpack=false a", 1), nil, Options{}, "ADD", true},
		{"an argument", text, nil, Options{Args: map[string]string{"A": "1"}}, "COPY <<EOF ADD", true},
		{"a label", strings.Replace(text, "ARG", "LABEL a=b\nARG", 1), nil, Options{}, "", true},
		{"a comment and spaces", strings.Replace(text, "COPY d", "# why\n  COPY   d", 1), nil, Options{}, "", true},
		{"another destination", strings.Replace(text, "/x/\n", "/x/x\n", 1), nil, Options{}, all, false},
		{"a mode of the copy", strings.Replace(text, "COPY d", "COPY --chmod=700 d", 1), nil, Options{}, all, false},
		{"the last step's mode", strings.Replace(text, "COPY --from=one", "COPY --from=one --chmod=700", 1), nil, Options{}, "COPY --from=one", false},
		{"the last step's exclusion", strings.Replace(text, "COPY --from=one", "COPY --from=one --exclude=a", 1), nil, Options{}, "COPY --from=one", false},
		{"no cache", text, nil, Options{Reproducible: true, Host: Host{NoCache: true}}, all, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			dir := testenv.Files(t, "d/a", "1", "d/s/b", "2", "a.tar", string(tarball), ".dockerignore", "**/*.log\n")
			c.o.Context = dir
			first, executed := mustBuild(t, s, text, Options{Context: dir, Reproducible: c.o.Reproducible})
			if got := heads(executed); got != all {
				t.Fatalf("the first build runs %q; want %q", got, all)
			}
			if c.change != nil {
				testenv.Check(t, c.change(func(n string) string { return filepath.Join(dir, n) }))
			}
			second, executed := mustBuild(t, s, c.text, c.o)
			if got := heads(executed); got != c.want {
				t.Errorf("the steps %q run again; want %q", got, c.want)
			}
			if got := digest(t, first) == digest(t, second); got != c.same {
				t.Errorf("the image is the same: %v; want %v\n%s\n--\n%s", got, c.same, content(t, first), content(t, second))
			}
		})
	}
}

// heads returns a short name for each step: its instruction and a distinguishing argument.
func heads(steps []string) string {
	var out []string
	for _, s := range steps {
		f := strings.Fields(s)
		head := f[0]
		for _, w := range f[1:] {
			if strings.HasPrefix(w, "--from") || w == "d" || strings.HasPrefix(w, "<<") {
				head += " " + w
			}
		}
		out = append(out, head)
	}
	return strings.Join(out, " ")
}

// TestBrokenCache checks that unreadable records and missing layers are cache misses.
func TestBrokenCache(t *testing.T) {
	if !inside(t) {
		return
	}
	const text = "FROM scratch\nCOPY a /\nWORKDIR /w\n"
	for _, c := range []struct {
		name string
		harm string // what is overwritten, below the store
		with string
		want int // number of steps that run again
	}{
		{"empty records", "cache/build/*", "", 2},
		{"records of another kind", "cache/build/*", "[1]", 2},
		{"records of a foreign layer", "cache/build/*", `{"layer":{"digest":"sha256:` + strings.Repeat("0", 64) + `"}}`, 2},
		{"records with a bad digest", "cache/build/*", `{"layer":{"digest":"../../x"}}`, 2},
		{"layers gone", "blobs/sha256/*", "-", 2},
		{"records gone", "cache/build/*", "-", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := newStore(t), testenv.Files(t, "a", "1")
			first, _ := mustBuild(t, s, text, Options{Context: dir, Reproducible: true})
			harmed, err := filepath.Glob(filepath.Join(s.Dir(), c.harm))
			if err != nil || len(harmed) != 2 {
				t.Fatalf("%s is %v, %v; want 2", c.harm, harmed, err)
			}
			for _, p := range harmed {
				testenv.Check(t, os.Remove(p))
				if c.with != "-" {
					testenv.Check(t, s.Cache("build", filepath.Base(p), []byte(c.with)))
				}
			}
			again, executed := mustBuild(t, s, text, Options{Context: dir, Reproducible: true})
			if len(executed) != c.want || digest(t, first) != digest(t, again) {
				t.Errorf("the steps %q run again, the image is the same: %v; want %d steps and the same image", executed, digest(t, first) == digest(t, again), c.want)
			}
		})
	}
}

// TestOverlayAndCopies checks that steps work on copies where the kernel denies overlays,
// with the same image.
func TestOverlayAndCopies(t *testing.T) {
	if os.Getenv(insideMark) == "" {
		var digests []string
		for _, ns := range []uintptr{syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, syscall.CLONE_NEWUSER} {
			for line := range strings.Lines(runInside(t, ns)) {
				if d, ok := strings.CutPrefix(strings.TrimSpace(line), "digest "); ok {
					digests = append(digests, d)
				}
			}
		}
		if len(digests) != 2 || digests[0] != digests[1] {
			t.Errorf("the images have the digests %q; want two equal ones", digests)
		}
		return
	}
	text := "FROM scratch AS one\nCOPY d /x/\nCOPY d/s /x/a/\nCOPY --chmod=700 d/c /x/s/b\nCOPY d/c /x/run\nWORKDIR /x/deep/er\nADD a.tar /\n" +
		"COPY --link d /linked/\nCOPY --chown=5 --chmod=750 d /x/new/\nCOPY --parents d/s /x/\n" +
		"FROM scratch\nCOPY --from=one / /\nADD a.tar /x/\n"
	dir := testenv.Files(t, "d/s/b", "2", "d/c", "3", "d/a/", "", "a.tar", string(archiveOf(t, "d1777 tmp", "d sub", "f sub/f text", "l link sub/f")))
	if busy, err := testenv.Busybox(); err == nil {
		b, err := os.ReadFile(busy)
		testenv.Check(t, err)
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "busybox"), b, 0o755))
		text += `COPY busybox /bin/
RUN ["/bin/busybox", "sh", "-c", "cd /x && busybox rm -r s c && busybox mkdir s && echo new >s/n && busybox ln s/n hard && busybox ln s/n second && busybox ln -s hard other && busybox ln -s s/n soft && busybox chmod 600 a/b && busybox chmod 4755 run && busybox chown 7:7 a && busybox mv sub moved"]
RUN ["/bin/busybox", "sh", "-c", "busybox rm -r /x/s; echo again >/x/s; echo linked >>/x/hard; echo linked >>/x/other"]
`
	}
	img, _ := mustBuild(t, newStore(t), text, Options{Context: dir, Reproducible: true})
	t.Logf("\n%s", content(t, img))
	os.Stdout.WriteString("\ndigest " + digest(t, img) + "\n")
}

// TestBuildsAtOnce checks that concurrent builds give the same image.
func TestBuildsAtOnce(t *testing.T) {
	if !inside(t) {
		return
	}
	s, dir := newStore(t), testenv.Files(t, "a", "1")
	digests := make(chan string)
	for range 4 {
		go func() {
			img, _, err := buildText(t, s, "FROM scratch\nCOPY a /\nWORKDIR /w\n", Options{Context: dir, Reproducible: true})
			if err != nil {
				digests <- err.Error()
				return
			}
			digests <- digest(t, img)
		}()
	}
	var all []string
	for range 4 {
		all = append(all, <-digests)
	}
	if slices.Sort(all); all[0] != all[3] || !strings.HasPrefix(all[0], "sha256:") {
		t.Errorf("four builds give %q; want one digest", all)
	}
}

// TestTimes checks the times of files and of the image, with and without a date.
func TestTimes(t *testing.T) {
	if !inside(t) {
		return
	}
	const text = "FROM scratch AS one\nCOPY d /x\nCOPY d/a /deep/in/a\nWORKDIR /w\nCOPY <<EOF /doc\nEOF\nADD old.tar new.tar /ar/\nFROM scratch\nCOPY --from=one / /\nCOPY d/a /deep/\n"
	const second, quarter, archived, january2 = int64(1e9), int64(250e6), int64(1.1e9), int64(315619200)
	const own, now = "own", "now"
	kinds := map[string]string{"x": now, "x/a": own, "x/e": own, "x/e/f": own, "x/link": own, "deep": now, "deep/in": now, "deep/in/a": own, "deep/a": own,
		"w": now, "doc": now, "ar": now, "ar/old": "archived", "ar/new": "2033"}
	for _, c := range []struct {
		epoch                              string
		reproducible                       bool
		created, own, now, archived, y2033 int64 // 0: the time of the build
	}{
		{"", false, 0, second, 0, archived, 2e9},
		{"", true, january2, january2, january2, january2, january2},
		{"0", false, 0, january2, january2, january2, january2},
		{"1700000000", false, 17e8, 17e8, 17e8, archived, 17e8},
		{"4000000000", false, 4e9, 4e9, 4e9, archived, 2e9},
	} {
		t.Setenv("SOURCE_DATE_EPOCH", c.epoch)
		started := time.Now().Unix()
		dir := testenv.Files(t, "d/a", "1", "d/e/f", "2")
		testenv.Check(t, os.Symlink("a", filepath.Join(dir, "d/link")))
		for _, p := range []string{"d/a", "d/link", "d/e/f", "d/e"} {
			testenv.Check(t, unpack.SetTime(filepath.Join(dir, p), time.Unix(second, quarter)))
		}
		for name, when := range map[string]int64{"old": archived, "new": 2e9} {
			testenv.Check(t, os.WriteFile(filepath.Join(dir, name+".tar"), testenv.Tar(t, time.Unix(when, 0), "f "+name), 0o644))
		}
		img, _ := mustBuild(t, newStore(t), text, Options{Context: dir, Reproducible: c.reproducible})
		check := func(name string, got time.Time, want int64) {
			if ok := got.Unix() == want || (want == 0 && got.Unix() >= started && got.Unix() <= time.Now().Unix()); !ok {
				t.Errorf("epoch %q, reproducible %v: %s has the time %v; want %v (1970: now)", c.epoch, c.reproducible, name, got, time.Unix(want, 0).UTC())
			}
		}
		seen := 0
		r := mutate.Extract(img)
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			name := strings.TrimSuffix(h.Name, "/")
			seen++
			check(name, h.ModTime, map[string]int64{own: c.own, now: c.now, "archived": c.archived, "2033": c.y2033}[kinds[name]])
		}
		r.Close()
		if seen != len(kinds) {
			t.Errorf("the image has %d files; want %d\n%s", seen, len(kinds), content(t, img))
		}
		cfg, err := img.ConfigFile()
		testenv.Check(t, err)
		if c.epoch == "0" { // the image has the date that the user chose, but files have none before 1980
			if cfg.Created.Unix() != 0 {
				t.Errorf("the image is of %v; want 1970", cfg.Created)
			}
			continue
		}
		check("the image", cfg.Created.Time, c.created)
		check("the last step", cfg.History[len(cfg.History)-1].Created.Time, c.created)
	}
}

// A step that runs again gives a later date, also within a second; a cached one keeps its date.
func TestCreated(t *testing.T) {
	s := newStore(t)
	built := func(o Options) (time.Time, string) {
		o.Context = testenv.Files(t, "a", "1")
		img, _ := mustBuild(t, s, "FROM scratch\nCOPY a /\n", o)
		cfg, err := img.ConfigFile()
		testenv.Check(t, err)
		return cfg.Created.Time, digest(t, img)
	}
	first, _ := built(Options{})
	second, want := built(Options{Host: Host{NoCache: true}})
	if !second.After(first) {
		t.Errorf("the second image is of %v, the first of %v; want a later date", second, first)
	}
	if _, got := built(Options{}); got != want {
		t.Errorf("the cached step gives %s; want %s", got, want)
	}
}

func TestAsksForOwners(t *testing.T) {
	for text, want := range map[string]bool{
		"ls -l /":                                 true,
		"set -e;tar cf - x|/usr/bin/tar tv":       true,
		"[ $(stat -c %u /f) = 0 ]":                true,
		"make && make install":                    false,
		"lsof; false":                             false,
		"apt-get install -y x && cp -p a b":       false,
		"/usr/bin/apt-get update; chown -R a /b":  false,
		"python -c 'import tarfile'":              false,
		"mkdir /apt-gets && chown app /apt-gets/": true,
		"": false,
	} {
		if got := asksForOwners([]string{"/bin/sh", "-c", text}); got != want {
			t.Errorf("asksForOwners(%q) = %v; want %v", text, got, want)
		}
	}
}
