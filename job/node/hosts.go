package node

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/message"
	"hpcc/store/wait"
)

// Spread refuses to go on where a job was given another number of nodes than it
// asked for. Only Grid Engine does that, whose parallel environments say how
// slots lie; getenv reads the environment of the job.
func Spread(nodes int, getenv func(string) string) error {
	if nodes == 0 || getenv("PE_HOSTFILE") == "" {
		return nil
	}
	_, err := given("gridengine", nodes, getenv)
	return err
}

// given are the hosts of a job, the one it runs on first. Their number has to be
// what was asked for.
func given(to job.Target, nodes int, getenv func(string) string) ([]string, error) {
	hosts, err := hostsOf(to, getenv)
	if err != nil {
		return nil, fmt.Errorf("finding the nodes of the job: %w", err)
	}
	if len(hosts) == nodes {
		return hosts, nil
	}
	have := fmt.Sprintf("the job asked for %d nodes and was given %d (%s)", nodes, len(hosts), strings.Join(hosts[:min(len(hosts), 4)], ", "))
	if to == "gridengine" {
		have += fmt.Sprintf("; parallel environment %q spreads slots like that: name one that does not with --native \"-pe NAME SLOTS\" (\"qconf -spl\" lists them)", getenv("PE"))
	}
	return nil, errors.New(have)
}

// hostsOf reads the hosts of a job from what its scheduler tells it.
func hostsOf(to job.Target, getenv func(string) string) ([]string, error) {
	var list []string
	switch to {
	case "gridengine": // HOST SLOTS QUEUE PROCESSORS (sge_pe(5))
		lines, err := hostLines("PE_HOSTFILE", getenv)
		if err != nil {
			return nil, err
		}
		for _, f := range lines {
			list = append(list, f[0])
		}
	case "lsf": // HOST SLOTS HOST SLOTS …
		f := strings.Fields(getenv("LSB_MCPU_HOSTS"))
		for i := 0; i+1 < len(f); i += 2 {
			if _, err := strconv.Atoi(f[i+1]); err != nil {
				return nil, fmt.Errorf("LSB_MCPU_HOSTS is %q, which is no list of hosts and slots", message.Short(strings.Join(f, " ")))
			}
			list = append(list, f[i])
		}
	case "pbs": // a line for each process
		lines, err := hostLines("PBS_NODEFILE", getenv)
		if err != nil {
			return nil, err
		}
		for _, f := range lines {
			list = append(list, f[0])
		}
	default:
		return []string{""}, nil
	}
	var hosts []string
	for _, h := range list {
		if !job.WordText().MatchString(h) || strings.HasPrefix(h, "-") {
			return nil, fmt.Errorf("%q is no name of a host", message.Short(h))
		}
		if !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	// The job runs on the first, but where its host says otherwise.
	if i := slices.IndexFunc(hosts, func(h string) bool { return short(h) == short(getenv("HOSTNAME")) }); i > 0 {
		hosts[0], hosts[i] = hosts[i], hosts[0]
	}
	return hosts, nil
}

// short is a host's name without its domain.
func short(host string) string {
	s, _, _ := strings.Cut(host, ".")
	return s
}

// maxHostFile bounds a file of hosts, in bytes: a line has about fifty.
const maxHostFile = 16 << 20

// hostLines reads the words of the lines of a file that a variable names.
func hostLines(name string, getenv func(string) string) ([][]string, error) {
	file := getenv(name)
	if file == "" {
		return nil, fmt.Errorf("%s is not set: this is no job of several nodes", name)
	}
	b, err := wait.ReadFile(file, maxHostFile)
	if err != nil {
		return nil, err
	}
	var lines [][]string
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 0 {
			lines = append(lines, f)
		}
	}
	return lines, nil
}
