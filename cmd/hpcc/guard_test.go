package main

import (
	"cmp"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// layers lists the folders that the packages of a folder may import besides their own. The longest
// matching folder applies. Packages import downwards only; docs/design.md says what each one does.
var layers = map[string]string{
	"cmd/hpcc":      "build cmd/start/bare conda envfile front job metrics runtime store unpack",
	"cmd/start":     "envfile metrics runtime store/ready", // starts within milliseconds: see TestStartImports
	"build":         "conda envfile runtime store unpack",
	"front":         "envfile runtime store unpack",
	"job":           "front metrics runtime/inherit store/ready",
	"job/measured":  "job metrics store",
	"job/site":      "job runtime/probe store",                 // it sends images, and checks this machine for doctor
	"job/node":      "front job metrics runtime/inherit store", // it sends images to nodes
	"job/prepare":   "build envfile job runtime store unpack",  // it looks into images, and packs files for them
	"metrics":       "runtime/inherit",
	"conda":         "store",
	"unpack":        "store",
	"runtime/check": "envfile runtime unpack", // it reads layers, like build
	"runtime/probe": "runtime store",          // it checks the store for hpcc doctor
	"runtime/root":  "runtime store unpack",   // it unpacks images that a run needs
	"runtime":       "envfile store/ready",
	"store":         "",
	"envfile":       "",
	"web":           "",
	"files":         "",
	"text":          "",
}

// foundations are packages that all others may import, and that import only those before them.
var foundations = []string{"text", "text/terminal", "files", "web"}

// batchSystems are the packages of schedulers, which do not import each other.
var batchSystems = []string{"job/gridengine", "job/kube", "job/local", "job/lsf", "job/pbs", "job/slurm"}

// module is the path of the module in go.mod.
const module = "hpcc"

// packages lists the packages of the design, sorted.
func packages(t *testing.T) (list []string) {
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || (e.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata"}, e.Name())) {
			return cmp.Or(err, fs.SkipDir)
		}
		pkg, _ := filepath.Rel("../..", filepath.Dir(path))
		if strings.HasSuffix(path, ".go") && !slices.Contains(list, pkg) {
			list = append(list, pkg)
		}
		return nil
	})
	testenv.Check(t, err)
	slices.Sort(list)
	return list
}

// TestLayers checks that each package imports only the layers below it.
func TestLayers(t *testing.T) {
	for _, pkg := range packages(t) {
		if folderOf(pkg) == "" {
			t.Errorf("%s: the folder is not part of the design; see layers", pkg)
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", pkg, "*.go"))
		testenv.Check(t, err)
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			testenv.Check(t, err)
			for _, i := range f.Imports {
				name := strings.Trim(i.Path.Value, `"`)
				if name == "github.com/urfave/cli/v2" && pkg != "cmd/hpcc" {
					t.Errorf("%s: only cmd/hpcc may import the cli package", file)
				}
				dep, ours := strings.CutPrefix(name, module+"/")
				inTest := strings.HasSuffix(file, "_test.go") && (strings.HasPrefix(dep, "testdata/") || dep == pkg)
				if ours && !inTest && !mayImport(pkg, dep) {
					t.Errorf("%s: package %s may not import %s", file, pkg, dep)
				}
			}
		}
	}
}

// within reports whether a package is in a folder.
func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// folderOf returns the folder of layers to which a package belongs, or "".
func folderOf(pkg string) (folder string) {
	for f := range layers {
		if within(pkg, f) && len(f) > len(folder) {
			folder = f
		}
	}
	return folder
}

func mayImport(pkg, dep string) bool {
	folder := folderOf(pkg)
	switch {
	case slices.Contains(foundations, dep):
		i := slices.Index(foundations, pkg)
		return i < 0 || slices.Index(foundations, dep) < i
	case slices.Contains(batchSystems, pkg) && slices.Contains(batchSystems, dep):
		return false
	case within(dep, folder):
		return true
	}
	return slices.ContainsFunc(strings.Fields(layers[folder]), func(f string) bool { return within(dep, f) })
}

// TestStartImports checks that cmd/start does not import packages that slow down its start, such as
// those that compile expressions before main.
func TestStartImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-tags", "start", "-deps", "../start")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	testenv.Check(t, err)
	for _, dep := range strings.Fields(string(out)) {
		for _, slow := range []string{"regexp", "net", "net/http", "text/template", "flag", "crypto/tls", "github.com/urfave/cli/v2", "github.com/opencontainers/go-digest", "google.golang.org/protobuf", module + "/store", module + "/unpack"} {
			if dep == slow {
				t.Errorf("cmd/start imports %s; see \"Start\" in docs/design.md", dep)
			}
		}
	}
}
