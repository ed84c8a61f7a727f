package pack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"hpcc/job"
	"hpcc/job/atomicfile"
)

// A hand hands out the tasks of a run. One goroutine has its state.
type hand struct {
	plan *Plan
	logf func(format string, args ...any)

	settled []uint64           // bits of the tasks that need not run
	left    int                // tasks that are not settled
	failed  int                // of them in this run
	next    func() (int, bool) // the next task of the array
	planned map[int]bool       // tasks of again
	again   []retry            // tasks that run again or were given back, by time
	out     map[int]*taskState // tasks that a worker has
	workers map[int]*peer      // by rank
	gone    []*peer            // workers whose tasks may still run
	known   map[string]bool    // incarnations of workers that have joined, and whose tasks were not given to others
	quiet   time.Time          // until then no task is handed out, because a worker of before may have it
	open    []assignment       // tasks that ran when the process before this one ended
	records *os.File           // of the tasks that were lost; nil until there is one
	shown   time.Time          // when Progress was written
}

// A taskState is the state of a task that a worker has.
type taskState struct {
	attempt int
	worker  *peer
	running bool
}

// A retry is a task that may run from a time on.
type retry struct {
	assignment
	at time.Time
}

// A peer is a worker.
type peer struct {
	wire        *wire
	rank, slots int
	supervisor  string
	incarnation string
	host        string
	only        bool         // no earlier worker of its node can run a task
	ready       bool         // it has said what it runs
	out         map[int]bool // its tasks
	ended       int          // tasks that it has ended since the last tick
	rate        float64      // tasks that it ends in a second
	over        time.Time    // when its tasks have certainly ended; zero while it is connected
}

// An event is a line of a worker, its greeting, or the end of its connection.
type event struct {
	from   *peer
	fields []string // nil: the connection has ended
}

// Hand hands out the tasks of a run until none is left, and reports whether all have succeeded.
func Hand(ctx context.Context, dir, run string, logf func(format string, args ...any)) (ok bool, err error) {
	p, token, err := join(dir, run)
	if err != nil {
		return false, err
	}
	h := &hand{plan: p, logf: logf, planned: map[int]bool{}, out: map[int]*taskState{}, workers: map[int]*peer{}, known: map[string]bool{}}
	if p.get("address", new(address)) { // an earlier process handed out tasks, and workers may run some
		h.quiet = time.Now().Add(leaseOver)
	}
	if err := h.readRecords(); err != nil {
		return false, err
	}
	l, err := h.listen()
	if err != nil {
		return false, err
	}
	defer l.Close()
	events := make(chan event, 1024)
	go acceptAll(ctx, l, token, events)
	err = h.loop(ctx, events)
	h.dismiss(events, err)
	return h.failed == 0, err
}

// readRecords settles the tasks that have succeeded, and those that have failed in this run.
func (h *hand) readRecords() error {
	h.next, _ = iter.Pull(h.plan.Array.All())
	_, last, _ := h.plan.Array.Bounds()
	h.settled = make([]uint64, last/64+1)
	for i := range h.settled {
		h.settled[i] = math.MaxUint64 // other indices do not belong to a task
	}
	var r job.Records
	if err := r.Survey(h.plan.dir); err != nil {
		return err
	}
	for k := range h.plan.Array.All() {
		if !r.Succeeded.Has(k) {
			h.settled[k/64] &^= 1 << (k % 64)
			h.left++
		}
	}
	for i := range r.Last {
		t := &r.Last[i]
		switch {
		case t.Attempt < h.plan.First || h.isSettled(t.Index): // of an earlier run
		case t.Ended():
			h.outcome(t)
		default:
			h.open = append(h.open, assignment{t.Index, t.Attempt})
		}
	}
	return nil
}

func (h *hand) settle(k int) { h.settled[k/64] |= 1 << (k % 64) }

// isSettled reports whether a task need not run. Other numbers count as settled.
func (h *hand) isSettled(k int) bool {
	return k < 0 || k/64 >= len(h.settled) || h.settled[k/64]&(1<<(k%64)) != 0
}

// mayRetry reports whether a task with this end runs again in this run.
func (h *hand) mayRetry(t *job.Task) bool {
	return h.plan.Retry.Again(t) && t.Attempt-h.plan.First < h.plan.Retry.Times
}

