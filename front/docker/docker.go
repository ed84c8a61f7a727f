// Package docker does what docker does and other commands of hpcc do not: it prints images as docker
// prints them, and ends containers. Package front translates the command lines of docker to it.
package docker

import (
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/text"
)

// A Command is a subcommand of docker with its options.
type Command struct {
	Operation string // images, inspect, rmi, version, kill or stop
	Args      []string

	Quiet    bool          // images: print only IDs
	Full     bool          // images: print complete IDs
	Digests  bool          // images: print digests
	Filters  []string      // images: print only what matches all NAME=VALUE
	Format   string        // images, inspect, version: a Go template, "json", or "" for the usual format
	Force    bool          // rmi: ignore missing names, and remove all names of an ID
	Signal   string        // kill, stop: name or number of the signal; "" for the usual one
	Wait     time.Duration // stop: time before SIGKILL
	Store    string        // directory of the store; "" for the default
	Revision string        // version: of hpcc
}

// Run executes the command and writes its output to w.
func (c *Command) Run(w io.Writer) error {
	do := map[string]func(*Command, io.Writer) error{
		"images": (*Command).images, "inspect": (*Command).inspect, "rmi": (*Command).rmi,
		"version": (*Command).version, "kill": (*Command).kill, "stop": (*Command).stop,
	}[c.Operation]
	if do == nil {
		return text.Usagef("%q is not an operation", c.Operation)
	}
	return do(c, w)
}

// version prints the version of docker, which is the argument.
func (c *Command) version(w io.Writer) error {
	if len(c.Args) != 1 {
		return text.Usagef("version needs the version of docker")
	}
	v, arch := c.Args[0], goruntime.GOARCH
	if c.Format != "" {
		var u unix.Utsname
		_ = unix.Uname(&u) // it fails only for a bad address
		side := map[string]any{
			"Version": v, "ApiVersion": "1.47", "MinAPIVersion": "1.24", "GitCommit": c.Revision, "GoVersion": goruntime.Version(),
			"Os": "linux", "Arch": arch, "Experimental": false,
			"Platform": map[string]any{"Name": "hpcc"}, "KernelVersion": unix.ByteSliceToString(u.Release[:]),
		}
		return printFormat(w, c.Format, map[string]any{"Client": side, "Server": side})
	}
	_, err := fmt.Fprintf(w, "Client: hpcc\n Version:           %[1]s\n API version:       1.47\n OS/Arch:           linux/%[2]s\n\n"+
		"Server: none, hpcc runs containers itself\n Version:           %[1]s\n", v, arch)
	return err
}

func (c *Command) kill(w io.Writer) error {
	return c.eachContainer(w, syscall.SIGKILL, container.signal)
}

func (c *Command) stop(w io.Writer) error {
	return c.eachContainer(w, syscall.SIGTERM, func(k container, s syscall.Signal) error { return k.stop(s, c.Wait) })
}

// eachContainer does something with each container of the command line and prints its name. usual is
// the signal without --signal.
func (c *Command) eachContainer(w io.Writer, usual syscall.Signal, do func(container, syscall.Signal) error) error {
	s, err := parseSignal(c.Signal, usual)
	if err != nil {
		return err
	}
	var all []error
	for _, name := range c.Args {
		list, err := running()
		if err != nil {
			return err
		}
		k, err := find(list, name)
		if err == nil {
			err = do(k, s)
		}
		if err != nil {
			all = append(all, err)
			continue
		}
		fmt.Fprintln(w, name)
	}
	return errors.Join(all...)
}

// parseSignal returns the signal with a name or number, or usual for "".
func parseSignal(name string, usual syscall.Signal) (syscall.Signal, error) {
	if name == "" {
		return usual, nil
	}
	var n int
	if _, err := fmt.Sscanf(name, "%d", &n); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")); s != 0 {
		return s, nil
	}
	return 0, text.Usagef("--signal %q is not a signal", name).Hint("write a name such as TERM")
}

// A Run is the part of "docker run" that flags of "hpcc run" do not describe. The zero value is the
// run of another program.
type Run struct {
	ID      string // of the container, by which kill and stop find its process
	Name    string // of the container, or ""
	CIDFile string // new file for the ID; "" for none
	Want    string // platform that the image must have, OS/ARCH; "" for any
}

// Check refuses an image of another platform than the requested one, and a name that a running
// container has. It writes the file with the container's ID.
func (r *Run) Check(architecture string) error {
	if r.ID == "" {
		return nil
	}
	if p, err := v1.ParsePlatform(r.Want); r.Want != "" && (err != nil || p.Architecture != architecture) {
		return text.Usagef("the image is for linux/%s, not %s", architecture, r.Want).Hint("docker pull --platform %s IMAGE", r.Want)
	}
	if r.Name != "" {
		list, _ := running()
		for _, c := range list {
			if c.name == r.Name && c.id != r.ID { // the list has this run as well
				return text.Usagef("container %.12s has the name %s", c.id, r.Name).Hint("docker stop %s, or choose another name", r.Name)
			}
		}
	}
	if r.CIDFile == "" {
		return nil
	}
	f, err := os.OpenFile(r.CIDFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("writing the container's ID: %w", err)
	}
	_, err = f.WriteString(r.ID)
	return errors.Join(err, f.Close())
}

// ParseLimit reads a limit that package front writes: NAME=SOFT:HARD with numbers.
func ParseLimit(arg string) (specs.POSIXRlimit, error) {
	name, values, _ := strings.Cut(arg, "=")
	limit := specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(name)}
	if _, err := fmt.Sscanf(values, "%d:%d", &limit.Soft, &limit.Hard); err != nil {
		return limit, text.Usagef("--docker-ulimit %s: not NAME=SOFT:HARD", arg)
	}
	return limit, nil
}
