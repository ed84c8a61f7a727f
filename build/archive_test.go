package build

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"hpcc/build/source"
	"hpcc/testdata/helpers/testenv"
)

// archiveOf returns a tar archive of the entries in lines, in the format of [testenv.Tar].
func archiveOf(t testing.TB, lines ...string) []byte {
	return testenv.Tar(t, time.Unix(1e9, 0), lines...)
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(b)
	testenv.Check(t, err)
	testenv.Check(t, w.Close())
	return buf.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	testenv.Check(t, err)
	return w.EncodeAll(b, nil)
}

// bzipped is the output of "printf 'in tar' >f && tar c f | bzip2".
const bzipped = "QlpoOTFBWSZTWUaNndkAAHP7hMkAAERAAH+AAADhIZ4AAACACCAAVDKNQyGE09QyegkpkRoNA0NBb6uDuhBaQCRtrM3ecikEkDKA" +
	"17dvEFWJ7cgdw/dUXlX2jAx1QdBWvYYGBC7aDxm2JIGRdyRThQkEaNndkA=="

// TestAdd checks that ADD unpacks archives, which it recognises by their content, and copies
// other files.
func TestAdd(t *testing.T) {
	if !inside(t) {
		return
	}
	plain := archiveOf(t, "f f in tar")
	bz, err := base64.StdEncoding.DecodeString(bzipped)
	testenv.Check(t, err)
	for _, c := range []struct {
		name string
		data []byte
		text string
		want string // content of the image; "gzip" is the unchanged archive
		err  string
	}{
		{"tar", plain, "ADD x /d/", "d/ 755\nd/f 644 in tar", ""},
		{"gzip", gzipped(t, plain), "ADD x /d/", "d/ 755\nd/f 644 in tar", ""},
		{"zstd", zstded(t, plain), "ADD x /d/", "d/ 755\nd/f 644 in tar", ""},
		{"bzip2", bz, "ADD x /d/", "d/ 755\nd/f 644 in tar", ""},
		{"to a directory without slash", plain, "ADD x /d", "d/ 755\nd/f 644 in tar", ""},
		{"not an archive", plain[:3], "ADD x /d/", "d/ 755\nd/x 644 " + string(plain[:3]), ""},
		{"COPY", []byte("text"), "COPY x /d/", "d/ 755\nd/x 644 text", ""},
		{"text", []byte("text"), "ADD x /d", "d 644 text", ""},
		{"empty", nil, "ADD x /d/", "d/ 755\nd/x 644 ", ""},
		{"gzip of text", gzipped(t, []byte("text")), "ADD x /d/", "gzip", ""},
		{"--unpack=false", gzipped(t, plain), "ADD --unpack=false x /d/", "gzip", ""},
		{"two archives", plain, "ADD x x /d/", "d/ 755\nd/f 644 in tar", ""},
		{"truncated", plain[:515], "ADD x /d/", "", ":2: ADD x /d/: "},
		{"truncated gzip", gzipped(t, archiveOf(t, "f f "+strings.Repeat("text", 1e5), "f g"))[:200], "ADD x /d/", "", ":2: ADD x /d/: "},
		{"onto a file", plain, "COPY x /d\nADD x /d", "", "file"},
		{"xz", append([]byte("\xfd7zXZ\x00"), plain...), "ADD x /d/", "", "xz"},
		{"xz and --unpack=false", append([]byte("\xfd7zXZ\x00"), "text"...), "ADD --unpack=false x /d/", "d/ 755\nd/x 644 \xfd7zXZ\x00text", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			img, _, err := buildText(t, newStore(t), "FROM scratch\n"+c.text+"\n", Options{Context: testenv.Files(t, "x", string(c.data))})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %v; want an error with %q", c.text, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", c.text, err)
			}
			got := content(t, img)
			if c.want == "gzip" {
				if !strings.HasPrefix(got, "d/ 755\nd/x 644 \x1f\x8b") {
					t.Errorf("%s: image %q; want the unchanged file", c.text, got)
				}
			} else if got != c.want {
				t.Errorf("%s: image %q; want %q", c.text, got, c.want)
			}
		})
	}
}

