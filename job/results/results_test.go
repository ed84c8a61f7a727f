package results

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// archive returns an archive of headers; a regular file has Size bytes.
func archive(t testing.TB, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

func hard(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
}

// TestLeftOut: an archive of devices takes no memory for their names.
func TestLeftOut(t *testing.T) {
	list := []tar.Header{dir("a")}
	for k := range 1000 {
		list = append(list, tar.Header{Typeflag: tar.TypeFifo, Name: fmt.Sprintf("a/%d", k)})
	}
	n, first, err := Receive(t.Context(), io.NopCloser(bytes.NewReader(archive(t, list...))), filepath.Join(t.TempDir(), "result"), Options{})
	if err != nil || n != 1000 || fmt.Sprint(first) != "[a/0 a/1 a/2]" {
		t.Errorf("left out %d, the first are %q, %v", n, first, err)
	}
}

// receive receives an archive as the file or directory "result" of an empty directory.
func receive(t testing.TB, b []byte, o Options) (final string, err error) {
	t.Helper()
	final = filepath.Join(t.TempDir(), "result")
	_, _, err = Receive(t.Context(), io.NopCloser(bytes.NewReader(b)), final, o)
	return final, err
}

// only fails unless a directory has only the named entries.
func only(t testing.TB, dir string, want ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s has %q; want %q", dir, got, want)
	}
}

func TestReceiveRefuses(t *testing.T) {
	long := strings.Repeat("a/", 3000) + "b"
	for _, x := range []struct {
		name string
		list []tar.Header
		want string // in the error
	}{
		{"empty", nil, "nothing was received"},
		{"absolute", []tar.Header{file("/etc/x")}, "not a path below"},
		{"parent", []tar.Header{file("../x")}, "not a path below"},
		{"parent inside", []tar.Header{file("a/../../x")}, "not a path below"},
		{"long", []tar.Header{file(long)}, "not a path below"},
		{"two tops", []tar.Header{file("a"), file("b")}, `is not in "a"`},
		{"twice", []tar.Header{file("a/x"), file("a/x")}, "exists"},
		{"file over link", []tar.Header{dir("a"), file("a/x"), link("a/l", "x"), file("a/l")}, "exists"},
		{"directory over link", []tar.Header{dir("a"), dir("a/d"), link("a/l", "d"), dir("a/l")}, "exists"},
		{"through a link", []tar.Header{dir("a"), dir("a/d"), link("a/l", "d"), file("a/l/x")}, "exists"},
		{"below a file", []tar.Header{file("a"), file("a/x")}, "exists"},
		{"absolute link", []tar.Header{dir("a"), link("a/l", "/etc/passwd")}, "leads out"},
		{"link to the parent", []tar.Header{dir("a"), link("a/l", "..")}, "leads out"},
		{"link out", []tar.Header{dir("a"), link("a/l", "../x")}, "leads out"},
		{"link up through a link", []tar.Header{dir("a"), dir("a/b"), link("a/b/l", "../x"), link("a/m", "b/l/../../y")}, "leads out"},
		{"the result is a link out", []tar.Header{link("a", "b")}, "leads out"},
		{"hard link out", []tar.Header{dir("a"), hard("a/l", "/etc/passwd")}, "not a path below"},
		{"hard link to nothing", []tar.Header{dir("a"), hard("a/l", "a/x")}, "not a file before it"},
		{"hard link to a link", []tar.Header{dir("a"), link("a/l", "x"), hard("a/m", "a/l")}, "not a file before it"},
		{"large", []tar.Header{file("a/1"), file("a/2"), file("a/3"), file("a/4")}, "more than 10 bytes"},
	} {
		t.Run(x.name, func(t *testing.T) {
			final, err := receive(t, archive(t, x.list...), Options{Max: 10})
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("Receive = %v; want an error with %q", err, x.want)
			}
			only(t, filepath.Dir(final))
		})
	}
}

func TestReceiveIncomplete(t *testing.T) {
	b := archive(t, dir("a"), file("a/x"), file("a/y"))
	for n := 0; n < len(b); n += 256 {
		final, err := receive(t, b[:n], Options{})
		if err == nil {
			t.Errorf("Receive of %d of %d bytes succeeds", n, len(b))
		}
		only(t, filepath.Dir(final))
	}
	want := errors.New("the sender failed")
	final := filepath.Join(t.TempDir(), "result")
	_, _, err := Receive(t.Context(), Pipe(func(w io.Writer) error {
		_, err := w.Write(b)
		return errors.Join(err, want)
	}), final, Options{})
	if !errors.Is(err, want) {
		t.Errorf("Receive = %v; want %v", err, want)
	}
	only(t, filepath.Dir(final))
}

