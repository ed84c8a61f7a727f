// Command buildkit runs the tests of BuildKit's Dockerfile frontend against "hpcc build":
//
//	go run ./testdata/corpora/buildkit [-run REGEXP] [-log FILE] bin/hpcc
//
// It downloads the BuildKit module that go.mod names, adds the files in backend to a copy
// of its test package, and compiles it. These files are a server of BuildKit's API that runs
// "hpcc build", so that the tests run unchanged, with BuildKit's own client. Run it as an
// ordinary user. It needs Debian's docker-registry, busybox-static and git.
//
// table.txt lists the tests that hpcc does not pass, with reasons. Any other failure or
// skipped test is an error, and so is a listed test that passes.
//
// With -dockerfiles DIR, it compares the findings of "hpcc build --check" with those of
// BuildKit's linter instead, on the files of backend/dockerfiles.txt. DIR has their
// repositories, each in OWNER/NAME at its commit.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const module = "github.com/moby/buildkit"

func main() {
	only := flag.String("run", "", "run only the tests that match `REGEXP`")
	log := flag.String("log", "", "write the output of all tests to `FILE`")
	dockerfiles := flag.String("dockerfiles", "", "compare the linters on the Dockerfiles of the repositories in `DIR`")
	flag.Parse()
	if err := run(flag.Arg(0), *only, *log, *dockerfiles); err != nil {
		fmt.Fprintln(os.Stderr, "buildkit:", err)
		os.Exit(1)
	}
}

func run(hpcc, only, log, dockerfiles string) error {
	if hpcc == "" {
		return errors.New("usage: go run ./testdata/corpora/buildkit [-run REGEXP] [-log FILE] [-dockerfiles DIR] HPCC")
	}
	hpcc, err := filepath.Abs(hpcc)
	if err != nil {
		return err
	}
	rows, err := readTable("testdata/corpora/buildkit/table.txt")
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "hpcc-buildkit-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	defer exec.Command("chmod", "-R", "u+rwX", work).Run()
	if err := compile(work); err != nil {
		return err
	}
	if err := checkNames(work, rows); err != nil {
		return err
	}
	if err := makeImages(hpcc, work); err != nil {
		return err
	}
	if dockerfiles != "" {
		return compareLinters(hpcc, work, dockerfiles)
	}
	tests, err := runTests(hpcc, work, only, log, rows)
	if err != nil {
		return err
	}
	return judge(tests, rows, only)
}

// A row is a test of the table.
type row struct {
	applies bool   // false: the test needs what hpcc does not have
	output  string // text in the output of a test that applies, and fails for the reason
	reason  string
}

// readTable reads the table. Its lines have the form
//
//	NAME | none | REASON             the test does not apply
//	NAME | OUTPUT | REASON           hpcc does something else on purpose
func readTable(file string) (map[string]row, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	rows := map[string]row{}
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.SplitN(line, " | ", 3)
		if len(f) != 3 || strings.TrimSpace(f[2]) == "" {
			return nil, fmt.Errorf("%s:%d: want NAME | OUTPUT | REASON", file, i+1)
		}
		name, output := strings.TrimSpace(f[0]), strings.TrimSpace(f[1])
		if _, ok := rows[name]; ok {
			return nil, fmt.Errorf("%s:%d: %s is listed twice", file, i+1, name)
		}
		rows[name] = row{applies: output != "none", output: output, reason: f[2]}
	}
	return rows, nil
}

