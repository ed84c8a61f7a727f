package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

func TestParseSocketRow(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the rows come from a little-endian machine")
	}
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
	for line, want := range map[string]string{
		head: "none",
		"":   "none",
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 12345 1 0000000000000000 100 0 0 10 0":                                                  "127.0.0.1:8080 0.0.0.0:0 10 1002 12345",
		"   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 7 1 0000000000000000 100 0 0 10 0":                                                      "127.0.0.1:50000 127.0.0.1:8080 1 0 7",
		"   2: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 8 1 0000000000000000 100 0 0 10 0":      "127.0.0.1:50000 127.0.0.1:8080 1 1002 8",
		"   3: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 4294967294        0 9 1 0000000000000000 100 0 0 10 0": "[::1]:8080 [::]:0 10 4294967294 9",
		"   4: 0100007F:C350 0100007F:1F90 06 00000000:00000000 03:00000F5D 00000000     0        0 0 3 0000000000000000":                                                                   "127.0.0.1:50000 127.0.0.1:8080 6 0 0",
		"   5: 0100007F 0100007F:1F90 01 0 0 0 0 0 0":                "none",
		"   6: 0100:C350 0100007F:1F90 01 0 0 0 0 0 0":               "none",
		"   7: 0100007F:C350 0100007F:1F90 01 0 0 0 99999999999 0 1": "none",
	} {
		r, ok := parseSocketRow(line)
		got := fmt.Sprint(r.local, " ", r.remote, " ", r.state, " ", r.uid, " ", r.inode)
		if !ok {
			got = "none"
		}
		if got != want {
			t.Errorf("%q: %s; want %s", line, got, want)
		}
	}
}

func FuzzSocketRow(f *testing.F) {
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 12345 1 0 100")
	f.Fuzz(func(t *testing.T, line string) {
		if r, ok := parseSocketRow(line); ok && (!r.local.IsValid() || !r.remote.IsValid() || r.local.Addr().Is4In6()) {
			t.Errorf("%q: %+v", line, r)
		}
	})
}

// asUser calls f on a thread whose new sockets belong to another user. It skips the test unless it
// runs as root.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create sockets of other users")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		_ = unix.Setfsuid(uid)
		f()
	}()
	<-done
}

func listenAs(t *testing.T, uid int, network, address string) *net.TCPListener {
	t.Helper()
	var l net.Listener
	var err error
	asUser(t, uid, func() { l, err = net.Listen(network, address) })
	testenv.Check(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

const foreignUID = 54321 // not the ID of a user

// TestCheckPeer connects clients of this user and of another to a listener of this user, over IPv4
// and over IPv4-mapped addresses.
func TestCheckPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	accepted := func(dial func() net.Conn) (client, server net.Conn) {
		t.Helper()
		client = dial()
		server, err := l.Accept()
		testenv.Check(t, err)
		t.Cleanup(func() { client.Close(); server.Close() })
		return client, server
	}
	dial := func(address string) func() net.Conn {
		return func() net.Conn {
			c, err := net.Dial("tcp", address)
			testenv.Check(t, err)
			return c
		}
	}
	for _, address := range []string{"127.0.0.1:" + port, "[::ffff:127.0.0.1]:" + port} {
		if _, server := accepted(dial(address)); CheckPeer(server) != nil {
			t.Errorf("%s: this user's own connection: %v", address, CheckPeer(server))
		}
	}
	// A client that has closed its sending side still has an owner.
	client, server := accepted(dial("127.0.0.1:" + port))
	_ = client.(*net.TCPConn).CloseWrite()
	if err := CheckPeer(server); err != nil {
		t.Errorf("a client that ended its side: %v", err)
	}
	// A closed socket has no owner, and the kernel shows it as root's.
	client, server = accepted(dial("127.0.0.1:" + port))
	_, _ = client.Write([]byte("POST / HTTP/1.0\r\n\r\n"))
	client.Close()
	if err := CheckPeer(server); err == nil {
		t.Error("CheckPeer accepted a client that has closed, so that its owner is unknown")
	}
	client, server = accepted(dial("127.0.0.1:" + port))
	_ = client.(*net.TCPConn).SetLinger(0)
	client.Close()
	if err := CheckPeer(server); err == nil {
		t.Error("CheckPeer accepted a client that has reset the connection")
	}
	_, server = accepted(func() (c net.Conn) {
		asUser(t, foreignUID, func() { c = dial("127.0.0.1:" + port)() })
		return c
	})
	if foreign := new(foreignSocketError); !errors.As(CheckPeer(server), &foreign) || foreign.UID != foreignUID {
		t.Errorf("another user's connection: %v", CheckPeer(server))
	}
}

// TestDialOwn checks that dialOwn does not connect to another user's listener at any address, and
// that another user's listener at a less specific address does not matter.
func TestDialOwn(t *testing.T) {
	own, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.Check(t, err)
	defer own.Close()
	at := func(l net.Listener) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.Addr().(*net.TCPAddr).Port))
	}
	c, err := dialOwn(context.Background(), at(own))
	if err != nil {
		t.Fatalf("this user's own port: %v", err)
	}
	c.Close()
	for _, where := range []struct{ network, address string }{{"tcp4", "127.0.0.1:0"}, {"tcp4", "0.0.0.0:0"}, {"tcp", "[::]:0"}} {
		l := listenAs(t, foreignUID, where.network, where.address)
		_, err := dialOwn(context.Background(), at(l))
		if foreign := new(foreignSocketError); !errors.As(err, &foreign) || foreign.UID != foreignUID {
			t.Errorf("another user at %s: %v", where.address, err)
		}
		_ = l.SetDeadline(time.Now().Add(50 * time.Millisecond))
		if c, err := l.Accept(); err == nil {
			c.Close()
			t.Errorf("another user at %s got a connection", where.address)
		}
	}
	_, port, _ := net.SplitHostPort(own.Addr().String())
	listenAs(t, foreignUID, "tcp6", "[::]:"+port)
	if c, err := dialOwn(context.Background(), at(own)); err != nil {
		t.Errorf("with another user at [::]: %v", err)
	} else {
		c.Close()
	}
	// The relay reports the reason.
	l := listenAs(t, foreignUID, "tcp4", "127.0.0.1:0")
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		answer(context.Background(), far, l.Addr().(*net.TCPAddr).Port)
	}()
	err = readAnswer(near)
	near.Close()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to uid %d, so nothing is sent to it", foreignUID)) {
		t.Errorf("readAnswer: %v; want the owner of the port", err)
	}
}