// listen opens the port for the workers, and writes its addresses.
func (h *hand) listen() (net.Listener, error) {
	host := ""
	if h.plan.Nodes <= 1 {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("listening for the workers: %w", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	at := address{[]string{net.JoinHostPort("127.0.0.1", port)}}
	if h.plan.Nodes > 1 {
		addresses, _ := net.InterfaceAddrs()
		for _, a := range addresses {
			if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() && len(at.Hosts) < maxAddresses {
				at.Hosts = append(at.Hosts, net.JoinHostPort(ip.IP.String(), port))
			}
		}
	}
	if err := h.plan.put("address", at); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Limits of the process that hands out.
const (
	maxAddresses = 32
	maxGreetings = 256 // connections that have not proved that they know the secret
	tick         = 250 * time.Millisecond
	showEach     = 5 * time.Second
)

// acceptAll greets workers, and passes on their lines.
func acceptAll(ctx context.Context, l net.Listener, token string, events chan<- event) {
	greetings := make(chan struct{}, maxGreetings)
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err != nil {
			return
		}
		greetings <- struct{}{}
		go func() {
			w, f, err := accept(c, token)
			<-greetings
			if err == nil { // a worker tries several addresses, and joins at one of them
				var fields []string
				if fields, err = w.next(); err == nil && (len(fields) != 1 || fields[0] != "join") {
					err = errSecret
				}
			}
			if err != nil || len(f) != 6 {
				c.Close()
				return
			}
			p := &peer{wire: w, supervisor: f[2], incarnation: f[4], host: f[5], out: map[int]bool{}}
			w.patience = silence
			var e1, e2 error
			p.rank, e1 = strconv.Atoi(f[0])
			p.slots, e2 = strconv.Atoi(f[1])
			age, e3 := strconv.ParseInt(f[3], 10, 64)
			p.only = time.Duration(age)*time.Millisecond > leaseOver
			if errors.Join(e1, e2, e3) != nil || p.slots < 1 {
				c.Close()
				return
			}
			events <- event{p, []string{"hello"}}
			closed := make(chan struct{})
			go w.pings(closed)
			for {
				fields, err := w.next()
				if err != nil {
					break
				}
				events <- event{p, fields}
			}
			close(closed)
			c.Close()
			events <- event{p, nil}
		}()
	}
}

// loop handles events until no task is left.
func (h *hand) loop(ctx context.Context, events <-chan event) error {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for h.left > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events:
			h.handle(e)
			for range len(events) { // then hand out once
				h.handle(<-events)
			}
		case now := <-ticks.C:
			if err := h.tick(now); err != nil {
				return err
			}
		}
		h.handOut(time.Now())
	}
	return nil
}

// dismiss lets the workers know that no task is left, or that they have to end. After another error they
// go on with their tasks, and look for the next process that hands out.
func (h *hand) dismiss(events <-chan event, err error) {
	word, patience := "done", farewell/4
	switch {
	case errors.Is(err, context.Canceled):
		word, patience = "stop", 2*killGrace
	case err != nil:
		return
	}
	for _, p := range h.workers {
		p.wire.say("%s", word)
	}
	for end := time.After(patience); len(h.workers) > 0; {
		select {
		case <-end:
			return
		case e := <-events:
			if e.fields == nil && h.workers[e.from.rank] == e.from {
				delete(h.workers, e.from.rank)
			}
		}
	}
}

// handle updates the state by an event.
func (h *hand) handle(e event) {
	p := e.from
	if e.fields != nil && e.fields[0] == "hello" {
		h.hello(p)
		return
	}
	if h.workers[p.rank] != p { // a later connection has replaced it
		return
	}
	if e.fields == nil {
		delete(h.workers, p.rank)
		h.leave(p)
		return
	}
	number := func(i int) int {
		if i < len(e.fields) {
			if n, err := strconv.Atoi(e.fields[i]); err == nil {
				return n
			}
		}
		return -2
	}
	k, attempt := number(1), number(2)
	switch {
	case e.fields[0] == "ready":
		h.ready(p)
	case e.fields[0] == "hold" && attempt >= h.plan.First:
		h.hold(p, k, attempt)
	case h.isSettled(k):
	case e.fields[0] == "start":
		if s := h.out[k]; s != nil && s.worker == p {
			s.running = true
		}
	case e.fields[0] == "end" && attempt >= h.plan.First && len(e.fields) == 6:
		h.end(p, k, attempt, number(3), e.fields[4], e.fields[5])
	}
}

// leave keeps a worker without a connection until its tasks have certainly ended.
func (h *hand) leave(p *peer) {
	if p.over = time.Now().Add(leaseOver); len(p.out) > 0 {
		h.gone = append(h.gone, p)
	}
}

