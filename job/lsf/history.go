package lsf

import (
	"context"
	"errors"
	"strings"
	"time"

	"hpcc/files"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// History returns the ended jobs of all users from bacct. It does not include running jobs.
func (System) History(ctx context.Context, from time.Time) (*capacity.History, error) {
	span := from.Local().Format("2006/01/02/15:04") + ","
	out, err := invoke.Call(ctx, "/", "bacct", "-u", "all", "-l", "-C", span)
	if err != nil {
		return nil, &capacity.NoHistory{Why: "LSF's accounting is not available: " + refusal(out, err).Error()}
	}
	if len(out) > invoke.MaxListing {
		return nil, errors.New("reading LSF's accounting: too many jobs; shorten the period with --since")
	}
	return &capacity.History{Allocations: allocations(string(out), time.Now()), By: "bacct",
		Unknown: []string{"memory", "GPUs"}, Notes: []string{"bacct reports slots, but not memory and GPUs"}}, nil
}

// allocations parses "bacct -l": a paragraph for each job. Lines are folded at 80 columns; a continuation
// begins with blanks.
//
//	Job <17>, User <alice>, Project <default>, Status <DONE>, …
//	Sat Nov 21 00:24:47: Dispatched to 2 Hosts/Processors <4*n1> <2*n2>;
//	Sat Nov 21 00:25:17: Completed <done>.
func allocations(text string, now time.Time) []capacity.Allocation {
	var list []capacity.Allocation
	var s capacity.Allocation
	entry := func(line string) {
		if rest, ok := strings.CutPrefix(line, "Job <"); ok {
			id, rest, _ := strings.Cut(rest, ">")
			_, rest, _ = strings.Cut(rest, "User <")
			user, _, _ := strings.Cut(rest, ">")
			s = capacity.Allocation{ID: id, User: user}
			return
		}
		at, what, ok := event(line, now)
		switch {
		case !ok || s.ID == "":
		case strings.HasPrefix(what, "Dispatched") || strings.HasPrefix(what, "Started") ||
			(strings.HasPrefix(what, "[") && strings.Contains(what, "started on")):
			if s.Start.IsZero() {
				s.Start, s.CPUs = at, slots(what)
			}
		case strings.HasPrefix(what, "Completed") || strings.HasPrefix(what, "Exited") || strings.HasPrefix(what, "Done"):
			if s.End = at; !s.Start.IsZero() && !at.Before(s.Start) && len(list) < capacity.MaxAllocations {
				list = append(list, s)
			}
			s = capacity.Allocation{}
		}
	}
	entryText := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "          ") {
			if len(entryText) < files.MaxSize {
				entryText += strings.TrimSpace(line) // lines may be folded within words
			}
			continue
		}
		entry(entryText)
		entryText = line
	}
	entry(entryText)
	return list
}

// event parses the time at the start of a line. LSF before 10 omits the year: event uses the latest year
// for which the time is not in the future.
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

// slots counts the slots of a dispatch: <n1> <n1> <4*n2>. If the line also has the allocated slots, it
// counts those instead of the requested ones.
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
