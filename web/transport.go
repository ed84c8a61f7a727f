package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// smallAnswer bounds, in bytes, the part of an answer that [Transport] reads within an
// attempt, so that a truncated manifest or token is requested again.
const smallAnswer = 4 << 20

// A Transport sends requests within the limits of their contexts. It repeats requests that
// are idempotent, and those that the server temporarily refused. Small answers are complete
// when RoundTrip returns; larger ones can still stall or break, see [Get].
type Transport struct {
	Base *http.Transport // nil: shared connections
}

// RoundTrip implements [http.RoundTripper].
func (tr Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	c := from(ctx)
	if isOnce(ctx) {
		resp, err := c.attempt(tr.Base, req)
		if err == nil && busy(resp.StatusCode) {
			return nil, newStatusError(resp)
		}
		return resp, err
	}
	t := tries{c: c, host: req.URL.Host}
	for {
		resp, err := c.attempt(tr.Base, req)
		if err == nil && req.Method == http.MethodGet && !isForever(ctx) {
			err = readSmall(resp)
		}
		failure := err
		if err == nil {
			if !busy(resp.StatusCode) {
				return resp, nil
			}
			failure = &statusError{resp.StatusCode, retryAfter(resp.Header.Get("Retry-After"), time.Now()), nil}
		}
		if !repeatable(req, failure) {
			return resp, err
		}
		if perr := t.pause(ctx, failure); perr != nil {
			switch {
			case ctx.Err() == nil && err == nil:
				return resp, nil // its body explains more than the status
			case err == nil:
				resp.Body.Close()
			}
			return nil, perr
		}
		if err == nil {
			resp.Body.Close()
		}
		if req.GetBody != nil {
			repeated := *req
			if repeated.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
			req = &repeated
		}
	}
}

// repeatable reports whether a request may be sent again after a failure.
func repeatable(req *http.Request, failure error) bool {
	noBody := req.Body == nil || req.Body == http.NoBody
	if !noBody && req.GetBody == nil {
		return false
	}
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions:
		return true
	case http.MethodPost:
		var s *statusError
		refused := errors.As(failure, &s) && (s.Code == http.StatusTooManyRequests || s.Code == http.StatusServiceUnavailable)
		return noBody || refused
	}
	return false
}

// readSmall reads the start of an answer into memory: all of it, if it is small.
func readSmall(resp *http.Response) error {
	if resp.ContentLength > smallAnswer {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, smallAnswer))
	if err != nil {
		resp.Body.Close()
		return err
	}
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), rest), rest}
	return nil
}

// attempt sends a request once and watches its progress.
func (c *client) attempt(base *http.Transport, req *http.Request) (*http.Response, error) {
	if base == nil {
		base = c.base
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{cancel: cancel}
	limit := c.Header
	if (req.Body != nil && req.Body != http.NoBody) || req.Method == http.MethodPut {
		limit = c.Commit
	}
	header := &StallError{Text: fmt.Sprintf("no answer within %v", limit)}
	// Connecting has its own limits.
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { w.start(limit, header) },
		WroteRequest: func(httptrace.WroteRequestInfo) { w.start(limit, header) },
	})
	traced := req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		stalled := &StallError{Text: fmt.Sprintf("the server took no data for %v", c.Idle)}
		traced.Body = &sending{req.Body, func() { w.start(c.Idle, stalled) }, w}
	}
	resp, err := base.RoundTrip(traced)
	w.answered()
	if err != nil {
		err = stallOf(ctx, err)
		cancel(nil)
		c.dropDead(base, err)
		return nil, err
	}
	c.know(req.URL.Host)
	idle := c.Idle
	if isForever(ctx) {
		idle = 0
	}
	resp.Body = &receiving{ReadCloser: resp.Body, c: c, base: base, ctx: ctx, cancel: cancel, idle: idle}
	return resp, nil
}

// dropDead closes the idle connections after a stall, so that the next attempt gets a new
// connection.
func (c *client) dropDead(base *http.Transport, err error) {
	var stall *StallError
	if errors.As(err, &stall) {
		base.CloseIdleConnections()
	}
}

// stallOf returns the reason for which a watch ended a request, or err.
func stallOf(ctx context.Context, err error) error {
	var stall *StallError
	if errors.As(context.Cause(ctx), &stall) {
		return stall
	}
	return err
}

// A watch cancels a request that waits too long.
type watch struct {
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	done  bool // the answer has started
}

// start cancels the request with the cause why after d. It replaces an earlier limit.
func (w *watch) start(d time.Duration, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
	if !w.done {
		w.timer = time.AfterFunc(d, func() { w.cancel(why) })
	}
}

func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// pause stops the timer while hpcc prepares data.
func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
}

func (w *watch) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
	w.done = true
}

// sending is a request's body. The time between two reads counts against the server.
type sending struct {
	io.ReadCloser
	sent func() // restarts the timer
	w    *watch
}

func (s *sending) Read(p []byte) (int, error) {
	s.w.pause()
	n, err := s.ReadCloser.Read(p)
	s.sent()
	return n, err
}

// receiving is an answer's body. It fails with a [StallError] if fewer than leastBytes
// arrive within idle; 0 means no limit. Time without a pending read does not count.
type receiving struct {
	io.ReadCloser
	c      *client
	base   *http.Transport
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   time.Duration

	timer  *time.Timer
	waited time.Duration
	got    int
}

func (r *receiving) Read(p []byte) (int, error) {
	if r.idle == 0 || len(p) == 0 {
		return r.ReadCloser.Read(p)
	}
	left := max(r.idle-r.waited, time.Millisecond)
	if r.timer == nil {
		why := &StallError{Text: fmt.Sprintf("the transfer stalled for %v", r.idle)}
		r.timer = time.AfterFunc(left, func() { r.cancel(why) })
	} else {
		r.timer.Reset(left)
	}
	begun := time.Now()
	n, err := r.ReadCloser.Read(p)
	r.timer.Stop()
	r.waited += time.Since(begun)
	if r.got += n; r.got >= leastBytes {
		r.got, r.waited = 0, 0
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = stallOf(r.ctx, err)
		r.c.dropDead(r.base, err)
	}
	return n, err
}

func (r *receiving) Close() error {
	if r.timer != nil {
		r.timer.Stop()
	}
	err := r.ReadCloser.Close()
	r.cancel(nil)
	return err
}
