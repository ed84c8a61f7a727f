package attest

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

// The databases in testdata/rpm contain packages built by rpmbuild. They were written by
// Berkeley DB's db_load and by SQLite. The SQLite database has a write-ahead log that
// removes one package and adds two. The .txt files are the output of "rpm -qa". The small
// databases are seeds for fuzzing.

// unzipped returns the uncompressed content of a file in testdata/rpm.
func unzipped(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata/rpm", name+".gz"))
	testenv.Check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	testenv.Check(t, err)
	b, err := io.ReadAll(z)
	testenv.Check(t, err)
	return b
}

// listed returns the packages of a tree with these files, in the format of rpm -qa.
func listed(t *testing.T, files map[string][]byte) ([]string, *inventory) {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		testenv.Write(t, filepath.Join(dir, name), b)
	}
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	t.Cleanup(func() { root.Close() })
	in := &inventory{root: root, os: readOS(root)}
	testenv.Check(t, in.walk(t.Context()))
	var out []string
	for _, s := range in.list {
		out = append(out, s.name+" "+s.version)
	}
	slices.Sort(out)
	return out, in
}

func wantList(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/rpm", name+".txt"))
	testenv.Check(t, err)
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func TestRPMDatabases(t *testing.T) {
	const dir = "usr/lib/sysimage/rpm/"
	for _, c := range []struct {
		name, want string
		files      map[string][]byte
	}{
		{"sqlite with a log", "rpmdb.sqlite", map[string][]byte{"rpmdb.sqlite": unzipped(t, "rpmdb.sqlite"), "rpmdb.sqlite-wal": unzipped(t, "rpmdb.sqlite-wal")}},
		{"Berkeley DB", "Packages", map[string][]byte{"Packages": unzipped(t, "Packages")}},
		{"ndb", "Packages", map[string][]byte{"Packages.db": ndbFile(headers(t))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string][]byte{}
			for n, b := range c.files {
				files[dir+n] = b
			}
			got, in := listed(t, files)
			if want := wantList(t, c.want); !slices.Equal(got, want) {
				t.Errorf("packages = %q; want %q", got, want)
			}
			if len(in.notes) > 0 {
				t.Errorf("notes: %q", in.notes)
			}
		})
	}
}

