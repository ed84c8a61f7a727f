package conda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/conda/solve"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// tableIndex returns an index that is large enough for a table, even when compressed. The
// records of p0 to p999 have the given version; the last ones are out of order, and one file
// name is escaped.
func tableIndex(version string) []byte {
	var b bytes.Buffer
	record := func(key, name, file string) {
		sum := sha256.Sum256([]byte(version + file))
		fmt.Fprintf(&b, `,"%s":{"name":"%s","version":"%s","build":"%s","build_number":0,"depends":["x >=1"],"md5":"%x","sha256":"%x","size":7}`, key, name, version, file, sum[:16], sum)
	}
	section := func(key, ext string, last bool) {
		fmt.Fprintf(&b, `"%s":{"first-1-0%s":{"name":"first","version":"1","build":"0"}`, key, ext)
		for i := range 8000 {
			name, build := fmt.Sprint("p", i/8), fmt.Sprint("b", i)
			record(name+"-"+version+"-"+build+ext, name, build)
		}
		if last {
			record("p7-"+version+"-late"+ext, "p7", "late")
			record(`\u0070`+"7-"+version+"-escaped"+ext, "p7", "escaped")
			record("not a name-1-0"+ext, "not a name", "0")
		}
		b.WriteString("},")
	}
	b.WriteString("{")
	section("packages", ".tar.bz2", false)
	section("packages.conda", ".conda", true)
	b.WriteString(`"info":{"base_url":"../files"},"removed":[]}`)
	return b.Bytes()
}

// tableChannel writes a channel with a large index and returns its directory.
func tableChannel(t testing.TB, version, suffix string) string {
	t.Helper()
	dir := t.TempDir()
	writeIndex(t, dir, version, suffix)
	return dir
}

func writeIndex(t testing.TB, dir, version, suffix string) {
	t.Helper()
	text := tableIndex(version)
	if suffix == ".zst" {
		text = zst(text)
	}
	file := filepath.Join(dir, "linux-64/repodata.json"+suffix)
	testenv.Write(t, file, text)
	at := time.Unix(int64(len(version))*1000, 0) // servers report times in seconds
	testenv.Check(t, os.Chtimes(file, at, at))
}

// openFor opens a channel as a new process does.
func openFor(t testing.TB, url, cache string) channel {
	t.Helper()
	opened, err := Options{Request: Request{Channels: []string{url}}, Host: Host{Cache: cache}}.open()
	testenv.Check(t, err)
	return opened[0]
}

// checkIndex looks up records through the cache, twice, and compares them with those that a scan
// of the index finds.
func checkIndex(t testing.TB, what, url, dir, cache string) {
	t.Helper()
	c := openFor(t, url, cache)
	for _, names := range [][]string{{"p7", "p999", "first", "absent"}, {"p500"}, {}} {
		wanted := map[string]bool{}
		for _, n := range names {
			wanted[n] = true
		}
		want, err := openFor(t, condatest.FileURL(dir), "").index(t.Context(), "linux-64", wanted)
		testenv.Check(t, err)
		got, err := c.index(t.Context(), "linux-64", wanted)
		if err != nil || (len(got) == 0) != (len(names) == 0) {
			t.Fatalf("%s: index = %d records, %v", what, len(got), err)
		}
		for _, r := range append(got, want...) {
			r.URL, r.Origin = strings.TrimPrefix(r.URL, r.Origin), ""
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: index returned %d records for %v; the scan %d, or others", what, len(got), names, len(want))
		}
	}
}

// onlyFile returns the only file with a prefix in the cache.
func onlyFile(t testing.TB, cache, prefix string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cache, prefix+"*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the cache has %v, %v; want one %s file", keptFiles(t, cache), err, prefix)
	}
	return files[0]
}

