package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// found lists the files that "COPY SOURCE… /" copies from a directory.
func found(t *testing.T, dir string, sources ...string) (string, error) {
	t.Helper()
	c, err := Open(dir, filepath.Join(dir, "Dockerfile.dockerignore"))
	if err != nil {
		return "", err
	}
	sets, err := c.Find(sources, nil, false)
	if err != nil {
		return "", err
	}
	var out []string
	for _, s := range sets {
		if !s.Dir {
			out = append(out, s.Name)
		}
		for _, it := range s.Items {
			switch {
			case it.Rel == "":
			case it.Mode.IsDir():
				out = append(out, it.Rel+"/")
			default:
				out = append(out, it.Rel)
			}
		}
	}
	return strings.Join(out, " "), nil
}

// TestUnreadableIgnoreFile checks that Open fails if it cannot read the entire ignore file,
// because the file may exclude a secret.
func TestUnreadableIgnoreFile(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, ".dockerignore")
	for _, c := range []struct{ name, text, want string }{
		{"too large", strings.Repeat("a\n", maxIgnoreFile/2) + "key\n", "larger than"},
		{"a link to itself", "", "too many levels of symbolic links"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testenv.Check(t, os.RemoveAll(list))
			err := os.WriteFile(list, []byte(c.text), 0o644)
			if c.text == "" {
				err = errors.Join(os.Remove(list), os.Symlink(".dockerignore", list))
			}
			testenv.Check(t, err)
			if _, err := Open(dir, ""); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), list) {
				t.Errorf("Open: %v; want an error with %q and the file's name", err, c.want)
			}
		})
	}
}

// TestGlobOnce checks that glob returns a file once, even if several matches of "**" lead to
// it.
func TestGlobOnce(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, strings.Repeat("d/", 40))
	testenv.Write(t, filepath.Join(deep, "f"), "")
	names, err := (&Dir{Dir: dir}).glob("**/**/**/**/**/**/f", true)
	if want := strings.Repeat("d/", 40) + "f"; err != nil || len(names) != 1 || names[0] != want {
		t.Errorf("glob = %d names, %v; want %q alone", len(names), err, want)
	}
}

// TestIgnored checks the rules of .dockerignore (Dockerfile reference, ".dockerignore file").
func TestIgnored(t *testing.T) {
	const all = "a.log a.txt d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"
	for _, c := range []struct{ name, ignore, want string }{
		{"nothing", "", all},
		{"comments and blanks", "# a.txt\n\n   \n", all},
		{"top level", "*.log", "a.txt d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"every level", "**/*.log", "a.txt d/ d/b.txt d/e/ d/e/c.txt"},
		{"second level", "*/*.log", "a.log a.txt d/ d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"directory", "d", "a.log a.txt"},
		{"directory with slashes", "/d/", "a.log a.txt"},
		{"below", "d/e", "a.log a.txt d/ d/b.log d/b.txt"},
		{"one letter", "?.txt", "a.log d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"exception", "*.*\n!a.txt", "a.txt d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"last rule wins", "!a.txt\n*.txt", "a.log d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"exception below an ignored directory", "d\n!d/e/c.txt", "a.log a.txt d/e/c.txt"},
		{"all but one", "**\n!d/b.txt", "d/b.txt"},
		{"all but a part of one", "*\n!d\nd/e", "d/ d/b.log d/b.txt"},
		{"spaces around", "  *.log  ", "a.txt d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"byte order mark and CRLF", "\xef\xbb\xbfa.log\r\n", "a.txt d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
		{"parent directory in a pattern", "d/../a.log", "a.txt d/ d/b.log d/b.txt d/e/ d/e/c.log d/e/c.txt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := testenv.Files(t, "a.log", "", "a.txt", "", "d/b.log", "", "d/b.txt", "", "d/e/c.log", "", "d/e/c.txt", "")
			for _, name := range []string{".dockerignore", "Dockerfile.dockerignore"} {
				// The second name applies to this Dockerfile only and has precedence.
				testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(c.ignore+"\n.dockerignore\n*.dockerignore\n"), 0o644))
				if got, err := found(t, dir, "."); err != nil || got != c.want {
					t.Errorf("with %s %q: %q, %v; want %q", name, c.ignore, got, err, c.want)
				}
				testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte("**"), 0o644))
			}
		})
	}
	if _, err := found(t, testenv.Files(t, ".dockerignore", "[\n", "a", ""), "a"); err == nil || !strings.Contains(err.Error(), ".dockerignore") {
		t.Errorf("a bad pattern: %v; want an error that names the file", err)
	}
}

