package job

import (
	"os"
	"reflect"
	"testing"
)

// What an LSF-compatible system said (volclava 2.2) is read.
func TestLSFQueue(t *testing.T) {
	for _, file := range []string{"bjobs-w.txt", "bjobs-aw.txt"} { // with and without what has ended
		b, err := os.ReadFile("testdata/lsf/" + file)
		if err != nil {
			t.Fatal(err)
		}
		got := lsfQueue(string(b))
		for id, want := range map[string]standing{
			"10": {running: 1}, "9": {running: 2, waiting: 4}, "12": {running: 1}, "11": {waiting: 1, reason: "held"}, "13": {waiting: 1}, "3": {}, "5": {},
		} {
			if !reflect.DeepEqual(got[id], want) {
				t.Errorf("%s: job %s: %+v; want %+v", file, id, got[id], want)
			}
		}
	}
	if got := lsfQueue("No unfinished job found\n"); len(got) != 0 {
		t.Errorf("no jobs: %v", got)
	}
	b, err := os.ReadFile("testdata/lsf/bjobs-p.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := lsfReasons(string(b))
	if len(got) != 2 || got["9"] != "Job slot limit reached: 3 hosts" || got["13"] != got["9"] {
		t.Errorf("why jobs wait: %q", got)
	}
}

func TestLSFAnswer(t *testing.T) {
	if m := lsfAnswer().FindStringSubmatch("a site's own words\nJob <9> is submitted to default queue <normal>.\n"); m == nil || m[1] != "9" {
		t.Errorf("the answer reads as %q", m)
	}
}
