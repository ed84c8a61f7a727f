package jupyter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"hpcc/job/sshd"
	"hpcc/text"
)

// keeper is the shell script next to a kernel. $0 is the kernel's directory. It receives the
// connection file and then names of signals, one a line. When its input ends, the client is gone, and
// it ends the kernel. It ends with the kernel, and removes its directory, which a killed kernel leaves.
const keeper = `n=0
until [ -d "$0" ]; do
  n=$((n+1))
  [ $n -le 300 ] || { echo "the kernel's task has not created $0"; exit 1; }
  sleep 0.2
done
IFS= read -r connection || exit 1
umask 077
printf '%s\n' "$connection" >"$0/new" || exit 1
mv "$0/new" "$0/` + connectionName + `" || exit 1
until [ -s "$0/pid" ]; do sleep 0.1; done
k=$(cat "$0/pid")
trap '' HUP INT
(while kill -0 "$k" 2>/dev/null; do sleep 0.3; done; rm -rf "$0"; kill $$) >/dev/null 2>&1 </dev/null &
n=0
until [ -S "$0/` + socketPrefix + `-1" ] && [ -S "$0/` + socketPrefix + `-5" ]; do
  n=$((n+1))
  [ $n -le 600 ] || { echo "the kernel has not opened its sockets in 2 minutes"; kill -TERM "$k"; exit 1; }
  sleep 0.2
done
echo ` + ready + `
exec >/dev/null 2>&1
while read -r signal; do kill "-$signal" "$k"; done
kill -TERM "$k"
sleep 3
kill -KILL "$k"
wait`

// ready is the line with which keeper reports that the kernel serves.
const ready = "ready"

// A remote is a kernel in a task.
type remote struct {
	client  *ssh.Client
	dir     string // of the kernel, on its node
	signals io.WriteCloser
	ended   chan struct{} // closed when the kernel has ended, or the connection to it
}

// start gives the kernel in the directory dir of its node its connection file, and waits until it
// serves. The keys of the connection file go through client only.
func (c *connection) start(client *ssh.Client, dir string) (*remote, error) {
	s, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	file, err := c.onNode(dir)
	if err != nil {
		return nil, err
	}
	in, err := s.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r := &remote{client: client, dir: dir, signals: in, ended: make(chan struct{})}
	if err := s.Start("exec sh -c " + text.Arguments([]string{keeper, dir})); err != nil {
		return nil, err
	}
	if _, err := in.Write(append(file, '\n')); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n') // empty after an error
	switch line = strings.TrimSpace(line); {
	case line == ready:
	case line != "":
		return nil, errors.New(line)
	default:
		return nil, errors.New("the kernel has ended")
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		_ = s.Wait()
		close(r.ended)
	}()
	return r, nil
}

// serve forwards a connection to the kernel's port number i until both directions have ended.
func (r *remote) serve(conn sshd.HalfCloser, i int) error {
	to, err := r.client.Dial("unix", socket(r.dir, i))
	if err != nil {
		return err
	}
	defer to.Close()
	sshd.Join(to.(sshd.HalfCloser), conn)
	return nil
}

// signal sends a signal to the kernel.
func (r *remote) signal(n syscall.Signal) error {
	_, err := fmt.Fprintln(r.signals, strings.TrimPrefix(unix.SignalName(n), "SIG"))
	return err
}

// end ends the kernel.
func (r *remote) end() { r.signals.Close() }
