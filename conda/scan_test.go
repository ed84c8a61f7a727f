package conda

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// bigIndex writes an index of n records and returns its path. With 300,000 records it has the
// size of conda-forge's index of 2023.
func bigIndex(b *testing.B, n int) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "linux-64/repodata.json")
	testenv.Check(b, os.MkdirAll(filepath.Dir(file), 0o755))
	f, err := os.Create(file)
	testenv.Check(b, err)
	w := bufio.NewWriterSize(f, 1<<20)
	fmt.Fprint(w, "{\n  \"info\": {\n    \"subdir\": \"linux-64\"\n  },\n  \"packages\": {},\n  \"packages.conda\": {")
	for i := range n {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		name := fmt.Sprintf("package%d", i%9000)
		version := fmt.Sprintf("%d.%d.%d", i/90000, i/9000%10, i%7)
		fmt.Fprintf(w, "\n    \"%s-%s-py311h%07x_%d.conda\": {\n      \"build\": \"py311h%07x_%d\",\n      \"build_number\": %d,\n      \"constrains\": [\n        \"other >=%d\"\n      ],\n", name, version, i, i%5, i, i%5, i%5, i%9)
		fmt.Fprint(w, "      \"depends\": [\n")
		for d := range 8 {
			fmt.Fprintf(w, "        \"dependency%d >=%d.%d,<%d.0a0\",\n", (i+d*17)%9000, d, i%10, d+1)
		}
		fmt.Fprintf(w, "        \"python >=3.11,<3.12.0a0\"\n      ],\n      \"license\": \"BSD-3-Clause \\\"new\\\"\",\n      \"md5\": \"%032x\",\n      \"name\": \"%s\",\n      \"sha256\": \"%064x\",\n      \"size\": %d,\n      \"subdir\": \"linux-64\",\n      \"timestamp\": %d,\n      \"version\": \"%s\"\n    }", i, name, i, i*100, 1600000000000+i, version)
	}
	fmt.Fprint(w, "\n  },\n  \"removed\": [],\n  \"repodata_version\": 1\n}\n")
	testenv.Check(b, w.Flush())
	testenv.Check(b, f.Close())
	return file
}

func BenchmarkIndex(b *testing.B) {
	if testing.Short() {
		b.Skip("writes an index of 200 MB")
	}
	file := bigIndex(b, 300_000)
	wanted := map[string]bool{}
	for i := range 60 {
		wanted[fmt.Sprintf("package%d", i*100)] = true
	}
	fi, err := os.Stat(file)
	testenv.Check(b, err)
	c := channel{url: condatest.FileURL(filepath.Dir(filepath.Dir(file)))}
	run := func(b *testing.B) {
		b.SetBytes(fi.Size())
		b.ReportAllocs()
		for b.Loop() {
			rs, err := c.index(b.Context(), "linux-64", wanted)
			if err != nil || len(rs) < 1900 {
				b.Fatalf("%d records, %v", len(rs), err)
			}
		}
	}
	b.Run("plain", run)
	data, err := os.ReadFile(file)
	testenv.Check(b, err)
	testenv.Write(b, file+".zst", zst(data))
	testenv.Write(b, file, []byte(strings.Repeat("x", 10)))
	b.Run("zstd", run)
}
