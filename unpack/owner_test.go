package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// capability is a value of security.capability: cap_net_raw=ep.
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// listLayer describes the entries of an archive.
func listLayer(t *testing.T, archive []byte) string {
	t.Helper()
	var out strings.Builder
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out.String()
		}
		testenv.Check(t, err)
		fmt.Fprintf(&out, "%s %o %d:%d", h.Name, h.Mode, h.Uid, h.Gid)
		if h.PAXRecords[capsRecord] == capability {
			out.WriteString(" cap_net_raw")
		}
		out.WriteByte('\n')
	}
}

// kinds lists the storage methods of notes.
var kinds = map[string]bool{"attributes": false, "memory": true}

// emptyNotes returns notes of a kind for a new tree in dir.
func emptyNotes(t *testing.T, dir string, memory bool) *Notes {
	t.Helper()
	if memory {
		return &Notes{table: map[inode]*noteEntry{}}
	}
	testenv.Need(t, "user extended attributes", unix.Setxattr(dir, notePrefix+"test", []byte("x"), 0))
	return &Notes{}
}

// apply unpacks headers of empty files into a new directory. With again, it unpacks twice.
func apply(t *testing.T, memory, again bool, hs ...*tar.Header) (dir string, notes *Notes) {
	t.Helper()
	dir = t.TempDir()
	notes = emptyNotes(t, dir, memory)
	tr, err := openTree(dir, notes)
	testenv.Check(t, err)
	defer tr.close()
	tr.created = map[string]bool{}
	for _, h := range hs {
		h.ModTime = time.Unix(1, 0)
	}
	for range map[bool]int{false: 1, true: 2}[again] {
		for _, h := range hs {
			testenv.Check(t, tr.entry(h, strings.NewReader("")))
		}
	}
	testenv.Check(t, tr.drain())
	testenv.Check(t, notes.Save(dir))
	return dir, notes
}

// compare returns the layer of the differences in upper, in the format of listLayer.
func compare(t *testing.T, lower, upper string, o DiffOptions) string {
	t.Helper()
	o.Skip = []string{configDir}
	var b bytes.Buffer
	_, err := Compare(&b, lower, upper, o)
	testenv.Check(t, err)
	return listLayer(t, b.Bytes())
}

func entries() []*tar.Header {
	return []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "d", Mode: 0o2775, Gid: 8},
		{Typeflag: tar.TypeReg, Name: "d/caps", Mode: 0o755, PAXRecords: map[string]string{capsRecord: capability}},
		{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "x", Uid: 3, Gid: 4, Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "d/none", Mode: 0},
		{Typeflag: tar.TypeLink, Name: "d/none2", Linkname: "d/none", Mode: 0},
		{Typeflag: tar.TypeFifo, Name: "d/pipe", Mode: 0o622, Uid: 5, Gid: 6},
		{Typeflag: tar.TypeFifo, Name: "d/pipe0", Mode: 0},
		{Typeflag: tar.TypeReg, Name: "d/plain", Mode: 0o644},
		{Typeflag: tar.TypeReg, Name: "d/read", Mode: 0o440, Uid: 1, Gid: 42},
		{Typeflag: tar.TypeReg, Name: "d/secret", Mode: 0o240, Gid: 42},
		{Typeflag: tar.TypeReg, Name: "d/su", Mode: 0o4755},
		{Typeflag: tar.TypeReg, Name: "d/write", Mode: 0o200},
		{Typeflag: tar.TypeDir, Name: "locked", Mode: 0o555},
		{Typeflag: tar.TypeDir, Name: "locked/none", Mode: 0},
		{Typeflag: tar.TypeDir, Name: "locked/search", Mode: 0o111},
	}
}

const asPacked = `d/ 2775 0:8
d/caps 755 0:0 cap_net_raw
d/l 777 3:4
d/none 0 0:0
d/none2 0 0:0
d/pipe 622 5:6
d/pipe0 0 0:0
d/plain 644 0:0
d/read 440 1:42
d/secret 240 0:42
d/su 4755 0:0
d/write 200 0:0
locked/ 555 0:0
locked/none/ 0 0:0
locked/search/ 111 0:0
`

// Metadata that a user's disk cannot hold is not on the disk, but in the layer created from
// it, also after the tree was moved.
func TestNotesSurvive(t *testing.T) {
	for kind, memory := range kinds {
		for _, again := range []bool{false, true} {
			dir, notes := apply(t, memory, again, entries()...)
			for name, want := range map[string]os.FileMode{"d/su": 0o755, "d": 0o775 | os.ModeDir, "d/secret": 0o640, "d/none": 0o400, "d/pipe": 0o622 | os.ModeNamedPipe,
				"locked": 0o755 | os.ModeDir, "locked/none": 0o700 | os.ModeDir} {
				if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || fi.Mode() != want {
					t.Errorf("%s: %s has mode %v on disk, %v; want %v", kind, name, fi.Mode(), err, want)
				}
			}
			if got := compare(t, t.TempDir(), dir, DiffOptions{Notes: notes}); got != asPacked {
				t.Errorf("%s, unpacked twice %v: the layer has\n%swant\n%s", kind, again, got, asPacked)
			}
			moved := dir + ".moved"
			testenv.Check(t, os.Rename(dir, moved))
			if got := compare(t, t.TempDir(), moved, DiffOptions{}); got != asPacked {
				t.Errorf("%s: the layer of the moved tree has\n%swant\n%s", kind, got, asPacked)
			}
		}
	}
}