// TestTable compares lookups in tables with scans of the index: compressed or not, local or
// not, with a new table, with one of an earlier process, and after the index has changed.
func TestTable(t *testing.T) {
	for _, suffix := range []string{"", ".zst"} {
		for _, local := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s local %v", suffix, local), func(t *testing.T) {
				dir, cache := tableChannel(t, "1", suffix), t.TempDir()
				url := condatest.FileURL(dir)
				if !local {
					url = condatest.Serve(t, dir, nil).URL
				}
				checkIndex(t, "new", url, dir, cache)
				built, err := os.Stat(onlyFile(t, cache, "table-"))
				testenv.Check(t, err)
				if built.Mode().Perm() != 0o644 {
					t.Errorf("the table has mode %v; want 0644", built.Mode())
				}
				checkIndex(t, "next process", url, dir, cache)
				again, err := os.Stat(onlyFile(t, cache, "table-"))
				if err != nil || !os.SameFile(built, again) {
					t.Errorf("the table was built again, %v", err)
				}
				writeIndex(t, dir, "2.0", suffix)
				checkIndex(t, "changed", url, dir, cache)
				if again, err = os.Stat(onlyFile(t, cache, "table-")); err != nil || os.SameFile(built, again) {
					t.Errorf("the table of the previous index was kept, %v", err)
				}
			})
		}
	}
}

// TestTableDamaged builds a damaged table again, and one in another format.
func TestTableDamaged(t *testing.T) {
	dir, cache := tableChannel(t, "1", ""), t.TempDir()
	url := condatest.Serve(t, dir, nil).URL
	checkIndex(t, "new", url, dir, cache)
	file := onlyFile(t, cache, "table-")
	intact, err := os.ReadFile(file)
	testenv.Check(t, err)
	flip := func(at int) []byte {
		b := bytes.Clone(intact)
		b[(at+len(b))%len(b)] ^= 1
		return b
	}
	cases := map[string][]byte{"empty": {}, "text": []byte("text"), "no directory": intact[:10_000], "shorter": intact[1:], "longer": append([]byte("x"), intact...),
		"first block": flip(1), "directory": flip(-trailerSize - 10), "digest": flip(-1), "format": flip(-trailerSize + len(tableFormat) - 1), "size": flip(-trailerSize + len(tableFormat) + 7), "size, high": flip(-trailerSize + len(tableFormat))}
	for what, data := range cases {
		testenv.Write(t, file, data)
		if _, err := verifyCached(t.Context(), file); (err == nil) != (what == "format") {
			t.Errorf("%s: gc --verify reports %v", what, err)
		}
		checkIndex(t, what, url, dir, cache)
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, intact) {
			t.Errorf("%s: the table was not built again, %v", what, err)
		}
	}
	if n, err := verifyCached(t.Context(), file); n != int64(len(intact)) || err != nil {
		t.Errorf("verifyCached = %d, %v", n, err)
	}
}

// TestTableDamagedLate finds a block that was damaged after the directory was read.
func TestTableDamagedLate(t *testing.T) {
	dir, cache := tableChannel(t, "1", ""), t.TempDir()
	c := openFor(t, condatest.FileURL(dir), cache)
	for range 3 {
		rs, err := c.index(t.Context(), "linux-64", map[string]bool{"p7": true})
		if err != nil || len(rs) != 18 {
			t.Fatalf("index = %d records, %v", len(rs), err)
		}
		file := onlyFile(t, cache, "table-")
		b, err := os.ReadFile(file)
		testenv.Check(t, err)
		b[5] ^= 1
		testenv.Write(t, file, b)
	}
}

// TestTableDamagedIndex downloads a damaged index again when its table must be built again. An
// index with a valid table is not read.
func TestTableDamagedIndex(t *testing.T) {
	dir, cache := tableChannel(t, "1", ""), t.TempDir()
	url := condatest.Serve(t, dir, nil).URL
	checkIndex(t, "new", url, dir, cache)
	index := onlyFile(t, cache, "index-")
	b, err := os.ReadFile(index)
	testenv.Check(t, err)
	b = bytes.ReplaceAll(b, []byte(`"p7"`), []byte(`"q7"`))
	testenv.Write(t, index, b)
	checkIndex(t, "valid table", url, dir, cache)
	if now, err := os.ReadFile(index); err != nil || !bytes.Equal(now, b) {
		t.Errorf("the index was downloaded again, %v", err)
	}
	testenv.Write(t, onlyFile(t, cache, "table-"), "")
	checkIndex(t, "both damaged", url, dir, cache)
}

