package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/condapackage"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

const (
	readme    = "../../README.md"
	pagesDir  = "../../docs"
	noNetwork = "http://127.0.0.1:9" // a proxy that refuses connections
)

// generatedPages have lines that other programs write.
var generatedPages = []string{"cli.md", "biggan.md", "dockerfile.md", "options.md"}

// allPages returns README.md and the pages.
func allPages(t *testing.T) []string {
	pages, err := filepath.Glob(pagesDir + "/*.md")
	testenv.Check(t, err)
	return append(pages, readme)
}

// TestPages runs the first example of README.md and of every page twice in one store, as the
// user and without network, with the files of testdata/corpora/pages, a conda channel and a base image.
func TestPages(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	needs(t, "busybox", "userns")
	root := pageRoot(t)
	channel := pageChannel(t)
	wheels := condatest.WheelDir(t, condatest.Wheel{Name: "hello", Version: "1.0", Files: []condatest.WheelFile{{Name: "hello-1.0.data/scripts/hello", Text: "#!/bin/sh\necho hello\n", Mode: 0o755}}})
	for _, page := range allPages(t) {
		text, err := os.ReadFile(page)
		testenv.Check(t, err)
		script, line, err := firstExample(string(text))
		if err != nil {
			t.Errorf("%s:%d: %v", page, line, err)
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel() // most examples wait for jobs
			s := newSession(t, root, channel, wheels)
			switch filepath.Base(page) {
			case "biggan.md":
				s.dir = filepath.Join(s.dir, "biggan")
			case "costs.md":
				s.dir = "../../testdata/corpora/costs"
			case "development.md", "libraries.md": // their examples are for the repository
				s.dir, s.env = "../..", os.Environ()
			}
			for _, when := range []string{"first", "second"} {
				if out, err := s.run(script); err != nil {
					t.Fatalf("%s:%d: the %s run of the example fails: %v\n%s", page, line, when, err, out)
				}
			}
		})
	}
}

// firstExample returns the commands of the first code block of a page, and the line where it
// begins. In a block with prompts ("$ "), the other lines are output.
func firstExample(page string) (script string, line int, err error) {
	lines := strings.Split(page, "\n")
	start := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "    ") || strings.HasPrefix(l, "```") })
	if start < 0 {
		return "", 1, errors.New("the page has no example: begin it with an indented block of commands")
	}
	var commands, prompted []string
	for _, l := range lines[start:] {
		command, ok := strings.CutPrefix(l, "    ")
		if !ok {
			break
		}
		commands = append(commands, command)
		if typed, ok := strings.CutPrefix(command, "$ "); ok {
			prompted = append(prompted, typed)
		}
	}
	if len(prompted) > 0 {
		commands = prompted
	}
	if !slices.ContainsFunc(commands, regexp.MustCompile(`\b(hpcc|go) [a-z-]+`).MatchString) {
		return "", start + 1, errors.New("the first code block has no command of hpcc")
	}
	return strings.Join(commands, "\n") + "\n", start + 1, nil
}

// TestFirstExample finds pages without an example.
func TestFirstExample(t *testing.T) {
	for _, c := range []struct {
		page, script string
		line         int
		fails        bool
	}{
		{"# A\n\n    hpcc run x\n    hpcc images\n\n    no\n", "hpcc run x\nhpcc images\n", 3, false},
		{"# A\n\n    $ hpcc doctor\n    ok\n", "hpcc doctor\n", 3, false},
		{"# A\n\ntext\n", "", 1, true},
		{"# A\n\n    a.txt\n\n    hpcc run x\n", "", 3, true},
		{"# A\n```\nhpcc run x\n```\n", "", 2, true},
	} {
		script, line, err := firstExample(c.page)
		if script != c.script || line != c.line || (err != nil) != c.fails {
			t.Errorf("firstExample(%q) = %q, %d, %v", c.page, script, line, err)
		}
	}
}

// A session runs examples in the directory of a user.
type session struct {
	dir string
	env []string
}

