package runtime

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
	"hpcc/testdata/helpers/testenv"
)

// A member whose namespaces are unreadable for a moment, between creating them and executing
// its program, counts as alive; one that has ended does not.
func TestMemberShown(t *testing.T) {
	const hidden = "HPCC_TEST_HIDDEN"
	if os.Getenv(hidden) != "" {
		hide(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemberShown$")
	cmd.Env = append(os.Environ(), hidden+"=1")
	in, err := cmd.StdinPipe()
	testenv.Check(t, err)
	out, err := cmd.StdoutPipe()
	testenv.Check(t, err)
	testenv.Check(t, cmd.Start())
	m := member{pid: cmd.Process.Pid}
	m.started, err = process.StartTime(m.pid)
	testenv.Check(t, err)
	_, err = fmt.Fscan(bufio.NewReader(out), &m.user, &m.mnt)
	testenv.Check(t, err)
	if _, _, err := openNamespaces(m.pid); err == nil && os.Geteuid() != 0 {
		t.Error("the process is shown already: the test does not test")
	}
	user, mnt, lives := m.open()
	if !lives {
		t.Fatal("a member that shows itself a moment later is taken for dead")
	}
	unix.Close(user)
	unix.Close(mnt)
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, _, lives := m.open(); lives {
		t.Error("a member that ended is taken to live")
	}
}

// hide runs in the member: it reports its namespaces and becomes readable later.
func hide(t *testing.T) {
	user, mnt, err := openNamespaces(os.Getpid())
	testenv.Check(t, err)
	testenv.Check(t, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	fmt.Println(inode(user), inode(mnt))
	time.Sleep(2 * time.Second)
	testenv.Check(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	_, _ = io.Copy(io.Discard, os.Stdin)
}
