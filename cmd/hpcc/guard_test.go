package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"hpcc/testdata/testenv"

	"github.com/urfave/cli/v2"
)

// allowedImports lists the packages of hpcc that each package may import.
var allowedImports = map[string][]string{
	"build":            {"build/attest", "build/expand", "build/git", "build/lint", "build/rawconfig", "build/source", "conda", "conda/artifact", "conda/exports", "conda/layer", "conda/pip", "conda/program", "conda/trust", "envfile", "runtime", "runtime/check", "runtime/fakeroot", "runtime/process", "store", "store/disk", "store/wait", "unpack"},
	"build/attest":     {"store"},
	"build/binder":     {"conda/input", "store/bounded"}, // it reads files of others
	"build/code":       {"build/source", "store"},
	"build/definition": {"conda/input", "job/shellword"}, // it reads files of others, and writes commands of the shell
	"build/expand":     {},
	"build/git":        {"build/attest", "store/wait", "testdata/hostile"},
	"build/lint":       {"build/expand"},
	"build/rawconfig":  {},
	"build/source":     {"build/git", "store", "store/disk", "store/wait", "testdata/hostile"},
	"cmd/hpcc":         {"build", "build/attest", "build/binder", "build/code", "build/definition", "build/git", "build/rawconfig", "build/source", "cmd/start/bare", "conda", "conda/exports", "conda/pip", "envfile", "front", "front/containers", "front/kernel", "front/scripts", "front/wrapper", "job", "job/argo", "job/atomicfile", "job/capacity", "job/dialect", "job/dispatch", "job/field", "job/kube", "job/node", "job/pack", "job/quantity", "job/results", "job/shellword", "job/sshd", "job/snakemake", "job/translate", "job/tunnel", "metrics", "metrics/report", "runtime", "runtime/check", "runtime/devices", "runtime/foreign", "runtime/oci", "runtime/probe", "runtime/process", "runtime/runconf", "runtime/usertext", "store", "store/disk", "store/owndir", "store/ready", "store/wait", "testdata/bigstore", "testdata/condapackage", "testdata/condatest", "testdata/hostile", "testdata/jobtest", "testdata/slowfs/mount", "unpack", "unpack/sif", "unpack/squashfs"},
	"cmd/start":        {"metrics", "runtime", "runtime/foreign", "runtime/process", "runtime/usertext"},
	"cmd/start/bare":   {"envfile", "runtime", "runtime/devices", "runtime/process", "runtime/runconf", "store/ready"},
	"conda":            {"conda/exports", "conda/fetch", "conda/input", "conda/layer", "conda/pip", "conda/program", "conda/solve", "conda/trust", "store", "store/disk", "store/wait", "testdata/condatest", "testdata/hostile"},
	"conda/artifact":   {"store", "store/wait"},
	"conda/exports":    {"conda/fetch", "conda/input", "conda/pip", "conda/solve", "store/wait"},
	"conda/fetch":      {"conda/artifact", "store/wait"},
	"conda/input":      {},
	"conda/layer":      {"store"},
	"conda/pip":        {"conda/fetch", "conda/input", "conda/layer", "conda/program", "store", "store/bounded", "store/disk", "testdata/condatest"},
	"conda/program":    {"conda/input"},
	"conda/solve":      {"conda/fetch", "conda/input"},
	"conda/trust":      {"store/wait", "testdata/condatest"},
	"envfile":          {},
	"front":            {"job/message", "job/shellword", "store/ready"}, // words of the shell; it reads scripts and command lines
	"front/containers": {"runtime/process"},
	"front/wrapper":    {"runtime/runconf"}, // the syntax of wrappers
	"front/kernel":     {"job/shellword", "job/sshd"},
	"front/scripts":    {"job/shellword", "runtime", "unpack"}, // images as Apptainer runs them
	"job":              {"job/atomicfile", "job/message", "job/quantity", "job/shellword", "store/seal", "store/wait", "testdata/hostile"},
	"job/argo":         {"job", "job/batch", "job/capacity", "job/field", "job/invoke", "job/kube", "job/message", "job/queue", "job/results", "store/wait", "testdata/jobtest"},
	"job/atomicfile":   {},
	"job/batch":        {"job", "job/capacity", "job/dialect", "job/node", "job/queue", "job/tunnel"},
	"job/capacity":     {"job", "job/message", "job/quantity"},
	"job/dialect":      {"front", "job", "job/field", "job/message", "job/quantity", "job/shellword"},
	"job/dispatch":     {"job", "job/argo", "job/atomicfile", "job/batch", "job/capacity", "job/dialect", "job/field", "job/gridengine", "job/invoke", "job/jobscript", "job/kube", "job/local", "job/lsf", "job/message", "job/node", "job/pack", "job/pbs", "job/quantity", "job/queue", "job/results", "job/shellword", "job/slurm", "job/snakemake", "job/translate", "job/tunnel", "store/bounded", "store/seal", "store/wait", "testdata/bigstore", "testdata/jobtest"},
	"job/field":        {"job"},
	"job/gridengine":   {"job", "job/batch", "job/capacity", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/message", "job/node", "job/quantity", "job/queue", "job/shellword", "testdata/jobtest"},
	"job/invoke":       {"store/wait", "testdata/hostile"},
	"job/jobscript":    {"job", "job/dialect", "job/shellword"},
	"job/kube":         {"job", "job/atomicfile", "job/batch", "job/capacity", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/message", "job/node", "job/queue", "job/results", "job/shellword", "job/tunnel", "metrics", "store/wait", "testdata/jobtest"},
	"job/local":        {"job", "job/atomicfile", "job/batch", "job/capacity", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/node", "job/quantity", "job/queue"},
	"job/lsf":          {"job", "job/atomicfile", "job/batch", "job/capacity", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/message", "job/node", "job/quantity", "job/queue", "job/shellword", "testdata/jobtest"},
	"job/message":      {},
	"job/node":         {"job", "job/atomicfile", "job/message", "job/tunnel", "metrics", "store/wait"},
	"job/pack":         {"job", "job/atomicfile", "job/message", "job/node", "job/quantity", "job/tunnel"},
	"job/pbs":          {"job", "job/batch", "job/capacity", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/message", "job/node", "job/quantity", "job/queue", "job/shellword", "testdata/jobtest"},
	"job/quantity":     {"job/message"},
	"job/queue":        {"job"},
	"job/results":      {},
	"job/shellword":    {},
	"job/slurm":        {"front", "job", "job/batch", "job/capacity", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/message", "job/node", "job/quantity", "job/queue", "job/shellword", "store/ready", "store/wait", "testdata/jobtest"},
	"job/sshd":         {},
	"job/snakemake":    {"job", "job/dialect", "job/field", "job/message", "job/quantity", "job/shellword"},
	"job/translate":    {"front", "job", "job/dialect", "job/field", "job/invoke", "job/jobscript", "job/message", "job/shellword"},
	"job/tunnel":       {"job/message"},
	"metrics":          {},
	"metrics/report":   {"metrics"},
	"runtime":          {"envfile", "runtime/accounts", "runtime/fakeroot", "runtime/process", "runtime/rawfile", "runtime/rootfs", "store/owndir", "store/ready"},
	"runtime/accounts": {"runtime/rawfile"},
	"runtime/check":    {"envfile", "runtime", "runtime/foreign", "unpack"}, // it reads layers, like build
	"runtime/devices":  {"envfile", "runtime", "runtime/process", "runtime/rootfs"},
	"runtime/fakeroot": {"runtime/process", "runtime/rawfile", "runtime/rootfs"},
	"runtime/foreign":  {"envfile", "runtime", "runtime/accounts", "runtime/process", "runtime/rawfile"},
	"runtime/oci":      {"envfile", "runtime", "runtime/process", "runtime/rawfile", "runtime/rootfs"},
	"runtime/probe":    {"runtime", "runtime/fakeroot", "runtime/process", "runtime/rootfs"},
	"runtime/process":  {"runtime/usertext"},
	"runtime/rawfile":  {},
	"runtime/rootfs":   {"runtime/rawfile"},
	"runtime/runconf":  {},
	"runtime/usertext": {},
	"store":            {"store/disk", "store/gzip", "store/owndir", "store/ready", "store/seal", "store/wait", "testdata/bigstore", "testdata/condatest", "testdata/hostile"},
	"store/bounded":    {}, // both job and conda decode TOML
	"store/disk":       {}, // files and limits, for all that keep or read many files
	"store/gzip":       {},
	"store/owndir":     {}, // both store and runtime have directories in /tmp and /dev/shm
	"store/ready":      {},
	"store/seal":       {},                   // both store and job seal the records that they keep
	"store/wait":       {"testdata/hostile"}, // shared by all that wait for others
	"unpack":           {"store", "store/disk", "unpack/sif", "unpack/squashfs"},
	"unpack/sif":       {},
	"unpack/squashfs":  {},
}

// The limits of the code. For a package above a limit, ceilings holds its number, which may only
// go down.
const (
	maxFile     = 800 // lines of a file
	maxFunction = 80  // lines of a function
	maxFiles    = 25  // of a package, without tests
	maxExports  = 15  // names at the top level of a package
)

// A tally holds the counts of a package that the limits apply to.
type tally struct {
	Files     int // files, without those of verbs
	Exports   int // exported names
	Functions int // functions that are longer than maxFunction
	Mixed     int // conditions that mix && and || without parentheses
	Contexts  int // functions that take a *cli.Context, besides parsers
}

// ceilings holds the counts above the limits by package, with the reason. A count at or below its
// limit is 0.
var ceilings = map[string]tally{
	"build":          {Exports: 17},  // a build, its check and events; the conda half of one
	"cmd/hpcc":       {Contexts: 15}, // completion, help, defaults of flags
	"conda":          {Exports: 16},  // an environment's plan, packages, moves to another machine
	"conda/fetch":    {Exports: 16},  // addresses and downloads of channels, indexes and mirrors
	"conda/input":    {Exports: 18},  // the bounds of all that conda and pip read, and the counts in their notes
	"front":          {Exports: 32},  // one constant for each meaning of an option
	"job":            {Exports: 65},  // the nouns of jobs, which every scheduler writes
	"job/batch":      {Exports: 16},  // one interface for each ability of a scheduler, and what it takes
	"job/capacity":   {Exports: 37},  // the rows of a report, which cmd/hpcc prints
	"job/dispatch":   {Exports: 42},  // one for each verb of jobs and clusters, and its result
	"job/field":      {Exports: 47},  // one constant for each field that directives fill in
	"job/invoke":     {Exports: 16},  // the ways to call a command, and their limits
	"job/kube":       {Exports: 37},  // argo writes the same pods, and dispatch reads their records
	"metrics":        {Exports: 31},  // the fields of a record, which report and job read
	"metrics/report": {Exports: 24},  // the sources of a report, which cmd/hpcc gathers
	"runtime":        {Exports: 33},  // one for each way to start: run, RUN, oci, units
	"store":          {Exports: 43},  // one for each verb of images and registries, and its errors
	"store/gzip":     {Functions: 1}, // the loop of the inflater, which calls would slow
	"store/wait":     {Exports: 18},  // limits and attempts of all that waits for others
	"unpack":         {Exports: 32},  // trees, layers, notes of owners: to and from each other
}

// schedulers matches the names and commands of a scheduler, which belong in its package job/NAME.
var schedulers = map[string]*regexp.Regexp{
	"slurm":      regexp.MustCompile(`(?i)slurm|sbatch|squeue|sacct|\bscontrol|scancel|pyxis|--container-`),
	"lsf":        regexp.MustCompile(`(?i)\blsf|\blsb_|bsub\b|bjobs|bkill`),
	"gridengine": regexp.MustCompile(`(?i)grid ?engine|\bqacct|\bqconf|\bsge`),
	"pbs":        regexp.MustCompile(`(?i)\bpbs|pbsnodes`),
}

// schedulerExceptions lists, by scheduler, the other files that may name it, with the reason. Tests
// may name all schedulers.
var schedulerExceptions = func() map[string]map[string]string {
	all := map[string]string{
		"job/dispatch/registry.go": "the registry",
		"job/kube/podspec.go":      "programs in pods find their index under every scheduler's name",
		"cmd/hpcc/from.go":         "documentation of flags",
		"cmd/hpcc/script.go":       "documentation of flags",
	}
	with := func(more map[string]string) map[string]string {
		maps.Copy(more, all)
		return more
	}
	return map[string]map[string]string{
		"slurm": with(map[string]string{
			"cmd/hpcc/habits.go":          "commands and flags that its users type",
			"cmd/hpcc/submit.go":          "a hint names its option",
			"testdata/demo/main.go":       "documentation",
			"testdata/bigstore/jobs.go":   "the jobs of a large store",
			"testdata/testenv/testenv.go": "the clusters of tests",
			"cmd/hpcc/oci.go":             "documentation: Slurm is an engine of OCI bundles",
			"job/invoke/invoke.go":        "commands of all schedulers get one environment",
			"cmd/hpcc/job.go":             "the flag of its plugin",
			"job/lsf/lsf.go":              "Slurm has a command of LSF's",
			"job/tunnel/owner.go":         "the name of a virtual node, as its own daemon knows it",
			"metrics/metrics.go":          "a comment on processes that Slurm starts",
			"metrics/record.go":           "an example of a variable",
			"metrics/report/task.go":      "a comment on how Slurm kills",
			"runtime/bundle.go":           "Slurm is an engine of OCI bundles",
			"runtime/chrun.go":            "a directory that ch-run binds",
			"cmd/start/bare/chrun.go":     "a directory that ch-run binds",
			"runtime/devices/mpi.go":      "directories of PMIx; runtime imports no job",
			"runtime/oci/containers.go":   "Slurm is an engine of OCI bundles",
			"runtime/peers.go":            "finds the processes of a node; runtime imports no job",
			"runtime/probe/host.go":       "how launchers start ranks; runtime imports no job",
			"store/owndir/owndir.go":      "a job's directory on the node; store imports no job",
		}),
		"lsf":        with(map[string]string{"testdata/demo/main.go": "a script to translate", "testdata/testenv/testenv.go": "the clusters of tests", "job/slurm/dialect.go": "sbatch reads directives of LSF", "cmd/hpcc/habits.go": "commands that its users type"}),
		"gridengine": with(map[string]string{"testdata/testenv/testenv.go": "the clusters of tests"}),
		"pbs":        with(map[string]string{"job/slurm/dialect.go": "sbatch reads directives of PBS"}),
	}
}()

// module returns the module path of go.mod. It reads the file on demand, because other tests run
// this program in other directories.
var module = sync.OnceValue(func() string {
	b, err := os.ReadFile("../../go.mod")
	if err != nil {
		panic(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimPrefix(first, "module ")
})

// TestModulePath renames the module in a copy of the repository, builds hpcc and runs the guard.
func TestModulePath(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	dir := t.TempDir()
	shell(t, "../..", `tar cf - --exclude=./.git --exclude=./bin --exclude=./dist . | tar xf - -C "$0"`, dir)
	shell(t, dir, `make -s module-path NEW=example.org/lab.hpc/hpcc && ! grep -rl --include=*.go '"`+module()+`/runtime"' . &&
		make -s build && bin/hpcc --version && export CGO_ENABLED=0 GOFLAGS="$(go env GOFLAGS) -trimpath" HPCC_TEST_BUILT="$1" &&
		go vet ./testdata/modulepath && cd cmd/hpcc && go test -run 'TestGuard|TestStartImports' .`, filepath.Dir(bin)) // with the packages that "make build" compiled
}

// TestGuard checks imports, sizes and exported names of all packages.
func TestGuard(t *testing.T) {
	root := "../.."
	entries, err := os.ReadDir(root)
	testenv.Check(t, err)
	for _, e := range entries {
		if _, ok := allowedImports[e.Name()]; e.IsDir() && !ok && !strings.Contains(" .git .ci bin dist docs testdata cmd ", " "+e.Name()+" ") {
			t.Errorf("%s/ is not a package of the design; see allowedImports", e.Name())
		}
	}
	for pkg, allowed := range allowedImports {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		testenv.Check(t, err)
		var got tally
		for _, f := range files {
			checkFile(t, pkg, allowed, f, &got)
		}
		compareTally(t, pkg, got)
	}
}

// TestGuardSchedulers checks that only the packages of schedulers and schedulerExceptions name
// schedulers.
func TestGuardSchedulers(t *testing.T) {
	named := map[string]map[string]bool{}
	root := "../.."
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		file, _ := filepath.Rel(root, path)
		if err != nil || e.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for name, pattern := range schedulers {
			if filepath.Dir(file) == "job/"+name || !pattern.Match(b) {
				continue
			}
			if named[name] == nil {
				named[name] = map[string]bool{}
			}
			if named[name][file] = true; schedulerExceptions[name][file] == "" {
				t.Errorf("%s names %s; move the code to job/%s, or add the reason to schedulerExceptions", file, name, name)
			}
		}
		return err
	})
	testenv.Check(t, err)
	for name, files := range schedulerExceptions {
		for file := range files {
			if !named[name][file] {
				t.Errorf("%s does not name %s; remove it from schedulerExceptions", file, name)
			}
		}
	}
}

// compareTally checks that the tally of a package above its limits equals its ceilings.
func compareTally(t *testing.T, pkg string, got tally) {
	if got.Files <= maxFiles {
		got.Files = 0
	}
	if got.Exports <= maxExports {
		got.Exports = 0
	}
	if got != ceilings[pkg] {
		t.Errorf("package %s has %+v; its ceilings are %+v and may only go down", pkg, got, ceilings[pkg])
	}
}

// TestStartImports checks that cmd/start does not import packages that slow down its start, such as
// those that compile expressions before main.
func TestStartImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-tags", "start", "-deps", "../start")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	testenv.Check(t, err)
	for _, dep := range strings.Fields(string(out)) {
		for _, slow := range []string{"regexp", "net", "net/http", "text/template", "flag", "crypto/tls", "github.com/urfave/cli/v2", "github.com/opencontainers/go-digest", "google.golang.org/protobuf", module() + "/store", module() + "/unpack"} {
			if dep == slow {
				t.Errorf("cmd/start imports %s; see \"Start\" in docs/design.md", dep)
			}
		}
	}
}

// checkFile checks imports and limits of one file, and adds it to the tally of the package.
func checkFile(t *testing.T, pkg string, allowed []string, file string, got *tally) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	testenv.Check(t, err)
	if n := fset.Position(f.End()).Line; n > maxFile {
		t.Errorf("%s has %d lines; the limit is %d", file, n, maxFile)
	}
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if (path == module()+"/testdata/testenv" || path == module()+"/"+pkg) && strings.HasSuffix(file, "_test.go") {
			continue // the second imports the package that it tests
		}
		if dep, ours := strings.CutPrefix(path, module()+"/"); ours && !strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+dep+" ") {
			t.Errorf("%s: package %s may not import %s", file, pkg, dep)
		}
		if path == "github.com/urfave/cli/v2" && pkg != "cmd/hpcc" {
			t.Errorf("%s: only cmd/hpcc may import the cli package", file)
		}
	}
	got.Mixed += mixedConditions(f)
	if strings.HasSuffix(file, "_test.go") {
		return
	}
	if !isVerb(pkg, file) {
		got.Files++
	}
	got.Contexts += contextTakers(f)
	for _, d := range f.Decls {
		got.Exports += len(exported(d))
		fn, ok := d.(*ast.FuncDecl)
		if ok {
			checkResults(t, file, fn)
		}
		if ok && fset.Position(fn.End()).Line-fset.Position(fn.Pos()).Line+1 > maxFunction {
			t.Logf("%s: function %s has more than %d lines", file, fn.Name.Name, maxFunction)
			got.Functions++
		}
	}
}

// isVerb reports whether a file of cmd/hpcc implements the verb of its name. These files do not
// count.
func isVerb(pkg, file string) bool {
	name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".go"), "_", "-")
	return pkg == "cmd/hpcc" && slices.ContainsFunc(commands(), func(c *cli.Command) bool { return c.Name == name })
}