// newSession returns a session of a user with the files of testdata/corpora/pages and a store that
// has the images that examples name. PATH has the programs of a host without a scheduler.
func newSession(t *testing.T, root, channel, wheels string) *session {
	top := t.TempDir()
	t.Cleanup(func() { _ = exec.Command("chmod", "-R", "u+rwX", top).Run() }) // trees have the modes of their image
	path := func(name string) string { return filepath.Join(top, name) }
	testenv.Check(t, os.CopyFS(path("work"), os.DirFS("../../testdata/corpora/pages/files")))
	testenv.Check(t, os.CopyFS(path("work/biggan"), os.DirFS("../../testdata/corpora/biggan")))
	testenv.Check(t, os.Symlink(wheels, path("work/wheels")))
	testenv.Check(t, os.Symlink(filepath.Join(bin, "hpcc"), path("work/hpcc")))
	testenv.Write(t, path("home/.condarc"), "channel_alias: "+condatest.FileURL(filepath.Dir(channel))+"\n")
	testenv.Check(t, os.MkdirAll(path("tmp"), 0o755))
	testenv.Check(t, os.MkdirAll(path("tools"), 0o755))
	for _, name := range []string{"bash", "sed", "sh", "cat", "cp", "install", "ls", "mkdir", "printf", "rm", "sleep", "tail", "true"} {
		program, err := exec.LookPath(name)
		testenv.Check(t, err)
		testenv.Check(t, os.Symlink(program, filepath.Join(path("tools"), name)))
	}
	conda, err := filepath.Abs("../../testdata/corpora/pages/tools/conda")
	testenv.Check(t, err)
	testenv.Check(t, os.Symlink(conda, path("tools/conda")))
	s := &session{dir: path("work"), env: []string{"HOME=" + path("home"), "TMPDIR=" + path("tmp"), "HPCC_STORE=" + path("store"), "PATH=" + bin + ":" + path("tools"), "USER=" + os.Getenv("USER"),
		"HTTP_PROXY=" + noNetwork, "HTTPS_PROXY=" + noNetwork}}
	for _, name := range []string{"debian:12", "debian:12-slim", "base", "sci"} {
		if out, err := s.run("hpcc load " + root + " " + name); err != nil {
			t.Fatalf("loading %s: %v\n%s", name, err, out)
		}
	}
	return s
}

// run executes a script until the first command that fails.
func (s *session) run(script string) (output []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eux", "-c", script)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, s.env, 5*time.Second
	return cmd.CombinedOutput()
}

// pageRoot returns an archive of a root directory with busybox, and with stand-ins for the
// programs that examples run.
func pageRoot(t *testing.T) string {
	root := testenv.BusyboxRoot(t)
	for _, name := range []string{"echo", "sleep", "test", "true"} {
		testenv.Check(t, os.Symlink("busybox", filepath.Join(root, "bin", name)))
	}
	for name, tool := range map[string]string{"python": "python", "python3": "python", "jupyter": "jupyter"} {
		text, err := os.ReadFile(filepath.Join("../../testdata/corpora/pages/tools", tool))
		testenv.Check(t, err)
		testenv.Check(t, os.WriteFile(filepath.Join(root, "bin", name), text, 0o755))
	}
	kernel := filepath.Join(root, "share/jupyter/kernels/python3")
	testenv.Check(t, os.MkdirAll(kernel, 0o755))
	testenv.Check(t, os.WriteFile(filepath.Join(kernel, "kernel.json"), []byte(`{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3"}`), 0o644))
	testenv.Check(t, os.Mkdir(filepath.Join(root, "tmp"), 0o755))
	testenv.Check(t, os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky))
	archive := filepath.Join(t.TempDir(), "root.tar")
	if out, err := exec.Command("tar", "cf", archive, "-C", root, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return archive
}