// TestArchiveWindow checks that a zstd archive that requires too much memory is an error, and
// is not copied as a plain file.
func TestArchiveWindow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wide.tar.zst")
	wide := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, (38 - 10) << 3, 1, 0, 0} // a window of 2^38 bytes, an empty block
	testenv.Check(t, os.WriteFile(file, wide, 0o644))
	if r, ok, err := source.Archive(file); ok || !errors.Is(err, zstd.ErrWindowSizeExceeded) {
		t.Errorf("Archive = %v, %v, %v; want %v", r, ok, err, zstd.ErrWindowSizeExceeded)
	}
}

// TestHostileArchives unpacks archives that try to write outside the image, and checks that
// the host's files do not change.
func TestHostileArchives(t *testing.T) {
	if !inside(t) {
		return
	}
	for i, lines := range [][]string{
		{"f ../victim/f bad"}, {"f ../../../../../../../../tmp/hpcc-hostile bad"}, {"f /tmp/hpcc-hostile bad"},
		{"l a ../victim", "f a/f bad"}, {"l a /tmp", "f a/hpcc-hostile bad"}, {"l a ..", "l a/b ..", "f a/b/victim/f bad"},
		{"h a ../victim/secret", "f a bad"}, {"h a /etc/passwd"}, {"l a ../victim/secret", "f a bad"}, {"l a ../victim", "f a/.wh.secret"},
		{"f .wh.."}, {"f ../.wh.victim"}, {"d ."}, {"f . bad"}, {"f .hpcc/script bad"},
	} {
		for _, to := range []string{"/", "/d/e/"} {
			dir := testenv.Files(t, "context/x", string(archiveOf(t, lines...)), "victim/secret", "kept")
			s := newStore(t)
			_, _, err := buildText(t, s, "FROM scratch\nADD x "+to+"\n", Options{Context: filepath.Join(dir, "context")})
			if err != nil && !strings.Contains(err.Error(), ":2: ADD x") {
				t.Errorf("%q: %v; want an error with the line", lines, err)
			}
			names, _ := filepath.Glob(filepath.Join(dir, "*/*"))
			if got := fmt.Sprint(names); got != fmt.Sprint([]string{filepath.Join(dir, "context/x"), filepath.Join(dir, "victim/secret")}) {
				t.Errorf("%q: the build created %s outside the image", lines, got)
			}
			if b, _ := os.ReadFile(filepath.Join(dir, "victim/secret")); string(b) != "kept" {
				t.Errorf("%q: the build changed a file outside to %q", lines, b)
			}
			if _, err := os.Lstat("/tmp/hpcc-hostile"); err == nil {
				t.Fatalf("%q: /tmp was written to (case %d)", lines, i)
			}
			if left, _ := os.ReadDir(filepath.Join(s.Dir(), "tmp")); len(left) > 0 {
				t.Errorf("%q: the build leaves temporary files %v", lines, left)
			}
		}
	}
}