// compile makes work/bin with the test program, BuildKit's command-line client, and the
// registry under the name that the tests expect.
func compile(work string) error {
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		return fmt.Errorf("downloading %s: %w", module, err)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		return err
	}
	source := filepath.Join(work, "source")
	if err := os.CopyFS(source, os.DirFS(m.Dir)); err != nil {
		return fmt.Errorf("copying %s: %w", module, err)
	}
	backend := "testdata/corpora/buildkit/backend"
	files, err := os.ReadDir(backend)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(backend, f.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(source, "frontend/dockerfile", f.Name()), data, 0o644); err != nil {
			return err
		}
	}
	bin := filepath.Join(work, "bin")
	for _, args := range [][]string{
		{"test", "-c", "-o", filepath.Join(bin, "suite"), "./frontend/dockerfile"},
		{"build", "-o", filepath.Join(bin, "buildctl"), "./cmd/buildctl"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Stderr = source, os.Stderr
		// The copy is at a new path in each run: without -trimpath nothing would be cached.
		cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false -trimpath")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
		}
	}
	registry, err := exec.LookPath("docker-registry")
	if err != nil {
		return err
	}
	return os.Symlink(registry, filepath.Join(bin, "registry"))
}

// checkNames checks that the suite has all tests of the table: those that do not apply are not
// run, so nothing else would notice that one is gone.
func checkNames(work string, rows map[string]row) error {
	files, err := filepath.Glob(filepath.Join(work, "source/frontend/dockerfile/*_test.go"))
	if err != nil {
		return err
	}
	var text []byte
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		text = append(text, data...)
	}
	for name := range rows {
		test, _, _ := strings.Cut(strings.TrimPrefix(name, "Test"), "/")
		if !strings.Contains(string(text), "func test"+test+"(") {
			return fmt.Errorf("table.txt lists %s, which is not in the suite; remove it", name)
		}
	}
	return nil
}

// images are the public images of the tests.
var images = []string{"busybox:latest", "alpine:latest", "busybox:stable-musl", "amd64/debian:bullseye-20230109-slim", "tonistiigi/hellofs:latest"}

// platforms are those of the images. Each has the files of this machine, which run on it: the
// tests only ask for the platform of an image.
const platforms = "linux/amd64,linux/arm64"