// pageChannel returns a conda channel with the name conda-forge and a stand-in for python.
func pageChannel(t *testing.T) string {
	channel := filepath.Join(t.TempDir(), "conda-forge")
	text, err := os.ReadFile("../../testdata/corpora/pages/tools/python")
	testenv.Check(t, err)
	python := condapackage.Package{Name: "python", Version: "3.11.4", Build: "0"}
	for _, name := range []string{"python", "python3", "python3.11"} {
		python.Files = append(python.Files, condapackage.File{Path: "bin/" + name, Mode: 0o755, Data: text})
	}
	pip := condapackage.Package{Name: "pip", Version: "23.1", Build: "0"} // a request for python adds it
	testenv.Check(t, condapackage.WriteSubdir(channel, "noarch", python, pip))
	for _, subdir := range []string{"linux-64", "linux-aarch64", "linux-ppc64le"} {
		testenv.Check(t, condapackage.WriteSubdir(channel, subdir))
	}
	return channel
}

// TestPageLinks checks the links between pages, with their headings, the lengths of lines, and
// that README.md fits on three screens.
func TestPageLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#: ]*)(#[^) ]*)?\)`)
	for _, page := range allPages(t) {
		text, err := os.ReadFile(page)
		testenv.Check(t, err)
		if n := strings.Count(string(text), "\n"); page == readme && n > 80 {
			t.Errorf("%s has %d lines; at most 80", page, n)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if err := checkLink(page, m[1], strings.TrimPrefix(m[2], "#")); err != nil {
					t.Errorf("%s:%d: %v", page, i+1, err)
				}
			}
			limit := 100
			if strings.HasPrefix(line, "    ") {
				limit = 120 // a command, or output
			}
			if n := len([]rune(line)); n > limit && !strings.HasPrefix(line, "|") && !slices.Contains(generatedPages, filepath.Base(page)) {
				t.Errorf("%s:%d: %d columns; at most %d", page, i+1, n, limit)
			}
		}
	}
}

// checkLink checks that a file exists, and that the page has a heading with the anchor.
func checkLink(from, to, anchor string) error {
	file := from
	if to != "" {
		file = filepath.Join(filepath.Dir(from), to)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if anchor == "" {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && headingAnchor(heading) == anchor {
			return nil
		}
	}
	return fmt.Errorf("%s has no heading for #%s", filepath.Base(file), anchor)
}

// headingAnchor returns the anchor of a heading, as Git forges compute it.
func headingAnchor(heading string) string {
	kept := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
	return strings.ReplaceAll(kept, " ", "-")
}

// TestPageNames finds tests, scripts and files that pages name and the repository lacks.
func TestPageNames(t *testing.T) {
	known := testNames(t)
	test := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	script := regexp.MustCompile("`(\\w+\\.txtar)`")
	file := regexp.MustCompile("`((?:testdata|cmd|build|conda|job|metrics|runtime|store|unpack)/[a-z0-9_./-]+)`")
	for _, page := range allPages(t) {
		text, err := os.ReadFile(page)
		testenv.Check(t, err)
		for _, m := range test.FindAllStringSubmatch(string(text), -1) {
			if !known[m[1]] {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
		for _, m := range script.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join("../../testdata/script", m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range file.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// testNames returns the names of all tests and fuzz targets of the repository.
func testNames(t *testing.T) map[string]bool {
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	names := map[string]bool{}
	testenv.Check(t, filepath.WalkDir("../..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	}))
	return names
}

// TestMessagesNamePages finds messages and help that point to pages of the repository, which
// users of the binary do not have.
func TestMessagesNamePages(t *testing.T) {
	page := regexp.MustCompile(`docs/[a-z-]+\.md|README\.md|testdata/`)
	for _, pkg := range packages(t) {
		files, err := filepath.Glob(filepath.Join("../..", pkg, "*.go"))
		testenv.Check(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
			testenv.Check(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING && page.MatchString(text.Value) {
					t.Errorf("%s: the text names %s", fset.Position(text.Pos()), page.FindString(text.Value))
				}
				return true
			})
		}
	}
}
