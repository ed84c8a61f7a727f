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

	"hpcc/files"
	"hpcc/job"
)

// A coordinator assigns the tasks of a run to workers. One goroutine has its state.
type coordinator struct {
	plan *Plan
	logf func(format string, args ...any)

	settled      []uint64           // bits of the tasks that need not run
	left         int                // tasks that are not settled
	failed       int                // of them in this run
	next         func() (int, bool) // the next task of the array
	planned      map[int]bool       // tasks of retries
	retries      []retry            // tasks that run again, or that no worker started, by time
	out          map[int]*taskState // assigned tasks
	workers      map[int]*peer      // by rank
	disconnected []*peer            // workers whose tasks may still run
	known        map[string]bool    // incarnations of workers whose tasks were not assigned to others
	waitUntil    time.Time          // until then no task is assigned, because an unknown worker may run it
	open         []assignment       // tasks that ran when the last coordinator ended
	records      *os.File           // of the tasks that were lost; nil until there is one
	shown        time.Time          // when Progress was written
}

// A taskState is the state of an assigned task.
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
	sole        bool         // no earlier worker of its node can still run a task
	ready       bool         // it has reported the tasks that it runs
	out         map[int]bool // its tasks
	ended       int          // tasks that it has ended since the last tick
	rate        float64      // tasks that it ends in a second
	expires     time.Time    // when its tasks have certainly ended; zero while it is connected
}

// An event is a line of a worker, its greeting, or the end of its connection.
type event struct {
	from   *peer
	fields []string // nil: the connection has ended
}

// assignTasks assigns the tasks of a run to workers until none is left, and reports whether all have
// succeeded.
func assignTasks(ctx context.Context, dir, run string, logf func(format string, args ...any)) (ok bool, err error) {
	p, token, err := join(dir, run)
	if err != nil {
		return false, err
	}
	c := &coordinator{plan: p, logf: logf, planned: map[int]bool{}, out: map[int]*taskState{}, workers: map[int]*peer{},
		known: map[string]bool{}}
	if p.get("address", new(address)) { // of an earlier coordinator, whose workers may run tasks
		c.waitUntil = time.Now().Add(p.expiry())
	}
	if err := c.readRecords(); err != nil {
		return false, err
	}
	l, err := c.listen()
	if err != nil {
		return false, err
	}
	defer l.Close()
	events := make(chan event, 1024)
	go c.acceptAll(ctx, l, token, events)
	err = c.loop(ctx, events)
	c.release(events, err)
	return c.failed == 0, err
}

// readRecords settles the tasks that have succeeded, and those that have failed in this run.
func (c *coordinator) readRecords() error {
	c.next, _ = iter.Pull(c.plan.Array.All())
	_, last, _ := c.plan.Array.Bounds()
	c.settled = make([]uint64, last/64+1)
	for i := range c.settled {
		c.settled[i] = math.MaxUint64 // other indices do not belong to a task
	}
	var r job.Records
	if err := r.Survey(c.plan.dir); err != nil {
		return err
	}
	for k := range c.plan.Array.All() {
		if !r.Succeeded.Has(k) {
			c.settled[k/64] &^= 1 << (k % 64)
			c.left++
		}
	}
	for i := range r.Last {
		t := &r.Last[i]
		switch {
		case t.Attempt < c.plan.First || c.isSettled(t.Index): // of an earlier run
		case t.Ended():
			c.outcome(t)
		default:
			c.open = append(c.open, assignment{t.Index, t.Attempt})
		}
	}
	return nil
}

func (c *coordinator) settle(k int) { c.settled[k/64] |= 1 << (k % 64) }

// isSettled reports whether a task need not run. Other numbers count as settled.
func (c *coordinator) isSettled(k int) bool {
	return k < 0 || k/64 >= len(c.settled) || c.settled[k/64]&(1<<(k%64)) != 0
}

// mayRetry reports whether a task with this end runs again in this run.
func (c *coordinator) mayRetry(t *job.Task) bool {
	return c.plan.Retry.Again(t) && t.Attempt-c.plan.First < c.plan.Retry.Times
}

