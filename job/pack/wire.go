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
	"os"
	"strings"
	"sync"
	"time"
)

// The wire between the process that hands out and a worker has lines of text. Other users can reach
// the port, and could listen on it after the process has ended. So each side proves first that it
// knows the secret of the run, which it does not send:
//
//	hand ─► NONCE1
//	work ─► NONCE2 PROOF hello RANK SLOTS SUPERVISOR AGE INCARNATION HOST
//	hand ─► PROOF
//
// Then the worker sends
//
//	join                               it uses this connection
//	hold INDEX ATTEMPT                 a task that it runs, after a lost connection
//	ready                              all of those are said
//	start INDEX
//	end INDEX ATTEMPT EXIT SIGNAL ok|problem
//	ping
//
// and the other side
//
//	run FIRST LAST ATTEMPT
//	done                               no task is left
//	stop                               end the tasks that run
//	lost                               the same: the tasks of this worker were given to others
//	ping

// Times of the wire. A worker ends its tasks when it has heard nothing for a lease. The other side counts
// from the end of the connection, which is later, and waits longer before it gives them to others.
const (
	pingEach = 5 * time.Second  // or a quarter of the lease
	silence  = 20 * time.Second // a connection without a line for so long is lost
	greeting = 5 * time.Second  // for the lines of a new connection
	maxLine  = 4 << 10
)

// lease is the time for which workers go on alone, and leaseOver the time after which they have ended
// with their tasks.
// HPCC_PACK_LEASE sets it, such as 2m.
var lease, leaseOver = func() (time.Duration, time.Duration) {
	d, err := time.ParseDuration(os.Getenv("HPCC_PACK_LEASE"))
	if err != nil || d < time.Second {
		d = 30 * time.Second
	}
	return d, d + d/2
}()

// A wire is a connection of which both sides have proved that they know the secret.
type wire struct {
	conn     net.Conn
	in       *bufio.Scanner
	patience time.Duration // with the next line
	each     time.Duration // between pings

	lock sync.Mutex // of out
	out  *bufio.Writer
}

func newWire(c net.Conn) *wire {
	w := &wire{conn: c, in: bufio.NewScanner(c), out: bufio.NewWriterSize(c, 64<<10), patience: greeting, each: min(pingEach, lease/4)}
	w.in.Buffer(make([]byte, 0, maxLine), maxLine)
	return w
}

// proof returns what a side sends to prove that it knows the secret.
func proof(token, side string, nonces ...string) string {
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprint(h, side, " ", strings.Join(nonces, " "))
	return hex.EncodeToString(h.Sum(nil))
}

var errSecret = errors.New("the other side does not know the secret of the run")

// accept greets a worker, and returns the words after its hello.
func accept(c net.Conn, token string) (*wire, []string, error) {
	w, nonce := newWire(c), random(16)
	w.say("%s", nonce)
	f, err := w.next()
	if err != nil {
		return nil, nil, err
	}
	if len(f) < 4 || f[2] != "hello" || !hmac.Equal([]byte(f[1]), []byte(proof(token, "work", nonce, f[0]))) {
		return nil, nil, errSecret
	}
	w.say("%s", proof(token, "hand", f[0], nonce))
	return w, f[3:], nil
}

// greet connects a worker to an address.
func greet(at, token, hello string) (*wire, error) {
	c, err := net.DialTimeout("tcp", at, greeting)
	if err != nil {
		return nil, err
	}
	w, nonce := newWire(c), random(16)
	f, err := w.next()
	if err == nil && len(f) == 1 {
		w.say("%s %s hello %s", nonce, proof(token, "work", f[0], nonce), hello)
		theirs := f[0]
		if f, err = w.next(); err == nil && (len(f) != 1 || !hmac.Equal([]byte(f[0]), []byte(proof(token, "hand", nonce, theirs)))) {
			err = errSecret
		}
	} else if err == nil {
		err = errSecret
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	w.patience = min(silence, lease)
	return w, nil
}

// say sends a line. An error shows when the other side is read.
func (w *wire) say(format string, a ...any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	fmt.Fprintf(w.out, format+"\n", a...)
	w.flush()
}

// sayAll sends lines that already have their line breaks.
func (w *wire) sayAll(lines []byte) {
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

// next returns the words of the next line.
func (w *wire) next() ([]string, error) {
	_ = w.conn.SetReadDeadline(time.Now().Add(w.patience))
	if w.in.Scan() {
		return strings.Fields(w.in.Text()), nil
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
			w.say("ping")
		}
	}
}

func marshal(v any) ([]byte, error) { return json.Marshal(v) }
