// Command channel writes a conda channel of real programs for the tests. It repackages
// Debian's packages of python, numpy and the libraries that they need as conda packages,
// for amd64 and ppc64el. The programs of the packages run.
//
//	go run ./testdata/helpers/channel -out /var/cache/hpcc-test/channel -cache /var/cache/hpcc-test/debs
//
// It needs apt-get, dpkg-deb, patchelf and bzip2, but not root, and does not change the
// host's apt. prefixdemo, a program with a compiled-in prefix, needs a compiler for each
// machine; without the compiler, it is left out. The same Debian packages give the same
// channel. The command also writes exports (requirements.txt, explicit-<subdir>.txt) and
// base images (base-<subdir>.tar, linked as base-<Debian's architecture>.tar) with a C
// library and a shell. The channel has packages of these too: a sysroot for each machine,
// bash and coreutils.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// options are the settings of the command line.
type options struct {
	out, cache, suite string
	machines          []*machine
	level             int
}

// A machine is an architecture, with its names and its Debian packages.
type machine struct {
	debian, subdir, triplet, uname, compiler, pageSize string

	python string            // its version of python: 3.11
	debs   map[string]string // files of Debian packages, by the name in a recipe
}

func machines() []*machine {
	return []*machine{
		{debian: "amd64", subdir: "linux-64", triplet: "x86_64-linux-gnu", uname: "x86_64", compiler: "x86_64-linux-gnu-gcc", pageSize: "4096"},
		{debian: "ppc64el", subdir: "linux-ppc64le", triplet: "powerpc64le-linux-gnu", uname: "ppc64le", compiler: "powerpc64le-linux-gnu-gcc", pageSize: "65536"},
	}
}

func main() {
	o, err := parse()
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "channel:", err)
		os.Exit(1)
	}
	fmt.Println(o.out)
}

// parse reads the command line. An invalid flag ends the program.
func parse() (options, error) {
	var o options
	flag.StringVar(&o.out, "out", "", "write the channel to `DIR`")
	flag.StringVar(&o.cache, "cache", "", "keep Debian packages in `DIR` (default: hpcc-channel in the user's cache)")
	flag.StringVar(&o.suite, "suite", "bookworm", "use packages of Debian's `SUITE`")
	flag.IntVar(&o.level, "level", 3, "compress .conda files at zstd's level `N`")
	archs := flag.String("arch", "amd64,ppc64el", "make packages for these Debian `ARCHITECTURES`")
	flag.Parse()
	if o.out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	for _, name := range strings.Split(*archs, ",") {
		found := false
		for _, m := range machines() {
			if m.debian == name {
				o.machines, found = append(o.machines, m), true
			}
		}
		if !found {
			return o, fmt.Errorf("architecture %q is not known: name amd64, ppc64el or both", name)
		}
	}
	if o.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return o, fmt.Errorf("finding a cache: %w: name one with -cache", err)
		}
		o.cache = filepath.Join(dir, "hpcc-channel")
	}
	var err error
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return o, err
	}
	o.out, err = filepath.Abs(o.out)
	return o, err
}

// run writes the channel under a temporary name and renames it, so that an existing
// channel is always complete.
func run(o options) error {
	if err := tools(); err != nil {
		return err
	}
	if err := replaceable(o.out); err != nil {
		return err
	}
	if err := gather(o); err != nil {
		return err
	}
	fresh := o.out + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return err
	}
	if err := fill(&channel{dir: fresh, final: o.out, level: o.level, machines: o.machines}); err != nil {
		return err
	}
	old := o.out + ".old"
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(o.out, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, o.out); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// tools returns an error with the missing programs and their Debian packages.
func tools() error {
	var programs, packages []string
	for _, t := range [][2]string{{"apt-get", "apt"}, {"apt-cache", "apt"}, {"dpkg-deb", "dpkg"}, {"patchelf", "patchelf"}, {"bzip2", "bzip2"}} {
		if _, err := exec.LookPath(t[0]); err != nil {
			programs, packages = append(programs, t[0]), append(packages, t[1])
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("missing programs: %s; install Debian's %s", strings.Join(programs, ", "), strings.Join(slices.Compact(packages), ", "))
	}
	return nil
}

// replaceable returns an error for a directory that is not a channel, because run would remove it.
func replaceable(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || (err == nil && len(names) == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "noarch", "repodata.json")); err != nil {
		return fmt.Errorf("replacing %q: it is not a channel", dir)
	}
	return nil
}

// gather fetches the Debian packages of all machines. The version of python determines
// the names of other packages.
func gather(o options) error {
	return each(o.machines, func(m *machine) error {
		s := source{cache: o.cache, suite: o.suite, arch: m.debian}
		debs, err := s.fetch("python3")
		if err != nil {
			return err
		}
		v := strings.SplitN(upstream(debs["python3"]), ".", 3)
		if len(v) < 2 {
			return fmt.Errorf("reading the version of %q: it is not one of python", debs["python3"])
		}
		m.python = v[0] + "." + v[1]
		names := append([]string{"busybox-static"}, sysrootDebs...)
		for _, r := range recipes(m.python) {
			names = append(names, r.debs...)
		}
		m.debs, err = s.fetch(names...)
		return err
	})
}

// fill writes the contents of the channel.
func fill(c *channel) error {
	type job struct {
		r recipe
		m *machine
	}
	var jobs []job
	for i, m := range c.machines {
		for _, r := range recipes(m.python) {
			if i == 0 || !r.kind.noarch() { // noarch packages are the same for all machines
				jobs = append(jobs, job{r, m})
			}
		}
	}
	if err := each(jobs, func(j job) error {
		if err := c.make(j.r, j.m); err != nil {
			return fmt.Errorf("making %s for %s: %w", j.r.name, j.m.subdir, err)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, m := range c.machines {
		if err := c.sysroots(m); err != nil {
			return fmt.Errorf("making the sysroots for %s: %w", m.subdir, err)
		}
		if err := c.base(m); err != nil {
			return fmt.Errorf("making the base for %s: %w", m.subdir, err)
		}
		if err := c.linked(m.subdir); err != nil {
			return err
		}
	}
	if err := c.index(); err != nil {
		return err
	}
	return c.exports()
}

// each calls fn for all values, with one goroutine per processor, and returns the errors
// in the order of the values.
func each[T any](values []T, fn func(T) error) error {
	errs := make([]error, len(values))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for i := range next {
				errs[i] = fn(values[i])
			}
		})
	}
	for i := range values {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// tool runs an external program.
func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("running %s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