func TestFind(t *testing.T) {
	dir := testenv.Files(t, ".dockerignore", "hidden*\nd/secret\n", "a.txt", "", "b.txt", "", "d/c.txt", "", "d/secret/x", "", "e/c.txt", "", "e/f/g.txt", "", "hidden.txt", "", "hiddendir/x", "", "with[x", "", "empty/", "")
	for link, to := range map[string]string{"in": "d/c.txt", "dirlink": "e", "abs": "/a.txt", "out": "../../etc/passwd", "outdir": "/etc", "loop": "loop", "e/back": "../a.txt"} {
		testenv.Check(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for _, c := range []struct{ sources, want, err string }{
		{"a.txt", "a.txt", ""},
		{"/a.txt", "a.txt", ""},
		{"./d/../a.txt", "a.txt", ""},
		{"a.txt b.txt", "a.txt b.txt", ""},
		{"*.txt", "a.txt b.txt", ""},
		{"[ab].txt", "a.txt b.txt", ""},
		{"?/c.txt", "c.txt c.txt", ""},
		{"e", "back c.txt f/ f/g.txt", ""},
		{"d", "c.txt", ""},
		{"in", "in", ""},
		{"dirlink", "back c.txt f/ f/g.txt", ""},
		{"dirlink/f", "g.txt", ""},
		{"abs", "abs", ""},
		{"empty", "", ""},
		{"with[[]x", "with[x", ""},
		{"nothere", "", "not found in"},
		{"a.txt/x", "", "a.txt/x"},
		{"*.nothere", "", ""},
		{"[", "", "pattern"},
		{"hidden.txt", "", "left out by .dockerignore"},
		{"hidden*", "", ""},
		{"hiddendir", "", "left out by .dockerignore"},
		{"d/secret", "", "left out by .dockerignore"},
		{"d/secret/x", "", "left out by .dockerignore"},
		{"out", "", "not found in"},
		{"outdir/passwd", "", "not found in"},
		{"../x", "", "leads out of the build context"},
		{"d/../../x", "", "leads out of the build context"},
		{"loop", "", "loop"},
	} {
		got, err := found(t, dir, strings.Fields(c.sources)...)
		if c.err == "" && (err != nil || got != c.want) {
			t.Errorf("COPY %s copies %q, %v; want %q", c.sources, got, err, c.want)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("COPY %s copies %q, %v; want an error with %q", c.sources, got, err, c.err)
		}
	}
	for _, c := range []struct{ dir, err string }{{"nothere", "no such file"}, {"a.txt", "not a directory"}} {
		if _, err := found(t, filepath.Join(dir, c.dir), "."); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("context %s: %v; want %q", c.dir, err, c.err)
		}
	}
}

// TestSourceDigest checks that digests depend only on names, types, modes and bytes.
func TestSourceDigest(t *testing.T) {
	tree := []string{"d/a", "text", "d/b/c", "x\n1\n", "d/b/e", "", "d/empty/", ""}
	sum := func(dir string) string {
		t.Helper()
		c, err := Open(dir, filepath.Join(dir, "Dockerfile.dockerignore"))
		testenv.Check(t, err)
		sets, err := c.Find([]string{"d"}, nil, false)
		testenv.Check(t, err)
		s, err := sets[0].Digest()
		testenv.Check(t, err)
		return s
	}
	first := sum(testenv.Files(t, tree...))
	for _, c := range []struct {
		name   string
		change func(p func(string) string) error
		same   bool
	}{
		{"nothing", func(p func(string) string) error { return nil }, true},
		{"times", func(p func(string) string) error { return os.Chtimes(p("a"), time.Unix(9, 9), time.Unix(9, 9)) }, true},
		{"a sibling file", func(p func(string) string) error { return os.WriteFile(p("../z"), nil, 0o644) }, true},
		{"the same file again", func(p func(string) string) error {
			os.Remove(p("a"))
			return os.WriteFile(p("a"), []byte("text"), 0o644)
		}, true},
		{"a byte", func(p func(string) string) error { return os.WriteFile(p("a"), []byte("texT"), 0o644) }, false},
		{"one more byte", func(p func(string) string) error { return os.WriteFile(p("a"), []byte("text\n"), 0o644) }, false},
		{"a mode", func(p func(string) string) error { return os.Chmod(p("a"), 0o755) }, false},
		{"a directory's mode", func(p func(string) string) error { return os.Chmod(p("b"), 0o700) }, false},
		{"a name", func(p func(string) string) error { return os.Rename(p("a"), p("A")) }, false},
		{"another directory", func(p func(string) string) error { return os.Rename(p("b/e"), p("e")) }, false},
		{"one file fewer", func(p func(string) string) error { return os.Remove(p("b/e")) }, false},
		{"one directory fewer", func(p func(string) string) error { return os.Remove(p("empty")) }, false},
		{"a directory to a file", func(p func(string) string) error { os.Remove(p("empty")); return os.WriteFile(p("empty"), nil, 0o755) }, false},
		{"a file to a link", func(p func(string) string) error { os.Remove(p("b/e")); return os.Symlink("c", p("b/e")) }, false},
		{"a file that contains the next entry", func(p func(string) string) error {
			os.Remove(p("b/e"))
			return os.WriteFile(p("b/c"), []byte("x\n1\n\"b/e\" ---------- 644 \"\"\n"), 0o644)
		}, false},
		{"a file that contains its size and the next entry", func(p func(string) string) error {
			os.Remove(p("b/e"))
			return os.WriteFile(p("b/c"), []byte("x\n1\n\n4\n\"b/e\" ---------- 644 \"\"\n"), 0o644)
		}, false},
	} {
		dir := testenv.Files(t, tree...)
		testenv.Check(t, c.change(func(n string) string { return filepath.Join(dir, "d", n) }))
		if got := sum(dir); (got == first) != c.same {
			t.Errorf("%s: digests are equal: %v; want %v", c.name, got == first, c.same)
		}
	}
	dir := testenv.Files(t, tree...)
	one := testenv.Files(t, tree...)
	os.Symlink("a", filepath.Join(dir, "d/l"))
	os.Symlink("b", filepath.Join(one, "d/l"))
	if sum(dir) == sum(one) {
		t.Error("links with different targets have the same digest")
	}
}

// TestHiddenFiles checks that files with secrets are ignored in spite of .dockerignore, and if
// the context is opened through a link.
func TestHiddenFiles(t *testing.T) {
	dir := testenv.Files(t, "creds.yaml", "", "d/p[w]*", "", "a", "", ".dockerignore", "!creds.yaml\n!d\n")
	link := filepath.Join(t.TempDir(), "link")
	testenv.Check(t, os.Symlink(dir, link))
	testenv.Check(t, os.Symlink("creds.yaml", filepath.Join(dir, "alias")))
	outside := filepath.Join(t.TempDir(), "creds.yaml")
	for _, hidden := range [][]string{
		{filepath.Join(dir, "creds.yaml"), filepath.Join(dir, "d/p[w]*"), outside},
		{filepath.Join(link, "creds.yaml"), filepath.Join(link, "d", "p[w]*"), filepath.Join(dir, "nothere")},
	} {
		c, err := Open(dir, "", hidden...)
		testenv.Check(t, err)
		for name, want := range map[string]bool{"creds.yaml": true, "d/p[w]*": true, "a": false, "d": false, "d/pw": false} {
			if got, err := c.ignored(name); err != nil || got != want {
				t.Errorf("hidden %q: ignored(%q) = %t, %v; want %t", hidden, name, got, err, want)
			}
		}
		for _, word := range []string{"creds.yaml", "./creds.yaml", "alias"} {
			if _, err := c.Find([]string{word}, nil, false); err == nil || !strings.Contains(err.Error(), "it holds secrets, which hpcc never copies into an image") {
				t.Errorf("COPY %s: %v; want an error about secrets", word, err)
			}
		}
	}
}

// TestCloned leaves .git out of the digest of a clone.
func TestCloned(t *testing.T) {
	digest := func(git string, cloned bool) string {
		dir := testenv.Files(t, "f", "1", ".git/index", git, "sub/.git/HEAD", git, "sub/f", "2")
		set, err := (&Dir{Dir: dir, Of: "the repository"}).Walk(".", nil)
		testenv.Check(t, err)
		set.Name = ""
		if when := time.Unix(1700000000, 0); cloned {
			set.Cloned(when)
			if !set.Items[1].When.Equal(when) {
				t.Errorf("time: %v", set.Items[1].When)
			}
		}
		d, err := set.Digest()
		testenv.Check(t, err)
		return d
	}
	if digest("a", true) != digest("b", true) || digest("a", false) == digest("b", false) {
		t.Error("the digest of a clone depends on .git, or that of another directory does not")
	}
}
