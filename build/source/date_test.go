package source

import "testing"

func TestDate(t *testing.T) {
	const january2 = 315619200 // 1980-01-02 00:00 UTC
	for _, c := range []struct {
		in             string
		created, files int64
		bad            bool
	}{{"", january2, january2, false}, {"0", 0, january2, false}, {"1700000000", 1700000000, 1700000000, false}, {"today", 0, 0, true}, {"12abc", 0, 0, true}} {
		created, files, err := Date(c.in)
		if (err != nil) != c.bad || (err == nil && (created.Unix() != c.created || files.Unix() != c.files)) {
			t.Errorf("Date(%q) = %v, %v, %v; want %d, %d, error: %v", c.in, created, files, err, c.created, c.files, c.bad)
		}
	}
}
