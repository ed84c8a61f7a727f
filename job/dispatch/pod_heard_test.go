package dispatch

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// podsProxy is a stand-in for "kubectl proxy": a kubectl script links the socket that the
// test serves. It answers one request after the other, and returns their number.
func podsProxy(t *testing.T, answer http.HandlerFunc) (asked *int) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	kubectl := "#!/bin/sh\nfor w; do case $w in --unix-socket=*) ln -s " + socket + " ${w#*=};; esac; done\nexec sleep 60\n"
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	l, err := net.Listen("unix", socket)
	testenv.Check(t, err)
	asked = new(int)
	var lock sync.Mutex
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		*asked++
		if r.URL.Query().Has("watch") { // a stream: other requests go on
			lock.Unlock()
		} else {
			defer lock.Unlock()
		}
		answer(w, r)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return asked
}

// TestHeardLater: a missing answer leaves the record for the next poll; a refusal does not.
func TestHeardLater(t *testing.T) {
	ctx := web.With(t.Context(), web.Limits{Backoff: time.Millisecond})
	code, message := http.StatusServiceUnavailable, ""
	asked := podsProxy(t, func(w http.ResponseWriter, r *http.Request) {
		if w.WriteHeader(code); code == http.StatusOK {
			fmt.Fprintf(w, `{"items":[{"metadata":{"name":"x-main-1"},"status":{"containerStatuses":[{"name":"main","state":{"terminated":{"message":%q}}}]}}]}`, message)
		}
	})
	for _, c := range []struct {
		name  string
		codes []int // one for each poll
		ended int   // tasks with a record, after all of them
		used  time.Duration
	}{
		{"busy, then well", []int{503, 429, 504, 200}, 1, 5 * time.Second},
		{"busy", []int{503}, 0, 0},
		{"forbidden", []int{403}, 1, 0},
		{"not to be reached", []int{500}, 1, 0},
	} {
		dir := t.TempDir()
		s := &Submission{ID: "x", Native: "x", Cluster: Cluster{Target: job.Argo}, Job: &job.Job{Name: "x", Measure: true, Output: os.DevNull}}
		begun := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC)
		message = jobtest.PodHead + jobtest.PodFoot
		var st *Status
		look := func() {
			st = &Status{Submission: s}
			testenv.Check(t, st.read(dir))
			known := map[string]batch.State{"x": {Tasks: []batch.Attempt{
				{Task: job.Task{Native: "x-main-0", Start: begun, End: begun.Add(time.Minute), Exit: 1}},
				{Task: job.Task{Native: "x-main-1", Start: begun.Add(time.Hour), End: begun.Add(2 * time.Hour)}, Last: true},
			}}}
			st.unkept = st.renew(ctx, filepath.Join(dir, "x"), known)
			st.judgeKept(s.queueState(known))
		}
		testenv.Check(t, os.Mkdir(filepath.Join(dir, "x"), 0o755))
		for _, code = range c.codes {
			look()
		}
		if st.Done != c.ended || st.Waiting != 1-c.ended || st.Lost != 0 {
			t.Errorf("%s: %d done, %d waiting, %d lost; want %d done: %v", c.name, st.Done, st.Waiting, st.Lost, c.ended, st.unkept)
		}
		if c.ended == 0 {
			continue
		}
		if used, _, _ := capacity.UsedBy(&st.Tasks[0]); used != c.used {
			t.Errorf("%s: used %v; want %v", c.name, used, c.used)
		}
		before := *asked
		if look(); *asked != before {
			t.Errorf("%s: queried again for complete records, among them one of an earlier attempt", c.name)
		}
	}
}
