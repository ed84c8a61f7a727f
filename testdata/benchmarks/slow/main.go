// Command scale measures hpcc on a slow shared file system, which testdata/helpers/slowfs simulates, and
// on the local disk. It writes a table with the operations on the file system to OUT.md.
//
//	scale HPCC OUT.md
//
// BENCH_SCIPY is a root tarball of a Debian with python3-numpy and python3-scipy, for starts;
// BENCH_BASE is one of a small Debian, for the other commands. mmdebstrap creates both. BENCH_DIR
// is the working directory, BENCH_DELAY the delay of an operation (1ms).
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"hpcc/testdata/helpers/slowfs/mount"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: scale HPCC OUT.md")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// A bench is a directory on the local disk, which slowfs serves at another path.
type bench struct {
	hpcc, slowfs string
	work         string // holds all directories
	disk, at     string // the directory, and where slowfs serves it
	delay        string
	table        bytes.Buffer
}

func run(hpcc, out string) error {
	if err := mount.Possible(); err != nil {
		return err
	}
	hpcc, err := filepath.Abs(hpcc)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(os.Getenv("BENCH_DIR"), "hpcc-scale-")
	if err != nil {
		return err
	}
	defer exec.Command("sh", "-c", `chmod -R u+rwX "$0" && rm -rf "$0"`, work).Run()
	b := &bench{hpcc: hpcc, slowfs: filepath.Join(work, "slowfs"), work: work, disk: filepath.Join(work, "disk"), at: filepath.Join(work, "slow"),
		delay: cmp.Or(os.Getenv("BENCH_DELAY"), "1ms")}
	for _, dir := range []string{b.disk, b.at, filepath.Join(work, "stage")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if out, err := exec.Command("go", "build", "-o", b.slowfs, "hpcc/testdata/helpers/slowfs").CombinedOutput(); err != nil {
		return fmt.Errorf("building slowfs: %w\n%s", err, out)
	}
	fmt.Fprintf(&b.table, "| what | where | s | operations | of these |\n| --- | --- | --- | --- | --- |\n")
	for _, part := range []func() error{b.commands, b.starts} {
		if err := part(); err != nil {
			return err
		}
	}
	return os.WriteFile(out, b.table.Bytes(), 0o644)
}

// tarball returns the root tarball that a variable names.
func tarball(variable string) (string, error) {
	file := os.Getenv(variable)
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("%s does not name a root tarball (%w); create one: mmdebstrap --variant=minbase --include=PACKAGES bookworm FILE.tar", variable, err)
	}
	return filepath.Abs(file)
}

