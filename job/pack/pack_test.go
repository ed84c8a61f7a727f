package pack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// TestWire checks that each side refuses a peer that does not know the secret.
func TestWire(t *testing.T) {
	for _, c := range []struct {
		name, coordinator, worker string
		ok                        bool
	}{
		{"the same secret", "a", "a", true},
		{"a worker without the secret", "a", "b", false},
		{"an impostor as coordinator", "", "a", false},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testenv.Check(t, err)
		accepted := make(chan bool, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if c.coordinator == "" { // it sends back what it gets
				w := newWire(conn, time.Second)
				w.send("nonce")
				f, _ := w.next()
				w.send("%s", f[1])
				accepted <- false
				return
			}
			_, fields, err := accept(conn, c.coordinator, time.Second)
			accepted <- err == nil && slices.Equal(fields, []string{"1", "2"})
			if err != nil {
				conn.Close()
			}
		}()
		w, err := dial(l.Addr().String(), c.worker, "1 2", time.Second)
		if (err == nil) != c.ok || <-accepted != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if w != nil {
			w.conn.Close()
		}
		l.Close()
	}
}

// newPlan returns the plan of a run in a new directory.
func newPlan(t testing.TB, array string, retry int) *Plan {
	t.Helper()
	a, err := job.ParseArray(array)
	testenv.Check(t, err)
	p := &Plan{Job: "x", Array: a, Nodes: 1, Retry: job.Retry{Times: retry}, Lease: time.Second}
	testenv.Check(t, p.begin(t.TempDir()))
	return p
}

// A fake is a worker that a test plays.
type fake struct {
	*wire
	t testing.TB
}

// joins lets a fake worker join the coordinator, and report with lines what it runs.
func joins(t testing.TB, p *Plan, rank, slots int, lines string) *fake {
	t.Helper()
	f := connects(t, p, rank, slots, 0)
	f.sendAll([]byte("join\n" + lines + "ready\n"))
	return f
}

// connects connects a fake worker, whose supervisor has an age, to the coordinator.
func connects(t testing.TB, p *Plan, rank, slots int, age time.Duration) *fake {
	t.Helper()
	_, token, err := join(p.dir, p.run)
	testenv.Check(t, err)
	var w *wire
	for end := time.Now().Add(10 * time.Second); w == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no coordinator: %v", err)
		}
		if at := (address{}); p.get("address", &at) {
			w, err = dial(at.Hosts[0], token, fmt.Sprintf("%d %d s %d i%d h%d", rank, slots, age.Milliseconds(), rank, rank), p.Lease)
		}
	}
	t.Cleanup(func() { w.conn.Close() })
	return &fake{w, t}
}

// expect waits for a line.
func (f *fake) expect(want string) {
	f.t.Helper()
	for {
		fields, err := f.next()
		if err != nil {
			f.t.Fatalf("%v; want %q", err, want)
		}
		if got := strings.Join(fields, " "); got == want {
			return
		} else if got != "ping" {
			f.t.Fatalf("%q; want %q", got, want)
		}
	}
}

// coordinate runs assignTasks, and returns a function that waits for its result.
func coordinate(t testing.TB, p *Plan) func() (bool, error) {
	type result struct {
		ok  bool
		err error
	}
	ended := make(chan result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		ok, err := assignTasks(ctx, p.dir, p.run, t.Logf)
		ended <- result{ok, err}
	}()
	return func() (bool, error) {
		select {
		case r := <-ended:
			return r.ok, r.err
		case <-time.After(20 * time.Second):
			t.Fatal("the coordinator does not end")
			return false, nil
		}
	}
}

// TestCoordinator checks what is assigned: as much as fits, up to the limit, failed tasks again, and
// nothing that has succeeded.
func TestCoordinator(t *testing.T) {
	p := newPlan(t, "1-6%3", 1)
	file, _ := (&job.Task{}).PackedFile(p.dir, "earlier", 0)
	done := &job.Task{Index: 2, Start: time.Now(), End: time.Now()}
	testenv.Check(t, os.WriteFile(file, done.AppendPacked(done.PackedHeader(nil), 0, 0, 0), 0o600))
	ended := coordinate(t, p)
	w := joins(t, p, 0, 4, "")
	w.expect("run 1 1 0")
	w.expect("run 3 4 0")
	w.send("start 1\nstart 3\nend 1 0 0 - ok")
	w.expect("run 5 5 0")
	w.send("end 3 0 3 - ok\nend 4 0 0 - ok\nend 5 0 0 - ok")
	w.expect("run 6 6 0")
	w.expect("run 3 3 1")
	w.send("end 6 0 -1 SIGKILL ok\nend 3 1 0 - ok")
	w.expect("run 6 6 1")
	w.send("end 6 1 125 - problem")
	w.expect("done")
	w.conn.Close()
	if ok, err := ended(); ok || err != nil {
		t.Errorf("assignTasks = %v, %v; want a failed task", ok, err)
	}
}

