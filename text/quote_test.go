package text

import (
	"os/exec"
	"strings"
	"testing"
)

// TestQuote checks that bash splits the result of CommandLine into the same arguments.
func TestQuote(t *testing.T) {
	argv := []string{"", "a b", "it's", `"`, "$HOME", "`id`", "*", "~", "a\nb", "--id={task}", "a=b", "\\", "!x", "#", "{a,b}", "é", "-n",
		"a\n#$ -pe mpi 9\n#BSUB -n 9\n\n#'\n", "\n#"}
	out, err := exec.Command("bash", "-c", "printf '%s\\0' "+CommandLine(argv)).Output()
	if want := strings.Join(argv, "\x00") + "\x00"; err != nil || string(out) != want {
		t.Errorf("bash reads %q, %v; want %q", out, err, want)
	}
	for _, q := range []string{CommandLine(argv), Quote(CommandLine(argv))} { // also a command line as an argument
		if strings.Contains(q, "\n#") {
			t.Errorf("a line begins with #, which batch systems read: %q", q)
		}
	}
}

// TestCommandLine checks that bash runs the first argument as a program, even if it looks like an assignment.
func TestCommandLine(t *testing.T) {
	for _, argv := range [][]string{{"A=b", "x"}, {"_a1=", "x"}, {"=b"}, {"1a=b"}, {"--a=b"}, {"./a=b", "c=d"},
		{"a+=b", "x"}, {"if", "x"}, {"time", "x"}, {"coproc", "x"}, {"function", "x"}, {"esac"}, {"in", "x"}, {"echo2", "if"}} {
		out, err := exec.Command("bash", "-c", "PATH=\ncommand_not_found_handle() { printf '%s\\0' \"$@\"; }\n"+CommandLine(argv)).CombinedOutput()
		if want := strings.Join(argv, "\x00") + "\x00"; string(out) != want && !strings.Contains(string(out), argv[0]+": No such file") {
			t.Errorf("bash runs %q as %q (%v)", CommandLine(argv), out, err)
		}
	}
}
