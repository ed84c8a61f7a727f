package display

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"hpcc/job/dispatch"
	"hpcc/text"
	"hpcc/text/terminal"
)

// orders are the values by which tasks are sorted, the largest first.
var orders = []struct {
	name  string
	value func(*dispatch.TaskUsage) float64
}{
	{"cpu", func(t *dispatch.TaskUsage) float64 { return t.CPUs }},
	{"mem", func(t *dispatch.TaskUsage) float64 { return float64(t.Memory) }},
	{"peak", func(t *dispatch.TaskUsage) float64 { return float64(t.Peak) }},
	{"read", func(t *dispatch.TaskUsage) float64 { return t.Read }},
	{"write", func(t *dispatch.TaskUsage) float64 { return t.Written }},
	{"threads", func(t *dispatch.TaskUsage) float64 { return float64(t.Threads) }},
	{"gpu", func(t *dispatch.TaskUsage) float64 { busy, _ := t.GPU(); return busy }},
	{"gpu-mem", func(t *dispatch.TaskUsage) float64 { _, m := t.GPU(); return float64(m) }},
	{"throttled", func(t *dispatch.TaskUsage) float64 { return t.Stalled }},
	{"pressure", func(t *dispatch.TaskUsage) float64 { _, part := t.Waits(); return part }},
	{"time", func(t *dispatch.TaskUsage) float64 { return -float64(t.Start.Unix()) }},
	{"task", func(t *dispatch.TaskUsage) float64 { return -float64(t.Task) }},
}

// Orders returns the names of the values by which [SortUsage] sorts.
func Orders() (names []string) {
	for _, o := range orders {
		names = append(names, o.name)
	}
	return names
}

// SortUsage sorts tasks by a value, the largest first, and equal ones by their index.
func SortUsage(list []dispatch.TaskUsage, by string) {
	value := orders[max(0, slices.Index(Orders(), by))].value
	slices.SortFunc(list, func(a, b dispatch.TaskUsage) int {
		return cmp.Or(cmp.Compare(value(&b), value(&a)), a.Task-b.Task)
	})
}

// stale is the age of a sample from which the table shows the age. Samples are taken every few seconds.
const stale = time.Minute

// Usage formats the usage of all tasks and the table of tasks, for a terminal of this size. With 0 columns, lines may
// have any length.
func Usage(now *dispatch.Usage, rows, columns int) string {
	var b strings.Builder
	terminal.Rowf(&b, "%s  %s  %s\n", Name(now.ID, now.Site), now.Target,
		counts(now.State, now.Done, now.Total, now.Failed, now.Running, now.Waiting))
	if now.Silent > 0 {
		fmt.Fprintf(&b, "%s no record yet\n", text.Count(now.Silent, "running task has", "running tasks have"))
	}
	if now.Unseen > 0 {
		fmt.Fprintf(&b, "%s not read yet\n", text.Count(now.Unseen, "record of a running task was", "records of running tasks were"))
	}
	if len(now.Tasks) == 0 {
		return b.String()
	}
	b.WriteString(sum(now))
	shown := now.Tasks[:min(len(now.Tasks), max(1, rows))]
	b.WriteString(usageTable(shown, len(now.Sum.GPUs) > 0, columns))
	return b.String() + strings.Repeat("\n", len(now.Tasks)-len(shown)) // [terminal.Repaint] counts the others
}

// A usageColumn is a column of the table of tasks. If the terminal is too narrow, columns are left out by rank, the
// highest first; those of rank 0 stay.
type usageColumn struct {
	title string
	rank  int
	cell  func(*dispatch.TaskUsage) string
}

