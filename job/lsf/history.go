package lsf

import (
	"context"
	"errors"
	"strings"
	"time"

	"hpcc/job/atomicfile"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// History asks bacct for the jobs of all users that have ended. What runs the nodes tell of.
func (System) History(ctx context.Context, from time.Time) (*capacity.History, error) {
	span := from.Local().Format("2006/01/02/15:04") + ","
	out, err := invoke.Call(ctx, "/", "bacct", "-u", "all", "-l", "-C", span)
	if err != nil {
		return nil, &capacity.NoHistory{Why: "LSF's accounting does not tell: " + invoke.Error(out, err).Error()}
	}
	if len(out) > invoke.MaxListing {
		return nil, errors.New("reading LSF's accounting: it has more jobs than hpcc reads; ask for less with --since")
	}
	return &capacity.History{Stays: stays(string(out), time.Now()), By: "bacct", Untold: []string{"memory", "GPUs"}, Notes: []string{"bacct tells of slots alone, not of memory and GPUs"}}, nil
}

// stays reads "bacct -l": a paragraph for each job, whose lines are folded at 80 columns, the
// rest of them behind blanks.
//
//	Job <17>, User <alice>, Project <default>, Status <DONE>, …
//	Sat Nov 21 00:24:47: Dispatched to 2 Hosts/Processors <4*n1> <2*n2>;
//	Sat Nov 21 00:25:17: Completed <done>.
func stays(list string, now time.Time) []capacity.Stay {
	var stays []capacity.Stay
	var s capacity.Stay
	entry := func(line string) {
		if rest, ok := strings.CutPrefix(line, "Job <"); ok {
			id, rest, _ := strings.Cut(rest, ">")
			_, rest, _ = strings.Cut(rest, "User <")
			user, _, _ := strings.Cut(rest, ">")
			s = capacity.Stay{ID: id, User: user}
			return
		}
		at, what, ok := event(line, now)
		switch {
		case !ok || s.ID == "":
		case strings.HasPrefix(what, "Dispatched") || strings.HasPrefix(what, "Started") || (strings.HasPrefix(what, "[") && strings.Contains(what, "started on")):
			if s.Start.IsZero() {
				s.Start, s.CPUs = at, slots(what)
			}
		case strings.HasPrefix(what, "Completed") || strings.HasPrefix(what, "Exited") || strings.HasPrefix(what, "Done"):
			if s.End = at; !s.Start.IsZero() && !at.Before(s.Start) && len(stays) < capacity.MaxStays {
				stays = append(stays, s)
			}
			s = capacity.Stay{}
		}
	}
	whole := ""
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "          ") {
			if len(whole) < atomicfile.MaxSize {
				whole += strings.TrimSpace(line) // folded anywhere, within words too
			}
			continue
		}
		entry(whole)
		whole = line
	}
	entry(whole)
	return stays
}

// event reads the moment that a line begins with. LSF before 10 names no year: event takes the
// latest year in which the moment is not in the future.
func event(line string, now time.Time) (at time.Time, what string, ok bool) {
	stamp, what, ok := strings.Cut(line, ": ")
	if !ok {
		return at, "", false
	}
	if at, err := time.ParseInLocation(time.ANSIC, stamp, time.Local); err == nil {
		return at, what, true
	}
	at, err := time.ParseInLocation("Mon Jan _2 15:04:05", stamp, time.Local)
	if err != nil {
		return at, "", false
	}
	if at = at.AddDate(now.Year(), 0, 0); at.After(now.Add(time.Hour)) {
		at = at.AddDate(-1, 0, 0)
	}
	return at, what, true
}

// slots counts the slots of a dispatch: <n1> <n1> <4*n2>. Where it tells what was allocated
// besides what was asked for, that counts.
func slots(what string) int {
	if _, allocated, ok := strings.Cut(what, "Allocated "); ok {
		what = allocated
	}
	what, _, _ = strings.Cut(what, ";")
	what, _, _ = strings.Cut(what, "Effective RES_REQ")
	n := 0
	for {
		_, rest, ok := strings.Cut(what, "<")
		if !ok {
			return max(n, 1)
		}
		var host string
		host, what, _ = strings.Cut(rest, ">")
		if count, _, ok := strings.Cut(host, "*"); ok {
			n = min(n+quantity.Count(count), 1<<20)
		} else {
			n = min(n+1, 1<<20)
		}
	}
}
