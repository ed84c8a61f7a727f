package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/store/ready"
	"hpcc/text"
	"hpcc/unpack"
)

func measureFlagOfRun() cli.Flag {
	host, _ := os.Hostname() // tasks of several hosts may write to one directory
	host, _, _ = strings.Cut(host, ".")
	file := fmt.Sprintf("hpcc-%s-%s-%d.jsonl", time.Now().Format("060102-150405"), filepath.Base(host), os.Getpid())
	return &cli.GenericFlag{Name: "measure", Value: &fileFlag{defaultFile: file},
		Usage: "write resource usage to `FILE` (default hpcc-DATE-HOST-PID.jsonl)"}
}

// measured runs the same command line without --measure as a child process, and ends with the
// status or signal of the program.
func (a *runArgs) measured(ctx context.Context) error {
	argv, ok := withoutMeasure(slices.Clone(os.Args))
	if !ok {
		return text.Usagef("--measure comes after IMAGE").Hint("hpcc run --measure IMAGE -- CMD")
	}
	if err := checkDirectory(a.measure); err != nil {
		return err
	}
	h := metrics.Header{Hpcc: version, Command: a.options.Args, Job: dispatch.EnclosingJob(os.Getenv)}
	if s, err := store.OpenToRead(a.root.Store); err == nil {
		nameImage(&h, s, a.root.Name)
	}
	if len(h.Command) == 0 {
		h.Command = []string{h.Image}
	}
	cmd := exec.Command("/proc/self/exe", argv...)
	cmd.Args[0] = "hpcc"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Killing hpcc must kill the program too. The kernel ties Pdeathsig to the starting thread.
	goruntime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	warned := false // whether a warning about the record was printed
	begun := func(r metrics.Run) {
		if warned = r.RecordErr != nil; warned {
			say("warning: %v", r.RecordErr)
			say("hint: name another file with --measure=FILE; the program runs without a record")
		}
	}
	run, err := metrics.Measure(ctx, cmd, metrics.Options{File: a.measure, Header: h, Started: begun})
	if err != nil {
		return fmt.Errorf("running a measured program: %w", err)
	}
	if run.RecordErr != nil {
		if !warned {
			say("warning: %v", run.RecordErr)
		}
	} else if term.IsTerminal(int(os.Stderr.Fd())) {
		say("measured: %s", a.measure)
	}
	if run.Signal != "" {
		process.EndBy(syscall.Signal(run.Status() - 128))
	}
	return exitStatus(run.Status())
}

// withoutMeasure returns the arguments of hpcc, starting with "run", without --measure. ok is false
// if --measure is not among the flags before IMAGE.
func withoutMeasure(args []string) (argv []string, ok bool) {
	args = joinBareSetEnv(args)
	end := eachFlag(args, slices.Index(args, "run")+1, runCommand().Flags, func(f cli.Flag, given []string) {
		if f.Names()[0] == "measure" {
			ok = true
			return
		}
		given[0] = strings.TrimSuffix(given[0], "="+bareSetEnv)
		argv = append(argv, given...)
	})
	return slices.Concat([]string{"run"}, argv, args[end:]), ok
}

// nameImage records an image and its digests. It leaves out a digest that it cannot read, because
// the run itself reports the error.
func nameImage(h *metrics.Header, s *store.Store, image string) {
	h.Image = new(job.ImageVersion).ReadName(image)
	dir := image
	if !ready.IsPath(image) {
		if d, err := s.Digest(image); err == nil {
			h.Digest = d.String()
			if dir, err = s.TreeOf(image); err != nil {
				return
			}
		}
	}
	h.Config = metrics.ConfigDigest(filepath.Join(dir, unpack.ConfigFile))
}
