package conda

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// joined lists texts with a word before the last, and counts what is too much.
func joined(texts []string, last string, most int) string {
	texts = slices.Clone(texts)
	if n := len(texts) - most; n > 0 {
		texts = append(texts[:most], fmt.Sprintf("%d more", n))
	}
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	end := len(texts) - 1
	return strings.Join(texts[:end], ", ") + " " + last + " " + texts[end]
}

// faults are lines of an export that cannot be used.
type faults struct {
	line  int // the first of them
	texts []string
	lines []int
}

func (f *faults) add(line int, text string) {
	if len(f.texts) == 0 {
		f.line = line
	}
	f.texts, f.lines = append(f.texts, text), append(f.lines, line)
}

// mostFaults is how many a person reads.
const mostFaults = 20

// join lists the faults, each after the first with its line.
func (f *faults) join(sep string) string {
	g := faults{texts: slices.Clone(f.texts)}
	for i, line := range f.lines {
		if i > 0 && line != f.line && line > 0 {
			g.texts[i] = fmt.Sprintf("line %d: %s", line, g.texts[i])
		}
	}
	return g.list(sep)
}

func (f *faults) list(sep string) string {
	if n := len(f.texts) - mostFaults; n > 0 {
		return strings.Join(f.texts[:mostFaults], sep) + fmt.Sprintf("%sand %d lines more", sep, n)
	}
	return strings.Join(f.texts, sep)
}

func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// compareNumbers compares digits without zeros at their head, of any length.
func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// some lists a few of many, sorted, without repeats.
func some(list []string) string { return near(list, "") }

// near lists the few of many that are next to want, in their order.
func near(list []string, want string) string {
	const most = 5
	list = slices.Clone(list)
	slices.SortFunc(list, natural)
	list = slices.Compact(list)
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	at, _ := slices.BinarySearchFunc(list, want, natural)
	from := min(max(at-most/2, 0), len(list)-most)
	out := slices.Clone(list[from : from+most])
	if from > 0 {
		out[0] = "…, " + out[0]
	}
	if from+most < len(list) {
		out[most-1] += ", …"
	}
	return strings.Join(out, ", ")
}

// natural compares texts with the numbers in them as numbers: 1.9 is before 1.10.
func natural(a, b string) int {
	for x, y := a, b; ; {
		i, j := digits(x), digits(y)
		switch {
		case x == "" || y == "":
			return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
		case i > 0 && j > 0:
			m, n := strings.TrimLeft(x[:i], "0"), strings.TrimLeft(y[:j], "0")
			if c := compareNumbers(m, n); c != 0 {
				return c
			}
			x, y = x[i:], y[j:]
		case x[0] != y[0]:
			return cmp.Compare(x[0], y[0])
		default:
			x, y = x[1:], y[1:]
		}
	}
}

// digits counts the digits at the head.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
