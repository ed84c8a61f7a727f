package quantity

import (
	"testing"
	"time"
)

func TestParseTimeAndMemory(t *testing.T) {
	times := map[string]time.Duration{"90m": 90 * time.Minute, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "45s": 45 * time.Second, "10min": 10 * time.Minute,
		"1:30:00": 90 * time.Minute, "1-12:00:00": 36 * time.Hour, "100:00:00": 100 * time.Hour}
	for in, want := range times {
		if got, err := ParseTime(in); err != nil || got != want {
			t.Errorf("ParseTime(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "8", "1:30", "0m", "1h:30", "-1h", "1:60:00", "1:00:60", "1:0:0", "30m1h", "1.5h"} {
		if got, err := ParseTime(bad); err == nil {
			t.Errorf("ParseTime(%q) = %v; want an error", bad, got)
		}
	}
	sizes := map[string]int64{"512M": 512 << 20, "4G": 4 << 30, "1.5G": 3 << 29, "4GiB": 4 << 30, "4GB": 4 << 30, "1T": 1 << 40, "100K": 100 << 10}
	for in, want := range sizes {
		if got, err := ParseMemory(in); err != nil || got != want {
			t.Errorf("ParseMemory(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "8", "0G", "-1G", "1g", "1 G", "1.G", "9999999999T", "G"} {
		if got, err := ParseMemory(bad); err == nil {
			t.Errorf("ParseMemory(%q) = %d; want an error", bad, got)
		}
	}
}
