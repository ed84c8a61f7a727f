package slurm

import (
	"strings"
	"testing"
)

func TestHostlist(t *testing.T) {
	for in, want := range map[string]string{
		"n1": "n1", "n[1-3,07],gpu1": "n1 n2 n3 n07 gpu1", "r[1-2]n[08-10]x": "r1n08x r1n09x r1n10x r2n08x r2n09x r2n10x", "": "",
		"n[1": "!", "n[3-1]": "!", "n[a]": "!", "n[1-99999999]": "!", "a b": "!", "r[1-2000]n[1-2000]": "!", "n[]": "!",
	} {
		got, err := expandHosts(in, maxHosts)
		if text := strings.Join(got, " "); (err == nil && text != want) || (err != nil && want != "!") {
			t.Errorf("hostlist(%q) = %q, %v; want %q", in, text, err, want)
		}
	}
}
