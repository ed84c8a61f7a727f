package input

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Join lists texts with a conjunction before the last; beyond most it only counts them.
func Join(texts []string, last string, most int) string {
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

// Faults are the unusable lines of an export.
type Faults struct {
	Line  int // first bad line
	Texts []string
	lines []int
}

func (f *Faults) Add(line int, text string) {
	if len(f.Texts) == 0 {
		f.Line = line
	}
	f.Texts, f.lines = append(f.Texts, text), append(f.lines, line)
}

// mostFaults limits the lines in a message.
const mostFaults = 20

// Join lists the faults, each after the first with its line.
func (f *Faults) Join(sep string) string {
	g := Faults{Texts: slices.Clone(f.Texts)}
	for i, line := range f.lines {
		if i > 0 && line != f.Line && line > 0 {
			g.Texts[i] = fmt.Sprintf("line %d: %s", line, g.Texts[i])
		}
	}
	return g.List(sep)
}

func (f *Faults) List(sep string) string {
	if n := len(f.Texts) - mostFaults; n > 0 {
		return strings.Join(f.Texts[:mostFaults], sep) + fmt.Sprintf("%sand %d lines more", sep, n)
	}
	return strings.Join(f.Texts, sep)
}

// Text returns s, truncated to 80 bytes.
func Text(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// CompareNumbers compares numbers of any length, as digits without leading zeros.
func CompareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// List joins some elements of a list, sorted, without duplicates.
func List(list []string) string { return Near(list, "") }

// Near joins the elements of a list around want, sorted.
func Near(list []string, want string) string {
	const most = 5
	list = slices.Clone(list)
	slices.SortFunc(list, Compare)
	list = slices.Compact(list)
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	at, _ := slices.BinarySearchFunc(list, want, Compare)
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

// Compare compares texts in natural order: 1.9 is before 1.10.
func Compare(a, b string) int {
	for x, y := a, b; ; {
		i, j := Digits(x), Digits(y)
		switch {
		case x == "" || y == "":
			return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
		case i > 0 && j > 0:
			m, n := strings.TrimLeft(x[:i], "0"), strings.TrimLeft(y[:j], "0")
			if c := CompareNumbers(m, n); c != 0 {
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

// Digits counts leading digits.
func Digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
