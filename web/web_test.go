package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/hostile"
	"hpcc/testdata/helpers/testenv"
)

// short returns limits that detect a silent server quickly. A working server on a busy
// machine can exceed them.
func short() Limits {
	return Limits{Header: 200 * time.Millisecond, Commit: 200 * time.Millisecond, Idle: 200 * time.Millisecond,
		Attempts: 3, Backoff: time.Millisecond}
}

// long returns limits that expire only after a minute of silence.
func long() Limits { return Limits{Attempts: 3, Backoff: time.Millisecond} }

// content returns n incompressible bytes, the body that the test servers send.
func content(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// serve serves b with http.ServeContent. version returns its ETag.
func serve(b []byte, version func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := version(); v != "" {
			w.Header().Set("ETag", v)
		}
		http.ServeContent(w, r, "f", time.Time{}, bytes.NewReader(b))
	})
}

func all(*http.Request) bool { return true }

// trusting returns a context with limits p that trusts the server.
func trusting(t *testing.T, s *hostile.Server, p Limits) context.Context {
	t.Helper()
	ctx := With(t.Context(), p)
	if s.TLS != nil {
		from(ctx).base.TLSClientConfig = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	}
	t.Cleanup(from(ctx).base.CloseIdleConnections)
	return ctx
}

// fetch requests a URL and reads the body: small answers with a Transport, others with Get.
func fetch(ctx context.Context, u string, small bool) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	var resp *http.Response
	if small {
		resp, err = (&http.Client{Transport: Transport{}}).Do(req)
	} else {
		resp, err = Get(nil, req, false)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return b, err
}

// TestFaults tests every fault, with and without TLS, for small answers and resumable
// transfers: as a permanent fault, and with a server that recovers.
func TestFaults(t *testing.T) {
	want := map[hostile.Fault]string{
		hostile.Silent: "no answer within 300ms", hostile.Stall: "the transfer stalled for 300ms", hostile.Trickle: "the transfer stalled for 300ms",
		hostile.Drop: "EOF", hostile.Reset: "EOF", hostile.Busy: "429", hostile.Down: "503",
	}
	for _, secure := range []bool{false, true} {
		for _, small := range []bool{false, true} {
			for _, fault := range hostile.Faults() {
				t.Run(fmt.Sprintf("%s tls=%v small=%v", fault, secure, small), func(t *testing.T) {
					t.Parallel()
					size := 100 << 10 // half of it does not count as progress
					b := content(size)
					s := hostile.Serve(serve(b, func() string { return `"1"` }), secure)
					t.Cleanup(s.Close)
					var mu sync.Mutex
					var notices []string
					p := long()
					if fault == hostile.Silent {
						p.Header = fault.Limit()
					} else {
						p.Idle = fault.Limit()
					}
					p.Notice = func(line string) { mu.Lock(); defer mu.Unlock(); notices = append(notices, line) }
					ctx := trusting(t, s, p)

					s.Set(fault, -1, all)
					begun := time.Now()
					_, err := fetch(ctx, s.URL, small)
					text := want[fault]
					if secure && (fault == hostile.Drop || fault == hostile.Reset) {
						text = "" // HTTP/2 reports another error
					}
					if err == nil || !strings.Contains(err.Error(), text) || time.Since(begun) > 20*time.Second {
						t.Errorf("%v after %v; want %q", err, time.Since(begun), text)
					}
					if faults := s.Set(fault, 2, all); faults != 3 {
						t.Errorf("permanent fault: %d requests; want 3", faults)
					}
					p.Attempts = 20
					got, err := fetch(trusting(t, s, p), s.URL, small)
					if err != nil || !bytes.Equal(got, b) {
						t.Errorf("after the server recovered: %d of %d bytes, %v", len(got), size, err)
					}
					if faults := s.Set("", 0, nil); faults != 2 {
						t.Errorf("the server failed %d times; want 2", faults)
					}
					mu.Lock()
					defer mu.Unlock()
					host := strings.TrimPrefix(strings.TrimPrefix(s.URL, "http://"), "https://")
					line := ", attempt 2 of 3"
					if fault == hostile.Busy {
						line = host + " asks to wait 1s (429), attempt 2 of 3"
					}
					if all := strings.Join(notices, "\n"); !strings.Contains(all, line) || !strings.Contains(all, host) {
						t.Errorf("the notices are %q; want %q", all, line)
					}
				})
			}
		}
	}
}

