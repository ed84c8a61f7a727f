package translate_test

import (
	"strings"
	"testing"

	"hpcc/job/dispatch"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/testenv"
)

// TestTraps covers differences between dialects that often break translations, with the
// expected directives for Slurm.
func TestTraps(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"minutes of LSF", "#BSUB -W 8", "--time=0:08:00"},
		{"hours of LSF", "#BSUB -W 1:30", "--time=1:30:00"},
		{"minutes of Slurm", "#SBATCH -t 8", "--time=0:08:00"},
		{"minutes and seconds of Slurm", "#SBATCH -t 1:30", "--time=0:01:30"},
		{"days of Slurm", "#SBATCH -t 1-12", "--time=36:00:00"},
		{"seconds of Grid Engine", "#$ -l h_rt=90", "--time=0:01:30"},
		{"seconds of PBS", "#PBS -l walltime=90", "--time=0:01:30"},
		{"slots over hosts", "#BSUB -n 8 -R span[ptile=4]", "--nodes=2\n--ntasks=8\n--ntasks-per-node=4"},
		{"an indivisible count of slots", "#BSUB -n 6 -R span[ptile=4]", "--nodes=2\n--ntasks=6\n--ntasks-per-node=4"},
		{"GPUs per host", `#BSUB -n 8 -R span[ptile=4] -gpu "num=4:mode=exclusive_process"`, "--gpus-per-node=4"},
		{"GPUs per slot", "#$ -pe smp 4 -l gpu=1", "--cpus-per-task=4\n--gpus-per-node=4"},
		{"GPUs per chunk", "#PBS -l select=2:ncpus=4:ngpus=2", "--nodes=2\n--ntasks=2\n--ntasks-per-node=1\n--cpus-per-task=4\n--gpus-per-node=2"},
		{"exclusive node", "#BSUB -x", "--mem=0\n--exclusive"},
		{"MB per host", "#BSUB -R rusage[mem=1024]", "--mem=1024M"},
		{"KB per process", "#BSUB -M 1048576", "--mem-per-cpu=1024M"},
		{"memory per slot", "#$ -pe smp 4 -l h_vmem=2G", "--mem-per-cpu=2048M"},
		{"memory per chunk", "#PBS -l select=2:ncpus=4:mem=8gb", "--mem=8192M"},
		{"memory per process", "#PBS -l ncpus=2,pmem=4gb", "--cpus-per-task=2\n--mem-per-cpu=2048M"},
		{"dependency on a failure", `#BSUB -w "exit(5)"`, "--dependency=afternotok:5"},
		{"the month before the day", "#BSUB -b 2027:02:03:04:05", "--begin=2027-02-03T04:05"},
		{"indices are not shifted", "#SBATCH --array=0-6:3%2", "--array=0-6:3%2"},
		{"dependency on any end", "#$ -hold_jid 5", "--dependency=afterany:5"},
		{"no environment", "#$ -cwd", "--export=NONE"},
		{"output is appended", "#BSUB -o x.%J", "--open-mode=append\n--output=x.%j"},
		{"home of Grid Engine", "#$ -N x", "--chdir=/home/u\n"},
		{"commented out", "##SBATCH -n 9\n#SBATCH -N 2", "--nodes=2\n--output"},
		{"after a command", "#SBATCH -N 2\ntrue\n#SBATCH -n 9", "--nodes=2\n--output"},
		{"in a here-document", "#BSUB -n 2\ncat <<E\n#BSUB -q late\nE", "--ntasks=2\n--partition=late"},
		{"variables are not expanded", "#SBATCH -p $QUEUE -N 2", "--nodes=2\n--output"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tr, err := dispatch.Translator().Translate(translate.Source{Name: "x", Text: []byte("#!/bin/bash\n" + test.script + "\n"), Dir: "/home/u/job", Home: "/home/u"}, "slurm")
			testenv.Check(t, err)
			tr.Job.Program, tr.Job.Store = "/bin/hpcc", "/store"
			tr.Fit()
			script, _, err := dispatch.Render(tr.Job, "slurm")
			head, _, _ := strings.Cut(script, "# Written by")
			if got := strings.ReplaceAll(head, "#SBATCH ", ""); err != nil || !strings.Contains(got, "\n"+test.want) {
				t.Errorf("translating\n%s\ngives\n%s, %v; want it to contain %q", test.script, got, err, test.want)
			}
		})
	}
}
