package unpack

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// capability is a value of security.capability: cap_net_raw=ep.
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// listLayer tells of each entry of an archive what an image says of it.
func listLayer(t *testing.T, archive []byte) string {
	t.Helper()
	var out strings.Builder
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %o %d:%d", h.Name, h.Mode, h.Uid, h.Gid)
		if h.PAXRecords[capsRecord] == capability {
			out.WriteString(" cap_net_raw")
		}
		out.WriteByte('\n')
	}
}

// apply unpacks headers of files without content into a new directory, twice
// over when again: onto what the first time left.
func apply(t *testing.T, again bool, hs ...*tar.Header) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Setxattr(dir, notePrefix+"test", []byte("x"), 0); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI must have user extended attributes: %v", err)
		}
		t.Skipf("needs user extended attributes: %v", err)
	}
	tr, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	tr.made = map[string]bool{}
	for range map[bool]int{false: 1, true: 2}[again] {
		for _, h := range hs {
			h.ModTime = time.Unix(1, 0)
			if err := tr.entry(h, strings.NewReader("")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func entries() []*tar.Header {
	return []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "d", Mode: 0o2775, Gid: 8},
		{Typeflag: tar.TypeReg, Name: "d/caps", Mode: 0o755, PAXRecords: map[string]string{capsRecord: capability}},
		{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "x", Uid: 3, Gid: 4, Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "d/plain", Mode: 0o644},
		{Typeflag: tar.TypeReg, Name: "d/secret", Mode: 0o240, Gid: 42},
		{Typeflag: tar.TypeReg, Name: "d/su", Mode: 0o4755},
		{Typeflag: tar.TypeDir, Name: "locked", Mode: 0o555},
	}
}

const asPacked = `d/ 2775 0:8
d/caps 755 0:0 cap_net_raw
d/l 777 3:4
d/plain 644 0:0
d/secret 240 0:42
d/su 4755 0:0
locked/ 555 0:0
`

// What an image says of files and a user's disk cannot is not on the disk, and
// in the layer that is made of them.
func TestNotesSurvive(t *testing.T) {
	for _, again := range []bool{false, true} {
		dir := apply(t, again, entries()...)
		for name, want := range map[string]os.FileMode{"d/su": 0o755, "d": 0o775 | os.ModeDir, "d/secret": 0o640, "locked": 0o755 | os.ModeDir} {
			if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || fi.Mode() != want {
				t.Errorf("%s has mode %v on disk, %v; want %v", name, fi.Mode(), err, want)
			}
		}
		var b bytes.Buffer
		if _, err := Compare(&b, t.TempDir(), dir, DiffOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := listLayer(t, b.Bytes()); got != asPacked {
			t.Errorf("unpacked twice %v, the layer has\n%swant\n%s", again, got, asPacked)
		}
	}
}

// Entries that replace others leave nothing of what was noted.
func TestNotesAreReplaced(t *testing.T) {
	hs := entries()
	for _, h := range entries() {
		h.Uid, h.Gid, h.PAXRecords = 0, 0, nil
		h.Mode = 0o755
		hs = append(hs, h)
	}
	dir := apply(t, false, hs...)
	var b bytes.Buffer
	if _, err := Compare(&b, t.TempDir(), dir, DiffOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(strings.TrimSpace(listLayer(t, b.Bytes())), "\n") {
		if !strings.HasSuffix(l, " 755 0:0") && l != "d/l 777 0:0" {
			t.Errorf("the layer has %q", l)
		}
	}
}

// What programs ask of files comes to what the kernel would have made of it.
func TestAsk(t *testing.T) {
	owner := func(uid, gid int) func(string) error {
		return func(p string) error { return NoteOwner(p, "", uid, gid) }
	}
	chmod := func(m uint32) func(string) error {
		return func(p string) error { NoteMode(p); return unix.Chmod(p, m) }
	}
	link := func(uid, gid int) func(string) error {
		return func(p string) error { return NoteOwner(filepath.Dir(p), filepath.Base(p), uid, gid) }
	}
	set := func(name, value string) func(string) error {
		return func(p string) error { return NoteAttr(p, name, []byte(value)) }
	}
	for _, c := range []struct {
		name, file string
		do         []func(string) error
		want       string // a line of the layer; "" for none
	}{
		{"an owner", "d/plain", []func(string) error{owner(5, 6)}, "d/plain 644 5:6"},
		{"half an owner", "d/secret", []func(string) error{owner(5, -1)}, "d/secret 240 5:42"},
		{"the other half", "d", []func(string) error{owner(-1, 9)}, "d/ 2775 0:9"},
		{"the same owner", "d/secret", []func(string) error{owner(0, 42)}, ""},
		{"root", "d/secret", []func(string) error{owner(0, 0)}, "d/secret 240 0:0"},
		{"an owner takes set-id bits", "d/su", []func(string) error{owner(0, 9)}, "d/su 755 0:9"},
		{"also the same owner", "d/su", []func(string) error{owner(0, 0)}, "d/su 755 0:0"},
		{"also those of this step", "d/plain", []func(string) error{chmod(0o6755), owner(7, 7)}, "d/plain 755 7:7"},
		{"but for a group that may not execute it", "d/plain", []func(string) error{chmod(0o2644), owner(-1, -1)}, "d/plain 2644 0:0"},
		{"an owner takes capabilities", "d/caps", []func(string) error{owner(1, 1)}, "d/caps 755 1:1"},
		{"directories keep theirs", "d", []func(string) error{owner(1, 1)}, "d/ 2775 1:1"},
		{"set-id bits off", "d/su", []func(string) error{chmod(0o755)}, "d/su 755 0:0"},
		{"set-id bits on", "d/plain", []func(string) error{chmod(0o4711)}, "d/plain 4711 0:0"},
		{"the owner's rights off", "d/plain", []func(string) error{chmod(0o044)}, "d/plain 44 0:0"},
		{"a link's owner", "d/l", []func(string) error{link(8, -1)}, "d/l 777 8:4"},
		{"a link to root", "d/l", []func(string) error{link(0, 0)}, "d/l 777 0:0"},
		{"capabilities", "d/plain", []func(string) error{set("security.capability", capability)}, "d/plain 644 0:0 cap_net_raw"},
		{"capabilities off", "d/caps", []func(string) error{func(p string) error { return ForgetAttr(p, "security.capability") }}, "d/caps 755 0:0"},
		{"a copy with its attributes", "d/plain", []func(string) error{set(ownerAttr, "6:7")}, "d/plain 644 6:7"},
		{"what no image has", "d/plain", []func(string) error{set("user.mine", "x"), set("security.selinux", "x")}, ""},
		{"a mode by a list", "d/su", []func(string) error{set("system.posix_acl_access", acl(0x01, 7, 0x04, 5, 0x20, 0))}, "d/su 750 0:0"},
		{"a mode by a list with a mask", "d/plain", []func(string) error{set("system.posix_acl_access", acl(0x01, 6, 0x02, 7, 0x04, 0, 0x10, 4, 0x20, 1))}, "d/plain 641 0:0"},
		{"no list", "d/plain", []func(string) error{set("system.posix_acl_access", "\x02\x00\x00\x00\x01")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			lower, upper := apply(t, false, entries()...), apply(t, false, entries()...)
			for _, do := range c.do {
				if err := do(filepath.Join(upper, c.file)); err != nil {
					t.Fatal(err)
				}
			}
			var b bytes.Buffer
			if _, err := Compare(&b, lower, upper, DiffOptions{}); err != nil {
				t.Fatal(err)
			}
			got := strings.TrimPrefix(listLayer(t, b.Bytes()), "d/ 2775 0:8\n") // the directory of what changed
			if strings.TrimSpace(got) != c.want {
				t.Errorf("the layer has %q; want %q", got, c.want)
			}
		})
	}
}

// acl is an access control list: pairs of tag and rights.
func acl(pairs ...byte) string {
	b := []byte{2, 0, 0, 0}
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, pairs[i], 0, pairs[i+1], 0, 0xff, 0xff, 0xff, 0xff)
	}
	return string(b)
}

// Whose a new file is follows from where it is, and from what it replaces.
func TestAttribute(t *testing.T) {
	base := []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "home", Mode: 0o755, Uid: 5, Gid: 6},
		{Typeflag: tar.TypeReg, Name: "home/old", Mode: 0o644, Uid: 9, Gid: 9},
		{Typeflag: tar.TypeDir, Name: "root", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "root/shadow", Mode: 0o640, Gid: 42},
		{Typeflag: tar.TypeDir, Name: "team", Mode: 0o2775, Gid: 6},
		{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o1777},
	}
	for _, c := range []struct {
		name string
		by   *User
		want string
	}{
		{"copies", nil, "0:0 0:0 0:0 0:0 0:0 0:0"},
		{"root's program", &User{}, "0:0 0:0 0:0 0:0 0:0 0:42"},
		{"a user's", &User{5, 6}, "5:6 5:6 0:0 5:6 5:6 0:42"},
		{"another user's", &User{7, 7}, "0:0 0:0 0:0 0:0 7:7 0:42"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lower, upper := apply(t, false, base...), apply(t, false, base...)
			at := func(p string) string { return filepath.Join(upper, p) }
			for _, p := range []string{"home/new", "root/new", "team/new", "tmp/new", "root/shadow+"} {
				if err := os.WriteFile(at(p), []byte("new"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Rename(at("root/shadow+"), at("root/shadow")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("x", at("home/link")); err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if _, err := Compare(&b, lower, upper, DiffOptions{By: c.by}); err != nil {
				t.Fatal(err)
			}
			var got []string
			names := map[string]string{}
			for _, l := range strings.Split(strings.TrimSpace(listLayer(t, b.Bytes())), "\n") {
				f := strings.Fields(l)
				names[f[0]] = f[2]
			}
			for _, p := range []string{"home/link", "home/new", "root/new", "team/new", "tmp/new", "root/shadow"} {
				got = append(got, names[p])
			}
			if g := strings.Join(got, " "); g != c.want {
				t.Errorf("owners %s; want %s", g, c.want)
			}
			again := map[string]string{}
			b.Reset()
			if _, err := Compare(&b, lower, upper, DiffOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, l := range strings.Split(strings.TrimSpace(listLayer(t, b.Bytes())), "\n") {
				again[strings.Fields(l)[0]] = strings.Fields(l)[2]
			}
			if fmt.Sprint(again) != fmt.Sprint(names) {
				t.Errorf("a later look gives %v; want %v", again, names)
			}
		})
	}
}

// A directory keeps the owners of as many links as fit, and fails for none.
func TestManyLinks(t *testing.T) {
	dir := apply(t, false)
	for i := range 2000 {
		p := filepath.Join(dir, fmt.Sprintf("link-with-a-name-%04d", i))
		if err := os.Symlink("x", p); err != nil {
			t.Fatal(err)
		}
		if err := SetOwner(p, 5, 6); err != nil {
			t.Fatal(err)
		}
	}
	if uid, gid, ok := linkOwner(dir, "link-with-a-name-0000"); uid != 5 || gid != 6 || !ok {
		t.Errorf("the first link has %d:%d, %v; want 5:6", uid, gid, ok)
	}
}
