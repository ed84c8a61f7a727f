package gridengine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// root is the SGE_ROOT of Debian's package, used if the environment does not set it.
const root = "/var/lib/gridengine"

// History reads the accounting file (accounting(5)), like qacct, if this host has it. The file only has jobs
// that have ended.
func (System) History(ctx context.Context, from time.Time) (*capacity.History, error) {
	name := filepath.Join(cmp.Or(invoke.Getenv(ctx, "SGE_ROOT"), root), cmp.Or(invoke.Getenv(ctx, "SGE_CELL"), "default"),
		"common", "accounting")
	f, err := os.Open(name)
	if err != nil {
		return nil, &capacity.NoHistory{Why: "Grid Engine's accounting is not readable on this host: " + err.Error()}
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, &capacity.NoHistory{Why: "Grid Engine's accounting is not readable on this host: " + err.Error()}
	}
	h := &capacity.History{By: name}
	complete, older := false, false
	if h.Allocations, complete, older, err = allocations(f, fi.Size(), from); err != nil {
		return nil, fmt.Errorf("reading Grid Engine's accounting %s: %w", name, err)
	}
	switch {
	case !complete:
		h.Notes = append(h.Notes, "the accounting has too many jobs, so the figures of the first days are too low; shorten "+
			"the period with --since")
	case !older:
		noteBegin(h)
	}
	h.Notes = append(h.Notes, "the memory of running jobs is unknown")
	return h, nil
}

// noteBegin notes when the accounting file starts, because sites may rotate it.
func noteBegin(h *capacity.History) {
	if len(h.Allocations) == 0 {
		h.Notes = append(h.Notes, "the accounting file has no jobs; earlier ones are unknown")
		return
	}
	first := slices.MinFunc(h.Allocations, func(a, b capacity.Allocation) int { return a.End.Compare(b.End) })
	h.Notes = append(h.Notes, fmt.Sprintf("the accounting starts on %s; jobs that ended earlier are unknown",
		first.End.Local().Format("2006-01-02 15:04")))
	h.Begins = slices.MinFunc(h.Allocations, func(a, b capacity.Allocation) int { return a.Start.Compare(b.Start) }).Start
}

// tailPiece is the size of one read of the accounting, in bytes: some thousand jobs.
const tailPiece = 1 << 20

// allocations reads the accounting backwards until a full piece only has jobs that ended before from. complete
// is false if there may be more jobs; older reports whether some ended before from.
func allocations(r io.ReaderAt, size int64, from time.Time) (list []capacity.Allocation, complete, older bool, err error) {
	var rest []byte // the start of the last piece, an incomplete line
	for end, read := size, int64(0); end > 0; {
		if read >= invoke.MaxListing || len(list) >= capacity.MaxAllocations {
			return list, false, older, nil
		}
		n := min(tailPiece, end)
		piece := make([]byte, n, n+int64(len(rest)))
		if _, err := r.ReadAt(piece, end-n); err != nil && err != io.EOF {
			return nil, false, false, err
		}
		end, read = end-n, read+n
		piece = append(piece, rest...)
		rest = nil
		if cut := bytes.IndexByte(piece, '\n'); end > 0 && cut >= 0 {
			rest, piece = piece[:cut+1], piece[cut+1:]
		} else if end > 0 { // no valid line is that long
			return list, false, older, nil
		}
		some, old := false, false
		for line := range bytes.Lines(piece) {
			s, ok := allocation(string(line))
			switch {
			case ok && s.End.After(from):
				list = append(list, s)
				some = true
			case ok:
				old = true
			}
		}
		older = older || old
		if old && !some { // a piece with only jobs that never ran does not end the search
			break
		}
	}
	return list, true, older, nil
}

// Numbers of the fields in a line of the accounting file.
const (
	geOwner    = 3
	geNumber   = 5
	geStart    = 9
	geEnd      = 10
	geSlots    = 34
	geTask     = 35
	geCategory = 39
	geSlave    = 41 // the part of a parallel job on another host
)

// allocation parses a line. For a parallel job it uses the master's line, which has all slots.
func allocation(line string) (capacity.Allocation, bool) {
	f := strings.Split(strings.TrimSpace(line), ":")
	if strings.HasPrefix(line, "#") || len(f) <= geSlave || (f[geSlave] != "NONE" && f[geSlave] != "") {
		return capacity.Allocation{}, false
	}
	s := capacity.Allocation{ID: f[geNumber], User: f[geOwner], Start: epoch(f[geStart]), End: epoch(f[geEnd]),
		CPUs: max(quantity.Count(f[geSlots]), 1)}
	if f[geTask] != "0" {
		s.ID += "." + f[geTask]
	}
	if s.Start.IsZero() || s.End.Before(s.Start) { // the job never ran
		return capacity.Allocation{}, false
	}
	readRequests(&s, f[geCategory])
	return s, true
}

// readRequests parses the requests of each slot: -l gpu=1,h_vmem=2G -pe mpi 8.
func readRequests(s *capacity.Allocation, category string) {
	args := strings.Fields(category)
	for i, arg := range args {
		if arg != "-l" || i+1 == len(args) {
			continue
		}
		for r := range strings.SplitSeq(args[i+1], ",") {
			name, value, _ := strings.Cut(r, "=")
			switch {
			case slices.Contains(gpuNames, name):
				s.GPUs = min(min(integer(value), 1<<20)*s.CPUs, 1<<20)
			case slices.Contains(memoryNames, name):
				s.Memory = max(s.Memory, int64(min(float64(quantity.Bytes(value, 1))*float64(s.CPUs), 1<<60)))
			}
		}
	}
}

// memoryNames are the resources that sites use for memory requests.
var memoryNames = []string{"mem_free", "h_vmem", "m_mem_free", "virtual_free", "h_rss"}

// epoch parses seconds since 1970, or milliseconds, as in Univa's Grid Engine. It returns the zero time for
// other text.
func epoch(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil || n <= 0 || n > 1<<50:
		return time.Time{}
	case n > 1<<37:
		return time.UnixMilli(n)
	}
	return time.Unix(n, 0)
}
