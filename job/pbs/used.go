package pbs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// Used returns the usage of this user's jobs, including ended ones if PBS still knows them.
func (System) Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error) {
	out, err := invoke.Call(ctx, "/", "qstat", append([]string{"-x", "-f", "-t"}, ids...)...)
	if m := used(string(out)); len(m) > 0 || err == nil { // qstat fails if it does not know one of the jobs
		return m, nil
	}
	return nil, fmt.Errorf("querying PBS for usage: %w", invoke.Error(out, err))
}

// used parses the text of "qstat -f -t". Tasks of an array, such as 17[3].h, count for the array, 17[].h.
func used(text string) map[string]capacity.Usage {
	m := map[string]capacity.Usage{}
	for id, e := range entries(text) {
		if number, rest, ok := strings.Cut(id, "["); ok {
			_, server, _ := strings.Cut(rest, "]")
			id = number + "[]" + server
		}
		u := m[id]
		if cpu, err := quantity.Clock(e["resources_used.cput"], time.Second, time.Minute, time.Hour); err == nil {
			u.CPU += cpu
		}
		u.Peak = max(u.Peak, quantity.Bytes(e["resources_used.mem"], 1))
		m[id] = u
	}
	return m
}

// ended returns the text of "qstat -x -f" about the given jobs. qstat fails if it does not know one of
// them, but describes the others. Its JSON lacks all jobs but the first (OpenPBS 23.06).
func ended(ctx context.Context, ids []string) string {
	out, _ := invoke.Call(ctx, "/", "qstat", append([]string{"-x", "-f"}, ids...)...)
	return string(out)
}

// entries parses the text of "qstat -f": attributes by job. Long values continue on lines that begin
// with a tab.
func entries(text string) map[string]map[string]string {
	list := map[string]map[string]string{}
	var entry map[string]string
	last := ""
	for line := range strings.Lines(text[:min(len(text), invoke.MaxListing)]) {
		line = strings.TrimRight(line, "\r\n")
		if id, ok := strings.CutPrefix(line, "Job Id: "); ok {
			entry, last = map[string]string{}, ""
			list[id] = entry
			continue
		}
		if entry == nil { // a message about an unknown job
			continue
		}
		if more, ok := strings.CutPrefix(line, "\t"); ok {
			if last != "" {
				entry[last] += more
			}
			continue
		}
		if name, value, ok := strings.Cut(strings.TrimPrefix(line, "    "), " = "); ok {
			entry[name], last = value, name
		}
	}
	return list
}
