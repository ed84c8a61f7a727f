package pbs

import (
	"testing"

	"hpcc/testdata/helpers/jobtest"
)

func TestPBSUsed(t *testing.T) {
	u := used(jobtest.Recorded(t, "qstat-fxt.txt"))
	if u["98.vm"].Peak != 22024<<10 || u["96[].vm"].Peak != 23352<<10 || len(u) != 5 {
		t.Errorf("used = %+v; want 5 jobs, 22024 KiB for 98.vm and 23352 KiB for 96[].vm", u)
	}
}
