package capacity

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestJudge combines the counted start with the scheduler's estimate or refusal.
func TestJudge(t *testing.T) {
	soon, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	count := func(w When, at time.Time) *Fit { return &Fit{When: w, Start: at, By: byCount, Nodes: []string{"mine"}} }
	estimate := func(now bool, at time.Time) *Estimate { return &Estimate{Now: now, Start: at, Nodes: []string{"its"}} }
	for _, x := range []struct {
		name     string
		counted  *Fit
		answer   *Estimate
		refused  string
		planned  bool
		complete bool
		want     string
	}{
		{"no dry run", count(Now, time.Time{}), nil, "", false, true, "now mine"},
		{"refused", count(Now, time.Time{}), nil, "no", false, true, "never "},
		{"both now", count(Now, time.Time{}), estimate(true, soon), "", false, true, "now its"},
		{"the scheduler accepts a job that never fits", count(Never, time.Time{}), estimate(false, late), "", false, true, "never mine"},
		{"a free window before waiting jobs", count(Now, time.Time{}), estimate(false, late), "", true, true, "now mine"},
		{"a free window, but an uncounted request", count(Now, time.Time{}), estimate(false, late), "", true, false, "later its"},
		{"no planned starts", count(Now, time.Time{}), estimate(false, late), "", false, true, "later its"},
		{"counted later than estimated", count(Later, late), estimate(false, soon), "", true, true, "later its"},
		{"counted without a time", count(Later, time.Time{}), estimate(false, soon), "", true, true, "later its"},
		{"a dry run without a time", count(Later, soon), &Estimate{}, "", false, true, "later mine"},
		{"a dry run that finds no start now", count(Now, time.Time{}), &Estimate{}, "", false, true, "later "},
		{"no nodes while some are drained", count(Later, late), nil, "busy", false, true, "later mine"},
		{"no nodes, ever", count(Never, time.Time{}), nil, "busy", false, true, "never "},
		{"no nodes, and an uncounted request", count(Later, late), nil, "busy", false, false, "never "},
		{"no nodes, though some are free", count(Now, time.Time{}), nil, "busy", false, true, "never "},
	} {
		var refusal error
		if x.refused != "" {
			refusal = errors.New(x.refused)
		}
		if x.refused == "busy" {
			refusal = &BusyError{refusal}
		}
		f := (&Need{Complete: x.complete}).Judge(x.counted, x.answer, refusal, x.planned)
		if got := string(f.When) + " " + strings.Join(f.Nodes, ","); got != x.want {
			t.Errorf("%s: %s; want %s", x.name, got, x.want)
		}
	}
}
