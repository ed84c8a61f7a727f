package sshd

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// dialTimeout limits the time to connect to an address for the client.
const dialTimeout = 30 * time.Second

// forward connects a channel of ssh -L, -D or -W to the address that the client names.
func forward(c ssh.NewChannel) {
	network, address, err := destination(c.ChannelType(), c.ExtraData())
	if err != nil {
		_ = c.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	conn, err := net.DialTimeout(network, address, dialTimeout)
	if err != nil {
		_ = c.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	ch, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	go ssh.DiscardRequests(requests)
	Join(ch, conn.(HalfCloser))
}

// destination returns the network and the address that a channel names.
func destination(kind string, extra []byte) (network, address string, err error) {
	if kind == "direct-tcpip" {
		var to struct {
			Host       string
			Port       uint32
			Origin     string
			OriginPort uint32
		}
		if err := ssh.Unmarshal(extra, &to); err != nil || to.Port > 65535 {
			return "", "", fmt.Errorf("%q names no address", extra)
		}
		return "tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))), nil
	}
	var to struct {
		Path     string
		Origin   string
		Reserved uint32
	}
	if err := ssh.Unmarshal(extra, &to); err != nil || to.Path == "" {
		return "", "", fmt.Errorf("%q names no socket", extra)
	}
	return "unix", to.Path, nil
}

// A HalfCloser is a connection whose directions end separately.
type HalfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Join copies data between two connections until both directions have ended.
func Join(a, b HalfCloser) {
	var both sync.WaitGroup
	for _, way := range [][2]HalfCloser{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].CloseWrite()
		})
	}
	both.Wait()
}
