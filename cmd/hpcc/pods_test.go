package main

import (
	"slices"
	"strings"
	"testing"
)

func TestBehindFlags(t *testing.T) {
	for words, want := range map[string]string{
		"": "", "--": "", "-- sh -c": "sh -c", "sh -c": "sh -c", "--measure": "", "--measure --": "", "--measure -- sh --": "sh --", "--measure=/x sh -- y": "sh -- y",
	} {
		if got := behindFlags(strings.Fields(words)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("behindFlags(%q) = %q; want %q", words, got, want)
		}
	}
}