func TestReceiveExisting(t *testing.T) {
	for _, existing := range []string{"file", "directory", "link"} {
		at := t.TempDir()
		final := filepath.Join(at, "result")
		var err error
		switch existing {
		case "file":
			err = os.WriteFile(final, nil, 0o600)
		case "directory":
			err = os.MkdirAll(filepath.Join(final, "below"), 0o700)
		default:
			err = os.Symlink("/nowhere", final)
		}
		if err != nil {
			t.Fatal(err)
		}
		get := func(o Options) error {
			_, _, err := Receive(t.Context(), io.NopCloser(bytes.NewReader(archive(t, file("a/x")))), final, o)
			return err
		}
		if err := get(Options{}); !errors.As(err, new(*ExistsError)) {
			t.Errorf("Receive over a %s = %v; want an ExistsError", existing, err)
		}
		if err := get(Options{Replace: true}); err != nil {
			t.Errorf("Receive over a %s with Replace: %v", existing, err)
		}
		only(t, final, "x")
		only(t, at, "result")
	}
}

// TestSend sends a directory, joins it into another archive, and receives that.
func TestSend(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from")
	for _, d := range []string{"empty", "d/e"} {
		if err := os.MkdirAll(filepath.Join(from, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string, mode fs.FileMode) {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("d/e/x", "text", 0o600)
	write("run", "#!", 0o700)
	if err := os.Symlink("d/e/x", filepath.Join(from, "latest")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := Join(w, Pipe(func(w io.Writer) error { return Send(context.Background(), w, from, "from") }), "job/one")
	if err == nil {
		err = Join(w, Pipe(func(w io.Writer) error { return Send(context.Background(), w, filepath.Join(from, "run"), "run") }), "job/two")
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	final, err := receive(t, b.Bytes(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	only(t, final, "one", "two")
	only(t, filepath.Join(final, "one"), "d", "empty", "latest", "run")
	got, err := os.ReadFile(filepath.Join(final, "one/latest"))
	if err != nil || string(got) != "text" {
		t.Errorf("one/latest = %q, %v; want text", got, err)
	}
	if fi, err := os.Stat(filepath.Join(final, "two")); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("two = %v, %v; want mode 0700", fi.Mode(), err)
	}
}

// FuzzReceive checks that nothing appears next to the result, and that no link in it leads out.
func FuzzReceive(f *testing.F) {
	f.Add(archive(f, dir("a"), file("a/x"), link("a/l", "x"), hard("a/h", "a/x")))
	f.Add(archive(f, dir("a"), link("a/l", "../b"), file("a/l/x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		final, err := receive(t, b, Options{Max: 1 << 20})
		if err != nil {
			only(t, filepath.Dir(final))
			return
		}
		only(t, filepath.Dir(final), "result")
		_ = filepath.WalkDir(final, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type() == fs.ModeSymlink {
				if to, err := filepath.EvalSymlinks(p); err == nil && to != final && !strings.HasPrefix(to, final+"/") {
					t.Errorf("%s leads to %s", p, to)
				}
			}
			return nil
		})
	})
}

// TestRun checks that Close reports a failed command, unless the reader did not want all of its output.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		script string
		all    bool
		want   string
	}{
		{"echo text", true, ""},
		{"echo text; exit 3", true, "failed: exit status 3"},
		{"echo text; exec sleep 60", false, ""},
	} {
		r, err := Run(exec.Command("sh", "-c", c.script), func(err error) error { return fmt.Errorf("failed: %w", err) })
		testenv.Check(t, err)
		b := make([]byte, 5)
		_, err = io.ReadFull(r, b)
		testenv.Check(t, err)
		if c.all {
			_, err = io.Copy(io.Discard, r)
			testenv.Check(t, err)
		}
		got := ""
		if err := r.Close(); err != nil {
			got = err.Error()
		}
		if string(b) != "text\n" || got != c.want {
			t.Errorf("%s: read %q, Close returns %q; want %q", c.script, b, got, c.want)
		}
	}
	if _, err := Run(exec.Command("/missing"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing command: %v", err)
	}
}
