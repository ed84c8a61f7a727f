// Package web sends HTTP requests. Every wait has a limit but those of [Forever], and what fails for a
// moment is sent again.
//
// The context holds the limits ([With]), so that every transfer of a command obeys them and
// reports its pauses to the same function. It is one of the foundations, which every package may
// import.
package web

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"
)

// Limits holds the time limits and the number of attempts for a server. Zero fields mean
// the values of Within(0). The total time of a transfer is not limited: a slow one continues
// as long as bytes arrive.
type Limits struct {
	Connect time.Duration // to look up a name and connect
	TLS     time.Duration // for the TLS handshake
	Header  time.Duration // until an answer starts
	Commit  time.Duration // until an answer starts if the request stored data
	Idle    time.Duration // time in which a transfer must move at least 1 KiB

	Attempts int           // maximum number of attempts
	Backoff  time.Duration // pause before the second attempt; each further pause doubles
	MaxWait  time.Duration // longest Retry-After that is honoured

	// Notice receives a line for the user before each pause; nil drops it. Calls do not
	// overlap.
	Notice func(line string)
}

// Within returns the limits for a server that may be silent for d. 0 means hpcc's default.
func Within(d time.Duration) Limits {
	p := Limits{
		Connect: 30 * time.Second, TLS: 15 * time.Second, Header: time.Minute, Commit: 2 * time.Minute, Idle: time.Minute,
		Attempts: 5, Backoff: time.Second, MaxWait: 2 * time.Minute,
	}
	if d > 0 {
		p.Connect, p.TLS = min(p.Connect, d), min(p.TLS, d)
		p.Header, p.Idle, p.Commit = d, d, 2*d
	}
	return p
}

// leastBytes is the number of bytes that a transfer must move within Limits.Idle, so that
// a server that sends single bytes cannot hold it forever.
const leastBytes = 1 << 10

// progress is the number of bytes after which a resumed transfer counts as working and its
// attempt counter is reset.
const progress = 64 << 10

// A client applies limits. All its requests share connections.
type client struct {
	Limits
	base *http.Transport

	mu      sync.Mutex
	noticed map[string]time.Time // last time of each notice
	known   map[string]bool      // hosts that answered before
}

func newClient(p Limits) *client {
	d := Within(0)
	c := &client{Limits: Limits{
		Connect: orDefault(p.Connect, d.Connect), TLS: orDefault(p.TLS, d.TLS), Header: orDefault(p.Header, d.Header),
		Commit: orDefault(p.Commit, d.Commit), Idle: orDefault(p.Idle, d.Idle), Attempts: cmp.Or(p.Attempts, d.Attempts),
		Backoff: orDefault(p.Backoff, d.Backoff), MaxWait: orDefault(p.MaxWait, d.MaxWait), Notice: p.Notice,
	}, noticed: map[string]time.Time{}, known: map[string]bool{}}
	c.base = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: c.Connect, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   c.TLS,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          100,
		MaxIdleConnsPerHost:   50,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		OnProxyConnectResponse: func(_ context.Context, proxy *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("the proxy %s returned %d %s", proxy.Host, resp.StatusCode, http.StatusText(resp.StatusCode))
			}
			return nil
		},
		// Otherwise a connection with several streams can die undetected.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
	return c
}

func orDefault(d, standard time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return standard
}

// Context keys of the package.
type (
	clientKey   struct{}
	onceKey     struct{}
	foreverKey  struct{}
	attemptsKey struct{}
)

// With returns a context whose transfers have the limits p.
func With(ctx context.Context, p Limits) context.Context {
	return context.WithValue(ctx, clientKey{}, newClient(p))
}

// timeoutVariable is the environment variable with the timeout for a silent server.
const timeoutVariable = "HPCC_HTTP_TIMEOUT"

// FromEnvironment returns a context with the limits of the variable HPCC_HTTP_TIMEOUT, a duration or a
// number of seconds. notice is [Limits.Notice]. If the value is invalid, it returns an error as well,
// and the limits are hpcc's default.
func FromEnvironment(ctx context.Context, notice func(line string)) (context.Context, error) {
	p, err := Within(0), error(nil)
	if value := os.Getenv(timeoutVariable); value != "" {
		var d time.Duration
		if d, err = parseTimeout(value); err != nil {
			err = fmt.Errorf("%s: %w; using %v", timeoutVariable, err, p.Header)
		} else {
			p = Within(d)
		}
	}
	p.Notice = notice
	return With(ctx, p), err
}

// parseTimeout parses a duration. A number without a unit is in seconds.
func parseTimeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if n, nerr := strconv.Atoi(value); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < time.Second || d > 24*time.Hour {
		return 0, fmt.Errorf("%q is not a duration between 1s and 24h (for example 90s or 5m)", value)
	}
	return d, nil
}

// defaultClient serves contexts without limits.
var defaultClient = sync.OnceValue(func() *client { return newClient(Limits{}) })

func from(ctx context.Context) *client {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return c
	}
	return defaultClient()
}

// LimitsOf returns the limits of a context.
func LimitsOf(ctx context.Context) Limits { return from(ctx).Limits }

// Forever returns a context in which a started answer may pause without limit, such
// as a followed log.
func Forever(ctx context.Context) context.Context { return context.WithValue(ctx, foreverKey{}, true) }

// once returns a context in which each request is sent only once.
func once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

// Attempts returns a context in which a transfer has at most n attempts, for content with
// alternative sources.
func Attempts(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, attemptsKey{}, n)
}

func isOnce(ctx context.Context) bool    { return ctx.Value(onceKey{}) != nil }
func isForever(ctx context.Context) bool { return ctx.Value(foreverKey{}) != nil }

// noticeInterval is the minimum interval between equal notices, because parallel transfers
// from one server wait for the same reason.
const noticeInterval = 5 * time.Second

// Notice informs the user why a command waits.
func Notice(ctx context.Context, format string, a ...any) {
	from(ctx).notice(fmt.Sprintf(format, a...))
}

func (c *client) notice(line string) {
	if c.Notice == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.noticed[line]; ok && time.Since(last) < noticeInterval {
		return
	}
	c.noticed[line] = time.Now()
	c.Notice(line)
}

// know records that a host has answered.
func (c *client) know(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[host] = true
}

func (c *client) isKnown(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[host]
}
