package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hpcc/job/tunnel"
	"hpcc/store/wait"
)

// A kubeAPI reads from the server through "kubectl proxy" on a socket that nobody else may open: all logins that
// kubectl has, and many requests for the price of one process.
type kubeAPI struct {
	namespace string
	client    *http.Client
	dir       string
	proxy     *exec.Cmd
}

// maxAnswer bounds an answer of the server that is kept in memory, in bytes.
const maxAnswer = 256 << 20

// open starts the proxy.
func (k kubernetes) open(ctx context.Context) (*kubeAPI, error) {
	dir, err := os.MkdirTemp("", "hpcc-kube-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	w := kubeWords(ctx, k.target, "proxy", "--unix-socket="+socket)
	a := &kubeAPI{namespace: kubeNamespace(ctx), dir: dir, proxy: command(ctx, "/", w[0], w[1:]...)}
	said := &tunnel.Tail{}
	a.proxy.Stderr = said
	a.proxy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	a.client = &http.Client{Transport: wait.Transport{Base: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: logsAtOnce,
	}}}
	if err := a.proxy.Start(); err != nil {
		os.RemoveAll(dir)
		if errors.Is(err, exec.ErrNotFound) {
			err = &kubeError{0, kubeMissing(w[0])}
		}
		return nil, err
	}
	late := time.After(patience)
	ended := make(chan error, 1)
	go func() { ended <- a.proxy.Wait() }()
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
			return nil, fmt.Errorf("starting %s: %w", strings.Join(w[:len(w)-1], " "), &kubeError{0, kubeWordsError([]byte(said.String()), err)})
		case <-ctx.Done():
			a.close()
			return nil, ctx.Err()
		case <-late:
			a.close()
			return nil, fmt.Errorf("starting %s: it does not listen after %v", strings.Join(w[:len(w)-1], " "), patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// kubeNamespace is the one of the context's cluster.
func kubeNamespace(ctx context.Context) string {
	if n := getenv(ctx, KubeNamespace); n != "" {
		return n
	}
	return "default"
}

func (a *kubeAPI) close() {
	_ = a.proxy.Process.Kill()
	a.client.CloseIdleConnections()
	os.RemoveAll(a.dir)
}

// place is the path of a resource of the namespace.
func (a *kubeAPI) place(resource string) string { return "namespaces/" + a.namespace + "/" + resource }

// stream asks for a path; what is not a success is an error in the server's words.
func (a *kubeAPI) stream(ctx context.Context, path string) (io.ReadCloser, error) {
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
	var status struct{ Message string }
	if json.Unmarshal(b, &status) == nil && status.Message != "" {
		b = []byte(status.Message)
	}
	return nil, &kubeError{res.StatusCode, kubeWordsError(b, errors.New(res.Status))}
}

// A kubeError is what the server refused, or its command before it.
type kubeError struct {
	code int // of HTTP; 0: the command's
	error
}

func (a *kubeAPI) get(ctx context.Context, path string, into any) error {
	body, err := a.stream(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(into)
}
