package shellword

import (
	"os/exec"
	"strings"
	"testing"
)

// TestQuote checks that bash splits the result of Join into the same arguments.
func TestQuote(t *testing.T) {
	argv := []string{"", "a b", "it's", `"`, "$HOME", "`id`", "*", "~", "a\nb", "--id={task}", "a=b", "\\", "!x", "#", "{a,b}", "é", "-n"}
	out, err := exec.Command("bash", "-c", "printf '%s\\0' "+Join(argv)).Output()
	if want := strings.Join(argv, "\x00") + "\x00"; err != nil || string(out) != want {
		t.Errorf("bash reads %q, %v; want %q", out, err, want)
	}
}
