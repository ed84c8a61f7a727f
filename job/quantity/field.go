package quantity

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"hpcc/text"
)

// Count reads a count of a listing. Text that is not a number below 2^30 counts as 0.
func Count(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1<<30 {
		return 0
	}
	return n
}

// Bytes reads an amount of memory of a listing, in powers of 1024: 24684084kb,
// 23.541G, 256M. A number without a suffix counts units of unit bytes. Text that
// is not an amount counts as 0.
func Bytes(s string, unit int64) int64 {
	s = strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I")
	if i := strings.IndexAny(s, "KMGTP"); i >= 0 && i == len(s)-1 {
		unit = 1 << (10 * (1 + strings.IndexByte("KMGTP", s[i])))
		s = s[:i]
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x >= 0 && x*float64(unit) < 1<<60) {
		return 0
	}
	return int64(x * float64(unit))
}

// Units maps a suffix to its number of bytes; "" is a number without a suffix.
type Units map[string]int64

// Size reads a positive amount of memory with the suffixes of a batch system.
func Size(s string, units Units) (int64, error) {
	i := strings.LastIndexAny(s, "0123456789.") + 1
	x, err := strconv.ParseFloat(s[:i], 64)
	unit, ok := units[s[i:]]
	if err != nil || !ok || !(x > 0) || x*float64(unit) > math.MaxInt64/4 {
		return 0, fmt.Errorf("%q is not an amount of memory", text.Short(s))
	}
	return int64(math.Ceil(x * float64(unit))), nil
}

// MaxTime is the longest time limit: ten years.
const MaxTime = 10 * 365 * 24 * time.Hour

// Clock reads numbers separated by colons. From the right they count units[0],
// units[1] and so on.
func Clock(s string, units ...time.Duration) (time.Duration, error) {
	parts := strings.Split(s, ":")
	if len(parts) > len(units) {
		return 0, fmt.Errorf("%q is not a time", text.Short(s))
	}
	var d time.Duration
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil || time.Duration(n) > MaxTime/units[len(parts)-1-i] {
			return 0, fmt.Errorf("%q is not a time", text.Short(s))
		}
		d += time.Duration(n) * units[len(parts)-1-i]
	}
	if d > MaxTime {
		return 0, fmt.Errorf("%q is not a time", text.Short(s))
	}
	return d, nil
}

// Seconds reads [[H:]M:]S; zero is an error.
func Seconds(s string) (time.Duration, error) {
	d, err := Clock(s, time.Second, time.Minute, time.Hour)
	if err == nil && d == 0 {
		err = fmt.Errorf("%q is not a time", s)
	}
	return d, err
}
