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
		{"the scheduler accepts a job that never fits", count(Never, time.Time{}), estimate(false, late), "", false, true, "later its new nodes"},
		{"no known node fits, and no dry run", count(Never, time.Time{}), nil, "", false, true, "later mine new nodes"},
		{"a free window before waiting jobs", count(Now, time.Time{}), estimate(false, late), "", true, true, "now mine"},
		{"a free window, but an uncounted request", count(Now, time.Time{}), estimate(false, late), "", true, false, "later its"},
		{"no planned starts", count(Now, time.Time{}), estimate(false, late), "", false, true, "later its"},
		{"counted later than estimated", count(Later, late), estimate(false, soon), "", true, true, "later its"},
		{"counted without a time", count(Later, time.Time{}), estimate(false, soon), "", true, true, "later its"},
		{"a dry run without a time", count(Later, soon), &Estimate{}, "", false, true, "later mine"},
		{"a dry run that finds no start now", count(Now, time.Time{}), &Estimate{}, "", false, true, "later "},
	} {
		var refusal error
		if x.refused != "" {
			refusal = errors.New(x.refused)
		}
		f := (&Need{Complete: x.complete}).Judge(x.counted, x.answer, refusal, x.planned)
		got := string(f.When) + " " + strings.Join(f.Nodes, ",")
		if strings.Contains(f.Why, "only if the site adds nodes") {
			got += " new nodes"
		}
		if got != x.want {
			t.Errorf("%s: %s; want %s", x.name, got, x.want)
		}
	}
}
