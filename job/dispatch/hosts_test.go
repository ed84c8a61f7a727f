package dispatch

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hpcc/job"
)

func TestPerNode(t *testing.T) {
	pe, nodefile := filepath.Join(t.TempDir(), "hosts"), filepath.Join(t.TempDir(), "nodes")
	os.WriteFile(pe, []byte("h1.site.org 2 cpu@h1.site.org UNDEFINED\nh2.site.org 2 cpu@h2.site.org UNDEFINED\n"), 0o644)
	os.WriteFile(nodefile, []byte("h1\nh1\nh2\nh2\n"), 0o644)
	env := map[string]string{"PE_HOSTFILE": pe, "PE": "mpi", "LSB_MCPU_HOSTS": "h1 2 h2 2", "PBS_NODEFILE": nodefile}
	program := []string{"/opt/hp cc", "task"}
	tests := []struct {
		to    job.Target
		nodes int
		want  [][]string
	}{
		{"slurm", 2, [][]string{
			append(strings.Fields("srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --unbuffered --mpi=none --relative=0 --cpus-per-task=3"), "/opt/hp cc", "task", "--rank=0"),
			append(strings.Fields("srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --unbuffered --mpi=none --relative=1 --cpus-per-task=3"), "/opt/hp cc", "task", "--rank=1"),
		}},
		{"slurm", 65, [][]string{
			append(strings.Fields("srun --nodes=65 --ntasks=65 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --unbuffered --mpi=none --no-kill --cpus-per-task=3"), "/opt/hp cc", "task"),
		}},
		{"gridengine", 2, [][]string{{"/opt/hp cc", "task", "--rank=0"}, {"qrsh", "-inherit", "-nostdin", "h2.site.org", "exec '/opt/hp cc' task --rank=1"}}},
		{"lsf", 2, [][]string{{"/opt/hp cc", "task", "--rank=0"}, {"blaunch", "h2", "/opt/hp cc", "task", "--rank=1"}}},
		{"pbs", 2, [][]string{{"/opt/hp cc", "task", "--rank=0"}, {"pbs_tmrsh", "h2", "/opt/hp cc", "task", "--rank=1"}}},
		{"gridengine", 1, [][]string{{"/opt/hp cc", "task", "--rank=0"}}},
		{job.Local, 1, [][]string{{"/opt/hp cc", "task", "--rank=0"}}},
	}
	for _, test := range tests {
		got, err := OnNode().PerNode(test.to, test.nodes, 3, program, func(k string) string { return env[k] })
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("PerNode(%s, %d) = %q, %v; want %q", test.to, test.nodes, got, err, test.want)
		}
	}
	env["PBS_O_PATH"] = "bin:" + t.TempDir() + ":" + t.TempDir() // the daemon's PATH lacks the launcher
	tmrsh := filepath.Join(filepath.SplitList(env["PBS_O_PATH"])[2], "pbs_tmrsh")
	os.WriteFile(tmrsh, nil, 0o755)
	if got, err := OnNode().PerNode("pbs", 2, 0, program, func(k string) string { return env[k] }); err != nil || got[1][0] != tmrsh {
		t.Errorf("PerNode with pbs_tmrsh on the submitter's PATH = %q, %v; want %s", got, err, tmrsh)
	}
	env["HOSTNAME"] = "h2" // the job runs on the second of its hosts
	if got, err := OnNode().PerNode("pbs", 2, 0, program, func(k string) string { return env[k] }); err != nil || got[1][1] != "h1" {
		t.Errorf("PerNode on h2 = %q, %v; want h1 to be the other", got, err)
	}
}

// TestSpread covers an allocation of other nodes than requested, and invalid host files.
func TestSpread(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	env := map[string]string{"PE_HOSTFILE": file, "PE": "fill"}
	getenv := func(k string) string { return env[k] }
	tests := []struct {
		hosts string
		nodes int
		want  string // of the error; "" for none
	}{
		{"h1 2 q UNDEFINED\nh2 2 q UNDEFINED\n", 2, ""},
		{"h1 2 q UNDEFINED\nh1 2 other UNDEFINED\n", 1, ""},
		{"h1 4 q UNDEFINED\n", 2, `requested 2 nodes and got 1 (h1); parallel environment "fill"`},
		{"h1 4 q UNDEFINED\n", 0, ""},
		{"", 2, "got 0"},
		{"-l 1 q\nh1 1 q\n", 2, `"-l" is not a host name`},
		{"$(id) 1 q\nh1 1 q\n", 2, "is not a host name"},
	}
	for _, test := range tests {
		os.WriteFile(file, []byte(test.hosts), 0o644)
		err := OnNode().CheckNodes(test.nodes, getenv)
		if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
			t.Errorf("CheckNodes(%d) of %q = %v; want %q", test.nodes, test.hosts, err, test.want)
		}
	}
	if err := OnNode().CheckNodes(2, func(string) string { return "" }); err != nil {
		t.Errorf("CheckNodes without Grid Engine = %v", err)
	}
	env["LSB_MCPU_HOSTS"] = "h1 h2 h3 h4"
	if got, err := OnNode().PerNode("lsf", 2, 0, nil, getenv); err == nil {
		t.Errorf("hosts of %q = %q; want an error", env["LSB_MCPU_HOSTS"], got)
	}
}
