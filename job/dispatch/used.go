package dispatch

import (
	"context"
	"maps"
	"slices"
	"time"

	"hpcc/job/batch"
	"hpcc/job/capacity"
)

// Uses compares the requests of jobs below dir with their usage, from the records and, in one
// query per scheduler, its accounting. A scheduler that does not answer is a warning.
func Uses(ctx context.Context, dir string, ids []string) (list []*capacity.Use, warnings []string, err error) {
	all, warnings, err := Statuses(ctx, dir, ids)
	if err != nil {
		return nil, nil, err
	}
	natives, clusters := map[string][]string{}, map[string]Cluster{}
	for _, st := range all {
		if st.Recorded() > 0 {
			clusters[st.key()] = st.Cluster
			natives[st.key()] = append(natives[st.key()], st.natives()...)
		}
	}
	counted := map[string]map[string]capacity.Usage{} // by cluster
	for _, key := range slices.Sorted(maps.Keys(natives)) {
		to, err := clusters[key].scheduler()
		if err != nil {
			continue
		}
		counter, ok := to.(batch.UsageCounter)
		if !ok {
			continue
		}
		if counted[key], err = counter.Used(clusters[key].Within(ctx), natives[key]); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	for _, st := range all {
		if st.Recorded() > 0 {
			list = append(list, st.use(counted[st.key()], time.Now()))
		}
	}
	return list, warnings, nil
}

// use sums the records. If the scheduler counted more, for example processes on other nodes,
// its value wins.
func (s *Status) use(counted map[string]capacity.Usage, now time.Time) *capacity.Use {
	j, packed := s.Job.Alone(), &s.survey.Succeeded
	u := &capacity.Use{ID: s.ID, Target: s.Target, State: s.State(), Tasks: s.Recorded(), CPUs: j.Slots(),
		Nodes: int(j.NodeCount()), GPUs: j.GPUs * int(j.NodeCount()), Time: j.Time, Memory: j.MemoryPerNode(),
		Wall: packed.Wall, Longest: packed.Longest, CPUTime: packed.CPU, PeakMemory: packed.Peak, Ended: packed.End}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		end := t.End
		switch {
		case !t.Ended() && s.Running > 0:
			end = now
		case !t.Ended(): // it is lost, so its run time is unknown
			end = t.Start
		}
		u.Ended = capacity.Latest(u.Ended, end)
		wall := max(end.Sub(t.Start), 0)
		u.Wall, u.Longest = u.Wall+wall, max(u.Longest, wall)
		u.CPUUnknown = u.CPUUnknown || (wall > 0 && len(t.Usage) == 0)
		cpu, peak, contended := capacity.UsedBy(t)
		u.CPUTime, u.PeakMemory, u.Contended = u.CPUTime+cpu, max(u.PeakMemory, peak), u.Contended || contended
	}
	u.Failed = s.Done == 0
	var sum capacity.Usage
	for _, id := range s.natives() {
		sum.CPU, sum.Peak = sum.CPU+counted[id].CPU, max(sum.Peak, counted[id].Peak)
	}
	u.CPUTime, u.PeakMemory = max(u.CPUTime, sum.CPU), max(u.PeakMemory, sum.Peak)
	u.CPUUnknown = u.CPUUnknown && sum.CPU == 0
	if s.Running+s.Waiting == 0 {
		u.Advice = u.Advise()
	} else {
		u.Ended = time.Time{}
	}
	return u
}
