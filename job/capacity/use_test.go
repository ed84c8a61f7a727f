package capacity

import (
	"strings"
	"testing"
	"time"
)

func TestAdvise(t *testing.T) {
	u := &Use{CPUs: 8, CPUTime: 3 * time.Hour, Wall: 2 * time.Hour, Longest: time.Hour, Time: 24 * time.Hour, Memory: 64 << 30, PeakMemory: 3 << 30}
	want := "1.5 of 8 processors were busy: ask for 2\n3G of 64G of memory were used: --mem 4608M would do\nit ran for 1h of 24h: --time 2h would do, and short jobs start sooner"
	if got := strings.Join(u.Advise(), "\n"); got != want {
		t.Errorf("advice is\n%s\nwant\n%s", got, want)
	}
	large := &Use{Memory: 64 << 30, PeakMemory: 9 << 30}
	if got := strings.Join(large.Advise(), "\n"); got != "9G of 64G of memory were used: --mem 14G would do" {
		t.Errorf("advice for 9G of 64G = %q", got)
	}
	for name, u := range map[string]*Use{
		"waited for processors": {CPUs: 8, CPUTime: time.Hour, Wall: time.Hour, Contended: true},
		"failed":                {CPUs: 8, CPUTime: time.Hour, Wall: time.Hour, Failed: true, Memory: 64 << 30, PeakMemory: 1 << 30, Time: 24 * time.Hour, Longest: time.Minute},
	} {
		if got := u.Advise(); len(got) > 0 {
			t.Errorf("advice for a job that %s = %q; want none", name, got)
		}
	}
	fair := &Use{CPUs: 2, CPUTime: 3 * time.Hour, Wall: 2 * time.Hour, Longest: time.Hour, Time: 2 * time.Hour, Memory: 4 << 30, PeakMemory: 3 << 30}
	if got := fair.Advise(); len(got) > 0 {
		t.Errorf("advice for a fair request = %q; want none", got)
	}
}
