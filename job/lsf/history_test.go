package lsf

import (
	"testing"
	"time"

	"hpcc/job/capacity"
	"hpcc/testdata/jobtest"
)

func TestLSFUsed(t *testing.T) {
	if u := used("17|1.5 second(s)|12.5 Mbytes\n17|2 second(s)|1 Gbytes\n18|-|-\n"); u["17"] != (capacity.Usage{CPU: 3500 * time.Millisecond, Peak: 1 << 30}) || u["18"] != (capacity.Usage{}) {
		t.Errorf("used = %+v", u)
	}
}

// bacctText has the format of "bacct -l" in IBM's manual, and of older LSF, which omits the year.
const bacctText = `
Accounting information about jobs that are:
  - submitted by all users.
------------------------------------------------------------------------------

Job <17>, User <alice>, Project <default>, Status <DONE>, Queue <normal>, Comma
                     nd <sleep 30>
Sat Nov 21 00:24:40 2026: Submitted from host <h>, CWD <$HOME>;
Sat Nov 21 00:24:47 2026: Dispatched 6 Task(s) on Host(s) <4*n1> <2*n2>, Alloca
                     ted 8 Slot(s) on Host(s) <4*n1> <4*n2>, Effective RES_REQ
                     <select[type == local] order[r15s:pg] >;
Sat Nov 21 00:25:17 2026: Completed <done>.

Accounting information about this job:
     CPU_T     WAIT     TURNAROUND   STATUS     HOG_FACTOR    MEM    SWAP
      0.19        7             37     done         0.0012     4M     5M
------------------------------------------------------------------------------

Job <18[2]>, User <bob>, Project <default>, Status <EXIT>, Queue <normal>, Command <x>
Sat Nov 21 00:26:00: Submitted from host <h>, CWD <$HOME>;
Sat Nov 21 00:26:10: Dispatched to <n1>;
Sat Nov 21 00:27:10: Exited with exit code 4.
------------------------------------------------------------------------------

Job <19>, User <bob>, Project <default>, Status <EXIT>, Queue <normal>, Command <x>
Sat Nov 21 00:28:00: Submitted from host <h>, CWD <$HOME>;
Sat Nov 21 00:29:00: Exited; TERM_OWNER: job killed by owner.
`

func TestLSFAllocations(t *testing.T) {
	jobtest.CheckAllocations(t, allocations(bacctText, time.Date(2026, 11, 22, 0, 0, 0, 0, time.Local)),
		"17 alice 00:24:47-00:25:17 cpus 8 memory 0M gpus 0",
		"18[2] bob 00:26:10-00:27:10 cpus 1 memory 0M gpus 0")
	at, _, ok := event("Thu Dec 31 23:00:00: Dispatched to <n1>;", time.Date(2026, 1, 2, 0, 0, 0, 0, time.Local))
	if !ok || at.Year() != 2025 {
		t.Errorf("a time in December, read in January 2026, is %v; want 2025", at)
	}
}

func FuzzLSFAllocations(f *testing.F) {
	f.Add(bacctText)
	f.Fuzz(func(t *testing.T, text string) {
		list := allocations(text, time.Now())
		for _, s := range list {
			if s.Start.IsZero() || s.CPUs < 0 || s.Memory < 0 || s.GPUs < 0 {
				t.Errorf("invalid allocation %+v", s)
			}
		}
	})
}