// hello adds a worker, which may have been connected before, or replace an earlier one of its node.
func (h *hand) hello(p *peer) {
	old := h.workers[p.rank]
	if h.workers[p.rank] = p; old != nil {
		old.wire.conn.Close()
		h.leave(old)
	}
	for _, g := range h.gone {
		if g.rank == p.rank && g.incarnation != p.incarnation && g.supervisor == p.supervisor && p.supervisor != "none" {
			g.over = time.Time{} // their supervisor has ended the tasks of g
		}
	}
}

// hold notes that a worker runs a task. A worker that comes back when others may have its tasks has to
// end them.
func (h *hand) hold(p *peer, k, attempt int) {
	if !h.known[p.incarnation] && !time.Now().Before(h.quiet) {
		p.wire.say("lost")
		return
	}
	if h.isSettled(k) {
		return
	}
	if s := h.out[k]; s != nil && s.worker != p {
		delete(s.worker.out, k)
	}
	h.out[k], p.out[k] = &taskState{attempt, p, true}, true
}

// ready notes that a worker has said what it holds. The other tasks of its earlier connection are its
// no more: it may have lost them with the connection, also its word that they have ended.
func (h *hand) ready(p *peer) {
	p.ready, h.known[p.incarnation] = true, true
	for _, g := range h.gone {
		if g.rank == p.rank && g.incarnation == p.incarnation {
			g.over, p.rate = time.Time{}, g.rate
		}
	}
	open := func(p *peer) bool { return !p.ready || !p.only }
	if all := slices.Collect(maps.Values(h.workers)); len(all) >= h.plan.Nodes && !slices.ContainsFunc(all, open) {
		h.quiet = time.Time{} // all tasks that run are known
	}
}

// giveBack plans a task that has not started.
func (h *hand) giveBack(k, attempt int) {
	if s := h.out[k]; s != nil {
		delete(s.worker.out, k)
		delete(h.out, k)
	}
	h.schedule(retry{assignment{k, attempt}, time.Time{}})
}

// schedule adds a task to again.
func (h *hand) schedule(r retry) {
	i, _ := slices.BinarySearchFunc(h.again, r.at, func(o retry, at time.Time) int { return o.at.Compare(at) })
	h.again = slices.Insert(h.again, i, r)
	h.planned[r.index] = true
}

// end handles the end of a task.
func (h *hand) end(p *peer, k, attempt, exit int, signal, how string) {
	p.ended++
	t := &job.Task{Index: k, Attempt: attempt, End: time.Now(), Exit: exit}
	if signal != "-" {
		t.Signal = signal
	}
	if how != "ok" {
		t.Problem = how
	}
	h.outcome(t)
}

// outcome settles a task that has ended, or plans its next attempt.
func (h *hand) outcome(t *job.Task) {
	k := t.Index
	if s := h.out[k]; s != nil {
		delete(s.worker.out, k)
		delete(h.out, k)
	}
	if h.mayRetry(t) {
		pause := min(firstRetry<<min(t.Attempt-h.plan.First, 6), longestRetry)
		h.schedule(retry{assignment{k, t.Attempt + 1}, time.Now().Add(pause)})
		return
	}
	if !t.OK() {
		h.failed++
	}
	h.settle(k)
	h.left--
}

// Pauses before a task runs again, as in jobs that are not packed.
const (
	firstRetry   = time.Second
	longestRetry = time.Minute
)

// tick updates rates and progress, and gives up workers that are gone.
func (h *hand) tick(now time.Time) error {
	running := 0
	for _, s := range h.out {
		if s.running {
			running++
		}
	}
	for _, p := range h.workers {
		p.rate = 0.7*p.rate + 0.3*float64(p.ended)/tick.Seconds()
		p.ended = 0
	}
	for _, p := range h.gone {
		if w := h.workers[p.rank]; w != nil && w.incarnation == p.incarnation && !w.ready {
			continue // it is saying what it runs
		}
		if now.After(p.over) {
			if err := h.lose(p); err != nil {
				return err
			}
		}
	}
	h.gone = slices.DeleteFunc(h.gone, func(p *peer) bool { return len(p.out) == 0 })
	if now.Sub(h.shown) > showEach {
		h.shown = now
		if err := h.plan.put("progress", Progress{len(h.workers), running, now}); err != nil {
			h.logf("warning: %v", err)
		}
	}
	return nil
}

