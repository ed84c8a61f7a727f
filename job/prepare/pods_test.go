package prepare

import (
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func TestBehindFlags(t *testing.T) {
	for words, want := range map[string]string{
		"": "", "--": "", "-- sh -c": "sh -c", "sh -c": "sh -c", "--measure": "", "--measure --": "", "--measure -- sh --": "sh --", "--measure=/x sh -- y": "sh -- y",
	} {
		if got := afterFlags(strings.Fields(words)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("afterFlags(%q) = %q; want %q", words, got, want)
		}
	}
}
