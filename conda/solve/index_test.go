package solve

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// An index is a set of channels that both solvers read, with spec lists.
type index struct {
	name     string
	channels []string // directories below the root, in order of preference
	subdir   string
	glibc    string    // version of the machine's C library
	records  []*Record // in the order of the channels
	byName   map[string][]*Record
	lists    [][]string
}

// A rattlerVirtual is a virtual package of a machine.
type rattlerVirtual struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Build   string `json:"build"`
}

// rattlerHost is the URL below which solve.mjs has the channels.
const rattlerHost = "http://localhost/"

// indexes returns 50 synthetic indexes with 40 spec lists each, Anaconda's "main" of 2021, and the real
// ones. It writes them below root.
func indexes(t *testing.T, root string) (out []*index) {
	for seed := range uint64(50) {
		x := &index{name: "synthetic", subdir: "linux-64", glibc: "2.28"}
		for _, c := range []string{"first", "second"} {
			x.channels = append(x.channels, fmt.Sprintf("synthetic%d/%s", seed, c))
		}
		x.records = synthetic(seed, rattlerHost+x.channels[0], rattlerHost+x.channels[1])
		x.write(t, root)
		r := rand.New(rand.NewPCG(seed, 23))
		for range 40 {
			x.lists = append(x.lists, requests(r, x.records))
		}
		out = append(out, x)
	}
	main := &index{name: "main2021", channels: []string{"main2021"}, subdir: "linux-64", glibc: "2.28"}
	for _, subdir := range []string{main.subdir, "noarch"} {
		kinds := map[string]map[string]*Record{}
		readTestdata(t, subdir, &kinds)
		main.add(subdir, kinds)
	}
	for i, r := range main.records { // the test data lacks digests, which rattler needs
		r.MD5, r.SHA256, r.Depends = fmt.Sprintf("%032x", i), fmt.Sprintf("%064x", i), append([]string{}, r.Depends...)
	}
	main.write(t, root)
	main.request(t, 50)
	return append(append(out, main), realIndexes(t, root)...)
}

// realIndexes returns the indexes of channels below the directories in HPCC_TEST_INDEXES and
// HPCC_TEST_CHANNEL, one for each platform. Channels have SUBDIR/repodata.json.
func realIndexes(t *testing.T, root string) (out []*index) {
	channels := []string{}
	if dir := os.Getenv("HPCC_TEST_INDEXES"); dir != "" {
		var err error
		channels, err = filepath.Glob(dir + "/*")
		testenv.Check(t, err)
	}
	if dir := os.Getenv("HPCC_TEST_CHANNEL"); dir != "" {
		channels = append(channels, dir)
	}
	for _, dir := range channels {
		files, err := filepath.Glob(dir + "/*/repodata.json")
		testenv.Check(t, err)
		subdirs := map[string]map[string]map[string]*Record{}
		for _, file := range files {
			subdir := filepath.Base(filepath.Dir(file))
			subdirs[subdir] = copyIndex(t, file, filepath.Join(root, filepath.Base(dir), subdir, "repodata.json"))
		}
		for _, subdir := range slices.Sorted(maps.Keys(subdirs)) {
			if subdir == "noarch" && len(subdirs) > 1 {
				continue
			}
			x := &index{name: filepath.Base(dir) + " " + subdir, channels: []string{filepath.Base(dir)}, subdir: subdir, glibc: "2.36"}
			x.add(subdir, subdirs[subdir])
			if subdir != "noarch" {
				x.add("noarch", subdirs["noarch"])
			}
			x.request(t, 50)
			out = append(out, x)
		}
	}
	return out
}

// copyIndex copies a repodata.json file and returns its records by kind and file name. Old files
// have only the records of one kind.
func copyIndex(t *testing.T, from, to string) map[string]map[string]*Record {
	b, err := os.ReadFile(from)
	testenv.Check(t, err)
	keys := map[string]json.RawMessage{}
	testenv.Check(t, json.Unmarshal(b, &keys))
	if keys["packages"] == nil && keys["packages.conda"] == nil {
		b = fmt.Appendf(nil, `{"packages":%s}`, b)
		testenv.Check(t, json.Unmarshal(b, &keys))
	}
	testenv.Write(t, to, b)
	out := map[string]map[string]*Record{}
	for _, kind := range []string{"packages", "packages.conda"} {
		if keys[kind] != nil {
			records := map[string]*Record{}
			testenv.Check(t, json.Unmarshal(keys[kind], &records))
			out[kind] = records
		}
	}
	return out
}

// add adds the records of a repodata.json file.
func (x *index) add(subdir string, kinds map[string]map[string]*Record) {
	for _, kind := range []string{"packages", "packages.conda"} {
		for _, fn := range slices.Sorted(maps.Keys(kinds[kind])) {
			r := kinds[kind][fn]
			r.FileName, r.Subdir, r.Origin = fn, subdir, rattlerHost+x.channels[0]
			x.records = append(x.records, r)
		}
	}
}

// request adds random spec lists. Most of them contain only names that have a solution on their own.
func (x *index) request(t *testing.T, n int) {
	solvable := map[string]bool{}
	var records []*Record
	for _, r := range x.records {
		if _, ok := solvable[r.Name]; !ok {
			solvable[r.Name] = x.solve(t, []string{r.Name}).err == nil
		}
		if solvable[r.Name] {
			records = append(records, r)
		}
	}
	r := rand.New(rand.NewPCG(22, 24))
	for i := range n {
		if from := records; len(records) > 0 && i%5 > 0 {
			x.lists = append(x.lists, requests(r, from))
		} else {
			x.lists = append(x.lists, requests(r, x.records))
		}
	}
}

// write writes the repodata.json files of an index.
func (x *index) write(t *testing.T, root string) {
	files := map[string]map[string]map[string]*Record{}
	for _, r := range x.records {
		file := filepath.Join(root, strings.TrimPrefix(r.Origin, rattlerHost), r.Subdir, "repodata.json")
		if files[file] == nil {
			files[file] = map[string]map[string]*Record{"packages": {}, "packages.conda": {}}
		}
		kind := "packages"
		if strings.HasSuffix(r.FileName, ".conda") {
			kind = "packages.conda"
		}
		files[file][kind][r.FileName] = r
	}
	for file, content := range files {
		b, err := json.Marshal(content)
		testenv.Check(t, err)
		testenv.Write(t, file, b)
	}
}

// machine returns the virtual packages for both solvers.
func (x *index) machine() []rattlerVirtual {
	return []rattlerVirtual{{"__glibc", x.glibc, "0"}, {"__linux", "5.10", "0"}, {"__unix", "0", "0"}}
}