// makeImages makes work/store, a store with the images, and work/mirror, the files of a
// registry with them.
func makeImages(hpcc, work string) error {
	context := filepath.Join(work, "base")
	if err := os.MkdirAll(context, 0o755); err != nil {
		return err
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(context, "busybox"), busybox, 0o755); err != nil {
		return err
	}
	port, stop, err := startRegistry(work)
	if err != nil {
		return err
	}
	defer stop()
	commands := [][]string{{"build", "--platform", platforms, "-f", "testdata/corpora/buildkit/base.Dockerfile", "-t", images[0], context}}
	for _, name := range images {
		path := name
		if !strings.Contains(name, "/") {
			path = "library/" + name
		}
		commands = append(commands, []string{"tag", images[0], name}, []string{"push", name, port + "/" + path})
	}
	for _, args := range commands {
		cmd := exec.Command(hpcc, args...)
		cmd.Env = append(os.Environ(), "HPCC_STORE="+filepath.Join(work, "store"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("hpcc %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// startRegistry starts a registry whose files are in work/mirror, as BuildKit's tests expect
// them.
func startRegistry(work string) (address string, stop func(), err error) {
	dir := filepath.Join(work, "mirror")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	l.Close()
	config := filepath.Join(work, "mirror.yaml")
	text := fmt.Sprintf("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: %s/data\nhttp:\n  addr: %s\n", dir, address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(filepath.Join(work, "bin/registry"), "serve", config)
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 100 {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return address, stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return "", nil, errors.New("the registry does not start")
}

// A test is the outcome of a test of the suite.
type test struct {
	name   string
	result string // pass, fail or skip
	output strings.Builder
	took   float64 // seconds
}

// runTests runs the tests that apply. A test with several variants counts once for each.
func runTests(hpcc, work, only, log string, rows map[string]row) (map[string]*test, error) {
	none := []string{"^$"}
	for name, r := range rows {
		if !r.applies {
			test, _, _ := strings.Cut(name, "/") // with all its variants
			none = append(none, "^"+regexp.QuoteMeta(test)+"$")
		}
	}
	slices.Sort(none)
	none = slices.Compact(none)
	args := []string{"tool", "test2json", filepath.Join(work, "bin/suite"), "-test.v=test2json", "-test.timeout=60m", "-test.parallel=4",
		"-test.run", "^TestIntegration$/(" + cmp.Or(only, ".*") + ")/^worker=hpcc$", "-test.skip", "^TestIntegration$/(" + strings.Join(none, "|") + ")"}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "FRONTEND_BUILTIN_ONLY=1", "HPCC_PROGRAM="+hpcc, "HPCC_IMAGE_STORE="+filepath.Join(work, "store"),
		"BUILDKIT_REGISTRY_MIRROR_DIR="+filepath.Join(work, "mirror"), "TMPDIR="+work, "PATH="+filepath.Join(work, "bin")+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	tests, err := readResults(pipe, log)
	_ = cmd.Wait() // fails if a test fails
	return tests, err
}

// compareLinters runs TestDockerfiles of the backend.
func compareLinters(hpcc, work, dockerfiles string) error {
	dir, err := filepath.Abs(dockerfiles)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(work, "bin/suite"), "-test.v", "-test.run", "^TestDockerfiles$")
	cmd.Env = append(os.Environ(), "HPCC_PROGRAM="+hpcc, "HPCC_IMAGE_STORE="+filepath.Join(work, "store"), "HPCC_DOCKERFILES="+dir, "TMPDIR="+work)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// readResults reads what test2json prints.
func readResults(r io.Reader, log string) (map[string]*test, error) {
	all := io.Discard
	if log != "" {
		f, err := os.Create(log)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		all = f
	}
	tests := map[string]*test{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return tests, nil
		}
		if err != nil {
			return nil, err
		}
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading the results: %w", err)
		}
		fmt.Fprint(all, e.Output)
		name, variant, ok := strings.Cut(strings.TrimPrefix(e.Test, "TestIntegration/"), "/worker=hpcc/")
		if !ok {
			continue
		}
		elements := slices.DeleteFunc(strings.Split(variant, "/"), func(s string) bool { return s == "frontend=builtin" })
		top := true // not a subtest of the test
		for _, v := range elements {
			if k, value, ok := strings.Cut(v, "="); ok && (value == "granted" || value == "denied" || k == "env") {
				name += "/" + v
			} else {
				top = false
			}
		}
		t := tests[name]
		if t == nil {
			t = &test{name: name}
			tests[name] = t
		}
		t.output.WriteString(e.Output)
		if top && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			t.result, t.took = e.Action, e.Elapsed
			fmt.Printf("%-4s %5.1f s  %s\n", e.Action, e.Elapsed, name)
		}
	}
}

// judge compares the results with the table.
func judge(tests map[string]*test, rows map[string]row, only string) error {
	var wrong []string
	passed, different, none := 0, 0, 0
	for _, r := range rows {
		if !r.applies {
			none++
		}
	}
	for name, t := range tests {
		r, listed := rows[name]
		switch {
		case t.result == "pass" && !listed:
			passed++
		case t.result == "pass":
			wrong = append(wrong, name+": passes: remove it from table.txt")
		case !listed:
			wrong = append(wrong, name+": "+cmp.Or(t.result, "did not end")+":\n"+t.output.String())
		case !strings.Contains(t.output.String(), r.output):
			wrong = append(wrong, fmt.Sprintf("%s: fails without %q in its output:\n%s", name, r.output, t.output.String()))
		default:
			different++
		}
	}
	if only == "" {
		for name, r := range rows {
			if r.applies && tests[name] == nil {
				wrong = append(wrong, name+": is in table.txt, but not in the suite")
			}
		}
	}
	slices.Sort(wrong)
	for _, w := range wrong {
		fmt.Println("\n" + w)
	}
	fmt.Printf("\n%d tests; %d do not apply; of %d that apply, %d passed and %d differ on purpose\n",
		len(tests)+none, none, len(tests), passed, different)
	fmt.Printf("%d passed, %d failed\n", passed, len(wrong))
	if len(tests) == 0 {
		return errors.New("no test ran")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d tests are not as table.txt says", len(wrong))
	}
	return nil
}
