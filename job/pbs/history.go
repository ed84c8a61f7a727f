package pbs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// History returns the jobs that PBS still knows. They include ended jobs, usually for two
// weeks, if the site sets job_history_enable, and jobs of other users if the site shows them.
func (System) History(ctx context.Context, from time.Time) (*capacity.History, error) {
	out, err := invoke.Call(ctx, "/", "qstat", "-x", "-f", "-t", "-F", "json")
	if err != nil {
		return nil, &capacity.NoHistory{Why: "PBS does not keep a history: " + invoke.Error(out, err).Error()}
	}
	h := &capacity.History{By: "qstat -x", Current: true}
	if h.Allocations, err = allocations(bytes.NewReader(out), from); err != nil {
		return nil, err
	}
	return h, nil
}

// allocations parses the JSON of "qstat -x -f -t". It skips entries of full arrays, which have no nodes.
func allocations(r io.Reader, from time.Time) ([]capacity.Allocation, error) {
	var list struct {
		Jobs map[string]struct {
			Owner string `json:"Job_Owner"`
			Where string `json:"exec_vnode"`
			Start string `json:"stime"`
			Ended string `json:"obittime"`
			State string `json:"job_state"`
			Used  struct {
				Wall string `json:"walltime"`
			} `json:"resources_used"`
		}
	}
	if err := json.NewDecoder(io.LimitReader(r, invoke.MaxListing)).Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading the output of qstat: %w", err)
	}
	var out []capacity.Allocation
	for id, j := range list.Jobs {
		start := ansic(j.Start)
		if start.IsZero() || len(out) >= capacity.MaxAllocations {
			continue
		}
		user, _, _ := strings.Cut(j.Owner, "@")
		s := capacity.Allocation{ID: id, User: user, Start: start, End: ansic(j.Ended)}
		if s.End.IsZero() && j.State != "R" && j.State != "E" && j.State != "S" { // an older PBS omits the state
			wall, err := quantity.Clock(j.Used.Wall, time.Second, time.Minute, time.Hour)
			if err != nil {
				continue
			}
			s.End = start.Add(wall)
		}
		if !s.End.IsZero() && s.End.Before(from) {
			continue
		}
		for _, part := range parts(j.Where) {
			s.CPUs, s.Memory, s.GPUs = s.CPUs+part.CPUs, s.Memory+part.Memory, s.GPUs+part.GPUs
		}
		if s.CPUs > 0 {
			out = append(out, s)
		}
	}
	return out, nil
}

// ansic parses a local time in the format of ctime(3). It returns the zero time for other text.
func ansic(s string) time.Time {
	t, err := time.ParseInLocation(time.ANSIC, s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}
