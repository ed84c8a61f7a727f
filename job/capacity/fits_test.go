package capacity

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestJudge puts what was counted and what the scheduler says together.
func TestJudge(t *testing.T) {
	soon, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	count := func(w When, at time.Time) *Fit { return &Fit{When: w, Start: at, By: byCount, Nodes: []string{"mine"}} }
	says := func(now bool, at time.Time) *Estimate { return &Estimate{Now: now, Start: at, Nodes: []string{"its"}} }
	for _, x := range []struct {
		name    string
		counted *Fit
		said    *Estimate
		refused string
		planned bool
		whole   bool
		want    string
	}{
		{"no dry run", count(Now, time.Time{}), nil, "", false, true, "now mine"},
		{"refused", count(Now, time.Time{}), nil, "no", false, true, "never "},
		{"both now", count(Now, time.Time{}), says(true, soon), "", false, true, "now its"},
		{"it takes what never fits", count(Never, time.Time{}), says(false, late), "", false, true, "never mine"},
		{"a hole before what waits", count(Now, time.Time{}), says(false, late), "", true, true, "now mine"},
		{"a hole, and something that is not counted", count(Now, time.Time{}), says(false, late), "", true, false, "later its"},
		{"nobody waits", count(Now, time.Time{}), says(false, late), "", false, true, "later its"},
		{"counted later than said", count(Later, late), says(false, soon), "", true, true, "later its"},
		{"not counted when", count(Later, time.Time{}), says(false, soon), "", true, true, "later its"},
		{"a dry run without a time", count(Later, soon), &Estimate{}, "", false, true, "later mine"},
		{"a dry run that says no", count(Now, time.Time{}), &Estimate{}, "", false, true, "later "},
		{"no nodes while some are drained", count(Later, late), nil, "busy", false, true, "later mine"},
		{"no nodes, ever", count(Never, time.Time{}), nil, "busy", false, true, "never "},
		{"no nodes, and something that is not counted", count(Later, late), nil, "busy", false, false, "never "},
		{"no nodes, though some are free", count(Now, time.Time{}), nil, "busy", false, true, "never "},
	} {
		var refusal error
		if x.refused != "" {
			refusal = errors.New(x.refused)
		}
		if x.refused == "busy" {
			refusal = &BusyError{refusal}
		}
		f := (&Need{Complete: x.whole}).Judge(x.counted, x.said, refusal, x.planned)
		if got := string(f.When) + " " + strings.Join(f.Nodes, ","); got != x.want {
			t.Errorf("%s: %s; want %s", x.name, got, x.want)
		}
	}
}
