package pack

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// The protocol between the coordinator and a worker consists of lines of text. Other users can connect
// to the port, and could listen on it after the coordinator has ended. So each side first proves that
// it knows the secret of the run, without sending it:
//
//	coordinator ─► NONCE1
//	worker      ─► NONCE2 PROOF hello RANK SLOTS SUPERVISOR AGE INCARNATION HOST
//	coordinator ─► PROOF
//
// AGE is that of the supervisor, in milliseconds. Then the worker sends
//
//	join                               it uses this connection
//	hold INDEX ATTEMPT                 a task that it runs, after a lost connection
//	ready                              there are no more of these
//	start INDEX
//	end INDEX ATTEMPT EXIT SIGNAL ok|problem
//	ping
//
// and the coordinator
//
//	run FIRST LAST ATTEMPT
//	done                               no task is left
//	stop                               end the tasks that run
//	lost                               the same: other workers may have the tasks of this worker
//	ping

// Times of the protocol. A worker ends its tasks when its lease ends, which begins with the last line
// that it received. The coordinator waits longer before it assigns them to others, and from a later
// moment: the end of the connection.
const (
	pingEach      = 5 * time.Second  // or a quarter of the lease
	silence       = 20 * time.Second // time without a line after which a connection is lost
	handshakeTime = 5 * time.Second  // limit for the lines of a handshake
	maxLine       = 4 << 10
)

// A wire is a connection whose sides have proved that they know the secret of the run.
type wire struct {
	conn    net.Conn
	in      *bufio.Scanner
	timeout time.Duration // limit for the next line
	each    time.Duration // between pings

	lock sync.Mutex // of out
	out  *bufio.Writer
}

func newWire(c net.Conn, lease time.Duration) *wire {
	w := &wire{conn: c, in: bufio.NewScanner(c), out: bufio.NewWriterSize(c, 64<<10), timeout: handshakeTime, each: min(pingEach, lease/4)}
	w.in.Buffer(make([]byte, 0, maxLine), maxLine)
	return w
}

// proof returns the proof with which a side shows that it knows the secret.
func proof(token, side string, nonces ...string) string {
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprint(h, side, " ", strings.Join(nonces, " "))
	return hex.EncodeToString(h.Sum(nil))
}

var errSecret = errors.New("the peer does not know the secret of the run")

// accept does the handshake with a worker, and returns the arguments of its hello.
func accept(c net.Conn, token string, lease time.Duration) (*wire, []string, error) {
	w, nonce := newWire(c, lease), random(16)
	w.send("%s", nonce)
	f, err := w.next()
	if err != nil {
		return nil, nil, err
	}
	if len(f) < 4 || f[2] != "hello" || !hmac.Equal([]byte(f[1]), []byte(proof(token, "worker", nonce, f[0]))) {
		return nil, nil, errSecret
	}
	w.send("%s", proof(token, "coordinator", f[0], nonce))
	return w, f[3:], nil
}

// dial connects a worker to a coordinator, and does the handshake.
func dial(at, token, hello string, lease time.Duration) (*wire, error) {
	c, err := net.DialTimeout("tcp", at, handshakeTime)
	if err != nil {
		return nil, err
	}
	w, nonce := newWire(c, lease), random(16)
	f, err := w.next()
	if err == nil && len(f) == 1 {
		w.send("%s %s hello %s", nonce, proof(token, "worker", f[0], nonce), hello)
		theirs := f[0]
		if f, err = w.next(); err == nil && (len(f) != 1 || !hmac.Equal([]byte(f[0]), []byte(proof(token, "coordinator", nonce, theirs)))) {
			err = errSecret
		}
	} else if err == nil {
		err = errSecret
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	w.timeout = min(silence, lease)
	return w, nil
}

// send sends a line. After an error, next fails.
func (w *wire) send(format string, a ...any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	fmt.Fprintf(w.out, format+"\n", a...)
	w.flush()
}

// sendAll sends lines that have their line breaks already.
func (w *wire) sendAll(lines []byte) {
	w.lock.Lock()
	defer w.lock.Unlock()
	_, _ = w.out.Write(lines)
	w.flush()
}

func (w *wire) flush() {
	_ = w.conn.SetWriteDeadline(time.Now().Add(silence))
	if w.out.Flush() != nil {
		w.conn.Close()
	}
}

// next returns the fields of the next line.
func (w *wire) next() ([]string, error) {
	_ = w.conn.SetReadDeadline(time.Now().Add(w.timeout))
	if w.in.Scan() {
		if f := strings.Fields(w.in.Text()); len(f) > 0 {
			return f, nil
		}
		return nil, errors.New("the peer sent an empty line")
	}
	if err := w.in.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the connection has ended")
}

// pings sends pings until the connection is closed.
func (w *wire) pings(closed <-chan struct{}) {
	for {
		select {
		case <-closed:
			return
		case <-time.After(w.each):
			w.send("ping")
		}
	}
}

func marshal(v any) ([]byte, error) { return json.Marshal(v) }
