package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// floors are the rooms and which of our rooms each may import.
var floors = map[string][]string{
	"cmd/hpcc": {"cmd/start/bare", "build", "unpack", "conda", "store", "store/owndir", "store/wait", "store/wait/hostile", "runtime", "envfile", "job", "metrics", "metrics/report"},
	// The program for images, and the start of "hpcc run": see their package comments.
	"cmd/start":          {"runtime", "metrics"},
	"cmd/start/bare":     {"runtime", "envfile", "store/ready"},
	"build":              {"unpack", "conda", "store", "store/wait", "store/wait/hostile", "runtime"},
	"unpack":             {"store"},
	"conda":              {"store", "store/bounded", "store/wait", "store/wait/hostile"},
	"store":              {"store/ready", "store/owndir", "store/seal", "store/wait", "store/wait/hostile"},
	"store/ready":        {},
	"store/owndir":       {},                     // both store and runtime have directories in /tmp and /dev/shm
	"store/seal":         {},                     // both store and job seal the records that they keep
	"store/bounded":      {},                     // both job and conda decode TOML
	"store/wait":         {"store/wait/hostile"}, // shared by all that wait for others
	"store/wait/hostile": {},
	"runtime":            {"store/owndir"},
	"envfile":            {},
	"job":                {"store/bounded", "store/seal", "store/wait", "store/wait/hostile"},
	"metrics":            {},
	"metrics/report":     {"metrics"},
}

// The limits of a function and of a file, in lines.
const (
	maxFunction = 120
	maxFile     = 800
)

func TestHouse(t *testing.T) {
	root := "../.."
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := floors[e.Name()]; e.IsDir() && !ok && !strings.Contains(" .git .ci bin dist docs testdata cmd ", " "+e.Name()+" ") {
			t.Errorf("%s/ is no room of the design", e.Name())
		}
	}
	for room, allowed := range floors {
		files, err := filepath.Glob(filepath.Join(root, room, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			checkFile(t, room, allowed, f)
		}
	}
}

// TestStartImports keeps out of the start of a run what would make it wait:
// packages that prepare tables and expressions before main, and what pulls them in.
func TestStartImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-tags", "start", "-deps", "../start")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, slow := range []string{"regexp", "net", "net/http", "text/template", "flag", "crypto/tls", "github.com/urfave/cli/v2", "github.com/opencontainers/go-digest", "google.golang.org/protobuf", "hpcc/store", "hpcc/unpack"} {
			if dep == slow {
				t.Errorf("cmd/start imports %s; see \"Start\" in docs/design.md", dep)
			}
		}
	}
}

// checkFile holds one file to the floors and the limits.
func checkFile(t *testing.T, room string, allowed []string, file string) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if n := fset.Position(f.End()).Line; n > maxFile {
		t.Errorf("%s has %d lines; the limit is %d", file, n, maxFile)
	}
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if dep, ours := strings.CutPrefix(path, "hpcc/"); ours && !strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+dep+" ") {
			t.Errorf("%s: room %s may not import %s", file, room, dep)
		}
		if path == "github.com/urfave/cli/v2" && room != "cmd/hpcc" {
			t.Errorf("%s: only cmd/hpcc knows the command line", file)
		}
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFunction {
			t.Errorf("%s: function %s has %d lines; the limit is %d", file, fn.Name.Name, n, maxFunction)
		}
	}
}
