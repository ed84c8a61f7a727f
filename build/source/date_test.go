package source

import "testing"

func TestDate(t *testing.T) {
	for _, c := range []struct {
		in   string
		want int64
		bad  bool
	}{{"", 315532800, false}, {"0", 0, false}, {"1700000000", 1700000000, false}, {"today", 0, true}, {"12abc", 0, true}} {
		got, err := Date(c.in)
		if (err != nil) != c.bad || (err == nil && got.Unix() != c.want) {
			t.Errorf("Date(%q) = %v, %v; want %d, error: %v", c.in, got, err, c.want, c.bad)
		}
	}
}