// TestConnect checks the limits for connecting, with a server that accepts connections but
// does not answer the TLS handshake and with one that does not accept them.
func TestConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	defer l.Close()
	p := long()
	p.TLS = 100 * time.Millisecond
	_, err = fetch(With(t.Context(), p), "https://"+l.Addr().String(), false)
	if err == nil || !strings.Contains(err.Error(), "TLS handshake timeout (gave up after 3 attempts)") {
		t.Errorf("silent TLS: %v", err)
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	gone.Close()
	if _, err = fetch(With(t.Context(), p), "http://"+gone.Addr().String(), false); !errors.Is(err, syscall.ECONNREFUSED) || strings.Contains(err.Error(), "attempts") {
		t.Errorf("no listener: %v; want ECONNREFUSED after one attempt", err)
	}
}

// TestSlow checks that a working transfer may take many times the limits.
func TestSlow(t *testing.T) {
	t.Parallel()
	s := hostile.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 20 {
			_, _ = w.Write(make([]byte, 2*leastBytes))
			w.(http.Flusher).Flush()
			time.Sleep(250 * time.Millisecond)
		}
	}), false)
	defer s.Close()
	p := long()
	p.Idle, p.Attempts = time.Second, 1
	begun := time.Now()
	b, err := fetch(With(t.Context(), p), s.URL, false)
	if err != nil || len(b) != 40*leastBytes || time.Since(begun) < 4*p.Idle {
		t.Errorf("%d bytes in %v: %v", len(b), time.Since(begun), err)
	}
}

// TestReaderPause checks that time in which nobody reads the body does not count against the
// server.
func TestReaderPause(t *testing.T) {
	t.Parallel()
	b := content(8 << 20)
	s := hostile.Serve(serve(b, func() string { return "" }), false)
	defer s.Close()
	p := long()
	p.Idle, p.Attempts = time.Second, 1
	req, _ := http.NewRequestWithContext(With(t.Context(), p), http.MethodGet, s.URL, nil)
	resp, err := Get(nil, req, false)
	testenv.Check(t, err)
	defer resp.Body.Close()
	_, err = io.ReadFull(resp.Body, make([]byte, 10))
	testenv.Check(t, err)
	time.Sleep(2 * p.Idle)
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(b)-10) {
		t.Errorf("%d bytes after a pause of the reader: %v", n, err)
	}
}

// TestResume checks which transfers resume with a range or from the start, and that changed
// content is refused.
func TestResume(t *testing.T) {
	b := content(300 << 10)
	other := content(300 << 10)
	other[7] ^= 1
	for _, c := range []struct {
		name   string
		etag   bool
		pinned bool
		swap   bool // the content changes after the first answer
		want   string
		ranges int
	}{
		{"by ETag", true, false, false, "", 1},
		{"pinned", false, true, false, "", 1},
		{"from the start", false, false, false, "", 0},
		{"changed, by ETag", true, false, true, "the content changed on the server", 1},
		{"changed, from the start", false, false, true, "the content changed on the server", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, ranges := 0, 0
			s := hostile.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				now, etag := b, `"1"`
				if n++; n > 1 && c.swap {
					now, etag = other, `"2"`
				}
				if r.Header.Get("Range") != "" {
					ranges++
				}
				if !c.etag {
					etag = ""
				}
				serve(now, func() string { return etag }).ServeHTTP(w, r)
			}), false)
			defer s.Close()
			s.Set(hostile.Drop, 1, all)
			req, _ := http.NewRequestWithContext(With(t.Context(), long()), http.MethodGet, s.URL, nil)
			resp, err := Get(nil, req, c.pinned)
			testenv.Check(t, err)
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) || (err == nil && sha256.Sum256(got) != sha256.Sum256(b)) {
				t.Errorf("%d bytes, %v; want %q", len(got), err, c.want)
			}
			if ranges != c.ranges {
				t.Errorf("%d requests for a range; want %d", ranges, c.ranges)
			}
		})
	}
}

