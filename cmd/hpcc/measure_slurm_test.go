package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"hpcc/job/quantity"
	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// TestMeasureAgreesWithSlurm compares the measured figures of a job with Slurm's accounting.
func TestMeasureAgreesWithSlurm(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	needs(t, "userns", "slurm")
	store := filepath.Join(t.TempDir(), "store")
	dir := t.TempDir()
	for i, c := range uses(dir) {
		t.Run(c.name, func(t *testing.T) {
			// Slurm samples once a second. Until then, the use counts for the shell that waited.
			name := fmt.Sprintf("use%d", i)
			cmd := hpcc(store, append([]string{"submit", "--to", "slurm", "--wait", "--measure", "--name", name, "--mem", "600M", "--native", "--acctg-freq=1",
				"/", "--", "sh", "-c", `export LOAD_RECORD=$HPCC_JOB_DIR/task.0.jsonl; "$@" && sleep 4`, "sh"}, c.argv...)...)
			cmd.Env = append(cmd.Env, testenv.Scheduler(os.Getenv("PATH"), "slurm")...)
			outputOf(t, cmd)
			records, err := filepath.Glob(filepath.Join(store, "jobs", name+"-*", "task.0.jsonl"))
			if err != nil || len(records) != 1 {
				t.Fatalf("%q, %v; want one record", records, err)
			}
			r, err := metrics.ReadRecord(records[0], true)
			if err != nil || r.Footer == nil || r.Footer.Exit != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			f, want, most := r.Footer, accounted(t, r.Header.Job.Native["SLURM_JOB_ID"]), int64(0)
			for _, s := range r.Samples {
				most = max(most, s.RSS) // Slurm also adds the resident sets of processes
			}
			t.Logf("%s; accounting %+v", footer(r), want)
			if cpu := f.Usage.User + f.Usage.System; !near(cpu, want.cpu, 0.05, 0.3) {
				t.Errorf("%.3f s of processor time; sacct says %.3f", cpu, want.cpu)
			}
			if c.memory > 0 && !near(float64(most), want.memory, 0.1, 48<<20) {
				t.Errorf("%d bytes of memory; sacct says %.0f", most, want.memory)
			}
			// Slurm counts reads and writes of all files, not only of those on storage.
			if c.written > 0 && onStorage(dir) && (!near(float64(f.Read), want.read, 0.02, 1<<20) || !near(float64(f.Written), want.written, 0.02, 1<<20)) {
				t.Errorf("%d bytes read, %d written; sacct says %.0f, %.0f", f.Read, f.Written, want.read, want.written)
			}
		})
	}
}

// accounted returns Slurm's accounting for the batch script of a job, which appears some time after
// the end: seconds of CPU time, and bytes of peak memory, read and written.
func accounted(t *testing.T, job string) (use struct{ cpu, memory, read, written float64 }) {
	t.Helper()
	var out []byte
	for range 120 {
		var err error
		out, err = testenv.SchedulerCommand("slurm", "sacct", "-D", "-j", job, "-n", "-P", "-o", "JobIDRaw,State,TotalCPU,MaxRSS,MaxDiskRead,MaxDiskWrite").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		m := regexp.MustCompile(`(?m)^[0-9]+\.batch\|COMPLETED\|(?:([0-9]+):)?([0-9]+):([0-9.]+)\|([0-9.]+[KMG])\|([0-9.]+[KMG])\|([0-9.]+[KMG])$`).FindStringSubmatch(string(out))
		if m == nil {
			time.Sleep(500 * time.Millisecond)
			continue
		}
		var n [4]float64
		for i, text := range m[:4] {
			n[i], _ = strconv.ParseFloat(text, 64)
		}
		size := func(text string) float64 { return float64(quantity.Bytes(text, 1<<10)) }
		use.cpu = n[1]*3600 + n[2]*60 + n[3]
		use.memory, use.read, use.written = size(m[4]), size(m[5]), size(m[6])
		return use
	}
	t.Fatalf("the accounting does not report the end of job %s: %s", job, out)
	return use
}
