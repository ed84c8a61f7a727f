package terminal

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	x := NewTable("SITE", "JOB", "N", "WHY")
	x.Row("a", "漢字", 1, "")
	x.Row("a", "b\tc\x1b", 100, "late\nstart")
	if got := x.Width(); got != 4+gap+7+gap+3+gap+12 {
		t.Errorf("Width() = %d", got)
	}
	x.DropEqual("SITE", "N")
	var b strings.Builder
	if err := x.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "JOB      N    WHY\n漢字     1    \nb c\\x1b  100  late   start\n"
	if b.String() != want {
		t.Errorf("%q; want %q", b.String(), want)
	}
	empty := NewTable("A", "B")
	empty.DropEqual("A")
	b.Reset()
	if err := empty.Write(&b); err != nil || b.String() != "B\n" {
		t.Errorf("an empty table: %q, %v", b.String(), err)
	}
}
