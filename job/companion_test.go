package job

import (
	"reflect"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestCompanion reads the arguments that a script has for a companion
// again as they were.
func TestBeside(t *testing.T) {
	a, err := ParseArray("7,3-5")
	testenv.Check(t, err)
	j := &Job{Name: "x", Array: a, Program: "/opt/hp cc", Image: "sci", Run: []string{"--join", "--join-ct=4", "--bind=/a b:/c"}, Tensorboard: "runs of 'mine' $X", Args: []string{"true"}, Dir: "/w", Store: "/s"}
	w := j.CompanionArgs()
	if len(w) != 1 {
		t.Fatalf("%q", w)
	}
	index, name, argv, err := ParseCompanion(strings.TrimPrefix(w[0], "--beside="))
	want := []string{"/opt/hp cc", "run", "--bind=/a b:/c", "--entrypoint=", "sci", "--", "tensorboard", "--logdir", "runs of 'mine' $X", "--host", "127.0.0.1", "--port", "81"}
	if got := FillPort(argv, 81); err != nil || index != 7 || name != Tensorboard || !reflect.DeepEqual(got, want) {
		t.Errorf("%d %q %q %v; want %q", index, name, got, err, want)
	}
	j.Image = ""
	if w := j.companion(); w[0] != "tensorboard" {
		t.Errorf("on the host: %q", w)
	}
	j.Tensorboard = ""
	if w := j.CompanionArgs(); w != nil {
		t.Errorf("without: %q", w)
	}
	for _, line := range []string{"x", "1 tensorboard", "x tensorboard true", "1 ../up true", "1 t 'true"} {
		if _, _, _, err := ParseCompanion(line); err == nil {
			t.Errorf("ParseCompanion(%q) took it", line)
		}
	}
}
