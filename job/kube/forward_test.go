package kube

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// TestPodTunnelBeginsAgain: kubectl gives up with the first connection that nobody takes in the pod, as
// before the program listens. The next one gets through, until the pod is gone.
func TestPodTunnelBeginsAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	touch := func(name string) {
		if err := os.WriteFile(at(name), nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	nobody := servePort(t, func(*net.TCPConn) { touch("lost") })
	program := servePort(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	kubectl := fmt.Sprintf(`#!/bin/sh
cd %s
[ ! -e over ] || { echo "error: unable to forward port because pod is not running. Current status=Succeeded" >&2; exit 1; }
echo >>begun
case $(grep -c . -v begun) in 1|2) port=%d ;; *) port=%d ;; esac
echo "Forwarding from 127.0.0.1:$port -> 8000"
until [ -e lost ]; do sleep 0.02; done
rm lost
echo '"Unhandled Error" err="an error occurred forwarding 1 -> 8000: dial tcp4 127.0.0.1:8000: connect: connection refused"' >&2
echo 'error: lost connection to pod' >&2
exit 1
`, dir, nobody, program)
	testenv.Check(t, os.WriteFile(at("kubectl"), []byte(kubectl), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	tun, err := System{Target: job.Kubernetes}.Forward(t.Context(), &job.Task{Native: "x-0"}, 8000)
	testenv.Check(t, err)
	defer tun.Close()
	ask := func() (string, error) {
		c, there := pipeTCP(t)
		problem := make(chan error, 1)
		go func() { problem <- tun.Carry(there) }()
		fmt.Fprint(c, "hello")
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		return string(b), <-problem
	}
	for range 2 {
		if got, err := ask(); got != "" || err == nil || !strings.Contains(err.Error(), "no program listens on port 8000 of pod x-0") {
			t.Fatalf("closed port: %q, %v", got, err)
		}
	}
	if got, err := ask(); got != "hello" || err != nil {
		t.Fatalf("of one where somebody does: %q, %v", got, err)
	}
	touch("over")
	touch("lost")
	select {
	case <-tun.Ended():
	case <-time.After(time.Minute):
		t.Fatal("it goes on without its pod")
	}
	if messages := tun.Messages(); !strings.Contains(messages, "pod is not running") {
		t.Errorf("it said %q", messages)
	}
}

// pipeTCP are both ends of a connection.
func pipeTCP(t *testing.T) (*net.TCPConn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	testenv.Check(t, err)
	there, err := l.Accept()
	testenv.Check(t, err)
	return c.(*net.TCPConn), there
}

// servePort serves connections to a port of the loopback interface, which it returns.
func servePort(t *testing.T, serve func(*net.TCPConn)) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}
