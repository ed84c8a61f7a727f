package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/web"
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
		ctx = web.Forever(ctx)
	}
	return a.stream(ctx, fmt.Sprintf("/api/v1/%s/%s/log?container=%s&follow=%t", a.Path("pods"),
		url.PathEscape(pod), MainContainer, follow))
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

// A watch is one stream of the server, which reports changes of the objects that a selector matches. It
// replaces requests that ask again and again:
//
//	list (version) ─► stream of changes ─► closed: stream from the last version
//	                                    └► 410 Gone: list again
//
// The number of streams does not depend on the number of tasks.

// Watch reports changes of a job; see [batch.Keeper].
func (k System) Watch(ctx context.Context, s *batch.Submitted) <-chan struct{} {
	if len(s.Only) == 0 { // the status of the Job counts its pods
		return k.WatchObjects(ctx, "/apis/batch/v1/", "jobs", jobsSelector(s.Natives))
	}
	labels := jobLabel + " in (" + strings.Join(s.Natives, ",") + ")"
	if list := positionsOf(s); len(list) > 0 {
		labels += "," + indexLabel + " in (" + strings.Join(list, ",") + ")"
	}
	return k.WatchObjects(ctx, "/api/v1/", "pods", "labelSelector="+url.QueryEscape(labels))
}

// positionsOf returns the positions of the tasks s.Only in the Jobs that have them; none if the job is not
// an array.
func positionsOf(s *batch.Submitted) (list []string) {
	for _, array := range s.Arrays {
		position := 0
		for k := range array.All() {
			if slices.Contains(s.Only, k) {
				list = append(list, strconv.Itoa(position))
			}
			position++
		}
	}
	return list
}

// WatchObjects returns a channel that gets a value when an object of the namespace has changed that query
// selects, or may have changed. The channel closes when ctx has ended, or when the server refuses the watch.
func (k System) WatchObjects(ctx context.Context, api, resource, query string) <-chan struct{} {
	w := &watch{query: query, changed: make(chan struct{}, 1)}
	go func() {
		defer close(w.changed)
		p, err := k.Open(ctx)
		if err != nil {
			return
		}
		defer p.Close()
		w.api, w.path = p, api+p.Path(resource)
		w.run(ctx)
	}()
	return w.changed
}

// Limits of a watch.
const (
	watchTime        = 4 * time.Minute  // of one stream; a proxy may drop longer ones without a sign
	watchGrace       = 30 * time.Second // after watchTime, for the server to close the stream
	maxWatchFailures = 5                // streams in a row that report nothing
)

// watch watches objects of one kind.
type watch struct {
	api         *Proxy
	path, query string
	version     string // of the objects, after the last report; "": unknown
	changed     chan struct{}
}

// run watches until ctx ends, the server refuses, or several streams in a row report nothing.
func (w *watch) run(ctx context.Context) {
	for failures := 0; failures < maxWatchFailures; failures++ {
		begun, before := time.Now(), w.version
		err := w.stream(ctx)
		if refused := new(Error); errors.As(err, &refused) {
			if refused.Code != http.StatusGone && refused.Code/100 == 4 && refused.Code != http.StatusTooManyRequests {
				return
			}
			w.version = ""
		}
		if (w.version != before && w.version != "") || time.Since(begun) > watchGrace {
			failures = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(batch.Poll << failures):
		}
	}
}

// stream opens one stream and reports its changes until it ends. Without a version, it lists the objects
// first, which may have changed before.
func (w *watch) stream(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchGrace)
	defer cancel()
	if w.version == "" {
		var list struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := w.api.get(ctx, fmt.Sprintf("%s?limit=1&%s", w.path, w.query), &list); err != nil {
			return err
		}
		w.version = list.Metadata.ResourceVersion
		w.report()
	}
	body, err := w.api.stream(web.Forever(ctx), fmt.Sprintf("%s?watch=true&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%s&%s",
		w.path, int(watchTime.Seconds()), url.QueryEscape(w.version), w.query))
	if err != nil {
		return err
	}
	defer body.Close()
	in := json.NewDecoder(io.LimitReader(body, maxAnswer))
	for {
		var event struct {
			Type   string
			Object struct {
				Code     int // of an error
				Message  string
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := in.Decode(&event); err != nil {
			return nil // the stream has ended
		}
		if event.Type == "ERROR" {
			return &Error{event.Object.Code, errors.New(event.Object.Message)}
		}
		if w.version = event.Object.Metadata.ResourceVersion; event.Type != "BOOKMARK" {
			w.report()
		}
	}
}

// report sends to the channel, unless an earlier value waits there.
func (w *watch) report() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
