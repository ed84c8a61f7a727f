package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"hpcc/job/quantity"
)

// history asks for the jobs that PBS still keeps, those that have ended, too: a site that has
// job_history_enable, for two weeks mostly. Others' are among them where the site shows them.
func (pbs) history(ctx context.Context, from time.Time) (*history, error) {
	out, err := call(ctx, "/", "qstat", "-x", "-f", "-t", "-F", "json")
	if err != nil {
		return nil, &noHistory{"PBS keeps no history: " + words(out, err).Error()}
	}
	h := &history{by: "qstat -x", current: true}
	if h.stays, err = pbsStays(bytes.NewReader(out), from); err != nil {
		return nil, err
	}
	return h, nil
}

// pbsStays reads the JSON of "qstat -x -f -t". Arrays are in it as a whole, too, and have no place.
func pbsStays(r io.Reader, from time.Time) ([]Stay, error) {
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
	if err := json.NewDecoder(io.LimitReader(r, maxListing)).Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading what qstat said: %w", err)
	}
	var stays []Stay
	for id, j := range list.Jobs {
		start := ansic(j.Start)
		if start.IsZero() || len(stays) >= maxStays {
			continue
		}
		user, _, _ := strings.Cut(j.Owner, "@")
		s := Stay{ID: id, User: user, Start: start, End: ansic(j.Ended)}
		if s.End.IsZero() && j.State != "R" && j.State != "E" && j.State != "S" { // an older PBS
			wall, err := quantity.Clock(j.Used.Wall, time.Second, time.Minute, time.Hour)
			if err != nil {
				continue
			}
			s.End = start.Add(wall)
		}
		if !s.End.IsZero() && s.End.Before(from) {
			continue
		}
		for _, part := range pbsParts(j.Where) {
			s.CPUs, s.Memory, s.GPUs = s.CPUs+part.cpus, s.Memory+part.memory, s.GPUs+part.gpus
		}
		if s.CPUs > 0 {
			stays = append(stays, s)
		}
	}
	return stays, nil
}

// ansic reads a moment as ctime(3) writes it, here; zero for none.
func ansic(s string) time.Time {
	t, err := time.ParseInLocation(time.ANSIC, s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}
