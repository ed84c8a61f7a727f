package job

import (
	"testing"
	"time"
)

func TestParseWarning(t *testing.T) {
	for in, want := range map[string]Warning{"": {}, "USR1@5m": {Signal: "USR1", Lead: 5 * time.Minute}, "SIGTERM@90s": {Signal: "TERM", Lead: 90 * time.Second}, "10@1h": {Signal: "USR1", Lead: time.Hour}} {
		if got, err := ParseWarning(in); err != nil || got != want {
			t.Errorf("ParseWarning(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, bad := range []string{"USR1", "USR1@", "USR1@60", "USR1@-5m", "@5m", "FOO@5m", "USR1@5m@5m"} {
		if got, err := ParseWarning(bad); err == nil {
			t.Errorf("ParseWarning(%q) = %+v; want an error", bad, got)
		}
	}
}
