// Package sshd serves the SSH protocol over one pair of streams.
//
//	ssh ─► ProxyCommand "hpcc attach --ssh JOB" ─► srun, ssh, kubectl exec ─► Serve, in the container
//
// It runs commands, shells and sftp, and connects to ports and sockets, as the process's own user. It
// listens on nothing. The program that carries the streams has authenticated the user, so Serve asks
// for no password or key. Everything ends with the streams.
package sshd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// serverVersion is the first line of the server.
const serverVersion = "SSH-2.0-hpcc"

// ciphers are the ciphers of both ends, best first. OpenSSH prefers chacha20-poly1305, which is
// slower on processors with instructions for AES. Every OpenSSH since 6.2 has these.
var ciphers = []string{"aes128-gcm@openssh.com", "aes256-gcm@openssh.com"}

// Serve serves the client at the other end of link until the client closes it. key is the host key
// that [HostKey] returns.
func Serve(link io.ReadWriteCloser, key []byte) error {
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return fmt.Errorf("reading the host key: %w", err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: serverVersion}
	config.Ciphers = ciphers
	config.AddHostKey(signer)
	conn, channels, requests, err := ssh.NewServerConn(pipeConn{link}, config)
	if errors.Is(err, io.EOF) { // a client that only looks at the version or the host key
		return nil
	}
	if err != nil {
		return fmt.Errorf("starting the SSH session: %w", err)
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests) // refuses remote forwarding, answers keepalives
	var open sync.WaitGroup
	defer open.Wait()
	for c := range channels {
		open.Go(func() { serveChannel(c) })
	}
	return nil
}

// serveChannel serves a channel until it has ended.
func serveChannel(c ssh.NewChannel) {
	switch c.ChannelType() {
	case "session":
		ch, requests, err := c.Accept()
		if err == nil {
			(&session{ch: ch}).serve(requests)
		}
	case "direct-tcpip", "direct-streamlocal@openssh.com":
		forward(c)
	default:
		_ = c.Reject(ssh.UnknownChannelType, "hpcc does not support channels of this type")
	}
}

// Dial starts the SSH protocol as a client of [Serve] at the other end of link. The carrier of link
// has authenticated the server, so Dial accepts its host key.
func Dial(link io.ReadWriteCloser) (*ssh.Client, error) {
	config := &ssh.ClientConfig{User: "hpcc", HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	config.Ciphers = ciphers
	conn, channels, requests, err := ssh.NewClientConn(pipeConn{link}, "", config)
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// shell returns the shell of sessions: bash if the container has it.
func shell() string {
	for _, s := range []string{"/bin/bash", "/usr/bin/bash"} {
		if _, err := os.Stat(s); err == nil {
			return s
		}
	}
	return "/bin/sh"
}

// home returns the directory in which sessions start. A home directory that the container does not
// have is replaced by the task's directory.
func home() string {
	if fi, err := os.Stat(os.Getenv("HOME")); err == nil && fi.IsDir() {
		return os.Getenv("HOME")
	}
	dir, _ := os.Getwd()
	return cmp.Or(dir, "/")
}

// A pipeConn is a pair of streams as a connection without addresses and deadlines.
type pipeConn struct{ io.ReadWriteCloser }

func (pipeConn) LocalAddr() net.Addr              { return pipeAddr{} }
func (pipeConn) RemoteAddr() net.Addr             { return pipeAddr{} }
func (pipeConn) SetDeadline(time.Time) error      { return nil }
func (pipeConn) SetReadDeadline(time.Time) error  { return nil }
func (pipeConn) SetWriteDeadline(time.Time) error { return nil }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
