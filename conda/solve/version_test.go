package solve

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// mustVersion parses a valid version.
func mustVersion(t testing.TB, s string) version {
	t.Helper()
	v, err := parseVersion(s)
	testenv.Check(t, err)
	return v
}

// realVersions reads the versions of real channels in conda's order. Equal versions have
// the same rank. testdata/versions.py sorted them.
func realVersions(t testing.TB) (all []version, ranks []int) {
	t.Helper()
	f, err := os.Open("testdata/versions.txt.gz")
	testenv.Check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	testenv.Check(t, err)
	rank := 0
	sc := bufio.NewScanner(z)
	for sc.Scan() {
		text, same := strings.CutPrefix(sc.Text(), "=")
		if !same {
			rank++
		}
		all, ranks = append(all, mustVersion(t, text)), append(ranks, rank)
	}
	if sc.Err() != nil || len(all) != 28_530 {
		t.Fatalf("%d versions, %v; want 28530", len(all), sc.Err())
	}
	return all, ranks
}

// TestRealVersions compares the order of all real versions with conda's: each with its
// neighbours and with a hundred others.
func TestRealVersions(t *testing.T) {
	all, ranks := realVersions(t)
	random := rand.New(rand.NewPCG(1, 2))
	wrong := 0
	check := func(i, j int) {
		want := 0
		if ranks[i] != ranks[j] {
			want = 1
			if i < j {
				want = -1
			}
		}
		if got := all[i].compare(all[j]); got != want && wrong < 20 {
			wrong++
			t.Errorf("%q compared to %q = %d; conda has %d", all[i].text, all[j].text, got, want)
		}
	}
	for i := range all {
		check(i, i)
		if i > 0 {
			check(i-1, i)
			check(i, i-1)
		}
		for range 100 {
			check(i, random.IntN(len(all)))
		}
	}
	shuffled := slices.Clone(all)
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	slices.SortFunc(shuffled, version.compare)
	for i, v := range shuffled {
		if v.compare(all[i]) != 0 {
			t.Fatalf("sorted: %q at index %d; conda has %q", v.text, i, all[i].text)
		}
	}
}

// TestVersionOrder compares groups of equal versions, which are in ascending order.
func TestVersionOrder(t *testing.T) {
	groups := [][]string{
		{"0.4", "0.4.0", "0.4.0.0", " 0.4 "}, {"0.4.1.rc", "0.4.1.RC", "0.4.1-rc"}, {"0.4.1"}, {"0.5a1"}, {"0.5b3"}, {"0.5c1", "0.5C1"}, {"0.5"}, {"0.9.6"}, {"0.960923"}, {"1.0", "1"},
		{"1.1dev1"}, {"1.1_"}, {"1.1a1"}, {"1.1.0dev1", "1.1.dev1"}, {"1.1.a1"}, {"1.1.0rc1", "1.1.rc1"}, {"1.1", "1.1.0"}, {"1.1.0post1", "1.1.post1"},
		{"1.1post1"}, {"1.9"}, {"1.10", "1.010"}, {"1996.07.12"}, {"99999999999999999999999999999998"}, {"99999999999999999999999999999999"}, {"100000000000000000000000000000000"},
		{"1!0.4.1+a"}, {"1!0.4.1"}, {"1!0.4.1+1", "1!0.4.1+1.0"}, {"1!0.4.1+1.1", "1!0.4.1+1_1"}, {"1!3.1.1.6"}, {"2!0.4.1", "02!000.04.01"},
	}
	for i, a := range groups {
		for j, b := range groups {
			for _, x := range a {
				for _, y := range b {
					if got := mustVersion(t, x).compare(mustVersion(t, y)); got != cmp.Compare(i, j) {
						t.Errorf("%q compared to %q = %d; want %d", x, y, got, cmp.Compare(i, j))
					}
				}
			}
		}
	}
}

func TestParseVersionRefuses(t *testing.T) {
	for _, s := range []string{"", " ", "1 2", "1..2", ".1", "1.", "+1", "1+", "1+2+3", "1!2!3", "!1", "a!1", "1-2_3", "1/2", "é", "\x00", "1!", strings.Repeat("1", 257), "_"} {
		if v, err := parseVersion(s); err == nil {
			t.Errorf("parseVersion(%q) = %v; want an error", s, v)
		}
	}
}

func TestStartsWith(t *testing.T) {
	for _, c := range []struct {
		v, w string
		want bool
	}{
		{"1.1.1w", "1.1.1", true}, {"1.1.1", "1.1.1", true}, {"1.1.1.2", "1.1.1", true}, {"1.1.10", "1.1.1", false}, {"1.1", "1.1.0", true}, {"1.1", "1.1.1", false},
		{"1.0rc1", "1.0r", true}, {"1.0rc1", "1.0b", false}, {"1.0", "1.0r", false}, {"1!2.3", "1!2", true}, {"2.3", "1!2", false}, {"2.1.2+cu118", "2.1.2", true},
		{"2.1.2+cu118", "2.1.2+cu", true}, {"2.1.2+cu118", "2.1.2+cpu", false}, {"2.1.2", "2.1.2+cu", false},
	} {
		if got := mustVersion(t, c.v).startsWith(mustVersion(t, c.w)); got != c.want {
			t.Errorf("%q starts with %q = %v; want %v", c.v, c.w, got, c.want)
		}
	}
}

// FuzzVersion compares any versions: the order is total, and does not depend on spelling.
func FuzzVersion(f *testing.F) {
	for _, s := range []string{"1.0", "1!2.3rc1+cu118", "0.4.1.dev", "1.1_", "2021-04-05", "1.*", "post"} {
		f.Add(s, "1.0.0", "1a")
	}
	f.Fuzz(func(t *testing.T, x, y, z string) {
		a, err1 := parseVersion(x)
		b, err2 := parseVersion(y)
		c, err3 := parseVersion(z)
		if err1 != nil || err2 != nil || err3 != nil {
			return
		}
		if a.compare(a) != 0 || a.compare(b) != -b.compare(a) {
			t.Errorf("%q and %q: %d and %d", x, y, a.compare(b), b.compare(a))
		}
		if a.compare(b) <= 0 && b.compare(c) <= 0 && a.compare(c) > 0 {
			t.Errorf("%q <= %q <= %q, but the first is greater than the last", x, y, z)
		}
		if a.compare(mustVersion(t, strings.ToUpper(x))) != 0 || !a.startsWith(a) {
			t.Errorf("%q does not equal itself", x)
		}
		if b.compare(a) == 0 && len(a.local) == 0 && !b.startsWith(a) {
			t.Errorf("%q does not start with its equal %q", y, x)
		}
	})
}