// headers returns the headers in the Berkeley DB, the longest first.
func headers(t testing.TB) (out [][]byte) {
	t.Helper()
	db := unzipped(t, "Packages")
	if err := bdbBlobs(bytes.NewReader(db), int64(len(db)), func(b []byte) error {
		out = append(out, b)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(out, func(a, b []byte) int { return len(b) - len(a) })
	return out
}

// ndbFile returns an ndb database with these package headers and a free slot.
func ndbFile(blobs [][]byte) []byte {
	le := binary.LittleEndian
	out := make([]byte, ndbPage)
	copy(out, "RpmP")
	le.PutUint32(out[12:], 1)
	for i, b := range blobs {
		slot := out[ndbHeadSize+ndbSlot*(i+1):]
		copy(slot, "Slot")
		le.PutUint32(slot[4:], uint32(i+1))
		le.PutUint32(slot[8:], uint32(len(out)/16))
		var head [ndbBlobAt]byte
		copy(head[:], "BlbS")
		le.PutUint32(head[4:], uint32(i+1))
		le.PutUint32(head[12:], uint32(len(b)))
		out = append(append(out, head[:]...), b...)
		out = append(out, make([]byte, 32-len(out)%16)...)
	}
	copy(out[ndbHeadSize:], "Slot")
	return out
}

// TestSQLiteTruncatedLog checks that the complete transactions of a truncated log count.
func TestSQLiteTruncatedLog(t *testing.T) {
	db, wal := unzipped(t, "rpmdb.sqlite"), unzipped(t, "rpmdb.sqlite-wal")
	for cut := len(wal) - 1; cut > 0; cut -= 97 {
		n := 0
		if err := rpmSQLite(bytes.NewReader(db), int64(len(db)), bytes.NewReader(wal[:cut]), int64(cut), func([]byte) error {
			n++
			return nil
		}); err != nil {
			t.Fatalf("log of %d bytes: %v", cut, err)
		}
		if n != 20 && n != 19 { // without the log, or after its first transaction, which removes a package
			t.Fatalf("log of %d bytes: %d packages", cut, n)
		}
	}
}

func TestRPMPackage(t *testing.T) {
	_, in := listed(t, map[string][]byte{
		"var/lib/rpm/Packages": unzipped(t, "Packages"),
		"etc/os-release":       []byte("ID=\"rocky\"\nVERSION_ID='9.3'\n"),
	})
	for _, s := range in.list {
		p := s.spdx()
		switch s.name {
		case "tiny":
			if want := "pkg:rpm/rocky/tiny@1.2.3-4.el9?arch=noarch&distro=rocky-9.3&epoch=2&upstream=tiny-1.2.3-4.el9.src.rpm"; s.purl != want {
				t.Errorf("purl = %s; want %s", s.purl, want)
			}
			if p.LicenseDeclared != "MIT AND (BSD-3-Clause OR GPL-2.0-or-later)" || p.Supplier != "Organization: Example Project" || p.Homepage != "https://example.org/tiny" {
				t.Errorf("tiny = %+v", p)
			}
		case "tiny-libs":
			if p.LicenseDeclared != noAssertion || p.LicenseComments != "declared as Weird License" {
				t.Errorf("tiny-libs = %+v", p)
			}
		}
	}
}

// TestRPMDamaged checks that a damaged database becomes a note, and that the other records
// of the image are read.
func TestRPMDamaged(t *testing.T) {
	files := map[string][]byte{"var/lib/dpkg/status": []byte("Package: a\nStatus: install ok installed\nVersion: 1\n")}
	for i, name := range []string{"rpmdb.sqlite", "Packages", "Packages.db"} {
		files["var/lib/rpm/"+name] = fmt.Appendf(nil, "nonsense %d", i)
	}
	got, in := listed(t, files)
	if !slices.Equal(got, []string{"a 1"}) || len(in.notes) != 3 {
		t.Errorf("packages %q, notes %q; want a 1 and 3 notes", got, in.notes)
	}
}

func FuzzRPMSQLite(f *testing.F) {
	f.Add(unzipped(f, "small.sqlite"), unzipped(f, "small.sqlite-wal"))
	f.Fuzz(func(t *testing.T, db, wal []byte) {
		total := 0
		_ = rpmSQLite(bytes.NewReader(db), int64(len(db)), bytes.NewReader(wal), int64(len(wal)), func(b []byte) error {
			total += len(b)
			_, _ = parseHeader(b)
			return nil
		})
		if total > len(db)+len(wal) {
			t.Errorf("read %d bytes of rows from a file of %d bytes", total, len(db)+len(wal))
		}
	})
}

func FuzzRPMNdb(f *testing.F) {
	f.Add(ndbFile(headers(f)[20:]))
	f.Fuzz(func(t *testing.T, db []byte) {
		total := 0
		_ = ndbBlobs(bytes.NewReader(db), int64(len(db)), func(b []byte) error {
			total += len(b)
			_, _ = parseHeader(b)
			return nil
		})
		if total > len(db) {
			t.Errorf("read %d bytes of headers from a file of %d bytes", total, len(db))
		}
	})
}

func FuzzRPMBerkeley(f *testing.F) {
	f.Add(unzipped(f, "small.bdb"))
	f.Fuzz(func(t *testing.T, db []byte) {
		total := 0
		_ = bdbBlobs(bytes.NewReader(db), int64(len(db)), func(b []byte) error {
			total += len(b)
			_, _ = parseHeader(b)
			return nil
		})
		if total > 2*len(db) { // values in pages, and in overflow pages
			t.Errorf("read %d bytes of values from a file of %d bytes", total, len(db))
		}
	})
}
