package jobscript_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/dispatch"
	"hpcc/job/jobscript"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestPrelude runs, for each scheduler that scripts are written for, one that
// names its variables, in what each target would set: two nodes, of which the first has
// two processes of two processors and the second one.
func TestPrelude(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"scontrol": "#!/bin/sh\n[ \"$*\" = 'show hostnames n[2,1]' ] && printf 'n2\\nn1\\n'\n",
		"pe":       "n2 4 all.q@n2 UNDEFINED\nn1 2 all.q@n1 UNDEFINED\n",
		"nodes":    "n2\nn1\nn2\n",
	} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	environments := map[job.Target][]string{
		"slurm":      {"SLURM_JOB_ID=18", "SLURM_ARRAY_JOB_ID=12", "SLURM_JOB_NODELIST=n[2,1]", "SLURM_TASKS_PER_NODE=2,1"},
		"lsf":        {"LSB_JOBID=12", "LSB_MCPU_HOSTS=n2 2 n1 1 "},
		"gridengine": {"JOB_ID=12", "PE_HOSTFILE=" + filepath.Join(dir, "pe")},
		"pbs":        {"PBS_JOBID=12[6].srv", "PBS_NODEFILE=" + filepath.Join(dir, "nodes")},
	}
	scripts := map[job.Target]struct{ body, want string }{
		"slurm": {`echo $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP $SLURM_ARRAY_TASK_COUNT $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_JOB_NODELIST $SLURM_NNODES $SLURM_SUBMIT_DIR`,
			"12 12 6 3 9 3 3 3 2 n2,n1 2 /home/u/$job"},
		"lsf": {`echo $LSB_JOBID $LSB_JOBINDEX $LSB_JOBINDEX_END $LSB_HOSTS / $LSB_MCPU_HOSTS / $(cat $LSB_DJOB_HOSTFILE) / $LSB_DJOB_NUMPROC $LS_SUBCWD`,
			"12 6 9 n2 n2 n1 / n2 2 n1 1 / n2 n2 n1 / 3 /home/u/$job"},
		"gridengine": {`echo $JOB_ID $SGE_TASK_ID $SGE_TASK_FIRST $SGE_TASK_LAST $SGE_TASK_STEPSIZE $NSLOTS $NHOSTS / $(cat $PE_HOSTFILE) / $SGE_O_WORKDIR`,
			"12 6 3 9 3 6 2 / n2 4 q@n2 UNDEFINED n1 2 q@n1 UNDEFINED / /home/u/$job"},
		"pbs": {`echo $PBS_JOBID $PBS_ARRAY_INDEX $(cat $PBS_NODEFILE) $PBS_NUM_NODES $PBS_NP $NCPUS $PBS_O_WORKDIR`,
			"12[6] 6 n2 n2 n1 2 3 4 /home/u/$job"},
	}
	for from, script := range scripts {
		for to, environment := range environments {
			if from == to {
				continue
			}
			j := jobtest.With(func(j *job.Job) {
				j.Image, j.Nodes, j.Tasks, j.CPUs, j.Queue, j.Array = "", 2, 3, 2, "q", jobtest.Array(t, "3-9:3")
				j.Script = &job.Script{Name: "x", From: from, Body: script.body + "\n", Shell: []string{"/bin/sh"}, Dir: "/home/u/$job", Sets: dialectOf(from).Variables}
			})
			cmd := exec.Command("bash", "-s")
			cmd.Stdin = strings.NewReader(jobscript.Body(j.Script, j, dialectOf(to)))
			cmd.Env = append(environment, "PATH="+dir+":"+os.Getenv("PATH"), "HPCC_TASK_TMP="+t.TempDir(), "HPCC_TASK_ID=6")
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != script.want {
				t.Errorf("a script for %s on %s says\n  %s, %v; want\n  %s\n%s", from, to, got, err, script.want, jobscript.Body(j.Script, j, dialectOf(to)))
			}
		}
	}
}

// TestDirectivesInArguments checks that no batch system reads a line of an argument or of a
// variable as a directive. Grid Engine and LSF read directives anywhere in a script, and sbatch
// reads those of PBS and LSF.
func TestDirectivesInArguments(t *testing.T) {
	const text = "true\n#$ -pe mpi 64\n#BSUB -q other\n#PBS -q other\n#SBATCH -p other"
	for _, to := range []job.Target{"slurm", "lsf", "gridengine"} {
		for name, set := range map[string]func(j *job.Job){
			"arguments": func(j *job.Job) { j.Args = []string{"sh", "-c", text} },
			"variables": func(j *job.Job) { j.Env = []string{"A=" + text} },
			"arguments of a script": func(j *job.Job) {
				j.Image, j.Script = "", &job.Script{Name: "x", From: "pbs", Body: text + "\n", Shell: []string{"/bin/sh"}, Dir: "/home/u", Args: []string{text}}
			},
		} {
			script, _, err := dispatch.Render(jobtest.With(set), to)
			if err != nil {
				t.Errorf("%s for %s: %v", name, to, err)
				continue
			}
			_, rest, _ := strings.Cut(script, "# Written by hpcc")
			for line := range strings.Lines(rest) {
				if slices.ContainsFunc(dialectOf(to).Hides, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
					t.Errorf("%s for %s: the script has the directive %q", name, to, line)
				}
			}
		}
	}
}

func dialectOf(t job.Target) *dialect.Dialect {
	all := dispatch.Translator()
	return all[slices.IndexFunc(all, func(d *dialect.Dialect) bool { return d.Target == t })]
}
