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

// A LogSource reads the output of the programs in pods.
type LogSource interface {
	Log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error)
	Close()
}

// MaxConcurrentLogs is the number of logs that are fetched concurrently.
const MaxConcurrentLogs = 8

// Log opens the output of a pod's program; with follow it continues until the program ends.
func (a *Proxy) Log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	if follow {
		ctx = wait.Forever(ctx)
	}
	return a.stream(ctx, fmt.Sprintf("/api/v1/%s/%s/log?container=%s&follow=%t", a.Path("pods"), url.PathEscape(pod), MainContainer, follow))
}

// noLog reports whether an error means that a log will never be available: the pod is gone, or the task
// ended before its container started, for example at its time limit.
func noLog(err error, t *job.Task) bool {
	refused := new(Error)
	return errors.As(err, &refused) && (refused.Code == http.StatusNotFound || (refused.Code == http.StatusBadRequest && t.Ended()))
}

// lostLog matches the text that a node returns instead of a log, with status 200, after it removed the
// container or its file and before the pod is gone. The node starts the answer before it opens the log
// (GetKubeletContainerLogs of Kubernetes 1.34, ReadLogs of k8s.io/cri-client 0.34).
var lostLog = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(unable to retrieve container logs for [a-z0-9.-]+://[0-9a-f]+|` +
		`failed to (try resolving symlinks in path|open log file) "/var/log/pods/[^"\n]+": [^\n]+)\n?$`)
})

// copyLog copies a log. If the node has lost the log, it returns the same error as for a deleted pod.
func copyLog(w io.Writer, log io.Reader) error {
	begin := make([]byte, 4<<10)
	n, err := io.ReadAtLeast(log, begin, 1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && lostLog().Match(begin[:n]) {
		err = &Error{http.StatusNotFound, errors.New("the node has removed the log")}
	}
	if err == nil {
		_, err = w.Write(begin[:n])
	}
	if err == nil {
		_, err = io.Copy(w, log)
	}
	return err
}
