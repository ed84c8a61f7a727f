package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hpcc/job/capacity"
)

// stayed is a stay as a few words, its times without the day.
func stayed(s capacity.Stay) string {
	end := "runs"
	if !s.End.IsZero() {
		end = s.End.Format("15:04:05")
	}
	return fmt.Sprintf("%s %s %s-%s cpus %d memory %dM gpus %d", s.ID, s.User, s.Start.Format("15:04:05"), end, s.CPUs, s.Memory>>20, s.GPUs)
}

func checkStays(t *testing.T, list []capacity.Stay, want ...string) {
	t.Helper()
	var got []string
	for _, s := range list {
		got = append(got, stayed(s))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the jobs are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
