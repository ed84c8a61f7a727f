package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hpcc/files"
)

// An owner is the process that a temporary file or directory belongs to. Its text heads the file's
// name, which distinguishes the leftovers of killed processes from work in progress.
type owner struct {
	host  string // without dots
	boot  string // the kernel's boot ID, random(4)
	space uint64 // inode of the PID namespace: a container may have the host's name
	pid   int
	start uint64 // clock ticks since boot, proc_pid_stat(5): pids are reused
}

// thisProcess returns this process as an owner.
func thisProcess() (owner, error) {
	host, err := os.Hostname()
	if err != nil {
		return owner{}, err
	}
	o := owner{host: strings.ReplaceAll(host, ".", "_"), pid: os.Getpid(), start: started(os.Getpid())}
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil { // a container may hide it
		o.boot = strings.TrimSpace(string(boot))
	}
	if fi, err := os.Stat("/proc/self/ns/pid"); err == nil {
		o.space = fi.Sys().(*syscall.Stat_t).Ino
	}
	return o, nil
}

func (o owner) String() string {
	return fmt.Sprintf("%s.%s.%d.%d.%d.", o.host, o.boot, o.space, o.pid, o.start)
}

// parseOwner parses the owner at the head of a name. It returns the zero owner, of whom nothing is known,
// for another name.
func parseOwner(name string) (o owner) {
	f := strings.SplitN(name, ".", 6)
	if len(f) != 6 {
		return owner{}
	}
	o.host, o.boot = f[0], f[1]
	if _, err := fmt.Sscan(strings.Join(f[2:5], " "), &o.space, &o.pid, &o.start); err != nil {
		return owner{}
	}
	return o
}

// alive reports whether the process still runs. This process, me, does not know it (known is false) of
// processes of another host, boot or PID namespace.
func (o owner) alive(me owner) (alive, known bool) {
	if o.boot == "" || o.space == 0 || o.host != me.host || o.boot != me.boot || o.space != me.space {
		return false, false
	}
	return started(o.pid) == o.start, true
}

// abandoned reports whether a file of the process, last changed at a time, is a leftover: the process has
// ended, or nothing is known of it and the file has not changed for a day.
func (o owner) abandoned(me owner, changed time.Time) bool {
	alive, known := o.alive(me)
	return !alive && (known || time.Since(changed) >= 24*time.Hour)
}

// started returns the start time of a process in clock ticks (proc_pid_stat(5), field 22), or 0 if the
// process does not run: it does not exist, or has no memory (field 23) and waits for its parent's wait(2).
func started(pid int) (ticks uint64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) > 20 && f[20] != "0" {
		fmt.Sscan(f[19], &ticks)
	}
	return ticks
}

// tempName returns the head of a new name in dir, after which comes a random end.
func tempName(dir, prefix string) (string, error) {
	me, err := thisProcess()
	return filepath.Join(dir, prefix+me.String()), err
}

// TempDir creates a directory for work in progress, on the store's file system. The caller
// removes it, or GC if the caller was killed.
func (s *Store) TempDir() (string, error) {
	p, err := tempName(s.path("tmp"), "")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(p), filepath.Base(p))
	if err != nil {
		return "", s.placeError(fmt.Errorf("creating a work directory in the store: %w", err))
	}
	return dir, nil
}

// tempFile creates a file for work in progress.
func (s *Store) tempFile() (*os.File, error) {
	p, err := tempName(s.path("tmp"), "")
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(p), filepath.Base(p))
	if err != nil {
		return nil, s.placeError(fmt.Errorf("creating a work file in the store: %w", err))
	}
	return f, nil
}

// Sibling creates a directory for work that is renamed to final later. It is outside the
// store, on final's file system. The caller removes it. Sibling first removes leftovers of
// killed callers for the same name.
func Sibling(final string) (string, error) {
	dir, prefix := filepath.Dir(final), "."+filepath.Base(final)+".hpcc."
	me, err := thisProcess()
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if fi, err := e.Info(); ok && err == nil && parseOwner(rest).abandoned(me, fi.ModTime()) {
			files.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	tmp, err := os.MkdirTemp(dir, prefix+me.String())
	var pe *fs.PathError
	if errors.As(err, &pe) { // the random name means nothing to users
		return "", &fs.PathError{Op: "writing to", Path: dir, Err: pe.Err}
	}
	return tmp, err
}