// Entries that replace others leave no old notes.
func TestNotesAreReplaced(t *testing.T) {
	for kind, memory := range kinds {
		hs := entries()
		for _, h := range entries() {
			h.Uid, h.Gid, h.PAXRecords = 0, 0, nil
			h.Mode = 0o755
			hs = append(hs, h)
		}
		dir, notes := apply(t, memory, false, hs...)
		for _, l := range strings.Split(strings.TrimSpace(compare(t, t.TempDir(), dir, DiffOptions{Notes: notes})), "\n") {
			if !strings.HasSuffix(l, " 755 0:0") && l != "d/l 777 0:0" {
				t.Errorf("%s: the layer has %q", kind, l)
			}
		}
	}
}

// The effect of programs' requests on files is that of the kernel.
func TestAsk(t *testing.T) {
	type asked func(n *Notes, file string) error
	owner := func(uid, gid int) asked {
		return func(n *Notes, p string) error { return n.Owner(p, "", uid, gid) }
	}
	chmod := func(m uint32) asked {
		return func(n *Notes, p string) error { n.Mode(p); return unix.Chmod(p, m) }
	}
	link := func(uid, gid int) asked {
		return func(n *Notes, p string) error { return n.Owner(filepath.Dir(p), filepath.Base(p), uid, gid) }
	}
	set := func(name, value string) asked {
		return func(n *Notes, p string) error { return n.SetAttr(p, name, []byte(value)) }
	}
	rename := func(to string) asked {
		return func(n *Notes, p string) error { return os.Rename(p, filepath.Join(filepath.Dir(p), to)) }
	}
	anew := func(n *Notes, p string) error { // its inode may be the old one's
		return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o600))
	}
	for _, c := range []struct {
		name, file string
		do         []asked
		want       string // a line of the layer; "" for none
	}{
		{"an owner", "d/plain", []asked{owner(5, 6)}, "d/plain 644 5:6"},
		{"half an owner", "d/secret", []asked{owner(5, -1)}, "d/secret 240 5:42"},
		{"the other half", "d", []asked{owner(-1, 9)}, "d/ 2775 0:9"},
		{"the same owner", "d/secret", []asked{owner(0, 42)}, ""},
		{"root", "d/secret", []asked{owner(0, 0)}, "d/secret 240 0:0"},
		{"an owner takes set-id bits", "d/su", []asked{owner(0, 9)}, "d/su 755 0:9"},
		{"also the same owner", "d/su", []asked{owner(0, 0)}, "d/su 755 0:0"},
		{"also those of this step", "d/plain", []asked{chmod(0o6755), owner(7, 7)}, "d/plain 755 7:7"},
		{"but for a group that may not execute it", "d/plain", []asked{chmod(0o2644), owner(-1, -1)}, "d/plain 2644 0:0"},
		{"an owner takes capabilities", "d/caps", []asked{owner(1, 1)}, "d/caps 755 1:1"},
		{"directories keep theirs", "d", []asked{owner(1, 1)}, "d/ 2775 1:1"},
		{"set-id bits off", "d/su", []asked{chmod(0o755)}, "d/su 755 0:0"},
		{"set-id bits on", "d/plain", []asked{chmod(0o4711)}, "d/plain 4711 0:0"},
		{"the owner's rights off", "d/plain", []asked{chmod(0o044)}, "d/plain 44 0:0"},
		{"a link's owner", "d/l", []asked{link(8, -1)}, "d/l 777 8:4"},
		{"a link to root", "d/l", []asked{link(0, 0)}, "d/l 777 0:0"},
		{"capabilities", "d/plain", []asked{set("security.capability", capability)}, "d/plain 644 0:0 cap_net_raw"},
		{"capabilities off", "d/caps", []asked{func(n *Notes, p string) error { return n.RemoveAttr(p, "security.capability") }}, "d/caps 755 0:0"},
		{"a copy with its attributes", "d/plain", []asked{set(ownerAttr, "6:7")}, "d/plain 644 6:7"},
		{"what no image has", "d/plain", []asked{set("user.mine", "x"), set("security.selinux", "x")}, ""},
		{"a mode by a list", "d/su", []asked{set("system.posix_acl_access", acl(0x01, 7, 0x04, 5, 0x20, 0))}, "d/su 750 0:0"},
		{"a mode by a list with a mask", "d/plain", []asked{set("system.posix_acl_access", acl(0x01, 6, 0x02, 7, 0x04, 0, 0x10, 4, 0x20, 1))}, "d/plain 641 0:0"},
		{"another name", "d/caps", []asked{rename("caps2")}, "d/.wh.caps 644 0:0\nd/caps2 755 0:0 cap_net_raw"},
		{"a new file of that name", "d/su", []asked{anew}, "d/su 600 0:0"},
		{"a FIFO's owner", "d/pipe", []asked{link(8, -1)}, "d/pipe 622 8:6"},
		{"a mode of none stays", "locked/none", []asked{owner(7, 7)}, "locked/ 555 0:0\nlocked/none/ 0 7:7"},
		{"and can be changed", "locked/none", []asked{chmod(0o700)}, "locked/ 555 0:0\nlocked/none/ 700 0:0"},
		{"no list", "d/plain", []asked{set("system.posix_acl_access", "\x02\x00\x00\x00\x01")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for kind, memory := range kinds {
				lower, _ := apply(t, memory, false, entries()...)
				upper, notes := apply(t, memory, false, entries()...)
				for _, do := range c.do {
					testenv.Check(t, do(notes, filepath.Join(upper, c.file)))
				}
				got := compare(t, lower, upper, DiffOptions{Notes: notes})
				got = strings.TrimPrefix(got, "d/ 2775 0:8\n") // the directory of what changed
				if strings.TrimSpace(got) != c.want {
					t.Errorf("%s: the layer has %q; want %q", kind, got, c.want)
				}
			}
		})
	}
}

