// Command repodata writes an index of a channel for benchmarks. The indexes resemble those of
// conda-forge: records have about 500 bytes, each name has 20 records (five versions for four
// versions of python), and a tenth of the packages are .tar.bz2 files. lib0 needs 159
// others. The same arguments give the same index.
//
//	repodata linux-64 N >repodata.json
//	repodata noarch N >repodata.json
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

// group is the number of packages that depend on each other, directly or not.
const (
	group = 158 // without python and python_abi
	step  = 13
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 || (os.Args[1] != "linux-64" && os.Args[1] != "noarch") {
		log.Fatal("usage: repodata linux-64|noarch N")
	}
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	w := &index{Writer: bufio.NewWriterSize(os.Stdout, 1<<20), Rand: rand.New(rand.NewSource(1)), subdir: os.Args[1]}
	fmt.Fprintf(w, `{"info":{"subdir":"%s"},"packages":{`, w.subdir)
	ext, written := ".tar.bz2", 0
	for i := 0; written < n; i++ {
		if (i%4 == 3) != (w.subdir == "noarch") { // a quarter of the packages is noarch
			continue
		}
		for j := range 20 {
			if ext == ".tar.bz2" && written >= n/10 {
				ext, w.started = ".conda", false
				fmt.Fprint(w, `},"packages.conda":{`)
				if w.subdir == "linux-64" {
					w.pythons()
				}
			}
			w.library(i, j, ext)
			written++
		}
	}
	fmt.Fprintln(w, `},"removed":[],"repodata_version":1}`)
	if err := w.Flush(); err != nil {
		log.Fatal(err)
	}
}

// An index is an index that is being written.
type index struct {
	*bufio.Writer
	*rand.Rand
	subdir  string
	started bool // the current section has a record
	records int
}

// pythons writes four versions of python, and of python_abi, which selects one.
func (w *index) pythons() {
	for minor := 10; minor < 14; minor++ {
		w.record("python", fmt.Sprintf("3.%d.4", minor), fmt.Sprintf("h%d_0", minor), ".conda", fmt.Sprintf(`"__glibc >=2.17,<3.0.a0","python_abi 3.%d.* *_cp3%d"`, minor, minor))
	}
	for minor := 10; minor < 14; minor++ {
		w.record("python_abi", fmt.Sprintf("3.%d", minor), fmt.Sprintf("7_cp3%d", minor), ".conda", "")
	}
}

// library writes record j of package i. It depends on packages that follow in its group, at most
// step after it, so that the dependencies of a group have twelve levels.
func (w *index) library(i, j int, ext string) {
	version, minor := j/4, 10+j%4
	first, k := i/group*group, i%group
	depends := fmt.Sprintf(`"__glibc >=2.17,<3.0.a0","python >=3.%d,<3.%d.0a0","python_abi 3.%d.* *_cp3%d"`, minor, minor+1, minor, minor)
	build := fmt.Sprintf("py3%dh%07x_0", minor, w.Intn(1<<28))
	if w.subdir == "noarch" {
		depends, build = `"python >=3.10"`, fmt.Sprintf("pyhd%06x_%d", w.Intn(1<<24), j%4)
	}
	needs := []int{k + step, k + 1 + w.Intn(step), k + 1 + w.Intn(step)}
	for n := 1; k == 0 && n < step; n++ {
		needs = append(needs, n)
	}
	for _, need := range needs {
		if need < group {
			depends += fmt.Sprintf(`,"lib%d >=1.%d.0,<2.0a0"`, first+need, w.Intn(version+1))
		}
	}
	w.record(fmt.Sprintf("lib%d", i), fmt.Sprintf("1.%d.%d", version, i%7), build, ext, depends)
}

// record writes one record.
func (w *index) record(name, version, build, ext, depends string) {
	if w.started {
		fmt.Fprint(w, ",")
	}
	w.started = true
	w.records++
	sum := sha256.Sum256(strconv.AppendInt([]byte(w.subdir), int64(w.records), 10))
	kind := ""
	if w.subdir == "noarch" {
		kind = `"noarch":"python",`
	}
	fmt.Fprintf(w, `"%s-%s-%s%s":{"build":"%s","build_number":%c,"depends":[%s],"license":"BSD-3-Clause","license_family":"BSD","md5":"%x","name":"%s",%s"sha256":"%x","size":%d,"subdir":"%s","timestamp":%d,"version":"%s"}`,
		name, version, build, ext, build, build[len(build)-1], depends, sum[:16], name, kind, sum, 10_000+w.Intn(10_000_000), w.subdir, 1_600_000_000_000+w.records, version)
}
