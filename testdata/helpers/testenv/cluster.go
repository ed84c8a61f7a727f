package testenv

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// commands are the commands of batch systems and clusters that hpcc calls, by the name for [Scheduler].
var commands = map[string][]string{
	"slurm": strings.Fields("sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol scrontab sdiag sgather sinfo sprio squeue sreport srun sshare sstat strigger"),
	"gridengine": strings.Fields("qacct qalter qconf qdel qhold qhost qlogin qmod qping qquota qrdel qresub qrls qrsh qrstat qrsub qselect qsh qstat qsub " +
		"checkjob pbs_tmrsh pbsdsh pbsnodes qmgr qmove qrerun showq tracejob"), // OpenPBS has the same names; the tests find theirs with HPCC_TEST_OPENPBS
	"lsf":        strings.Fields("bacct bhist bhosts bjobs bkill blaunch bmod bpeek bqueues brequeue bresume bstop bsub jsrun lsgrun lshosts lsid lsload lsrun"),
	"kubernetes": strings.Fields("argo kubectl oc"),
	"gpu":        strings.Fields("nvidia-smi rocm-smi"),
}

// clusterVariables select the clusters of testdata. Tests see them in the result of [Scheduler] only.
var clusterVariables = map[string][]string{
	"slurm":      {"SLURM_CONF"},
	"gridengine": {"SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"},
	"lsf":        {"LSF_ENVDIR"},
}

// Copies of the test binary inherit where the commands are, and the variables of clusters with the prefix.
const (
	commandsVariable = "HPCC_TEST_COMMANDS"
	clusterPrefix    = "HPCC_TEST_CLUSTER_"
)

// hideSchedulers takes the schedulers of this machine out of the environment: their variables, and the
// directories of PATH that have their commands. Such a directory is replaced by one with links to its other
// files, below a new directory. Links to the commands are in NAME below it.
func hideSchedulers() error {
	for _, names := range clusterVariables {
		for _, name := range names {
			if v, ok := os.LookupEnv(name); ok {
				os.Setenv(clusterPrefix+name, v)
				os.Unsetenv(name)
			}
		}
	}
	os.Unsetenv(commandsVariable)
	path := filepath.SplitList(os.Getenv("PATH"))
	if !slices.ContainsFunc(path, hasCommands) {
		return nil
	}
	dir, err := os.MkdirTemp("/var/tmp", "hpcc-test-commands-") // not below /tmp, which containers see and some replace
	if err != nil {
		dir, err = os.MkdirTemp("", "hpcc-test-commands-")
	}
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.Setenv(commandsVariable, dir)); err != nil { // some tests run programs as another user
		return err
	}
	for name, list := range commands {
		for _, c := range list {
			if err := link(c, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for i, from := range path {
		to, err := without(from, filepath.Join(dir, "path"))
		if err != nil {
			return err
		}
		path[i] = to
	}
	return os.Setenv("PATH", strings.Join(path, string(os.PathListSeparator)))
}

// removeLinks removes the directory of hideSchedulers.
func removeLinks() {
	if dir := os.Getenv(commandsVariable); dir != "" {
		_ = os.RemoveAll(dir)
	}
}

// hasCommands reports whether a directory has commands of schedulers.
func hasCommands(dir string) bool {
	entries, _ := os.ReadDir(dir) // none if it is missing
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return IsSchedulerCommand(e.Name()) })
}

// link links to a command on PATH in a directory.
func link(command, dir string) error {
	file, err := exec.LookPath(command)
	if err != nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Symlink(file, filepath.Join(dir, command))
}

// IsSchedulerCommand reports whether tests do not see a program of the machine with this name.
func IsSchedulerCommand(name string) bool {
	for _, list := range commands {
		if slices.Contains(list, name) {
			return true
		}
	}
	return false
}

// without returns a directory that has the files of from except commands of schedulers: from itself, or one
// below dir with links. Programs may look for files relative to their own, so the links are in a
// directory with links to the neighbours of from.
func without(from, dir string) (string, error) {
	if !hasCommands(from) {
		return from, nil
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return "", err
	}
	parent := filepath.Join(dir, filepath.Dir(from))
	to := filepath.Join(parent, filepath.Base(from))
	if fi, err := os.Lstat(to); err == nil && fi.IsDir() {
		return to, nil
	}
	_ = os.Remove(to) // a link from a neighbour
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	for _, e := range entries {
		if IsSchedulerCommand(e.Name()) {
			continue
		}
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return "", err
		}
	}
	neighbours, err := os.ReadDir(filepath.Dir(from))
	if err != nil {
		return "", err
	}
	for _, e := range neighbours {
		if err := os.Symlink(filepath.Join(filepath.Dir(from), e.Name()), filepath.Join(parent, e.Name())); err != nil && !os.IsExist(err) {
			return "", err
		}
	}
	return to, nil
}

// Scheduler returns the variables NAME=VALUE with which programs find the schedulers of this machine with
// these names: PATH, which is path and the directories of their commands, and those of the clusters of
// testdata. Tests that need a real scheduler call it; all others see none.
func Scheduler(path string, names ...string) (env []string) {
	for _, name := range names {
		if dir := os.Getenv(commandsVariable); dir != "" {
			path += string(os.PathListSeparator) + filepath.Join(dir, name)
		}
		for _, v := range clusterVariables[name] {
			if value, ok := os.LookupEnv(clusterPrefix + v); ok {
				env = append(env, v+"="+value)
			}
		}
	}
	return append(env, "PATH="+path)
}

// ClusterVariables are the names of the variables that Scheduler returns.
func ClusterVariables() []string {
	return append(slices.Concat(slices.Collect(maps.Values(clusterVariables))...), "PATH")
}

// ClusterVariable returns the value that a variable has in the result of Scheduler, or "".
func ClusterVariable(name string) string { return os.Getenv(clusterPrefix + name) }

// SchedulerCommand returns a command of a scheduler of this machine.
func SchedulerCommand(name, command string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(os.Getenv(commandsVariable), name, command), args...)
	cmd.Env = append(os.Environ(), Scheduler(os.Getenv("PATH"), name)...)
	return cmd
}
