// Package jobtest compares what batch systems report with what tests expect.
package jobtest

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job/capacity"
)

// Recorded returns a recorded answer of a batch system.
func Recorded(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// told is a node as a few words, to compare with.
func told(n *capacity.Node) string {
	return fmt.Sprintf("%s %s cpus %d/%d memory %dM/%dM gpus %d/%d %s %s", n.Name, n.State, n.FreeCPUs, n.CPUs, n.FreeMemory>>20, n.Memory>>20, n.FreeGPUs, n.GPUs, n.GPUType, strings.Join(n.Queues, ","))
}

// CheckNodes compares nodes with one line for each.
func CheckNodes(t *testing.T, nodes []capacity.Node, want ...string) {
	t.Helper()
	var got []string
	for i := range nodes {
		got = append(got, strings.Join(strings.Fields(told(&nodes[i])), " "))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("nodes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// stayed is a stay as a few words, its times without the day.
func stayed(s capacity.Stay) string {
	end := "runs"
	if !s.End.IsZero() {
		end = s.End.Format("15:04:05")
	}
	return fmt.Sprintf("%s %s %s-%s cpus %d memory %dM gpus %d", s.ID, s.User, s.Start.Format("15:04:05"), end, s.CPUs, s.Memory>>20, s.GPUs)
}

// CheckStays compares jobs, in any order, with one line for each.
func CheckStays(t *testing.T, list []capacity.Stay, want ...string) {
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

// ThatDay is a time of the recordings, of that day.
func ThatDay(t testing.TB, clock string) time.Time {
	t.Helper()
	at, err := time.ParseInLocation("2006-01-02T15:04:05", "2026-11-21T"+clock, time.Local)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
