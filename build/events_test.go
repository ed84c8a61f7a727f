package build

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// events builds a Dockerfile from its text and returns the events of the build.
func events(t *testing.T, s *store.Store, text string, o Options) []Event {
	t.Helper()
	var all []Event
	o.Dockerfile, o.Stdin = "-", strings.NewReader(text)
	if o.Context == "" {
		o.Context = t.TempDir()
	}
	o.Progress = func(e Event) {
		e.Output = []byte(string(e.Output)) // valid only until Progress returns
		all = append(all, e)
	}
	if _, err := Dockerfile(context.Background(), s, o); err != nil {
		t.Fatalf("building\n%s\n%v", text, err)
	}
	return all
}

// busyboxContext returns a build context that contains a static busybox.
func busyboxContext(t *testing.T) string {
	t.Helper()
	p, err := testenv.Busybox()
	testenv.Need(t, "a static busybox", err)
	b, err := os.ReadFile(p)
	testenv.Check(t, err)
	return testenv.Files(t, "busybox", string(b))
}

// TestEvents builds stages in parallel. It checks that each step reports its own output,
// duration and saved time.
func TestEvents(t *testing.T) {
	if !inside(t) {
		return
	}
	s := newStore(t)
	o := Options{Context: busyboxContext(t)}
	// No other step takes as long as the sleep, even on a busy machine.
	text := "FROM scratch AS base\nCOPY --chmod=755 busybox /bin/sh\nFROM base AS a\nRUN sleep 6; echo from a; echo >/a\nFROM base AS b\nRUN echo from b\nCOPY --from=a /a /\nFROM b\nENV A=1\n"
	printed := map[int]string{}
	took := map[string]time.Duration{}
	for _, e := range events(t, s, text, o) {
		printed[e.Step] += string(e.Output)
		if e.Done {
			took[fmt.Sprint(e.Stage, " ", e.Step, " ", e.Text)] = e.Took
			if e.Saved != 0 {
				t.Errorf("step %d saved %v in the first build", e.Step, e.Saved)
			}
		}
	}
	if printed[4] != "from a\n" || printed[6] != "from b\n" {
		t.Errorf("steps 4 and 6 print %q and %q; want \"from a\" and \"from b\"", printed[4], printed[6])
	}
	for step, d := range took {
		if slow := strings.Contains(step, "sleep"); slow != (d >= 6*time.Second) {
			t.Errorf("step %q took %v; only the sleep takes 6 s or more, and waiting for a stage does not count", step, d)
		}
	}
	if len(took) != 9 {
		t.Errorf("%d steps ended; want 9: %v", len(took), took)
	}
	for _, e := range events(t, s, text, o) {
		if !e.Done {
			continue
		}
		if !e.Cached {
			t.Errorf("step %q runs again", e.Text)
		}
		if slow := strings.Contains(e.Text, "sleep"); slow != (e.Saved > 5900*time.Millisecond) {
			t.Errorf("step %q saved %v; want more than 5.9 s for the sleep only", e.Text, e.Saved)
		}
	}
}

// TestFailedEvent checks that the failed step is reported as failed, and that the steps that
// are cancelled because of it are not.
func TestFailedEvent(t *testing.T) {
	if !inside(t) {
		return
	}
	var failed []string
	text := "FROM scratch AS a\nCOPY --chmod=755 busybox /bin/sh\nRUN sleep 20\nFROM scratch AS b\nCOPY --chmod=755 busybox /bin/sh\nRUN sleep 0.3; echo oops; exit 3\nFROM a\nCOPY --from=b / /\n"
	_, err := Dockerfile(context.Background(), newStore(t), Options{Context: busyboxContext(t), Dockerfile: "-", Stdin: strings.NewReader(text), Host: Host{Progress: func(e Event) {
		if e.Failed {
			failed = append(failed, fmt.Sprint(e.Step, " ", e.Text))
		}
	}}})
	le, ok := err.(*LineError)
	if !ok || le.Line != 6 || le.End != 6 || string(le.Source) != text || string(le.Log) != "oops\n" {
		t.Errorf("building: %#v; want a LineError of line 6 with the output oops", err)
	}
	if got := strings.Join(failed, ","); got != "6 RUN sleep 0.3; echo oops; exit 3" {
		t.Errorf("the failed steps are %q; want step 6 only", got)
	}
}

// TestFetchedEvents checks that events report the bytes of a download, including the last
// ones, and that their number is limited.
func TestFetchedEvents(t *testing.T) {
	if !inside(t) {
		return
	}
	const size = 300_000
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		_, _ = w.Write(make([]byte, size))
	}))
	defer server.Close()
	for _, c := range []struct {
		path string
		size int64
	}{{"/known", size}, {"/unknown", 0}} {
		var last Event
		n := 0
		for _, e := range events(t, newStore(t), "FROM scratch\nADD "+server.URL+c.path+" /f\n", Options{}) {
			if e.Fetched > 0 {
				last, n = e, n+1
			}
		}
		if last.Step != 2 || last.Size != c.size || n == 0 || n > 20 || (c.size > 0 && last.Fetched != size) {
			t.Errorf("ADD %s reports bytes %d times, the last time %d of %d in step %d", c.path, n, last.Fetched, last.Size, last.Step)
		}
	}
}

// TestPulledBase checks that FROM is a cached step only if its image is in the store.
// Variables are checked against the image in both cases.
func TestPulledBase(t *testing.T) {
	if !inside(t) {
		return
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	img, err := random.Image(200_000, 2)
	if err == nil {
		img, err = mutate.Config(img, v1.Config{Env: []string{"OF_BASE=1"}})
	}
	testenv.Check(t, err)
	ref, err := name.ParseReference(host+"/base:1", name.Insecure)
	if err == nil {
		err = remote.Write(ref, img)
	}
	testenv.Check(t, err)
	s := newStore(t)
	for _, cached := range []bool{false, true} {
		var fetched, size int64
		var warnings string
		for _, e := range events(t, s, "FROM "+host+"/base:1\nENV A=$OF_BASE B=$NOBODYS C=$OF_BSE\n", Options{Host: Host{PlainHTTP: true}}) {
			_, w, _ := strings.Cut(e.Warning, "):")
			warnings += w
			if e.Fetched > 0 {
				fetched, size = e.Fetched, e.Size
			}
			if e.Done && e.Step == 1 && e.Cached != cached {
				t.Errorf("FROM is reported as cached: %v; want %v", e.Cached, cached)
			}
		}
		if (cached && fetched > 0) || (!cached && (fetched < 400_000 || fetched != size)) {
			t.Errorf("cached %v: events report %d of %d bytes", cached, fetched, size)
		}
		// The variables of the base are known only after the pull.
		if want := "2: UndefinedVar: Usage of undefined variable '$NOBODYS'" + "2: UndefinedVar: Usage of undefined variable '$OF_BSE' (did you mean $OF_BASE?)"; warnings != want {
			t.Errorf("cached %v: warnings are %q; want %q", cached, warnings, want)
		}
	}
}

// TestFailedPart checks that a failed part of a conda build ends like a failed step.
func TestFailedPart(t *testing.T) {
	var events []Event
	parts := &reporter{total: 1, progress: func(e Event) { events = append(events, e) }}
	if err := parts.do(t.Context(), "resolve", func() error { return io.EOF }); err == nil {
		t.Error("do: no error")
	}
	if len(events) != 2 || events[0].Done || !events[1].Done || !events[1].Failed || events[1].Text != "resolve" {
		t.Errorf("reported %+v; want a start and a failed end", events)
	}
}