// listen opens the port for the workers, and writes its addresses.
func (c *coordinator) listen() (net.Listener, error) {
	host := ""
	if c.plan.Nodes <= 1 {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("listening for the workers: %w", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	at := address{[]string{net.JoinHostPort("127.0.0.1", port)}}
	if c.plan.Nodes > 1 {
		addresses, _ := net.InterfaceAddrs()
		for _, a := range addresses {
			if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() && len(at.Hosts) < maxAddresses {
				at.Hosts = append(at.Hosts, net.JoinHostPort(ip.IP.String(), port))
			}
		}
	}
	if err := c.plan.put("address", at); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Limits of the coordinator.
const (
	maxAddresses  = 32
	maxHandshakes = 256 // connections in their handshake
	tick          = 250 * time.Millisecond
	showEach      = 5 * time.Second
)

// acceptAll accepts workers, and passes on their lines.
func (c *coordinator) acceptAll(ctx context.Context, l net.Listener, token string, events chan<- event) {
	handshakes := make(chan struct{}, maxHandshakes)
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		handshakes <- struct{}{}
		go func() {
			p := c.admit(conn, token)
			<-handshakes
			if p == nil {
				conn.Close()
				return
			}
			p.relay(events)
			conn.Close()
			events <- event{p, nil}
		}()
	}
}

// admit does the handshake with a worker, or returns nil. A worker tries several addresses, and joins at
// one of them.
func (c *coordinator) admit(conn net.Conn, token string) *peer {
	w, f, err := accept(conn, token, c.plan.Lease)
	if err != nil || len(f) != 6 {
		return nil
	}
	if join, err := w.next(); err != nil || !slices.Equal(join, []string{"join"}) {
		return nil
	}
	w.timeout = silence
	rank, e1 := strconv.Atoi(f[0])
	slots, e2 := strconv.Atoi(f[1])
	age, e3 := strconv.ParseInt(f[3], 10, 64)
	if errors.Join(e1, e2, e3) != nil || slots < 1 {
		return nil
	}
	return &peer{wire: w, rank: rank, slots: slots, supervisor: f[2], incarnation: f[4], host: f[5], out: map[int]bool{},
		sole: time.Duration(age)*time.Millisecond > c.plan.expiry()}
}

// relay passes on the lines of a worker until its connection ends.
func (p *peer) relay(events chan<- event) {
	closed := make(chan struct{})
	defer close(closed)
	go p.wire.pings(closed)
	for fields := []string{"hello"}; ; {
		events <- event{p, fields}
		var err error
		if fields, err = p.wire.next(); err != nil {
			return
		}
	}
}

// loop handles events until no task is left.
func (c *coordinator) loop(ctx context.Context, events <-chan event) error {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for c.left > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events:
			c.handle(e)
			for range len(events) { // then assign once
				c.handle(<-events)
			}
		case now := <-ticks.C:
			if err := c.tick(now); err != nil {
				return err
			}
		}
		c.assignAll(time.Now())
	}
	return nil
}

// release reports to the workers that no task is left, or that they have to end. After another error they
// continue their tasks, and look for the next coordinator.
func (c *coordinator) release(events <-chan event, err error) {
	word, timeout := "done", releaseTime/4
	switch {
	case errors.Is(err, context.Canceled):
		word, timeout = "stop", 2*killGrace
	case err != nil:
		return
	}
	for _, p := range c.workers {
		p.wire.send("%s", word)
	}
	for end := time.After(timeout); len(c.workers) > 0; {
		select {
		case <-end:
			return
		case e := <-events:
			if e.fields == nil && c.workers[e.from.rank] == e.from {
				delete(c.workers, e.from.rank)
			}
		}
	}
}

// handle updates the state by an event.
func (c *coordinator) handle(e event) {
	p := e.from
	if e.fields != nil && e.fields[0] == "hello" {
		c.hello(p)
		return
	}
	if c.workers[p.rank] != p { // a later connection has replaced it
		return
	}
	if e.fields == nil {
		delete(c.workers, p.rank)
		c.leave(p)
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
		c.ready(p)
	case e.fields[0] == "hold" && attempt >= c.plan.First:
		c.hold(p, k, attempt)
	case c.isSettled(k):
	case e.fields[0] == "start":
		if s := c.out[k]; s != nil && s.worker == p {
			s.running = true
		}
	case e.fields[0] == "end" && attempt >= c.plan.First && len(e.fields) == 6:
		c.end(p, k, attempt, number(3), e.fields[4], e.fields[5])
	}
}

// leave keeps the tasks of a worker without a connection until they have certainly ended.
func (c *coordinator) leave(p *peer) {
	if p.expires = time.Now().Add(c.plan.expiry()); len(p.out) > 0 {
		c.disconnected = append(c.disconnected, p)
	}
}

// hello adds a worker, which may have been connected before, or replace an earlier one of its node.
func (c *coordinator) hello(p *peer) {
	old := c.workers[p.rank]
	if c.workers[p.rank] = p; old != nil {
		old.wire.conn.Close()
		c.leave(old)
	}
	for _, g := range c.disconnected {
		if g.rank == p.rank && g.incarnation != p.incarnation && g.supervisor == p.supervisor && p.supervisor != "none" {
			g.expires = time.Time{} // their supervisor has ended the tasks of g
		}
	}
}

