package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hpcc/files"
	"hpcc/job"
	"hpcc/text"
)

// CheckNodes returns an error if the job has another number of nodes than it requested, which only some batch systems
// allow. getenv reads the environment of the job.
func (known Schedulers) CheckNodes(nodes int, getenv func(string) string) error {
	for _, s := range known {
		if s.Spreads == nil || nodes == 0 {
			continue
		}
		if _, chosen := s.Spreads(getenv); chosen {
			_, err := s.allocated(nodes, getenv)
			return err
		}
	}
	return nil
}

// allocated returns the hosts of a job, this one first. It returns an error unless their number is nodes.
func (s *Scheduler) allocated(nodes int, getenv func(string) string) ([]string, error) {
	hosts, err := s.hosts(getenv)
	if err != nil {
		return nil, fmt.Errorf("finding the nodes of the job: %w", err)
	}
	if len(hosts) == nodes {
		return hosts, nil
	}
	text := fmt.Sprintf("the job requested %d nodes and got %d (%s)", nodes, len(hosts), strings.Join(hosts[:min(len(hosts), 4)], ", "))
	if s.Spreads != nil {
		advice, _ := s.Spreads(getenv)
		text += "; " + advice
	}
	return nil, errors.New(text)
}

// hosts returns the hosts of a job without repetitions, this one first.
func (s *Scheduler) hosts(getenv func(string) string) ([]string, error) {
	if s.Hosts == nil {
		return []string{""}, nil
	}
	list, err := s.Hosts(getenv)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, h := range list {
		if !job.WordText().MatchString(h) || strings.HasPrefix(h, "-") {
			return nil, fmt.Errorf("%q is not a host name", text.Short(h))
		}
		if !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	// The job runs on the first host, unless its own host name is in the list.
	if i := slices.IndexFunc(hosts, func(h string) bool { return short(h) == short(getenv("HOSTNAME")) }); i > 0 {
		hosts[0], hosts[i] = hosts[i], hosts[0]
	}
	return hosts, nil
}

// short returns a host name without the domain.
func short(host string) string {
	s, _, _ := strings.Cut(host, ".")
	return s
}

// maxHostFile limits a host file, in bytes. A line has about fifty.
const maxHostFile = 16 << 20

// HostFile lists the first field of each line of the file that a variable names.
func HostFile(name string, getenv func(string) string) ([]string, error) {
	file := getenv(name)
	if file == "" {
		return nil, fmt.Errorf("%s is not set: this is not a job with several nodes", name)
	}
	b, err := files.ReadFile(file, maxHostFile)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 0 {
			hosts = append(hosts, f[0])
		}
	}
	return hosts, nil
}

// PerNode returns the commands that together start argv once on each node of the job whose
// environment getenv reads; the first is for this node, or for all. nodes is the number of
// nodes that the job requested. If a node fails, the others go on. Each of up to 64 nodes has its
// own command, so that it can be started again.
//
// Each process gets the number of its node, from 0, as the last argument --rank=N, unless the batch
// system starts all processes.
func (known Schedulers) PerNode(to job.Target, nodes, cpus int, argv []string, getenv func(string) string) ([][]string, error) {
	s := known.of(to)
	var out [][]string
	switch {
	case s.One != nil && nodes <= maxCommands:
		for rank := range max(1, nodes) {
			out = append(out, s.One(rank, cpus, append(argv[:len(argv):len(argv)], "--rank="+strconv.Itoa(rank))))
		}
		return out, nil
	case s.Each != nil:
		return [][]string{s.Each(nodes, cpus, argv)}, nil
	}
	hosts := []string{""}
	if nodes > 1 {
		var err error
		if hosts, err = s.allocated(nodes, getenv); err != nil {
			return nil, err
		}
	}
	for rank, host := range hosts {
		w := append(argv[:len(argv):len(argv)], "--rank="+strconv.Itoa(rank))
		if rank > 0 {
			w = s.Remote(host, w)
			w[0] = s.launcher(w[0], getenv)
		}
		out = append(out, w)
	}
	return out, nil
}

// launcher finds a command of the batch system on PATH, or on the PATH of the process that submitted
// the job: daemons may start jobs with a shorter one.
func (s *Scheduler) launcher(name string, getenv func(string) string) string {
	if _, err := exec.LookPath(name); err == nil {
		return name
	}
	for _, dir := range filepath.SplitList(getenv(s.Path)) {
		if file := filepath.Join(dir, name); filepath.IsAbs(dir) {
			if _, err := exec.LookPath(file); err == nil {
				return file
			}
		}
	}
	return name
}

// maxCommands limits the commands of PerNode. Each is a process on the first node, and a request to the
// daemon of the batch system.
const maxCommands = 64

// TakeEnvironment sets the variables of the task in this process, except those that a launcher has
// set for this node.
func (known Schedulers) TakeEnvironment(env []string) {
	perNode := strings.Fields("HOSTNAME TMPDIR CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL NVIDIA_VISIBLE_DEVICES")
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		_, set := os.LookupEnv(name)
		if set && (known.Differs(name) || slices.Contains(perNode, name)) {
			continue
		}
		_ = os.Setenv(name, value)
	}
}

// Rank returns the variable in which a process of PerNode finds the number of its node, and
// its value.
func (known Schedulers) Rank(getenv func(string) string) (name, value string) {
	for _, s := range known {
		if s.Rank != "" {
			if name, value = s.Rank, getenv(s.Rank); value != "" {
				break
			}
		}
	}
	return name, value
}
