package dispatch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestPodServer runs the script that starts the SSH server in a pod, with the shells of images.
func TestPodServer(t *testing.T) {
	for _, shell := range [][]string{{"dash"}, {"bash"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(shell[0]); err != nil {
			t.Logf("without %s: %v", shell[0], err)
			continue
		}
		name := filepath.Join(t.TempDir(), "hpcc-1")
		run := func(program string) string {
			argv := append(shell[1:], "-c", podServer, name)
			cmd := exec.Command(shell[0], argv...)
			cmd.Stdin = strings.NewReader(fmt.Sprintf("%d\n%s", len(program), program))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", shell[0], err, out)
			}
			return string(out)
		}
		if got := run("#!/bin/sh\necho first $1\n"); !strings.HasSuffix(got, "\nhpcc is ready\nfirst sshd\n") || !strings.HasPrefix(got, "hpcc needs ") {
			t.Errorf("%s: %q", shell[0], got)
		}
		if got := run("#!/bin/sh\necho second\n"); got != "hpcc is ready\nfirst sshd\n" {
			t.Errorf("%s: the file that exists is not used: %q", shell[0], got)
		}
		fi, err := os.Stat(name)
		testenv.Check(t, err)
		if fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v", shell[0], fi.Mode())
		}
		// A file of another user is not executed.
		testenv.Check(t, os.Remove(name))
		if os.Getuid() == 0 {
			testenv.Check(t, os.WriteFile(name, []byte("#!/bin/sh\necho foreign\n"), 0o755))
			testenv.Check(t, os.Chown(name, 12345, 12345))
		} else {
			testenv.Check(t, os.Symlink("/bin/echo", name))
		}
		if got := run("#!/bin/sh\necho own\n"); !strings.HasSuffix(got, "\nown\n") {
			t.Errorf("%s: a file of another user is executed: %q", shell[0], got)
		}
	}
}
