package tunnel

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/text"
)

// All users of a node share its loopback interface. Before data flows, /proc/net/tcp must show that the other
// socket belongs to this user or to root.

// A socketRow is a line of /proc/net/tcp or tcp6 (proc_net_tcp in the kernel's documentation). IPv4 addresses
// mapped into IPv6 become IPv4.
type socketRow struct {
	local, remote netip.AddrPort
	state         uint8
	uid           uint32
	inode         uint64 // 0: no process holds the socket, and uid is meaningless
}

// States of a socket (enum tcp_state of linux/tcp.h).
const (
	tcpEstablished = 1
	tcpCloseWait   = 8
	tcpListen      = 10
)

// parseSocketRow parses a line. ok is false for the heading and for malformed lines.
func parseSocketRow(line string) (r socketRow, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return r, false
	}
	var good [2]bool
	r.local, good[0] = parseSocketAddress(f[1])
	r.remote, good[1] = parseSocketAddress(f[2])
	state, err1 := strconv.ParseUint(f[3], 16, 8)
	uid, err2 := strconv.ParseUint(f[7], 10, 32)
	inode, err3 := strconv.ParseUint(f[9], 10, 64)
	r.state, r.uid, r.inode = uint8(state), uint32(uid), inode
	return r, good[0] && good[1] && err1 == nil && err2 == nil && err3 == nil
}

// parseSocketAddress parses ADDRESS:PORT in hexadecimal. The address is one or four 32-bit words in the
// machine's byte order.
func parseSocketAddress(s string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(address)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || (len(b) != 4 && len(b) != 16) {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), true
}

// readSocketRows calls visit for each row of a file.
func readSocketRows(r io.Reader, visit func(socketRow)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if row, ok := parseSocketRow(lines.Text()); ok {
			visit(row)
		}
	}
	return lines.Err()
}

// sockets calls visit for each TCP socket of this network namespace.
func sockets(visit func(socketRow)) error {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(file, "6") { // a kernel without IPv6
			continue
		}
		if err == nil {
			err = readSocketRows(f, visit)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("reading the owners of sockets: %w", err)
		}
	}
	return nil
}

// A foreignSocketError reports a socket of another user.
type foreignSocketError struct {
	UID  uint32
	What string // "a connection from port 40001"
}

func (e *foreignSocketError) Error() string {
	owner := fmt.Sprintf("uid %d", e.UID)
	if u, err := user.LookupId(strconv.FormatUint(uint64(e.UID), 10)); err == nil {
		owner = text.OneLine(u.Username) + " (" + owner + ")"
	}
	return e.What + " belongs to " + owner
}

// checkOwner returns an error unless a user ID is that of this process, or root's. It also returns an error if the
// kernel shows this user as the overflow ID, because it may show other users as the same ID.
func checkOwner(uid uint32, what string) error {
	self := uint32(os.Geteuid())
	if self == overflowID() && !allUsersMapped() {
		return fmt.Errorf("%s: this user namespace does not map your user ID, so owners cannot be distinguished", what)
	}
	if uid != self && uid != 0 {
		return &foreignSocketError{uid, what}
	}
	return nil
}

// overflowID returns the ID of users that a user namespace does not map.
func overflowID() uint32 {
	const usual = 65534
	b, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return usual
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return usual
	}
	return uint32(n)
}

// allUsersMapped reports whether the ID map is the identity, as outside user namespaces.
func allUsersMapped() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
}

// ownerTries is the number of searches for a row: the kernel may skip rows while sockets change.
const ownerTries = 3

// ErrPeerClosed reports a connection that its other end has closed.
var ErrPeerClosed = errors.New("the other end is already closed")

// CheckPeer returns an error unless the process at the other end of a loopback or Unix socket connection
// belongs to this user or root. A closed peer is an error too ([ErrPeerClosed]), because its owner is unknown.
func CheckPeer(conn net.Conn) error {
	switch c := conn.(type) {
	case *net.TCPConn:
		return checkTCPPeer(c)
	case *net.UnixConn:
		return checkUnixPeer(c)
	}
	return fmt.Errorf("checking the owner of a connection: unsupported type %T", conn)
}

func checkTCPPeer(conn *net.TCPConn) error {
	near, far := unmapped(conn.LocalAddr()), unmapped(conn.RemoteAddr())
	what := fmt.Sprintf("a connection from port %d", far.Port())
	for try := range ownerTries {
		time.Sleep(time.Duration(try) * 5 * time.Millisecond)
		var found *socketRow
		if err := sockets(func(r socketRow) {
			if r.local == far && r.remote == near && r.inode != 0 {
				found = &r
			}
		}); err != nil {
			return err
		}
		if found == nil {
			continue
		}
		// A reset frees the client's port: the row could be that of another user's new socket.
		if !stillOpen(conn) {
			break
		}
		return checkOwner(found.uid, what)
	}
	return fmt.Errorf("%s: %w, so its owner is unknown", what, ErrPeerClosed)
}

// stillOpen reports whether a connection is open: the peer has not reset it.
func stillOpen(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		open = err == nil && (info.State == tcpEstablished || info.State == tcpCloseWait)
	})
	return err == nil && open
}

func checkUnixPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return fmt.Errorf("reading the owner of a connection: %w", err)
	}
	return checkOwner(cred.Uid, "a connection")
}

func unmapped(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := t.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

// checkListener returns an error if another user's program, except root's, listens at an address of this machine.
// inodes names the listening sockets: while they are the same, the port has not changed owner.
func checkListener(at netip.AddrPort) (inodes []uint64, err error) {
	at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	// The kernel prefers the most specific address.
	ranks := []netip.Addr{at.Addr(), any6}
	if at.Addr().Is4() {
		ranks = []netip.Addr{at.Addr(), any4, any6}
	}
	found := make([][]socketRow, len(ranks))
	if err := sockets(func(r socketRow) {
		if i := slices.Index(ranks, r.local.Addr()); i >= 0 && r.state == tcpListen && r.local.Port() == at.Port() {
			found[i] = append(found[i], r)
		}
	}); err != nil {
		return nil, err
	}
	for _, rows := range found {
		for _, r := range rows {
			if err := checkOwner(r.uid, fmt.Sprintf("port %d of %s", at.Port(), Host())); err != nil {
				return nil, err
			}
			inodes = append(inodes, r.inode)
		}
		if len(rows) > 0 {
			slices.Sort(inodes)
			return inodes, nil
		}
	}
	return nil, nil
}

// dialOwn connects to a port of this machine. It checks before and after connecting that the listener belongs to
// this user or root, so that no data goes to anyone else.
func dialOwn(ctx context.Context, at netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	for range ownerTries {
		before, err := checkListener(at)
		if err != nil {
			return nil, err
		}
		c, err := d.DialContext(ctx, "tcp", at.String())
		if err != nil {
			return nil, err
		}
		after, err := checkListener(at)
		if err == nil && len(before) > 0 && slices.Equal(before, after) {
			return c.(*net.TCPConn), nil
		}
		c.Close()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("port %d of %s changed owner during the check", at.Port(), Host())
}

// Host returns the name of this node, as its scheduler calls it.
func Host() string {
	if n := os.Getenv("SLURMD_NODENAME"); n != "" { // tests run several on a host
		return n
	}
	name, _ := os.Hostname()
	return name
}
