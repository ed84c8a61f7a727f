package job

import (
	"slices"
	"testing"
)

func TestParseArray(t *testing.T) {
	tests := []struct {
		in    string
		want  []int
		limit int
		text  string // what it is written as; "" is in
	}{
		{"1-4", []int{1, 2, 3, 4}, 0, ""},
		{"0-20:5%2", []int{0, 5, 10, 15, 20}, 2, ""},
		{"1-8:3", []int{1, 4, 7}, 0, "1-7:3"},
		{"1,3,7", []int{1, 3, 7}, 0, ""},
		{"7,1-2", []int{7, 1, 2}, 0, ""},
		{"1-9:2,2-10:2", []int{1, 3, 5, 7, 9, 2, 4, 6, 8, 10}, 0, ""},
		{"5-5", []int{5}, 0, "5"},
		{"", nil, 0, ""},
	}
	for _, test := range tests {
		a, err := ParseArray(test.in)
		if got := slices.Collect(a.All()); err != nil || !slices.Equal(got, test.want) || a.Limit != test.limit || a.Count() != len(test.want) {
			t.Errorf("ParseArray(%q) = %v (%d, limit %d), %v; want %v, limit %d", test.in, got, a.Count(), a.Limit, err, test.want, test.limit)
		}
		for i, k := range test.want {
			if got, ok := a.Nth(i + 1); got != k || !ok {
				t.Errorf("ParseArray(%q).Nth(%d) = %d, %v; want %d", test.in, i+1, got, ok, k)
			}
		}
		for _, n := range []int{-1, 0, len(test.want) + 1} {
			if got, ok := a.Nth(n); ok {
				t.Errorf("ParseArray(%q).Nth(%d) = %d; want none", test.in, n, got)
			}
		}
		if test.text == "" {
			test.text = test.in
		}
		if a.String() != test.text {
			t.Errorf("ParseArray(%q).String() = %q; want %q", test.in, a.String(), test.text)
		}
	}
	for _, bad := range []string{"8-1", "1-", "-1", "a", "1-8:0", "1-8:", "3:2", "1-8%0", "1-8%", "1,,2", "1,1", "1-5,5-9", "1 -2", "+1", "99999999", "1-99999999999999999999", "0x10", "1-2-3"} {
		if a, err := ParseArray(bad); err == nil {
			t.Errorf("ParseArray(%q) = %v; want an error", bad, a)
		}
	}
}

func FuzzParseArray(f *testing.F) {
	for _, s := range []string{"1-8", "0-99:5%4", "1,3,7", "", "1-9:2,2-10:2%1", "8-1", "1-10000000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseArray(s)
		if err != nil {
			return
		}
		if a.Count() > maxIndex+1 {
			t.Errorf("ParseArray(%q) has %d indices", s, a.Count())
		}
		b, err := ParseArray(a.String())
		if err != nil || b.String() != a.String() || b.Count() != a.Count() {
			t.Errorf("ParseArray(%q) is written %q, which reads as %v, %v", s, a, b, err)
		}
	})
}
