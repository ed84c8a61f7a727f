package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/tunnel"
	"hpcc/web"
)

// A Proxy sends requests to the server through "kubectl proxy" on a private socket. It supports all
// of kubectl's login methods, and serves many requests with one process.
type Proxy struct {
	namespace string
	client    *http.Client
	dir       string
	cmd       *exec.Cmd
}

// maxAnswer bounds an answer of the server that is held in memory, in bytes.
const maxAnswer = 256 << 20

// Open starts a proxy, and returns when it listens. The caller must close it.
func (k System) Open(ctx context.Context) (*Proxy, error) {
	dir, err := os.MkdirTemp("", "hpcc-kube-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	w := Argv(ctx, k.Target, "proxy", "--unix-socket="+socket)
	a := &Proxy{namespace: Namespace(ctx), dir: dir, cmd: invoke.Command(ctx, "/", w[0], w[1:]...)}
	stderr := &tunnel.Tail{}
	a.cmd.Stderr = stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	a.client = &http.Client{Transport: web.Transport{Base: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: MaxConcurrentLogs,
	}}}
	if err := a.cmd.Start(); err != nil {
		os.RemoveAll(dir)
		if errors.Is(err, exec.ErrNotFound) {
			err = &Error{0, missing(w[0])}
		}
		return nil, err
	}
	late := time.After(invoke.LongTimeout)
	ended := make(chan error, 1)
	go func() { ended <- a.cmd.Wait() }()
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			return a, c.Close()
		}
		select {
		case err := <-ended:
			os.RemoveAll(dir)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("starting %s: %w", strings.Join(w[:len(w)-1], " "), &Error{0, readError([]byte(stderr.String()), err)})
		case <-ctx.Done():
			a.Close()
			return nil, ctx.Err()
		case <-late:
			a.Close()
			return nil, fmt.Errorf("starting %s: it did not listen on its socket within %v",
				strings.Join(w[:len(w)-1], " "), invoke.LongTimeout)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Namespace returns the namespace of the context's cluster, by default "default".
func Namespace(ctx context.Context) string {
	if n := invoke.Getenv(ctx, NamespaceVariable); n != "" {
		return n
	}
	return "default"
}

// Close ends the proxy and removes its socket.
func (a *Proxy) Close() {
	_ = a.cmd.Process.Kill()
	a.client.CloseIdleConnections()
	os.RemoveAll(a.dir)
}

// Path returns the part of an API path that names a resource in the namespace.
func (a *Proxy) Path(resource string) string { return "namespaces/" + a.namespace + "/" + resource }

// stream requests a path. An unsuccessful answer is an error with the server's message.
func (a *Proxy) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return nil, refusal(res.StatusCode, res.Status, b)
}

// An Error is a refusal by the server, or a failure of kubectl or oc.
type Error struct {
	Code int // HTTP status; 0: the command failed
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

func (a *Proxy) get(ctx context.Context, path string, into any) error {
	body, err := a.stream(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(into)
}

// TerminationMessage sets the images and termination messages of the attempts of a workflow. want
// holds the attempts by the name of their pod.
func (a *Proxy) TerminationMessage(ctx context.Context, id string, want map[string][]*batch.Attempt) error {
	pods, err := listOf[podState](ctx, a, "/api/v1/"+a.Path("pods"), "labelSelector="+url.QueryEscape(jobLabel+"="+id))
	for i := range pods {
		for _, t := range want[pods[i].Metadata.Name] {
			setOutcome(t, &pods[i])
		}
	}
	return err
}

// Pulls sets how long the image pulls of attempts took, from the cluster's events. want holds the
// attempts by the name of their pod.
func (a *Proxy) Pulls(ctx context.Context, want map[string][]*batch.Attempt) {
	for pod, d := range a.pullTimes(ctx) {
		for _, t := range want[pod] {
			t.Pulled = d
		}
	}
}

// pullTimes returns how long image pulls took, by the name of the pod. The cluster keeps events for an
// hour, and not every user may read them.
func (a *Proxy) pullTimes(ctx context.Context) map[string]time.Duration {
	type event struct {
		InvolvedObject struct{ Name, FieldPath string }
		Message        string
	}
	times := map[string]time.Duration{}
	events, err := listOf[event](ctx, a, "/api/v1/"+a.Path("events"),
		"fieldSelector="+url.QueryEscape("reason=Pulled,involvedObject.kind=Pod"))
	if err != nil {
		return times
	}
	for _, e := range events {
		if e.InvolvedObject.FieldPath == "spec.containers{"+MainContainer+"}" {
			times[e.InvolvedObject.Name] = pullTime(e.Message)
		}
	}
	return times
}

// pullTime parses an event of the kubelet, 'Successfully pulled image "x" in 1.2s (3.4s including
// waiting)', and returns the time including waiting; 0 if nothing was pulled.
func pullTime(message string) time.Duration {
	_, rest, ok := strings.Cut(message, `" in `)
	if !ok || !strings.HasPrefix(message, "Successfully pulled image ") {
		return 0
	}
	alone, waiting, _ := strings.Cut(rest, " (")
	if all, _, ok := strings.Cut(waiting, " including waiting"); ok {
		alone = all
	}
	alone, _, _ = strings.Cut(alone, " ")
	d, err := time.ParseDuration(strings.TrimSuffix(alone, "."))
	if err != nil || d < 0 || d > 24*time.Hour {
		return 0
	}
	return d
}
