package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StallError reports a server that stopped responding during an exchange.
type StallError struct{ Text string }

func (e *StallError) Error() string { return e.Text }

// Timeout and Temporary make a StallError a [net.Error].
func (e *StallError) Timeout() bool   { return true }
func (e *StallError) Temporary() bool { return true }

// A statusError reports a server that temporarily cannot answer.
type statusError struct {
	Code       int           // of HTTP: 408, 429 or 5xx
	RetryAfter time.Duration // requested pause; 0: not specified
	body       []byte        // its start
}

// Answer returns the status and the start of the body, in which a server may give the reason.
func (e *statusError) Answer() (status int, body []byte) { return e.Code, e.body }

func (e *statusError) Error() string {
	return fmt.Sprintf("the server returned %d %s", e.Code, http.StatusText(e.Code))
}

// busy reports whether a status is temporary.
func busy(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusInsufficientStorage:
		return false
	}
	return code >= 500
}

// maxReason bounds the part of a busy answer that is kept, in bytes.
const maxReason = 8 << 10

// newStatusError returns the error of a busy answer and closes the answer.
func newStatusError(resp *http.Response) *statusError {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason)) // the start of a broken answer is enough
	resp.Body.Close()
	return &statusError{resp.StatusCode, retryAfter(resp.Header.Get("Retry-After"), time.Now()), body}
}

// retryAfter parses Retry-After: seconds or a date (RFC 9110, section 10.2.3). It returns 0
// if it is invalid.
func retryAfter(s string, now time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if sec, err := strconv.ParseInt(s, 10, 64); err == nil {
		const limit = 100 * 365 * 24 * 3600 // larger values would overflow
		return time.Duration(min(max(sec, 0), limit)) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}

// temporary reports whether another attempt may succeed.
func temporary(err error) bool {
	var stall *StallError
	var status *statusError
	var retriable interface{ retriable() bool }
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &stall), errors.As(err, &status):
		return true
	case errors.As(err, &retriable):
		return retriable.retriable()
	case errors.As(err, &dns):
		return !dns.IsNotFound && (dns.IsTimeout || dns.IsTemporary)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ETIMEDOUT),
		errors.Is(err, net.ErrClosed): // the server closed the connection while the body was sent
		return true
	case errors.As(err, &timeout) && timeout.Timeout():
		return true
	}
	// net/http exports no types for these.
	text := err.Error()
	return strings.Contains(text, "http2: ") || strings.Contains(text, "stream error: ") ||
		strings.Contains(text, "server closed idle connection")
}

// reason describes the failure of an attempt. It contains no text from the server.
func reason(err error) string {
	var stall *StallError
	var status *statusError
	var timeout net.Error
	var retriable interface{ retriable() bool }
	switch {
	case errors.As(err, &stall):
		return stall.Error()
	case errors.As(err, &status):
		return status.Error()
	case errors.As(err, &retriable):
		return err.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "the connection timed out"
	}
	return "the connection broke"
}

// Broken is a failure, for example of a program, after which another attempt may succeed.
type Broken struct{ Err error }

func (e *Broken) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *Broken) Unwrap() error   { return e.Err }
func (e *Broken) retriable() bool { return true }

// tries counts the attempts of one transfer.
type tries struct {
	c    *client
	host string // host for notices
	n    int    // failed attempts
}

// maxAttempts returns the maximum number of attempts of a transfer.
func (t *tries) maxAttempts(ctx context.Context) int {
	if n, ok := ctx.Value(attemptsKey{}).(int); ok {
		return min(n, t.c.Attempts)
	}
	return t.c.Attempts
}

// pause waits before the next attempt, or returns the error that ends the transfer: err
// itself, or the context's.
func (t *tries) pause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.n++
	limit := t.maxAttempts(ctx)
	switch {
	case !temporary(err) && !(errors.Is(err, syscall.ECONNREFUSED) && t.c.isKnown(t.host)):
		return err // a host that never answered may not exist; a known one may be restarting
	case limit == 1:
		return err
	case t.n >= limit:
		return fmt.Errorf("%w (gave up after %d attempts)", err, t.n)
	}
	d := jitter(t.c.Backoff << min(t.n-1, 10))
	var status *statusError
	asked := errors.As(err, &status) && status.RetryAfter > 0
	if asked && status.RetryAfter > t.c.MaxWait {
		t.c.notice(fmt.Sprintf("%s asks to wait %v (%d); hpcc waits %v at most: try again later",
			t.host, round(status.RetryAfter), status.Code, t.c.MaxWait))
		return fmt.Errorf("%w and asks to wait %v, longer than hpcc waits (%v): try again later",
			err, round(status.RetryAfter), t.c.MaxWait)
	}
	if asked {
		d = max(d, status.RetryAfter)
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return err
	}
	if asked {
		t.c.notice(fmt.Sprintf("%s asks to wait %v (%d), attempt %d of %d", t.host, round(status.RetryAfter), status.Code, t.n+1, limit))
	} else {
		t.c.notice(fmt.Sprintf("%s: %s, attempt %d of %d", t.host, reason(err), t.n+1, limit))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d
	}
	return d.Round(time.Second)
}

// jitter varies a pause by up to a quarter, so that the tasks of an array do not retry
// simultaneously.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + rand.Float64()/2))
}

// Retry calls do until it succeeds, fails permanently, or reaches the maximum number of
// attempts. Notices name host. The requests that do makes with its context are not repeated
// individually, because Retry counts their failures.
func Retry(ctx context.Context, host string, do func(ctx context.Context) error) error {
	t := tries{c: from(ctx), host: host}
	for {
		err := do(once(ctx))
		if err == nil {
			return nil
		}
		if err := t.pause(ctx, err); err != nil {
			return err
		}
	}
}