// TestSuccessor checks that a second coordinator knows what has ended and what runs, and
// records a task whose worker is gone.
func TestSuccessor(t *testing.T) {
	p := newPlan(t, "1-5", 0)
	p.Nodes = 2
	testenv.Check(t, p.put("plan", meeting{p, random(32)}))
	file, _ := (&job.Task{}).PackedFile(p.dir, p.run, 1)
	lost, failed := &job.Task{Index: 4, Start: time.Now()}, &job.Task{Index: 5, Exit: 1, Start: time.Now(), End: time.Now()}
	testenv.Check(t, os.WriteFile(file, failed.AppendPacked(lost.AppendPacked(lost.PackedHeader(nil), 0, 0, 0), 0, 0, 0), 0o600))
	testenv.Check(t, p.put("address", address{[]string{"127.0.0.1:1"}}))
	ended := coordinate(t, p)
	time.Sleep(p.expiry() / 2)
	w := joins(t, p, 0, 1, "hold 1 0\nend 2 0 0 - ok\n")
	w.send("end 1 0 0 - ok")
	w.expect("run 3 3 0")                          // after the lease of the worker that has not come back
	joins(t, p, 1, 1, "hold 4 0\n").expect("lost") // that worker, which comes back too late
	w.send("end 3 0 0 - ok")
	w.expect("done")
	w.conn.Close()
	if ok, err := ended(); ok || err != nil {
		t.Errorf("assignTasks = %v, %v; want failed tasks", ok, err)
	}
	var r job.Records
	testenv.Check(t, r.Survey(p.dir))
	if len(r.Last) != 2 || r.Last[0].Index != 4 || !strings.Contains(r.Last[0].Problem, "was lost") || r.Last[1].Exit != 1 {
		t.Errorf("records %+v; want task 4 lost and task 5 failed", r.Last)
	}
}

// TestSuccessorAtOnce checks that a second coordinator does not wait when the workers of all nodes have
// reported what they run, and no earlier one can run a task.
func TestSuccessorAtOnce(t *testing.T) {
	p := newPlan(t, "1-2", 0)
	testenv.Check(t, p.put("address", address{[]string{"127.0.0.1:1"}}))
	ended := coordinate(t, p)
	w := connects(t, p, 0, 2, p.expiry()+time.Second)
	w.sendAll([]byte("join\nhold 1 0\nready\n"))
	w.expect("run 2 2 0")
	w.send("end 1 0 0 - ok\nend 2 0 0 - ok")
	w.expect("done")
	w.conn.Close()
	if ok, err := ended(); !ok || err != nil {
		t.Errorf("assignTasks = %v, %v; want success", ok, err)
	}
}

// TestReconnect checks that a task does not run again if only the report of its end was lost, and that
// the tasks that the worker has not begun are assigned again.
func TestReconnect(t *testing.T) {
	p := newPlan(t, "1-3", 5)
	ended := coordinate(t, p)
	w := joins(t, p, 0, 3, "")
	w.expect("run 1 3 0")
	w.send("start 1\nstart 2")
	time.Sleep(100 * time.Millisecond)
	file, _ := (&job.Task{}).PackedFile(p.dir, p.run, 0)
	done := &job.Task{Index: 1, Start: time.Now(), End: time.Now()}
	testenv.Check(t, os.WriteFile(file, done.AppendPacked(done.PackedHeader(nil), 0, 0, 0), 0o600))
	w.conn.Close()
	w = joins(t, p, 0, 3, "hold 2 0\n")
	w.expect("run 3 3 0")
	w.send("end 2 0 0 - ok\nend 3 0 0 - ok")
	w.expect("done")
	w.conn.Close()
	if ok, err := ended(); !ok || err != nil {
		t.Errorf("assignTasks = %v, %v; want success", ok, err)
	}
}