// TestTableTogether shares a table between concurrent processes.
func TestTableTogether(t *testing.T) {
	dir, cache := tableChannel(t, "1", ".zst"), t.TempDir()
	url := condatest.Serve(t, dir, nil).URL
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			rs, err := openFor(t, url, cache).index(t.Context(), "linux-64", map[string]bool{"p7": true})
			if err != nil || len(rs) != 18 {
				t.Errorf("index = %d records, %v", len(rs), err)
			}
		})
	}
	wg.Wait()
	onlyFile(t, cache, "table-")
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 2 {
		t.Errorf("the cache has %v, %v; want an index and a table", entries, err)
	}
}

// TestTableOptional reads indexes if no table can be written, and keeps no table of an index
// with errors.
func TestTableOptional(t *testing.T) {
	dir := tableChannel(t, "1", "")
	file := filepath.Join(t.TempDir(), "file")
	testenv.Write(t, file, "")
	checkIndex(t, "no directory", condatest.FileURL(dir), dir, filepath.Join(file, "cache"))

	text := tableIndex("1")
	bad := map[string][]byte{
		"truncated": text[:len(text)-20],
		"record":    bytes.Replace(text, []byte(`"name":"p7"`), []byte(`"name":"p8"`), 1),
		"duplicate": bytes.Replace(text, []byte(`"p7-1-b57.conda"`), []byte(`"p7-1-b56.conda"`), 1),
	}
	for what, text := range bad {
		testenv.Write(t, filepath.Join(dir, "linux-64/repodata.json"), text)
		for _, url := range []string{condatest.FileURL(dir), condatest.Serve(t, dir, nil).URL} {
			cache := t.TempDir()
			rs, err := openFor(t, url, cache).index(t.Context(), "linux-64", map[string]bool{"p7": true})
			if err == nil || !strings.Contains(err.Error(), "reading the index of") {
				t.Errorf("%s: index = %d records, %v", what, len(rs), err)
			}
			if entries, _ := os.ReadDir(cache); len(entries) > 0 {
				t.Errorf("%s: the cache has %v", what, entries)
			}
		}
	}
}

// TestTableAge marks a table as used only if it belongs to the index, so that the store's garbage
// collection removes old tables.
func TestTableAge(t *testing.T) {
	dir, cache := tableChannel(t, "1", ""), t.TempDir()
	url := condatest.FileURL(dir)
	checkIndex(t, "new", url, dir, cache)
	file := onlyFile(t, cache, "table-")
	old := time.Now().Add(-48 * time.Hour)
	age := func() time.Duration {
		fi, err := os.Stat(file)
		testenv.Check(t, err)
		return time.Since(fi.ModTime())
	}
	testenv.Check(t, os.Chtimes(file, old, old))
	checkIndex(t, "used", url, dir, cache)
	if age() > time.Hour {
		t.Errorf("the table was used, but its file is %v old", age())
	}
	testenv.Check(t, os.Chtimes(file, old, old))
	testenv.Write(t, filepath.Join(dir, "linux-64/repodata.json"), "{}") // too small for a table
	rs, err := openFor(t, url, cache).index(t.Context(), "linux-64", map[string]bool{"p7": true})
	if err != nil || len(rs) != 0 {
		t.Errorf("index = %d records, %v", len(rs), err)
	}
	if age() < 40*time.Hour {
		t.Errorf("the table was not used, but its file is %v old", age())
	}
}

