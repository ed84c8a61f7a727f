package shellword

import (
	"os/exec"
	"strings"
	"testing"
)

// TestQuote checks that bash splits the result of Join into the same arguments.
func TestQuote(t *testing.T) {
	argv := []string{"", "a b", "it's", `"`, "$HOME", "`id`", "*", "~", "a\nb", "--id={task}", "a=b", "\\", "!x", "#", "{a,b}", "é", "-n",
		"a\n#$ -pe mpi 9\n#BSUB -n 9\n\n#'\n", "\n#"}
	out, err := exec.Command("bash", "-c", "printf '%s\\0' "+Join(argv)).Output()
	if want := strings.Join(argv, "\x00") + "\x00"; err != nil || string(out) != want {
		t.Errorf("bash reads %q, %v; want %q", out, err, want)
	}
	for _, q := range []string{Join(argv), Quote(Join(argv))} { // also a command line as an argument
		if strings.Contains(q, "\n#") {
			t.Errorf("a line begins with #, which batch systems read: %q", q)
		}
	}
}
