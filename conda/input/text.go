package input

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hpcc/text"
)

// Join joins texts with commas, and with a conjunction before the last one. If there are more
// than limit texts, it only counts the others.
func Join(texts []string, conjunction string, limit int) string {
	texts = slices.Clone(texts)
	if n := len(texts) - limit; n > 0 {
		texts = append(texts[:limit], fmt.Sprintf("%d more", n))
	}
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	end := len(texts) - 1
	return strings.Join(texts[:end], ", ") + " " + conjunction + " " + texts[end]
}

// Faults are the unusable lines of an export.
type Faults struct {
	File  string // that has Line
	Line  int    // first bad line
	Texts []string
	rows  []row
}

// A row is a line of a file.
type row struct {
	file string
	line int
}

// Add adds a fault of a line. file is "" if all faults are in the same file.
func (f *Faults) Add(file string, line int, text string) {
	if len(f.Texts) == 0 {
		f.File, f.Line = file, line
	}
	f.Texts, f.rows = append(f.Texts, text), append(f.rows, row{file, line})
}

// maxFaults limits the faults in a message.
const maxFaults = 20

// Join lists the faults. Those on other lines than the first begin with their line number, or
// with FILE:LINE if they are in another file.
func (f *Faults) Join(sep string) string {
	g := Faults{Texts: slices.Clone(f.Texts)}
	for i, at := range f.rows {
		switch {
		case at.file != f.File:
			g.Texts[i] = fmt.Sprintf("%s:%d: %s", at.file, at.line, g.Texts[i])
		case at.line != f.Line && at.line > 0:
			g.Texts[i] = fmt.Sprintf("line %d: %s", at.line, g.Texts[i])
		}
	}
	return g.List(sep)
}

// List lists the faults without line numbers.
func (f *Faults) List(sep string) string {
	if n := len(f.Texts) - maxFaults; n > 0 {
		return strings.Join(f.Texts[:maxFaults], sep) + sep + "and " + text.Count(n, "more line", "more lines")
	}
	return strings.Join(f.Texts, sep)
}

// CompareNumbers compares two numbers of any length, given as digits without leading zeros.
func CompareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// Share formats a part of packages: Share(1, 3, "is", "are") is "1 of 3 packages is".
func Share(n, all int, one, many string) string {
	verb := many
	if n == 1 {
		verb = one
	}
	return fmt.Sprintf("%d of %s %s", n, text.Count(all, "package", "packages"), verb)
}

// List joins the first few elements of a list, sorted and without duplicates.
func List(list []string) string { return Near(list, "") }

// Near joins the few elements of a list that are closest to want, sorted and without
// duplicates.
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

// Digits returns the number of leading digits of s.
func Digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