// TestLease checks that a worker gives up when its lease ends, although a silent connection does not end,
// and others are accepted but get no handshake.
func TestLease(t *testing.T) {
	p := newPlan(t, "1", 0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	defer l.Close()
	testenv.Check(t, p.put("address", address{[]string{l.Addr().String()}}))
	_, token, err := join(p.dir, p.run)
	testenv.Check(t, err)
	go func() {
		for greeted := false; ; greeted = true {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			if !greeted {
				if _, _, err := accept(c, token, p.Lease); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	w := &worker{plan: p, token: token, logf: t.Logf, queued: map[int]int{}, held: map[int]int{}}
	ended := make(chan error, 1)
	go func() { ended <- w.serve(t.Context()) }()
	select {
	case err := <-ended:
		if !errors.Is(err, errNoCoordinator) {
			t.Errorf("serve = %v; want %v", err, errNoCoordinator)
		}
	case <-time.After(min(handshakeTime, silence) - p.Lease/2):
		t.Errorf("the worker continues after its lease of %v", p.Lease)
	}
}

// TestSplitGPUs checks that each slot gets GPUs of its own.
func TestSplitGPUs(t *testing.T) {
	for _, c := range []struct{ visible, want, err string }{
		{"0,1,2,3", "CUDA_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=2,3", ""},
		{"GPU-a,GPU-b,MIG-c,MIG-d", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b CUDA_VISIBLE_DEVICES=MIG-c,MIG-d", ""},
		{"", "CUDA_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=2,3", ""},
		{"0,1,2", "", "has 3 GPUs, too few for 2 tasks with 2 each"},
	} {
		got, err := splitGPUs(func(name string) string {
			return map[string]string{"CUDA_VISIBLE_DEVICES": c.visible}[name]
		}, 2, 2)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v; want %q", c.visible, err, c.err)
			}
		} else if text := strings.Join(slices.Concat(got...), " "); text != c.want {
			t.Errorf("%q: %s; want %s", c.visible, text, c.want)
		}
	}
}

// FuzzHandle gives arbitrary lines of two workers to the coordinator.
func FuzzHandle(f *testing.F) {
	f.Add("start 1\nend 1 0 0 - ok\nhold 2 0\nready\n+end 2 7 3 SIGKILL problem\nend 3 0 0 - ok\n+hold 1 0\nready\n+leave\n")
	f.Add("start 1\nend 1 A 0 - ok\nend 1 -3 0 - ok\nhold 2 -1\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, _ := job.ParseArray("1-9")
		c := &coordinator{plan: &Plan{Array: a, Nodes: 2, Retry: job.Retry{Times: 1}, Lease: time.Second, dir: filepath.Join(os.TempDir(), "none"), run: "x"}, logf: func(string, ...any) {}, planned: map[int]bool{}, out: map[int]*taskState{}, workers: map[int]*peer{}, known: map[string]bool{}}
		if err := c.readRecords(); err != nil {
			t.Fatal(err)
		}
		conns := []*peer{}
		for rank := range 2 {
			here, there := net.Pipe()
			go func() { _, _ = there.Read(make([]byte, 1<<20)); there.Close() }()
			p := &peer{wire: newWire(here, time.Second), rank: rank, slots: 2, out: map[int]bool{}}
			conns = append(conns, p)
			c.handle(event{p, []string{"hello"}})
		}
		for line := range strings.Lines(text) {
			line, second := strings.CutPrefix(strings.TrimSpace(line), "+")
			p := conns[0]
			if second {
				p = conns[1]
			}
			fields := strings.Fields(line)
			if len(fields) == 0 {
				continue
			}
			if line == "leave" {
				fields = nil
			}
			c.handle(event{p, fields})
			for k, s := range c.out {
				if !s.worker.out[k] {
					t.Fatalf("task %d is not among those of its worker", k)
				}
			}
			if c.left > 0 {
				c.assignAll(time.Now())
			}
		}
	})
}

// BenchmarkCoordinator measures how many tasks a coordinator can serve, with workers whose tasks take no
// time.
func BenchmarkCoordinator(b *testing.B) {
	for _, workers := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(workers, " workers"), func(b *testing.B) {
			p := newPlan(b, fmt.Sprintf("0-%d", b.N-1), 0)
			p.Nodes = workers
			ended := coordinate(b, p)
			var g sync.WaitGroup
			var all []*fake
			for rank := range workers {
				all = append(all, connects(b, p, rank, 64, 0))
			}
			b.ResetTimer()
			for _, w := range all {
				w.sendAll([]byte("join\nready\n"))
				g.Go(w.work)
			}
			g.Wait()
			if ok, err := ended(); !ok || err != nil {
				b.Errorf("assignTasks = %v, %v", ok, err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
	}
}

// work reports that all tasks have ended at once, until none is left.
func (f *fake) work() {
	for {
		fields, err := f.next()
		if err != nil || fields[0] == "done" {
			f.conn.Close()
			return
		}
		if fields[0] != "run" {
			continue
		}
		first, _ := strconv.Atoi(fields[1])
		last, _ := strconv.Atoi(fields[2])
		var lines []byte
		for k := first; k <= last; k++ {
			lines = fmt.Appendf(lines, "start %d\nend %d 0 0 - ok\n", k, k)
		}
		f.sendAll(lines)
	}
}