// hold notes that a worker runs a task. A worker that reconnects when others may have its tasks has to
// end them.
func (c *coordinator) hold(p *peer, k, attempt int) {
	if !c.known[p.incarnation] && !time.Now().Before(c.waitUntil) {
		p.wire.send("lost")
		return
	}
	if c.isSettled(k) {
		return
	}
	if s := c.out[k]; s != nil && s.worker != p {
		delete(s.worker.out, k)
	}
	c.out[k], p.out[k] = &taskState{attempt, p, true}, true
}

// ready notes that a worker has reported all tasks that it runs. It no longer has the other tasks of its
// earlier connection: they did not start, or their end was recorded, but its report was lost.
func (c *coordinator) ready(p *peer) {
	p.ready, c.known[p.incarnation] = true, true
	for _, g := range c.disconnected {
		if g.rank == p.rank && g.incarnation == p.incarnation {
			g.expires, p.rate = time.Time{}, g.rate
		}
	}
	open := func(p *peer) bool { return !p.ready || !p.sole }
	if all := slices.Collect(maps.Values(c.workers)); len(all) >= c.plan.Nodes && !slices.ContainsFunc(all, open) {
		c.waitUntil = time.Time{} // all tasks that run are known
	}
}

// giveBack schedules a task that has not started.
func (c *coordinator) giveBack(k, attempt int) {
	if s := c.out[k]; s != nil {
		delete(s.worker.out, k)
		delete(c.out, k)
	}
	c.schedule(retry{assignment{k, attempt}, time.Time{}})
}

// schedule adds a task to retries.
func (c *coordinator) schedule(r retry) {
	i, _ := slices.BinarySearchFunc(c.retries, r.at, func(o retry, at time.Time) int { return o.at.Compare(at) })
	c.retries = slices.Insert(c.retries, i, r)
	c.planned[r.index] = true
}

// end handles the end of a task.
func (c *coordinator) end(p *peer, k, attempt, exit int, signal, how string) {
	p.ended++
	t := &job.Task{Index: k, Attempt: attempt, End: time.Now(), Exit: exit}
	if signal != "-" {
		t.Signal = signal
	}
	if how != "ok" {
		t.Problem = how
	}
	c.outcome(t)
}

// outcome settles a task that has ended, or plans its next attempt.
func (c *coordinator) outcome(t *job.Task) {
	k := t.Index
	if s := c.out[k]; s != nil {
		delete(s.worker.out, k)
		delete(c.out, k)
	}
	if c.mayRetry(t) {
		pause := min(firstRetry<<min(t.Attempt-c.plan.First, 6), longestRetry)
		c.schedule(retry{assignment{k, t.Attempt + 1}, time.Now().Add(pause)})
		return
	}
	if !t.OK() {
		c.failed++
	}
	c.settle(k)
	c.left--
}

// Pauses before a task runs again, as in jobs that are not packed.
const (
	firstRetry   = time.Second
	longestRetry = time.Minute
)

// tick updates rates and progress, and gives up workers that did not reconnect.
func (c *coordinator) tick(now time.Time) error {
	running := 0
	for _, s := range c.out {
		if s.running {
			running++
		}
	}
	for _, p := range c.workers {
		p.rate = 0.7*p.rate + 0.3*float64(p.ended)/tick.Seconds()
		p.ended = 0
	}
	for _, p := range c.disconnected {
		if w := c.workers[p.rank]; w != nil && w.incarnation == p.incarnation && !w.ready {
			continue // it is reporting what it runs
		}
		if now.After(p.expires) {
			if err := c.lose(p); err != nil {
				return err
			}
		}
	}
	c.disconnected = slices.DeleteFunc(c.disconnected, func(p *peer) bool { return len(p.out) == 0 })
	if now.Sub(c.shown) > showEach {
		c.shown = now
		if err := c.plan.put("progress", Progress{len(c.workers), running, now}); err != nil {
			c.logf("warning: %v", err)
		}
	}
	return nil
}