// TestHereDocuments checks that here-documents keep quotes, and that variables are expanded
// unless the delimiter is quoted.
func TestHereDocuments(t *testing.T) {
	if !inside(t) {
		return
	}
	for _, c := range []struct{ text, want string }{
		{"# escape=`\nFROM scratch\nARG A=1\nCOPY <<EOF `\n/f\n\\$A `$A\nEOF", "f 644 $A `1\n"},
		{"COPY <<EOF /f\nit's $A\nEOF", "f 644 it's 1\n"},
		{"COPY <<EOF /f\n'$A' \"$A\" \\$A ${B:-\"2\"}\nEOF", "f 644 '1' \"1\" $A \"2\"\n"},
		{"COPY <<'EOF' /f\nit's $A\nEOF", "f 644 it's $A\n"},
		{"COPY <<-EOF /f\n\tx\n\tEOF", "f 644 x\n"},
		{"COPY <<EOF /d/\nx\nEOF", "d/ 755\nd/EOF 644 x\n"},
		{"COPY --chmod=700 <<a <<b /d/\n1\na\n2\nb", "d/ 700\nd/a 700 1\n\nd/b 700 2\n"},
		{"COPY <<a x /d/\n1\na", "d/ 755\nd/a 644 1\n\nd/x 644 file"},
		{"ADD <<EOF /f\n$A\nEOF", "f 644 1\n"},
	} {
		text := c.text + "\n"
		if !strings.Contains(text, "FROM") {
			text = "FROM scratch\nARG A=1\n" + text
		}
		img, _ := mustBuild(t, newStore(t), text, Options{Context: testenv.Files(t, "x", "file")})
		if got := content(t, img); got != c.want {
			t.Errorf("%q: image %q; want %q", c.text, got, c.want)
		}
	}
}

// TestTriggerCopiesFromStage checks that a stage is built if only a trigger copies from it.
func TestTriggerCopiesFromStage(t *testing.T) {
	if !inside(t) {
		return
	}
	s := newStore(t)
	triggering(t, s, "base", "COPY --from=files /x /y")
	img, _ := mustBuild(t, s, "FROM scratch AS below\nFROM below AS files\nCOPY x /x\nFROM base\n", Options{Context: testenv.Files(t, "x", "file")})
	if got := content(t, img); got != "y 644 file" {
		t.Errorf("the image contains %q; want y", got)
	}
}

// TestCopyThroughLinks checks that links of the image are followed only inside the image.
func TestCopyThroughLinks(t *testing.T) {
	if !inside(t) {
		return
	}
	victim := testenv.Files(t, "secret", "kept")
	links := archiveOf(t, "d real", "l rel real", "l abs /real", "l out "+victim, "l up ../../../../"+victim, "l file "+victim+"/secret", "d1777 tmp")
	for _, c := range []struct{ text, want string }{
		{"COPY f /rel/", "real/f 644 text"},
		{"COPY f /abs/g", "real/g 644 text"},
		{"COPY d /rel/", "real/x 644 text"},
		{"COPY d /new/", "new/x 644 text"},
		{"COPY f /out/", victim[1:] + "/f 644 text"},
		{"COPY d /out", victim[1:] + "/x 644 text"},
		{"COPY f /up/f", victim[1:] + "/f 644 text"},
		{"COPY f /file", victim[1:] + "/secret 644 text"},
		{"COPY <<out /file\ntext\nout", victim[1:] + "/secret 644 text"},
		{"ADD t /out/", victim[1:] + "/a 644 text"},
		{"WORKDIR /out/w", victim[1:] + "/w/ 755"},
		{"COPY --from=0 / /", "tmp/ 1777"},
		{"COPY --from=0 /out /y", ""},
	} {
		dir := testenv.Files(t, "links", string(links), "f", "text", "d/x", "text", "t", string(archiveOf(t, "f a text")))
		img, _, err := buildText(t, newStore(t), "FROM scratch\nADD links /\nFROM scratch\nADD links /\n"+c.text+"\n", Options{Context: dir})
		if err != nil && c.want != "" {
			t.Errorf("%s: %v", c.text, err)
		}
		if err == nil && !strings.Contains("\n"+content(t, img), "\n"+c.want) {
			t.Errorf("%s: image\n%s\nwant %q", c.text, content(t, img), c.want)
		}
		if names, _ := filepath.Glob(victim + "/*"); len(names) != 1 {
			t.Errorf("%s: the build created %v outside the image", c.text, names)
		}
		if b, _ := os.ReadFile(filepath.Join(victim, "secret")); string(b) != "kept" {
			t.Errorf("%s: the build changed a file outside to %q", c.text, b)
		}
	}
}
