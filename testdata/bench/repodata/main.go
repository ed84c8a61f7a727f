// Command repodata writes the index of a channel for benchmarks. The index is like that of
// conda-forge for linux-64: 352,000 records, 223 MB; a tenth of the packages are .tar.bz2
// files. The same arguments give the same index.
//
//	repodata N >repodata.json
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strconv"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: repodata N")
	}
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	w := bufio.NewWriterSize(os.Stdout, 1<<20)
	r := rand.New(rand.NewSource(1))
	fmt.Fprint(w, `{"info":{"subdir":"linux-64"},"packages":{`)
	for i := range n {
		ext := ".conda"
		if i < n/10 {
			ext = ".tar.bz2"
		}
		if i == n/10 {
			fmt.Fprint(w, `},"packages.conda":{`)
		} else if i > 0 {
			fmt.Fprint(w, ",")
		}
		one(w, r, i, ext)
	}
	fmt.Fprintln(w, `},"removed":[],"repodata_version":1}`)
	if err := w.Flush(); err != nil {
		log.Fatal(err)
	}
}

// one writes a record. Each name has about twenty versions and builds.
func one(w *bufio.Writer, r *rand.Rand, i int, ext string) {
	name, version, number := fmt.Sprintf("lib-of-things%d", i/20), fmt.Sprintf("%d.%d.%d", 1+i%20/7, i%7, r.Intn(9)), i%3
	sum := sha256.Sum256(strconv.AppendInt(nil, int64(i), 10))
	build := fmt.Sprintf("py3%dh%x_%d", 8+i%6, sum[:4], number)
	fmt.Fprintf(w, `"%s-%s-%s%s":{"build":"%s","build_number":%d,"constrains":["other%d >=%d"],"depends":["__glibc >=2.17,<3.0.a0"`, name, version, build, ext, build, number, r.Intn(n20), r.Intn(9))
	for range 2 + r.Intn(7) {
		fmt.Fprintf(w, `,"lib-of-things%d >=%d.%d,<%d.0a0"`, r.Intn(n20), r.Intn(9), r.Intn(20), 1+r.Intn(9))
	}
	fmt.Fprintf(w, `,"python_abi 3.%d.* *_cp3%d"],"license":"BSD-3-Clause","license_family":"BSD","md5":"%x","name":"%s","sha256":"%x","size":%d,"subdir":"linux-64","timestamp":%d,"version":"%s"}`,
		8+i%6, 8+i%6, sum[:16], name, sum, 10_000+r.Intn(10_000_000), 1_600_000_000_000+i, version)
}

// n20 bounds the numbers of names.
const n20 = 17_600