// TestTableLimit refuses a directory that would be too large.
func TestTableLimit(t *testing.T) {
	w := &tableWriter{table: table{Names: map[string][]uint32{}}, directory: maxDirectory, w: io.Discard}
	if err := w.add(textScanner([]byte(`{}}`)), []byte(`"a-1-0.conda"`)); err == nil {
		t.Error("a directory larger than the limit was accepted")
	}
	for what, x := range map[string]*table{
		"no source":   {},
		"size":        {Source: "x", Blocks: []tableBlock{{11, make([]byte, 32)}}},
		"negative":    {Source: "x", Blocks: []tableBlock{{-1, make([]byte, 32)}, {11, make([]byte, 32)}}},
		"digest":      {Source: "x", Blocks: []tableBlock{{10, make([]byte, 31)}}},
		"rest":        {Source: "x", Blocks: []tableBlock{{9, make([]byte, 32)}}},
		"block":       {Source: "x", Blocks: []tableBlock{{10, make([]byte, 32)}}, Names: map[string][]uint32{"a": {1}}},
		"large block": {Source: "x", Blocks: []tableBlock{{10, make([]byte, 32)}}, Names: map[string][]uint32{"a": {1 << 31, 0}}},
		"no block":    {Source: "x", Blocks: []tableBlock{{10, make([]byte, 32)}}, Names: map[string][]uint32{"a": {}}},
	} {
		if err := x.check(10); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// FuzzTable reads tables with valid digests and arbitrary content, and compares the tables of
// arbitrary indexes with their scans.
func FuzzTable(f *testing.F) {
	f.Add([]byte(`{"packages":{"a-1-0.conda":{"name":"a","version":"1","build":"0"},"b-1-0.conda":{}}}`), []byte("x"))
	f.Add([]byte(`{"info":{"base_url":"u"},"packages.conda":{"\u0061-1-0.conda":{"name":"a","version":"1","build":"0"}}}`), []byte(`{"source":"x","blocks":[{"size":1,"sha256":""}],"names":{"a":[7]}}`))
	f.Add([]byte(`{"packages":null,"packages.conda":{"a-1-0.conda":null}}`), []byte(`{"source":"x"}`))
	f.Fuzz(func(t *testing.T, index, directory []byte) {
		file := filepath.Join(t.TempDir(), "table")
		c, wanted := channel{url: "https://c.example/ch"}, map[string]bool{"a": true}
		want, werr := c.scan(bytes.NewReader(index), "linux-64", "https://c.example/ch/linux-64/", wanted)
		var b bytes.Buffer
		if err := writeTable(&b, bytes.NewReader(index), "x"); err == nil {
			testenv.Write(t, file, b.Bytes())
			x, err := openTable(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.search(x, nil, "", "linux-64", "https://c.example/ch/linux-64/", wanted)
			if (err == nil) != (werr == nil) || (err == nil && !equalRecords(got, want)) {
				t.Fatalf("the table has %d records, %v; the scan %d, %v", len(got), err, len(want), werr)
			}
		} else if werr == nil {
			t.Fatalf("writeTable = %v", err)
		}
		blocks := zst(index)
		if !json.Valid(directory) {
			sum := sha256.Sum256(blocks)
			directory = mustJSON(table{Source: "x", Blocks: []tableBlock{{int64(len(blocks)), sum[:]}}, Names: map[string][]uint32{"a": {0}}})
		}
		sum := sha256.Sum256(directory)
		data := append(binary.BigEndian.AppendUint64(append(append(blocks, directory...), tableFormat...), uint64(len(directory))), sum[:]...)
		testenv.Write(t, file, data)
		if x, err := openTable(file); err == nil {
			_, _ = c.search(x, nil, "", "linux-64", "https://c.example/ch/linux-64/", wanted)
			_, _ = verifyTableFile(file)
		}
	})
}

func equalRecords(a, b []*solve.Record) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

func verifyTableFile(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return verifyTable(context.Background(), f)
}
