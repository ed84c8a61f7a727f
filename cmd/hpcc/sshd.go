package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/sshd"
	"hpcc/job/tunnel"
	"hpcc/text"
)

// sshdCommand returns the command that serves "hpcc attach --ssh" in the container of a task.
func sshdCommand() *cli.Command {
	return &cli.Command{
		Name: "sshd", Hidden: true, Usage: "serve the SSH protocol on the standard streams (started by hpcc enter)",
		Action: action(parseSSHD),
	}
}

type sshdArgs struct{}

func parseSSHD(c *cli.Context) (*sshdArgs, error) {
	_, err := parseArguments(c, 0, 0, "")
	return &sshdArgs{}, err
}

const (
	maxHostKey = 64 << 10 // bytes
	inherited  = 64       // one more than the largest descriptor that the server may inherit
)

// run reads the host key, its length first, and serves the client.
func (*sshdArgs) run(context.Context) error {
	for fd := 3; fd < inherited; fd++ { // the programs of the sessions must not inherit them
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	var n uint32
	err := binary.Read(os.Stdin, binary.BigEndian, &n)
	if err == nil && n > maxHostKey {
		err = fmt.Errorf("%d bytes", n)
	}
	key := make([]byte, min(n, maxHostKey))
	if err == nil {
		_, err = io.ReadFull(os.Stdin, key)
	}
	if err != nil {
		return text.Hint(fmt.Errorf("receiving the host key: %w", err), "use hpcc attach --ssh, which starts this command")
	}
	return sshd.Serve(stdio{os.Stdin, os.Stdout}, key)
}

// serveSSH connects this process's standard streams with an SSH server in the container of a task.
// dir is the directory of the store.
func serveSSH(ctx context.Context, sub *dispatch.Submission, t *job.Task, dir, via string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // from ssh when it ends
	defer stop()
	link, err := startSSH(ctx, sub, t, dir, via)
	if err != nil {
		return err
	}
	defer link.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(os.Stdout, link)
		ended <- err
	}()
	go func() {
		_, _ = io.Copy(link, os.Stdin)
		stop() // ssh has closed its end
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

// startSSH starts an SSH server in the container of a task, and sends it the user's host key.
func startSSH(ctx context.Context, sub *dispatch.Submission, t *job.Task, dir, via string) (link *tunnel.Link, err error) {
	key, err := readHostKey()
	if err != nil {
		return nil, err
	}
	if sub.Target.Pods() {
		link, err = startInPod(ctx, sub, t)
	} else {
		link, err = startOnNode(ctx, sub, t, dir, via)
	}
	if err != nil {
		return nil, fmt.Errorf("reaching %s, where task %d runs: %w", t.Host, t.Index, err)
	}
	if _, err := link.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(key))), key...)); err != nil {
		return nil, fmt.Errorf("reaching %s, where task %d runs: %s", t.Host, t.Index, cmp.Or(link.Messages(), err.Error()))
	}
	return link, nil
}

// readHostKey returns the user's host key for SSH.
func readHostKey() ([]byte, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, fmt.Errorf("finding the directory of the host key: %w", err)
	}
	return sshd.HostKey(filepath.Join(dir, "hpcc", "ssh_host_ed25519_key"))
}

func startOnNode(ctx context.Context, sub *dispatch.Submission, t *job.Task, dir, via string) (*tunnel.Link, error) {
	enter, err := enterArgv(sub, t, dir)
	if err != nil {
		return nil, err
	}
	w, err := sub.EnterCommand(ctx, t, append(enter, "--ssh"), via, false)
	if err != nil {
		return nil, err
	}
	return startLink(ctx, sub, w)
}

// startLink starts a command that serves SSH. After the end of ctx it closes the command's input, with
// which the server ends; a signal would end it before its programs.
func startLink(ctx context.Context, sub *dispatch.Submission, argv []string) (*tunnel.Link, error) {
	link, err := tunnel.Start(context.WithoutCancel(ctx), sub.OutsideJob(), argv)
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
func startInPod(ctx context.Context, sub *dispatch.Submission, t *job.Task) (*tunnel.Link, error) {
	file, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("reading hpcc's own file: %w", err)
	}
	name := fmt.Sprintf("/tmp/hpcc-%x", sha256.Sum256(file))[:len("/tmp/hpcc-")+16]
	link, err := startLink(ctx, sub, sub.Enter(ctx, t, []string{"sh", "-c", podServer, name}, false))
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

// machines are the names of architectures in uname(1).
var machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}

// programFor returns the file of hpcc for a machine: own, or that of a release in the directory of
// this hpcc.
func programFor(own []byte, machine string) ([]byte, error) {
	arch := cmp.Or(machines[machine], machine)
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
		return nil, text.Hint(fmt.Errorf("found no hpcc for the pod's architecture %s: %w", arch, err), "copy the release for %s to that path", arch)
	}
	return file, nil
}