// TestNoProgress checks that a transfer fails if the server repeatedly sends a few bytes and
// closes the connection.
func TestNoProgress(t *testing.T) {
	b, n := content(300<<10), 0
	s := hostile.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		var off int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &off)
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(b)-off))
		if off > 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", off, len(b)-1, len(b)))
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(b[off : off+10])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}), false)
	defer s.Close()
	if _, err := fetch(With(t.Context(), long()), s.URL, false); err == nil || !strings.Contains(err.Error(), "received 30 of 307200 bytes") || n != 3 {
		t.Errorf("after %d requests: %v", n, err)
	}
}

// TestRetryAfter tests seconds, dates, and pauses that are too long to honour.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-1": 0, "x": 0, "1.5": 0,
		"99999999999999": 100 * 365 * 24 * time.Hour, "Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:03:05 GMT": 0,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("retryAfter(%q) = %v; want %v", in, got, want)
		}
	}
	for _, value := range []string{"3600", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)} {
		n := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			w.Header().Set("Retry-After", value)
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		defer s.Close()
		if _, err := fetch(With(t.Context(), long()), s.URL, false); err == nil || !strings.Contains(err.Error(), "longer than hpcc waits (2m0s): try again later") || n != 1 {
			t.Errorf("Retry-After %s, %d requests: %v", value, n, err)
		}
	}
}

// TestCancel checks that cancelling the context ends every wait immediately.
func TestCancel(t *testing.T) {
	for _, fault := range []hostile.Fault{hostile.Silent, hostile.Stall, hostile.Busy, hostile.Trickle} {
		s := hostile.Serve(serve(content(300<<10), func() string { return "" }), false)
		defer s.Close()
		s.Set(fault, -1, all)
		ctx, cancel := context.WithCancel(With(t.Context(), Limits{Backoff: time.Hour}))
		time.AfterFunc(100*time.Millisecond, cancel)
		begun := time.Now()
		if _, err := fetch(ctx, s.URL, false); !errors.Is(err, context.Canceled) || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %v after %v", fault, err, time.Since(begun))
		}
	}
}

// TestUpload tests a server that stops reading a request's body, and which requests with side
// effects are repeated.
func TestUpload(t *testing.T) {
	for _, c := range []struct {
		method string
		fault  hostile.Fault
		body   int
		want   string
		sent   int // number of requests
	}{
		{http.MethodPut, hostile.Silent, 64 << 20, "the server took no data for 200ms", 3},
		{http.MethodPatch, hostile.Silent, 64 << 20, "the server took no data for 200ms", 1},
		{http.MethodPut, hostile.Silent, 100, "no answer within 200ms", 3},
		{http.MethodPost, hostile.Silent, 100, "no answer within 200ms", 1},
		{http.MethodPost, hostile.Silent, 0, "no answer within 200ms", 3},
		{http.MethodPost, hostile.Busy, 100, "status 429", 3},
		{http.MethodPatch, hostile.Busy, 100, "status 429", 1},
	} {
		s := hostile.Serve(http.NotFoundHandler(), false)
		defer s.Close()
		s.Set(c.fault, -1, all)
		p := long()
		if c.fault == hostile.Silent {
			p = short()
		}
		req, _ := http.NewRequestWithContext(With(t.Context(), p), c.method, s.URL, bytes.NewReader(make([]byte, c.body)))
		resp, err := (&http.Client{Transport: Transport{}}).Do(req)
		if err == nil {
			resp.Body.Close()
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		if sent := s.Set("", 0, nil); sent != c.sent || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %d bytes, %s: %v after %d requests; want %q after %d", c.method, c.body, c.fault, err, sent, c.want, c.sent)
		}
	}
}