var usageColumns = []usageColumn{
	{"TASK", 0, func(t *dispatch.TaskUsage) string { return strings.TrimSpace(fmt.Sprint(t.Task) + " " + t.Step) }},
	{"HOST", 3, func(t *dispatch.TaskUsage) string { return t.Host }},
	{"TIME", 4, func(t *dispatch.TaskUsage) string { return text.Elapsed(time.Since(t.Start)) }},
	{"CPU", 0, func(t *dispatch.TaskUsage) string { return fmt.Sprintf("%.2f/%s", t.CPUs, number(t.Granted)) }},
	{"MEM", 0, func(t *dispatch.TaskUsage) string { return text.Size(t.Memory) }},
	{"PEAK", 8, func(t *dispatch.TaskUsage) string { return text.Size(t.Peak) }},
	{"LIMIT", 1, func(t *dispatch.TaskUsage) string { return textIf(t.Limit > 0, text.Size(t.Limit)) }},
	{"READ/S", 6, func(t *dispatch.TaskUsage) string { return text.Size(int64(t.Read)) }},
	{"WRITE/S", 7, func(t *dispatch.TaskUsage) string { return text.Size(int64(t.Written)) }},
	{"THREADS", 9, func(t *dispatch.TaskUsage) string { return fmt.Sprint(t.Threads) }},
	{"GPU", 2, func(t *dispatch.TaskUsage) string {
		busy, _ := t.GPU()
		return textIf(len(t.GPUs) > 0, text.Percent(busy, 100))
	}},
	{"GPUMEM", 5, func(t *dispatch.TaskUsage) string {
		_, memory := t.GPU()
		return textIf(len(t.GPUs) > 0, text.Size(memory))
	}},
	{"THROTTLED", 0, func(t *dispatch.TaskUsage) string {
		return textIf(t.Stalled >= 0.005, fmt.Sprintf("%.2f", t.Stalled))
	}},
	{"WAITS", 0, diagnosis},
}

// usageTable formats tasks in lines of at most columns characters; 0 means any length.
func usageTable(list []dispatch.TaskUsage, gpus bool, columns int) string {
	var titles []string
	var optional []usageColumn
	for _, c := range usageColumns {
		titles = append(titles, c.title)
		if c.rank > 0 && (gpus || !strings.HasPrefix(c.title, "GPU")) {
			optional = append(optional, c)
		}
	}
	table := terminal.NewTable(titles...)
	for i := range list {
		var cells []any
		for _, c := range usageColumns {
			cells = append(cells, terminal.Clean(c.cell(&list[i])))
		}
		table.Row(cells...)
	}
	if !gpus {
		table.Drop("GPU")
		table.Drop("GPUMEM")
	}
	slices.SortFunc(optional, func(a, b usageColumn) int { return b.rank - a.rank })
	for _, c := range optional {
		if columns <= 0 || table.Width() <= columns {
			break
		}
		table.Drop(c.title)
	}
	var b strings.Builder
	_ = table.Write(&b)
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// sum formats the usage of all tasks in one line.
func sum(now *dispatch.Usage) string {
	s := &now.Sum
	line := fmt.Sprintf("CPU %.1f of %s (%s)  memory %s%s", s.CPUs, number(s.Granted), text.Percent(s.CPUs, s.Granted),
		text.Size(s.Memory), textIf(s.Limit > 0, " of "+text.Size(s.Limit)))
	if n := len(s.GPUs); n > 0 {
		busy, memory := s.GPU()
		line += fmt.Sprintf("  GPU %s of %d, %s", text.Percent(busy, 100), n, text.Size(memory))
	}
	return line + fmt.Sprintf("  read %s/s  write %s/s\n", text.Size(int64(s.Read)), text.Size(int64(s.Written)))
}

// diagnosis returns the resource that the task waits for most, and the age of an old sample.
func diagnosis(t *dispatch.TaskUsage) string {
	line := ""
	if what, part := t.Waits(); part >= 0.005 {
		line = fmt.Sprintf("%s %.0f%%", what, 100*part)
	}
	if d := time.Duration(t.Age * float64(time.Second)); d > stale {
		line += "  as of " + text.Elapsed(d) + " ago"
	}
	return line
}

// number formats a number of processors.
func number(n float64) string { return fmt.Sprintf("%.4g", n) }

// textIf returns text if the condition holds, or else "".
func textIf(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}
