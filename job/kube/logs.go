package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"sync"

	"hpcc/job"
	"hpcc/store/wait"
)

// A LogSource reads what the programs of pods write.
type LogSource interface {
	Log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error)
	Close()
}

// LogsAtOnce is how many logs are fetched at the same time.
const LogsAtOnce = 8

// Log opens what a pod's program wrote; with follow it goes on until that ends.
func (a *Proxy) Log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	if follow {
		ctx = wait.Forever(ctx)
	}
	return a.stream(ctx, fmt.Sprintf("/api/v1/%s/%s/log?container=%s&follow=%t", a.Place("pods"), url.PathEscape(pod), MainContainer, follow))
}

// noLog says of an error that there is no log and will be none: that of a pod that went away, or, of a task that
// has ended, of a container that never began, as when the time limit was over before.
func noLog(err error, t *job.Task) bool {
	refused := new(Error)
	return errors.As(err, &refused) && (refused.Code == http.StatusNotFound || (refused.Code == http.StatusBadRequest && t.Ended()))
}

// lostLog is what a node says in the place of a log, and as a success, when the container or its file has
// been taken away and the pod not yet: it has begun its answer before it looks (GetKubeletContainerLogs of
// Kubernetes 1.34, ReadLogs of k8s.io/cri-client 0.34).
var lostLog = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(unable to retrieve container logs for [a-z0-9.-]+://[0-9a-f]+|` +
		`failed to (try resolving symlinks in path|open log file) "/var/log/pods/[^"\n]+": [^\n]+)\n?$`)
})

// copyLog writes a log; one that the node has no more is an error like that of a pod that is gone.
func copyLog(w io.Writer, log io.Reader) error {
	begin := make([]byte, 4<<10)
	n, err := io.ReadAtLeast(log, begin, 1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && lostLog().Match(begin[:n]) {
		err = &Error{http.StatusNotFound, errors.New("its node has taken the log away")}
	}
	if err == nil {
		_, err = w.Write(begin[:n])
	}
	if err == nil {
		_, err = io.Copy(w, log)
	}
	return err
}
