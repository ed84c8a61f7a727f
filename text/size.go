package text

import (
	"fmt"
	"time"
)

// Size formats a number of bytes in powers of 1000.
func Size(n int64) string {
	for _, u := range []struct {
		unit string
		n    float64
	}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if float64(n) >= u.n {
			return fmt.Sprintf("%.1f %s", float64(n)/u.n, u.unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Elapsed formats a duration.
func Elapsed(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	d = d.Round(time.Second)
	if d < time.Hour {
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}

// Percent formats part as a percentage of total. It returns a dash if part is negative or total is
// not positive.
func Percent(part, total float64) string {
	if total <= 0 || part < 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f%%", 100*part/total)
}