// lose decides about the tasks of a worker that has ended without saying what became of them.
func (h *hand) lose(p *peer) error {
	if len(p.out) == 0 {
		return nil
	}
	var r job.Records
	if err := r.Survey(h.plan.dir); err != nil {
		return err
	}
	ended := map[int]*job.Task{}
	for i := range r.Last {
		if t := &r.Last[i]; t.Ended() {
			ended[t.Index] = t
		}
	}
	if h.workers[p.rank] == nil || h.workers[p.rank].incarnation != p.incarnation {
		delete(h.known, p.incarnation)
		h.logf("the worker on %s is gone; its %d tasks without a record of their end run again", p.host, len(p.out))
	}
	for k := range p.out {
		s, t := h.out[k], ended[k]
		switch {
		case r.Succeeded.Has(k):
			h.outcome(&job.Task{Index: k, Attempt: s.attempt, End: time.Now()})
		case t != nil && t.Attempt >= s.attempt:
			h.outcome(t)
		case s.running:
			h.lostTask(assignment{k, s.attempt}, p.host)
		default:
			h.giveBack(k, s.attempt)
		}
	}
	return nil
}

// lostTask plans the next attempt of a task that ran on a node that is gone, or records its failure.
func (h *hand) lostTask(a assignment, host string) {
	if _, node := h.plan.Retry.Statuses(); node && a.attempt-h.plan.First < h.plan.Retry.Times {
		h.giveBack(a.index, a.attempt+1)
		return
	}
	now := time.Now()
	t := &job.Task{Index: a.index, Attempt: a.attempt, Host: host, Start: now, End: now, Exit: notRun, Problem: "its node or worker was lost; --retry N runs such tasks again"}
	if err := h.record(t); err != nil {
		h.logf("warning: recording task %d, which was lost: %v", t.Index, err)
	}
	h.outcome(t)
}

// record writes a record of this process.
func (h *hand) record(t *job.Task) (err error) {
	line := []byte("\n")
	if h.records == nil {
		file, _ := t.PackedFile(h.plan.dir, h.plan.run, max(h.plan.Nodes, 1))
		if h.records, err = atomicfile.Create(file, os.O_WRONLY|os.O_APPEND); err != nil {
			return err
		}
		line = append(line, (&job.Task{Host: t.Host, Native: h.plan.Native}).PackedHeader(h.plan.Params)...)
	}
	_, err = h.records.Write(t.AppendPacked(line, 0, 0, 0))
	return err
}

// handOut gives tasks to the workers that have room.
func (h *hand) handOut(now time.Time) {
	if now.Before(h.quiet) {
		return
	}
	for _, a := range h.open {
		if h.out[a.index] == nil && !h.isSettled(a.index) && !h.planned[a.index] {
			h.lostTask(a, "")
		}
	}
	h.open = nil
	free := math.MaxInt
	if h.plan.Array.Limit > 0 {
		free = h.plan.Array.Limit - len(h.out)
	}
	for _, p := range h.workers {
		if p.ready && free > 0 {
			free -= h.give(p, min(free, h.wants(p)), now)
		}
	}
}

// wants returns how many more tasks a worker should have: one for each slot and, of short tasks, as
// many as it ends in half a second. Near the end, it leaves tasks for the other workers.
func (h *hand) wants(p *peer) int {
	ahead := min(int(p.rate/2), (h.left-len(h.out))/(2*len(h.workers)), maxQueued-p.slots)
	if have := len(p.out); have < p.slots || have < p.slots+ahead/2 {
		return p.slots + ahead - have
	}
	return 0
}

// give hands out at most n tasks, and returns how many there were.
func (h *hand) give(p *peer, n int, now time.Time) (given int) {
	var lines []byte
	var first, last assignment
	say := func() {
		if given > 0 {
			lines = fmt.Appendf(lines, "run %d %d %d\n", first.index, last.index, first.attempt)
		}
	}
	for given < n {
		a, ok := h.take(now)
		if !ok {
			break
		}
		if given == 0 || a.index != last.index+1 || a.attempt != last.attempt {
			say()
			first = a
		}
		last = a
		given++
		h.out[a.index], p.out[a.index] = &taskState{attempt: a.attempt, worker: p}, true
	}
	if say(); given > 0 {
		p.wire.sayAll(lines)
	}
	return given
}

// take returns the next task to run.
func (h *hand) take(now time.Time) (assignment, bool) {
	for len(h.again) > 0 && !h.again[0].at.After(now) {
		a := h.again[0].assignment
		h.again = h.again[1:]
		delete(h.planned, a.index)
		if !h.isSettled(a.index) && h.out[a.index] == nil {
			return a, true
		}
	}
	for {
		k, ok := h.next()
		if !ok {
			return assignment{}, false
		}
		if !h.isSettled(k) && h.out[k] == nil && !h.planned[k] {
			return assignment{k, h.plan.First}, true
		}
	}
}