// commands measures commands that change or list the store.
func (b *bench) commands() error {
	base, err := tarball("BENCH_BASE")
	if err != nil {
		return err
	}
	if err := b.prepare("load", base, "base"); err != nil {
		return err
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/base:1"
	if err := b.prepare("push", "base", image); err != nil {
		return err
	}
	context := filepath.Join(b.work, "context")
	if err := os.Mkdir(context, 0o755); err != nil {
		return err
	}
	const dockerfile = "FROM base\nRUN echo 1 >/one\nCOPY Dockerfile /two\nRUN ls -l /two >/three\n"
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		return err
	}
	for _, c := range []struct {
		name, makes string // makes is what the command creates in the directory
		args        []string
	}{
		{"pull", "pulled", []string{"pull", "--store", "AT/pulled", image}},
		{"unpack to a directory", "tree", []string{"unpack", "base", "AT/tree"}},
		{"first start, which unpacks", "store/trees/*", []string{"run", "base", "--", "/bin/true"}},
		{"build of three steps", "", []string{"build", "--no-cache", "-t", "built", context}},
		{"the same, cached", "", []string{"build", "-t", "built", context}},
		{"images", "", []string{"images"}},
		{"status", "", []string{"status"}},
		{"gc", "", []string{"gc"}},
	} {
		for _, measure := range []func(string, int, ...string) error{b.slow, b.local} {
			if out, err := exec.Command("sh", "-c", "cd "+b.disk+" && rm -rf "+c.makes).CombinedOutput(); err != nil {
				return fmt.Errorf("removing %s: %w\n%s", c.makes, err, out)
			}
			if err := measure(c.name, 1, c.args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// starts measures starts of a program that opens many files.
func (b *bench) starts() error {
	scipy, err := tarball("BENCH_SCIPY")
	if err != nil {
		return err
	}
	program := []string{"--", "python3", "-c", "import numpy, scipy"}
	for _, args := range [][]string{
		{"load", scipy, "sci"},
		{"save", "sci", filepath.Join(b.disk, "sci.sqfs")},
		append([]string{"run", "sci"}, program...), // unpacks it
	} {
		if err := b.prepare(args...); err != nil {
			return err
		}
	}
	if err := b.slow("first start with `--stage`, which copies", 1, append([]string{"run", "--stage", "sci"}, program...)...); err != nil {
		return err
	}
	for _, n := range []int{1, 8, 64} {
		for _, image := range []string{"sci", "AT/sci.sqfs"} {
			name, args := fmt.Sprintf("%d × `run %s`", n, strings.TrimPrefix(image, "AT/")), append([]string{"run", image}, program...)
			if err := errors.Join(b.local(name, n, args...), b.slow(name, n, args...)); err != nil {
				return err
			}
		}
		if err := b.slow(fmt.Sprintf("%d × `run --stage sci`", n), n, append([]string{"run", "--stage", "sci"}, program...)...); err != nil {
			return err
		}
		if err := b.peer(n, program); err != nil {
			return err
		}
	}
	return nil
}

// peer measures the same starts with ch-run, if it is installed.
func (b *bench) peer(n int, program []string) error {
	if _, err := exec.LookPath("ch-run"); err != nil {
		fmt.Fprintln(os.Stderr, "scale: left out:", err)
		return nil
	}
	python, err := filepath.Glob(b.disk + "/store/trees/*/usr/bin/python3")
	if err != nil || len(python) != 1 {
		return fmt.Errorf("finding the tree: %v %v", python, err)
	}
	name, tree := fmt.Sprintf("%d × `ch-run TREE`", n), "AT"+strings.TrimSuffix(strings.TrimPrefix(python[0], b.disk), "/usr/bin/python3")
	args := append([]string{"ch-run", tree}, program...)
	return errors.Join(b.local(name, n, args...), b.slow(name, n, args...))
}

// prepare runs hpcc on the store of the local disk and measures nothing.
func (b *bench) prepare(args ...string) error {
	fmt.Fprintln(os.Stderr, "scale: hpcc", args)
	return b.start(b.disk, args).Run()
}

// start returns the command that runs hpcc, or ch-run, with the store and the files in a directory.
func (b *bench) start(dir string, args []string) *exec.Cmd {
	args = slices.Clone(args)
	for i := range args {
		args[i] = strings.Replace(args[i], "AT", dir, 1)
	}
	cmd := exec.Command(b.hpcc, args...)
	if args[0] == "ch-run" {
		cmd = exec.Command(args[0], args[1:]...)
	}
	cmd.Dir = b.work
	cmd.Env = append(os.Environ(), "HPCC_STORE="+dir+"/store", "HPCC_STAGE="+b.work+"/stage")
	if !slices.Contains(args, "--stage") {
		cmd.Env = append(cmd.Env, "HPCC_STAGE=") // it implies --stage
	}
	return cmd
}

// atOnce runs n copies of a command and returns the time until the last one has ended.
func (b *bench) atOnce(dir string, n int, args []string) (time.Duration, error) {
	begin := time.Now()
	ended := make(chan error)
	for range n {
		go func() {
			out, err := b.start(dir, args).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("hpcc %s: %w\n%s", strings.Join(args, " "), err, out)
			}
			ended <- err
		}()
	}
	var all error
	for range n {
		all = errors.Join(all, <-ended)
	}
	return time.Since(begin), all
}

// local measures a command on the local disk, whose cache is warm.
func (b *bench) local(name string, n int, args ...string) error {
	took, err := b.atOnce(b.disk, n, args)
	if err != nil {
		return err
	}
	b.row(name, "local disk", took, nil)
	return nil
}

// slow measures a command on slowfs with empty caches.
func (b *bench) slow(name string, n int, args ...string) error {
	m, err := mount.New(b.slowfs, b.disk, b.at, "-delay", b.delay)
	if err != nil {
		return err
	}
	took, err := b.atOnce(b.at, n, args)
	counts, cerr := m.Counts()
	if err = errors.Join(err, cerr, m.Close()); err != nil {
		return err
	}
	b.row(name, "slowfs", took, counts)
	return nil
}

// row adds a row, with the five most frequent operations.
func (b *bench) row(name, where string, took time.Duration, counts map[string]int) {
	total := ""
	if counts != nil {
		total = fmt.Sprint(counts["total"])
	}
	kinds := slices.SortedFunc(maps.Keys(counts), func(x, y string) int { return cmp.Or(counts[y]-counts[x], strings.Compare(x, y)) })
	var most []string
	for _, k := range kinds[min(1, len(kinds)):min(6, len(kinds))] { // without the total
		most = append(most, fmt.Sprintf("%s %d", k, counts[k]))
	}
	line := fmt.Sprintf("| %s | %s | %.2f | %s | %s |", name, where, took.Seconds(), total, strings.Join(most, ", "))
	fmt.Fprintln(os.Stderr, line)
	fmt.Fprintln(&b.table, line)
}
