package terminal

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Table collects rows of text and aligns their cells in columns.
type Table struct {
	rows [][]string // the first has the titles
}

// gap is the number of spaces between two columns.
const gap = 2

// NewTable returns a table with the titles of its columns.
func NewTable(titles ...string) *Table { return &Table{[][]string{titles}} }

// Row adds a row with one cell for each column. Cells come from records, servers and schedulers: see [Cell].
func (t *Table) Row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = Cell(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
}

// Drop leaves out the column with this title.
func (t *Table) Drop(title string) {
	i := slices.Index(t.rows[0], title)
	for k, row := range t.rows {
		t.rows[k] = slices.Delete(row, i, i+1)
	}
}

// DropEqual leaves out the columns with these titles whose cells are the same in all rows.
func (t *Table) DropEqual(titles ...string) {
	for _, title := range titles {
		i := slices.Index(t.rows[0], title)
		if !slices.ContainsFunc(t.rows[1:], func(row []string) bool { return row[i] != t.rows[1][i] }) {
			t.Drop(title)
		}
	}
}

// widths returns the widths of the columns.
func (t *Table) widths() []int {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], Width(cell))
		}
	}
	return widths
}

// Width returns the number of cells of the terminal that the longest line may take.
func (t *Table) Width() int {
	total := -gap
	for _, w := range t.widths() {
		total += w + gap
	}
	return total
}

// Write writes the titles and the rows, one line for each.
func (t *Table) Write(w io.Writer) error {
	widths := t.widths()
	var b strings.Builder
	for _, row := range t.rows {
		last := len(row) - 1
		for i, cell := range row[:last] {
			b.WriteString(cell + strings.Repeat(" ", widths[i]-Width(cell)+gap))
		}
		b.WriteString(row[last] + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
