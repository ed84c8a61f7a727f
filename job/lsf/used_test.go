package lsf

import (
	"testing"
	"time"

	"hpcc/job/capacity"
)

func TestLSFUsed(t *testing.T) {
	if u := used("17|1.5 second(s)|12.5 Mbytes\n17|2 second(s)|1 Gbytes\n18|-|-\n"); u["17"] != (capacity.Usage{CPU: 3500 * time.Millisecond, Peak: 1 << 30}) || u["18"] != (capacity.Usage{}) {
		t.Errorf("used = %+v", u)
	}
}
