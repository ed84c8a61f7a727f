package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// TestCompletion types incomplete words and tabs into real shells. A function replaces hpcc and
// prints the command line that the shell completed.
func TestCompletion(t *testing.T) {
	home := t.TempDir()
	images := filepath.Join(home, "store")
	s, err := store.Open(images)
	testenv.Check(t, err)
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	_, err = s.Put(t.Context(), "science:2", img)
	testenv.Check(t, err)
	testenv.Check(t, os.MkdirAll(filepath.Join(s.Jobs(), "main-261123-090000"), 0o755))
	testenv.Write(t, filepath.Join(home, "config.env"), []byte("A=1\n"))

	const inShell = `hpcc() { if [ "$1" = complete ]; then command hpcc "$@"; else echo "GOT:$*"; fi; }`
	for _, c := range []struct {
		shell []string
		setUp string
	}{
		{[]string{"bash", "--norc", "--noprofile", "-i"}, "source <(hpcc completion bash); " + inShell},
		{[]string{"zsh", "-f", "-i"}, "autoload -U compinit; compinit -u -D; source <(hpcc completion zsh); " + inShell},
		{[]string{"fish", "--no-config", "-i"}, "hpcc completion fish | source; function hpcc; if test $argv[1] = complete; command hpcc $argv; else; echo \"GOT:$argv\"; end; end"},
	} {
		t.Run(c.shell[0], func(t *testing.T) {
			testenv.NeedProgram(t, c.shell[0])
			cmd := exec.Command(c.shell[0], c.shell[1:]...)
			cmd.Dir = home
			cmd.Env = append(os.Environ(), "HOME="+home, "HPCC_STORE="+images, "TERM=xterm", "PATH="+bin+":"+os.Getenv("PATH"))
			terminal := startOnTerminal(t, cmd)
			terminal.typeText(c.setUp + "; echo rea''dy\n")
			terminal.expect("ready")
			for typed, want := range map[string]string{
				"hpcc sub\t--to kub\tscie\t-- x":          "submit --to kubernetes science:2 -- x",
				"hpcc logs main\t3":                       "logs main-261123-090000 3",
				"hpcc run --set-env conf\tscience:\t-- x": "run --set-env config.env science:2 -- x",
				"hpcc comp\tfi\t":                         "completion fish",
			} {
				terminal.typeText(typed + "\n")
				terminal.expect("GOT:" + strings.ReplaceAll(want, ".", "[.]") + " *\r?\n")
			}
			terminal.typeText("exit\n")
			terminal.end()
		})
	}
}
