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

// root is where Debian's package has its cells, which name no other.
const root = "/var/lib/gridengine"

// History reads the accounting file (accounting(5)) where this host has it: what qacct
// reads, too. It has the jobs that have ended.
func (System) History(ctx context.Context, from time.Time) (*capacity.History, error) {
	name := filepath.Join(cmp.Or(invoke.Getenv(ctx, "SGE_ROOT"), root), cmp.Or(invoke.Getenv(ctx, "SGE_CELL"), "default"), "common", "accounting")
	f, err := os.Open(name)
	if err != nil {
		return nil, &capacity.NoHistory{Why: "Grid Engine's accounting cannot be read here: " + err.Error()}
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, &capacity.NoHistory{Why: "Grid Engine's accounting cannot be read here: " + err.Error()}
	}
	h := &capacity.History{By: name}
	whole, older := false, false
	if h.Stays, whole, older, err = stays(f, fi.Size(), from); err != nil {
		return nil, fmt.Errorf("reading Grid Engine's accounting %s: %w", name, err)
	}
	switch {
	case !whole:
		h.Notes = append(h.Notes, "the accounting has more jobs than hpcc reads, and the figures of the first days are too low; ask for less with --since")
	case !older:
		noteBegin(h)
	}
	h.Notes = append(h.Notes, "of jobs that still run the memory is not told")
	return h, nil
}

// noteBegin says since when the accounting knows of jobs: it was begun anew, as sites do that keep the old ones elsewhere.
func noteBegin(h *capacity.History) {
	if len(h.Stays) == 0 {
		h.Notes = append(h.Notes, "the accounting has no job: whether some have ended is not known")
		return
	}
	first := slices.MinFunc(h.Stays, func(a, b capacity.Stay) int { return a.End.Compare(b.End) })
	h.Notes = append(h.Notes, fmt.Sprintf("the accounting begins on %s: of jobs that ended before nothing is known", first.End.Local().Format("2006-01-02 15:04")))
	h.Begins = slices.MinFunc(h.Stays, func(a, b capacity.Stay) int { return a.Start.Compare(b.Start) }).Start
}

// tailPiece is how much of the accounting is read at once, in bytes: some thousand jobs.
const tailPiece = 1 << 20

// stays reads the accounting from its end, where the latest jobs are, until a
// whole piece of it is of jobs that ended before from. It is not whole when there may be more, and
// older says that it has some that ended before.
func stays(r io.ReaderAt, size int64, from time.Time) (stays []capacity.Stay, whole, older bool, err error) {
	var rest []byte // the beginning of what was read, whose line begins before
	for end, read := size, int64(0); end > 0; {
		if read >= invoke.MaxListing || len(stays) >= capacity.MaxStays {
			return stays, false, older, nil
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
		} else if end > 0 { // no line is as long
			return stays, false, older, nil
		}
		some, old := false, false
		for line := range bytes.Lines(piece) {
			s, ok := stay(string(line))
			switch {
			case ok && s.End.After(from):
				stays = append(stays, s)
				some = true
			case ok:
				old = true
			}
		}
		older = older || old
		if old && !some { // a piece of jobs that never ran says nothing of those before
			break
		}
	}
	return stays, true, older, nil
}

// The fields of a line of the accounting.
const (
	geOwner    = 3
	geNumber   = 5
	geStart    = 9
	geEnd      = 10
	geSlots    = 34
	geTask     = 35
	geCategory = 39
	geSlave    = 41 // of a parallel job: which of its parts on other hosts
)

// stay reads a line; of a parallel job that of its master counts, which has all slots.
func stay(line string) (capacity.Stay, bool) {
	f := strings.Split(strings.TrimSpace(line), ":")
	if strings.HasPrefix(line, "#") || len(f) <= geSlave || (f[geSlave] != "NONE" && f[geSlave] != "") {
		return capacity.Stay{}, false
	}
	s := capacity.Stay{ID: f[geNumber], User: f[geOwner], Start: epoch(f[geStart]), End: epoch(f[geEnd]), CPUs: max(quantity.Count(f[geSlots]), 1)}
	if f[geTask] != "0" {
		s.ID += "." + f[geTask]
	}
	if s.Start.IsZero() || s.End.Before(s.Start) { // it never ran
		return capacity.Stay{}, false
	}
	readRequests(&s, f[geCategory])
	return s, true
}

// readRequests reads what a job asked for, of each slot: -l gpu=1,h_vmem=2G -pe mpi 8.
func readRequests(s *capacity.Stay, category string) {
	words := strings.Fields(category)
	for i, w := range words {
		if w != "-l" || i+1 == len(words) {
			continue
		}
		for r := range strings.SplitSeq(words[i+1], ",") {
			name, value, _ := strings.Cut(r, "=")
			switch {
			case slices.Contains(gpuNames, name):
				s.GPUs = min(min(whole(value), 1<<20)*s.CPUs, 1<<20)
			case slices.Contains(memoryNames, name):
				s.Memory = max(s.Memory, int64(min(float64(quantity.Bytes(value, 1))*float64(s.CPUs), 1<<60)))
			}
		}
	}
}

// memoryNames are the resources by which sites have jobs ask for memory.
var memoryNames = []string{"mem_free", "h_vmem", "m_mem_free", "virtual_free", "h_rss"}

// epoch reads seconds since 1970, or milliseconds, as Univa's Grid Engine writes; zero for none.
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