// exported returns the names that a declaration adds to the top level of its package.
func exported(d ast.Decl) (names []string) {
	add := func(id *ast.Ident) {
		if id.IsExported() {
			names = append(names, id.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				add(spec.Name)
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					add(id)
				}
			}
		}
	}
	return names
}

// mixedConditions counts conditions that mix && and || without parentheses.
func mixedConditions(f *ast.File) (n int) {
	logical := func(e ast.Expr) (token.Token, *ast.BinaryExpr) {
		if b, ok := e.(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
			return b.Op, b
		}
		return token.ILLEGAL, nil
	}
	ast.Inspect(f, func(node ast.Node) bool {
		e, ok := node.(ast.Expr)
		if !ok {
			return true
		}
		if op, b := logical(e); b != nil {
			for _, side := range []ast.Expr{b.X, b.Y} {
				if inner, part := logical(side); part != nil && inner != op {
					n++
				}
			}
		}
		return true
	})
	return n
}

// checkResults refuses an exported function that returns an unexported type, which callers cannot
// name and godoc does not show.
func checkResults(t *testing.T, file string, fn *ast.FuncDecl) {
	if !fn.Name.IsExported() || fn.Type.Results == nil {
		return
	}
	if fn.Recv != nil {
		receiver := fn.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		if id, ok := receiver.(*ast.Ident); ok && !id.IsExported() {
			return
		}
	}
	for _, r := range fn.Type.Results.List {
		ast.Inspect(r.Type, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && !id.IsExported() && types.Universe.Lookup(id.Name) == nil {
				t.Errorf("%s: %s returns the unexported type %s", file, fn.Name.Name, id.Name)
			}
			_, qualified := n.(*ast.SelectorExpr)
			_, function := n.(*ast.FuncType)
			return !qualified && !function
		})
	}
}

// contextTakers counts the functions that take a *cli.Context, except those whose names begin with
// "parse".
func contextTakers(f *ast.File) (n int) {
	ast.Inspect(f, func(node ast.Node) bool {
		switch fn := node.(type) {
		case *ast.FuncDecl:
			if takesContext(fn.Type) && !strings.HasPrefix(fn.Name.Name, "parse") {
				n++
			}
		case *ast.FuncLit:
			if takesContext(fn.Type) {
				n++
			}
		}
		return true
	})
	return n
}

func takesContext(fn *ast.FuncType) bool {
	return slices.ContainsFunc(fn.Params.List, func(p *ast.Field) bool {
		star, ok := p.Type.(*ast.StarExpr)
		if !ok {
			return false
		}
		sel, ok := star.X.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Context"
	})
}
