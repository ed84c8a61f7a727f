// Package quantity reads and writes amounts of time, memory and processors.
//
// User input is read strictly: ParseTime and ParseMemory refuse spellings that
// batch systems interpret differently. Options of scripts have the units of their
// batch system (Size, Clock). Listings of a batch system (Count, Bytes) are read
// leniently: a value that cannot be read is 0. No reader returns a value that could
// overflow in a sum.
package quantity

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/text"
)

var (
	clock = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:(\d{1,4})-)?(\d{1,4}):(\d{1,2}):(\d{1,2})$`) })
	units = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m(?:in)?)?(?:(\d{1,8})s)?$`)
	})
	sizes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d{1,9}(?:\.\d{1,6})?)([KMGT])(?:i?B)?$`) })
)

// ParseTime reads a time limit: 90m, 1h30m, 2d, 1:30:00 or 1-12:00:00. "8" and
// "1:30" are errors: batch systems interpret them differently.
func ParseTime(s string) (time.Duration, error) {
	var f []string
	if m := clock().FindStringSubmatch(s); m != nil {
		f = m[1:]
		if len(m[3]) < 2 || len(m[4]) < 2 || m[3] > "59" || m[4] > "59" {
			return 0, fmt.Errorf("time %q: minutes and seconds go from 00 to 59", s)
		}
	} else if m := units().FindStringSubmatch(s); m != nil && s != "" {
		f = m[1:]
	} else {
		why := "not a duration"
		if strings.Trim(s, "0123456789:") == "" {
			why = "schedulers read this differently"
		}
		return 0, fmt.Errorf("time %q: %s; write 90m, 1h30m, 1:30:00 or 1-12:00:00", text.Short(s), why)
	}
	var d time.Duration
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, _ := strconv.Atoi("0" + f[i])
		d += time.Duration(n) * unit
	}
	if d == 0 {
		return 0, fmt.Errorf("time %q: must be more than 0", s)
	}
	return d, nil
}

// ParseMemory reads an amount of memory in bytes: 512M, 4G, 1.5G. Units are
// powers of 1024, as in every scheduler; a bare number is refused, because
// schedulers take it for bytes, kilobytes or megabytes.
func ParseMemory(s string) (int64, error) {
	m := sizes().FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("memory %q: not a number with a unit; write 512M or 4G", text.Short(s))
	}
	x, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, fmt.Errorf("memory %q: %w", s, err)
	}
	shift := map[string]float64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
	if x *= shift[m[2]]; x < 1 || x > math.MaxInt64/4 {
		return 0, fmt.Errorf("memory %q: must be from 1 byte to 2^61 bytes", s)
	}
	return int64(math.Ceil(x)), nil
}

// FormatClock writes a time as H:M:S, rounded up to seconds: 26:01:30.
func FormatClock(d time.Duration) string {
	s := int64((d + time.Second - 1) / time.Second)
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// FormatTime writes a time limit as [ParseTime] reads it: 2h, 1h30m, 20m.
func FormatTime(d time.Duration) string {
	s := d.Truncate(time.Second).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// FormatMemory writes a number of bytes with a unit that is a power of 1024: 1.5G.
func FormatMemory(n int64) string {
	x, unit := float64(n), ""
	for _, u := range []string{"K", "M", "G", "T"} {
		if x >= 1024 {
			x, unit = x/1024, u
		}
	}
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(x, 'f', 2, 64), "0"), ".") + unit
}
