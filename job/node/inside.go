package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/tunnel"
)

// A Process is a process of a task on this node, with the attributes that a joining command shares.
type Process struct {
	PID       int
	Contained bool     // it is in separate namespaces
	Dir       string   // its working directory, as it sees it
	Env       []string // its initial environment
}

// Inside returns the process of a task on this node that a command should join: the first one in a container, or the
// task's own.
func (known Schedulers) Inside(t *job.Task) (*Process, error) {
	host, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return nil, fmt.Errorf("looking for the processes of task %d: %w", t.Index, err)
	}
	own := known.processes(t)
	for _, contained := range []bool{true, false} {
		for _, pid := range own {
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
			if err != nil || (ns != host) != contained || (!contained && pid != t.PID) {
				continue
			}
			p := &Process{PID: pid, Contained: contained, Env: environOf(pid)}
			if p.Dir, err = os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil {
				return p, nil
			}
		}
	}
	return nil, fmt.Errorf("task %d does not have a process to join on this node (%s)", t.Index, tunnel.Host())
}

// processes returns the processes of the task on this node, its program first: its descendants, and those that a
// launcher started with the task's environment.
func (known Schedulers) processes(t *job.Task) []int {
	parents := map[int]int{}
	entries, _ := os.ReadDir("/proc")
	var all []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := Stat(pid); len(f) > 1 {
			parents[pid], _ = strconv.Atoi(f[1])
			all = append(all, pid)
		}
	}
	slices.Sort(all)
	var own, launched []int
	for _, pid := range all {
		for p, n := pid, 0; p > 1 && n < len(all); p, n = parents[p], n+1 {
			if p == t.PID {
				own = append(own, pid)
				break
			}
		}
		if t.Native != "" && !slices.Contains(own, pid) && known.started(t, environOf(pid)) {
			launched = append(launched, pid)
		}
	}
	return append(own, launched...)
}

// started reports whether a process with this environment is of the task. A translated
// script may have the variables of several batch systems.
func (known Schedulers) started(t *job.Task, env []string) bool {
	get := func(name string) string {
		for _, e := range env {
			if k, v, _ := strings.Cut(e, "="); k == name {
				return v
			}
		}
		return ""
	}
	return get("HPCC_RUNNING") != "" && slices.ContainsFunc(known, func(s *Scheduler) bool { return s.task(get) == t.Native })
}

// environOf returns the initial environment of a process, or nothing for another user's.
func environOf(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// root returns the process's root directory, as a path for this process.
func (p *Process) root() string { return fmt.Sprintf("/proc/%d/root", p.PID) }

// Run returns the argv of the "hpcc run" that joins the process's container with its environment and
// working directory. term is the value of TERM; "" for the process's own. It uses the process's root
// directory, because the image's name may refer to another image by now.
func (p *Process) Run(term string, argv []string) []string {
	run := []string{"hpcc", "run", "--no-config", "--unset-env", "*", "--env0", fmt.Sprintf("/proc/%d/environ", p.PID),
		"--join-pid", strconv.Itoa(p.PID), "--cd", p.Dir, "--entrypoint="}
	if term != "" {
		run = append(run, "--env=TERM="+term)
	}
	return append(append(run, p.root(), "--"), argv...)
}

// Shell returns a shell that the process could start.
func (p *Process) Shell() string {
	root := "/"
	if p.Contained {
		root = p.root()
	}
	for _, s := range []string{"/bin/bash", "/usr/bin/bash"} {
		if _, err := os.Lstat(filepath.Join(root, s)); err == nil {
			return s
		}
	}
	return "/bin/sh"
}
