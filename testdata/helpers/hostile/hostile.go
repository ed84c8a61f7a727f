// Package hostile provides an HTTP server for tests that misbehaves as real servers do.
package hostile

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"
)

// A Fault is a kind of misbehaviour.
type Fault string

// The faults. A fault in the middle of a body happens in the request's body if there is
// one, or else in the response's.
const (
	Silent  Fault = "silent"  // accepts the request and never responds
	Stall   Fault = "stall"   // stops in the middle of the body
	Drop    Fault = "drop"    // closes the connection in the middle of the body
	Reset   Fault = "reset"   // closes the connection instead of responding
	Busy    Fault = "busy"    // returns 429 and asks to wait a second
	Down    Fault = "down"    // returns 503
	Trickle Fault = "trickle" // sends a byte every ten milliseconds, for ever
)

// Faults returns all faults.
func Faults() []Fault { return []Fault{Silent, Stall, Drop, Reset, Busy, Down, Trickle} }

// Limit returns the idle limit that a client should use for a server with the fault. It is
// short for faults that only a timeout detects. Otherwise it is 0, the client's default,
// which a busy machine does not exceed.
func (f Fault) Limit() time.Duration {
	switch f {
	case Silent, Stall, Trickle:
		return 300 * time.Millisecond
	}
	return 0
}

// A Server misbehaves for some requests and passes the others to a handler.
type Server struct {
	*httptest.Server
	next http.Handler
	done chan struct{} // closed when the server ends

	mu    sync.Mutex
	fault Fault
	match func(*http.Request) bool
	left  int
	count int
}

// Serve starts a server, with TLS or without.
func Serve(next http.Handler, tls bool) *Server {
	h := &Server{next: next, done: make(chan struct{})}
	h.Server = httptest.NewUnstartedServer(h)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	if tls {
		h.EnableHTTP2 = true
		h.StartTLS()
	} else {
		h.Start()
	}
	return h
}

// Close ends the server and all waiting requests.
func (h *Server) Close() {
	close(h.done)
	h.CloseClientConnections()
	h.Server.Close()
}

// Set applies a fault to the next n requests that match, or to all if n < 0. It returns
// the number of requests that the previous fault was applied to.
func (h *Server) Set(fault Fault, n int, match func(*http.Request) bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := h.count
	h.fault, h.left, h.match, h.count = fault, n, match, 0
	return count
}

// met returns the fault for a request, or "".
func (h *Server) met(r *http.Request) Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left == 0 || h.match == nil || !h.match(r) {
		return ""
	}
	h.left--
	h.count++
	return h.fault
}

// ServeHTTP implements [http.Handler].
func (h *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := h.met(r)
	hang := func() {
		select { // the context of a request does not end while its body is unread
		case <-r.Context().Done():
		case <-h.done:
		}
	}
	switch fault {
	case "":
		h.next.ServeHTTP(w, r)
		return
	case Busy:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	case Down:
		http.Error(w, "starting", http.StatusServiceUnavailable)
		return
	case Reset:
		panic(http.ErrAbortHandler)
	case Silent:
		hang()
		return
	}
	if r.ContentLength > 1 {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		if fault != Drop {
			hang()
		}
		panic(http.ErrAbortHandler)
	}
	rec := httptest.NewRecorder()
	h.next.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(max(2, len(body))))
	w.WriteHeader(rec.Code)
	half := body[:len(body)/2]
	if fault == Trickle {
		half = nil
	}
	_, _ = w.Write(half)
	w.(http.Flusher).Flush()
	switch fault {
	case Drop:
		panic(http.ErrAbortHandler)
	case Trickle:
		for i := range body[:max(0, len(body)-1)] {
			select {
			case <-h.done:
				return
			case <-r.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
				_, _ = w.Write(body[i : i+1])
				w.(http.Flusher).Flush()
			}
		}
	}
	hang()
}