// lose settles or schedules the tasks of a worker that did not report their end.
func (c *coordinator) lose(p *peer) error {
	if len(p.out) == 0 {
		return nil
	}
	var r job.Records
	if err := r.Survey(c.plan.dir); err != nil {
		return err
	}
	ended := map[int]*job.Task{}
	for i := range r.Last {
		if t := &r.Last[i]; t.Ended() {
			ended[t.Index] = t
		}
	}
	if c.workers[p.rank] == nil || c.workers[p.rank].incarnation != p.incarnation {
		delete(c.known, p.incarnation)
		c.logf("the worker on %s is gone; its %d tasks without a record of their end run again", p.host, len(p.out))
	}
	for k := range p.out {
		s, t := c.out[k], ended[k]
		switch {
		case r.Succeeded.Has(k):
			c.outcome(&job.Task{Index: k, Attempt: s.attempt, End: time.Now()})
		case t != nil && t.Attempt >= s.attempt:
			c.outcome(t)
		case s.running:
			c.lostTask(assignment{k, s.attempt}, p.host)
		default:
			c.giveBack(k, s.attempt)
		}
	}
	return nil
}

// lostTask plans the next attempt of a task that ran on a node that is gone, or records its failure.
func (c *coordinator) lostTask(a assignment, host string) {
	if _, node := c.plan.Retry.Statuses(); node && a.attempt-c.plan.First < c.plan.Retry.Times {
		c.giveBack(a.index, a.attempt+1)
		return
	}
	now := time.Now()
	t := &job.Task{Index: a.index, Attempt: a.attempt, Host: host, Start: now, End: now, Exit: notRun,
		Problem: "its node or worker was lost; --retry N runs such tasks again"}
	if err := c.record(t); err != nil {
		c.logf("warning: recording task %d, which was lost: %v", t.Index, err)
	}
	c.outcome(t)
}

// record writes a record of the coordinator.
func (c *coordinator) record(t *job.Task) (err error) {
	line := []byte("\n")
	if c.records == nil {
		file, _ := t.PackedFile(c.plan.dir, c.plan.run, max(c.plan.Nodes, 1))
		if c.records, err = files.Create(file, os.O_WRONLY|os.O_APPEND); err != nil {
			return err
		}
		line = append(line, (&job.Task{Host: t.Host, Native: c.plan.Native, ImageVersion: c.plan.Version}).PackedHeader(c.plan.Params)...)
	}
	_, err = c.records.Write(t.AppendPacked(line, 0, 0, 0))
	return err
}

// assignAll assigns tasks to the workers that have room.
func (c *coordinator) assignAll(now time.Time) {
	if now.Before(c.waitUntil) {
		return
	}
	for _, a := range c.open {
		if c.out[a.index] == nil && !c.isSettled(a.index) && !c.planned[a.index] {
			c.lostTask(a, "")
		}
	}
	c.open = nil
	free := math.MaxInt
	if c.plan.Array.Limit > 0 {
		free = c.plan.Array.Limit - len(c.out)
	}
	for _, p := range c.workers {
		if p.ready && free > 0 {
			free -= c.assign(p, min(free, c.missing(p)), now)
		}
	}
}

// missing returns how many more tasks a worker should have: one for each slot and, of short tasks, as
// many as it ends in half a second. Near the end, it leaves tasks for the other workers.
func (c *coordinator) missing(p *peer) int {
	ahead := min(int(p.rate/2), (c.left-len(c.out))/(2*len(c.workers)), maxQueued-p.slots)
	if have := len(p.out); have < p.slots || have < p.slots+ahead/2 {
		return p.slots + ahead - have
	}
	return 0
}

// assign assigns at most n tasks to a worker, and returns how many there were.
func (c *coordinator) assign(p *peer, n int, now time.Time) (given int) {
	var lines []byte
	var first, last assignment
	send := func() {
		if given > 0 {
			lines = fmt.Appendf(lines, "run %d %d %d\n", first.index, last.index, first.attempt)
		}
	}
	for given < n {
		a, ok := c.take(now)
		if !ok {
			break
		}
		if given == 0 || a.index != last.index+1 || a.attempt != last.attempt {
			send()
			first = a
		}
		last = a
		given++
		c.out[a.index], p.out[a.index] = &taskState{attempt: a.attempt, worker: p}, true
	}
	if send(); given > 0 {
		p.wire.sendAll(lines)
	}
	return given
}

// take returns the next task to run.
func (c *coordinator) take(now time.Time) (assignment, bool) {
	for len(c.retries) > 0 && !c.retries[0].at.After(now) {
		a := c.retries[0].assignment
		c.retries = c.retries[1:]
		delete(c.planned, a.index)
		if !c.isSettled(a.index) && c.out[a.index] == nil {
			return a, true
		}
	}
	for {
		k, ok := c.next()
		if !ok {
			return assignment{}, false
		}
		if !c.isSettled(k) && c.out[k] == nil && !c.planned[k] {
			return assignment{k, c.plan.First}, true
		}
	}
}
