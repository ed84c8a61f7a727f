package job

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"hpcc/text"
)

// An Array is the set of indices of an array job, as ranges with an optional step, and the number
// of tasks that may run simultaneously. Examples: 1-8, 0-99:5%4, 1,3,7.
type Array struct {
	Ranges []span
	Limit  int // number of tasks that may run simultaneously; 0: all
}

// A span is the range first, first+step, … up to last.
type span struct{ First, Last, Step int }

// Limits of an array. Batch systems have lower ones.
const (
	maxIndex  = 10_000_000
	maxRanges = 10_000
)

// ParseArray parses an array. For "" it returns the zero Array.
func ParseArray(s string) (Array, error) {
	var a Array
	if s == "" {
		return a, nil
	}
	fail := func(format string, args ...any) (Array, error) {
		return Array{}, fmt.Errorf("array %q: "+format, append([]any{text.Short(s)}, args...)...)
	}
	list, limit, ok := strings.Cut(s, "%")
	if ok {
		n, err := index(limit)
		if err != nil || n == 0 {
			return fail("the limit %q after %% is not a positive number", limit)
		}
		a.Limit = n
	}
	parts := strings.Split(list, ",")
	if len(parts) > maxRanges {
		return fail("has more than %d ranges", maxRanges)
	}
	top := 0
	for _, p := range parts {
		r, err := parseRange(p)
		if err != nil {
			return fail("%v", err)
		}
		top = max(top, r.Last)
		a.Ranges = append(a.Ranges, r)
	}
	seen := make([]bool, top+1)
	for k := range a.All() {
		if seen[k] {
			return fail("index %d appears twice", k)
		}
		seen[k] = true
	}
	return a, nil
}

func parseRange(p string) (span, error) {
	ends, step, hasStep := strings.Cut(p, ":")
	first, last, hasLast := strings.Cut(ends, "-")
	r := span{Step: 1}
	var err error
	if r.First, err = index(first); err != nil {
		return r, err
	}
	r.Last = r.First
	if hasLast {
		if r.Last, err = index(last); err != nil {
			return r, err
		}
	}
	if hasStep {
		if r.Step, err = index(step); err != nil || r.Step == 0 || !hasLast {
			return r, fmt.Errorf("the step in %q is not a positive number after a range", text.Short(p))
		}
	}
	if r.Last < r.First {
		return r, fmt.Errorf("the end of range %q is below its start", text.Short(p))
	}
	r.Last -= (r.Last - r.First) % r.Step
	return r, nil
}

// index parses a decimal number of at most maxIndex.
func index(s string) (int, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not an index", text.Short(s))
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > maxIndex {
		return 0, fmt.Errorf("%q is above the largest index, %d", text.Short(s), maxIndex)
	}
	return n, nil
}

// Count returns the number of indices.
func (a Array) Count() int {
	n := 0
	for _, r := range a.Ranges {
		n += (r.Last-r.First)/r.Step + 1
	}
	return n
}

// All iterates over the indices in the order in which they were written.
func (a Array) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, r := range a.Ranges {
			for k := r.First; k <= r.Last; k += r.Step {
				if !yield(k) {
					return
				}
			}
		}
	}
}

// Nth returns the n-th index as written, from 1, and false if there are fewer. Schedulers whose
// arrays start at 1 without gaps need it.
func (a Array) Nth(n int) (index int, ok bool) {
	for _, r := range a.Ranges {
		count := (r.Last-r.First)/r.Step + 1
		if n >= 1 && n <= count {
			return r.First + (n-1)*r.Step, true
		}
		n -= count
		if n < 1 {
			break
		}
	}
	return 0, false
}

// Of returns an array of the given indices, which must be sorted, with the limit of a.
func (a Array) Of(indices []int) Array {
	a.Ranges = nil
	for _, k := range indices {
		if n := len(a.Ranges); n > 0 && a.Ranges[n-1].Last == k-1 {
			a.Ranges[n-1].Last = k
			continue
		}
		a.Ranges = append(a.Ranges, span{k, k, 1})
	}
	return a
}

// Has reports whether the array contains an index.
func (a Array) Has(index int) bool {
	return slices.ContainsFunc(a.Ranges, func(r span) bool { return index >= r.First && index <= r.Last && (index-r.First)%r.Step == 0 })
}

// IsZero reports whether the job is not an array.
func (a Array) IsZero() bool { return len(a.Ranges) == 0 }

func (a Array) String() string {
	var parts []string
	for _, r := range a.Ranges {
		switch {
		case r.First == r.Last:
			parts = append(parts, strconv.Itoa(r.First))
		case r.Step == 1:
			parts = append(parts, fmt.Sprintf("%d-%d", r.First, r.Last))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d:%d", r.First, r.Last, r.Step))
		}
	}
	s := strings.Join(parts, ",")
	if a.Limit > 0 {
		s += "%" + strconv.Itoa(a.Limit)
	}
	return s
}

// MarshalJSON writes the array as a string that ParseArray reads.
func (a Array) MarshalJSON() ([]byte, error) { return json.Marshal(a.String()) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *Array) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	var err error
	*a, err = ParseArray(s)
	return err
}

// Bounds returns the smallest and the greatest index, and the step between them if there is
// a single one.
func (a Array) Bounds() (first, last, step int) {
	step = 1
	for i, r := range a.Ranges {
		if i == 0 {
			first, last = r.First, r.Last
		}
		first, last = min(first, r.First), max(last, r.Last)
	}
	if len(a.Ranges) == 1 && a.Ranges[0].First != a.Ranges[0].Last {
		step = a.Ranges[0].Step
	}
	return first, last, step
}

// Indices lists at most 20 task indices for a message.
func Indices(tasks []int) string {
	const most = 20
	list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(tasks[:min(len(tasks), most)])), ","), "[]")
	if len(tasks) > most {
		list += ",…"
	}
	return list
}
