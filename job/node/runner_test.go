package node

import (
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// TestEndGroupReaps checks that endGroup reaps the orphans of a task whose parent this process has
// become. An orphan that is not reaped would delay the end of the task.
func TestEndGroupReaps(t *testing.T) {
	testenv.Check(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	cmd := exec.Command("sh", "-c", "sleep 0.2 & sleep 0.3 &")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testenv.Check(t, cmd.Run())
	endGroup(cmd)
	if pid, err := syscall.Wait4(-cmd.Process.Pid, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("Wait4 after endGroup = %d, %v; want no child", pid, err)
	}
}
