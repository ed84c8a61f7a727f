package dispatch

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/sshd"
	"hpcc/job/tunnel"
	"hpcc/text"
)

// StartSSH starts an SSH server in the container of a task, and sends it the user's host key. store is the absolute path
// of the store; via names the route to the node, or is "".
func (s *Submission) StartSSH(ctx context.Context, t *job.Task, store, via string) (link *tunnel.Link, err error) {
	key, err := sshd.UserKey()
	if err != nil {
		return nil, err
	}
	if s.keeper() != nil {
		link, err = s.startInPod(ctx, t)
	} else {
		link, err = s.startOnNode(ctx, t, store, via)
	}
	if err != nil {
		return nil, fmt.Errorf("reaching %s, where task %d runs: %w", t.Host, t.Index, err)
	}
	if err := sshd.SendKey(link, key); err != nil {
		return nil, fmt.Errorf("reaching %s, where task %d runs: %s", t.Host, t.Index, cmp.Or(link.Messages(), err.Error()))
	}
	return link, nil
}

// ServeSSH connects a client with an SSH server in the container of a task, until either has ended, or ctx. See
// [Submission.StartSSH].
func (s *Submission) ServeSSH(ctx context.Context, t *job.Task, store, via string, client io.ReadWriter) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	link, err := s.StartSSH(ctx, t, store, via)
	if err != nil {
		return err
	}
	defer link.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, link)
		ended <- err
	}()
	go func() {
		_, _ = io.Copy(link, client)
		stop() // the client has closed its end
	}()
	select {
	case <-ctx.Done():
		return nil
	case err = <-ended:
	}
	if text := link.Messages(); text != "" {
		err = errors.New(strings.TrimPrefix(text, "hpcc: error: "))
	}
	if err != nil {
		return fmt.Errorf("the connection to task %d on %s has ended: %w", t.Index, t.Host, err)
	}
	return nil
}

// enter returns the argv of "hpcc enter" with more arguments, which enters the container of a task on its node. It is
// wrapped in the command of the first route that works, or of the one named via.
func (s *Submission) enter(ctx context.Context, t *job.Task, store, via string, terminal bool, more ...string) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	argv := []string{program, "enter", "--store", store, "--job", s.ID, "--task", strconv.Itoa(t.Index)}
	ways, err := s.ways(t, via, terminal)
	if err != nil {
		return nil, err
	}
	if ways[0].name == waySSH && len(ways) > 1 && !sshAllowed(ctx, t.Host) {
		ways = ways[1:]
	}
	return ways[0].command(append(argv, more...)), nil
}

// Attach returns the argv that runs argv, or a shell, in the container of a task, with this process's streams.
// terminal reports whether they are a terminal, of the type term. See [Submission.StartSSH] for store and via.
func (s *Submission) Attach(ctx context.Context, t *job.Task, argv []string, store, via, term string, terminal bool) ([]string, error) {
	if k := s.keeper(); k != nil {
		return k.Enter(s.Within(ctx), t, argv, terminal), nil
	}
	return s.enter(ctx, t, store, via, terminal, append([]string{"--term", term, "--"}, argv...)...)
}

func (s *Submission) startOnNode(ctx context.Context, t *job.Task, store, via string) (*tunnel.Link, error) {
	argv, err := s.enter(ctx, t, store, via, false, "--ssh")
	if err != nil {
		return nil, err
	}
	return s.startLink(ctx, argv)
}

// startLink starts a command that serves SSH. After the end of ctx it closes the command's input, with
// which the server ends; a signal would end it before its programs.
func (s *Submission) startLink(ctx context.Context, argv []string) (*tunnel.Link, error) {
	link, err := tunnel.Start(context.WithoutCancel(ctx), s.OutsideJob(), argv)
	if err == nil {
		context.AfterFunc(ctx, func() { link.Close() })
	}
	return link, err
}

// podServer is the script that starts the SSH server in a pod. It receives hpcc on its standard
// input, unless an earlier connection has left the file $0. A volume at /tmp may have other users.
const podServer = `if ! [ -x "$0" ] || ! [ -O "$0" ]; then
  set -e
  echo "hpcc needs $(uname -m)"
  read -r size
  new=$(mktemp "$0.XXXXXX")
  head -c "$size" >"$new"
  chmod 700 "$new"
  mv -f "$new" "$0"
fi
echo "hpcc is ready"
exec "$0" sshd`

// startInPod starts the SSH server in the pod of a task.
func (s *Submission) startInPod(ctx context.Context, t *job.Task) (*tunnel.Link, error) {
	file, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("reading hpcc's own file: %w", err)
	}
	name := fmt.Sprintf("/tmp/hpcc-%x", sha256.Sum256(file))[:len("/tmp/hpcc-")+16]
	link, err := s.startLink(ctx, s.keeper().Enter(s.Within(ctx), t, []string{"sh", "-c", podServer, name}, false))
	if err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(link.Reader, 64<<10)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, errors.New(cmp.Or(link.Messages(), "the pod's shell ended without a message"))
		}
		machine, needs := strings.CutPrefix(strings.TrimSpace(line), "hpcc needs ")
		if !needs {
			link.Reader = r
			return link, nil
		}
		if file, err = programFor(file, machine); err == nil {
			_, err = fmt.Fprintf(link, "%d\n%s", len(file), file)
		}
		if err != nil {
			link.Close()
			return nil, err
		}
	}
}

// Machines maps the names of architectures in uname(1) to GOARCH.
var Machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}

// programFor returns the file of hpcc for a machine: own, or that of a release in the directory of
// this hpcc.
func programFor(own []byte, machine string) ([]byte, error) {
	arch := cmp.Or(Machines[machine], machine)
	if arch == goruntime.GOARCH {
		return own, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	release := filepath.Join(filepath.Dir(self), "hpcc-linux-"+filepath.Base(arch))
	file, err := os.ReadFile(release)
	if err != nil {
		err = fmt.Errorf("found no hpcc for the pod's architecture %s: %w", arch, err)
		return nil, text.Hint(err, "copy the release for %s to that path", arch)
	}
	return file, nil
}