// acl builds an access control list from pairs of tag and permissions.
func acl(pairs ...byte) string {
	b := []byte{2, 0, 0, 0}
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, pairs[i], 0, pairs[i+1], 0, 0xff, 0xff, 0xff, 0xff)
	}
	return string(b)
}

// The owner of a new file follows from its directory, and from the file that it replaces.
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
			lower, _ := apply(t, false, false, base...)
			upper, _ := apply(t, false, false, base...)
			at := func(p string) string { return filepath.Join(upper, p) }
			for _, p := range []string{"home/new", "root/new", "team/new", "tmp/new", "root/shadow+"} {
				testenv.Check(t, os.WriteFile(at(p), []byte("new"), 0o644))
			}
			testenv.Check(t, os.Rename(at("root/shadow+"), at("root/shadow")))
			testenv.Check(t, os.Symlink("x", at("home/link")))
			var b bytes.Buffer
			_, err := Compare(&b, lower, upper, DiffOptions{By: c.by})
			testenv.Check(t, err)
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
			_, err = Compare(&b, lower, upper, DiffOptions{})
			testenv.Check(t, err)
			for _, l := range strings.Split(strings.TrimSpace(listLayer(t, b.Bytes())), "\n") {
				again[strings.Fields(l)[0]] = strings.Fields(l)[2]
			}
			if fmt.Sprint(again) != fmt.Sprint(names) {
				t.Errorf("a later look gives %v; want %v", again, names)
			}
		})
	}
}

// A directory keeps as many owners of links as fit, and never fails.
func TestManyLinks(t *testing.T) {
	dir, notes := apply(t, false, false)
	for i := range 2000 {
		p := filepath.Join(dir, fmt.Sprintf("link-with-a-name-%04d", i))
		testenv.Check(t, os.Symlink("x", p))
		testenv.Check(t, notes.setOwner(p, 5, 6))
	}
	if uid, gid, ok := notes.linkOwner(dir, "link-with-a-name-0000"); uid != 5 || gid != 6 || !ok {
		t.Errorf("the first link has %d:%d, %v; want 5:6", uid, gid, ok)
	}
}

// TestStat checks that the status of a file shows the owner and mode of its entry.
func TestStat(t *testing.T) {
	for kind, memory := range kinds {
		dir, notes := apply(t, memory, false, entries()...)
		stat := DiffOptions{Notes: notes, By: &User{}}.Stat(dir, nil)
		for _, h := range entries() {
			var st unix.Stat_t
			p := filepath.Join(dir, h.Name)
			if unix.Lstat(p, &st) != nil {
				continue // a whiteout
			}
			file, link := p, ""
			if m := st.Mode & unix.S_IFMT; m == unix.S_IFLNK || m == unix.S_IFIFO {
				file, link = filepath.Dir(p), filepath.Base(p)
			}
			st.Uid, st.Gid = 0, 0 // as in the namespace of a build
			stat(file, link, &st)
			want := uint32(h.Mode)
			if link != "" {
				want = st.Mode & 0o7777 // links have none, a FIFO's is on the disk
			}
			if int(st.Uid) != h.Uid || int(st.Gid) != h.Gid || st.Mode&0o7777 != want {
				t.Errorf("%s: %s is shown as %d:%d %o; want %d:%d %o", kind, h.Name, st.Uid, st.Gid, st.Mode&0o7777, h.Uid, h.Gid, want)
			}
		}
	}
}
