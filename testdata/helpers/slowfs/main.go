// Slowfs mounts a directory through FUSE and makes each operation slow, as a stand-in for a
// parallel file system under load. It counts the operations by kind.
//
//	slowfs [-delay 1ms] [-rate N] [-cache 1s] [-stats SOCKET] DIR MOUNTPOINT
//	slowfs -counts SOCKET
//
// It needs no root, only fusermount3. It prints "ready" once the directory is mounted, and unmounts
// it when its standard input ends or on SIGTERM.
//
// The kernel caches as on a network file system: names, attributes and missing names for -cache,
// and the content of a file until its modification time changes. A new mount starts with empty
// caches. Releases of files and of inodes are neither delayed nor counted, because no program
// waits for them.
//
// Each connection to SOCKET receives the counts as a JSON object, for example {"lookup": 12,
// "open": 3, "total": 15}, and resets them. "slowfs -counts SOCKET" prints the same.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	delay := flag.Duration("delay", time.Millisecond, "duration that each operation takes longer")
	rate := flag.Float64("rate", 0, "maximum number of operations per second of all processes together; 0: no limit")
	cache := flag.Duration("cache", time.Second, "how long the kernel caches names and attributes")
	stats := flag.String("stats", "", "Unix socket that reports and resets the counts")
	counts := flag.String("counts", "", "print and reset the counts of the slowfs with this socket")
	flag.Parse()
	var err error
	switch {
	case *counts != "" && flag.NArg() == 0:
		err = printCounts(*counts)
	case *counts == "" && flag.NArg() == 2:
		err = run(flag.Arg(0), flag.Arg(1), *stats, *cache, &meter{delay: *delay, rate: *rate, counts: map[string]int{}})
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "slowfs:", err)
		os.Exit(1)
	}
}

// run serves dir at mountpoint until it is unmounted.
func run(dir, mountpoint, stats string, cache time.Duration, m *meter) error {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return err
	}
	system := slow{fs.NewNodeFS(root, &fs.Options{EntryTimeout: &cache, AttrTimeout: &cache, NegativeTimeout: &cache}), m}
	server, err := fuse.NewServer(system, mountpoint, &fuse.MountOptions{Name: "slowfs", FsName: dir, MaxWrite: 1 << 20, MaxReadAhead: 1 << 20, EnableSymlinkCaching: true})
	if err != nil {
		return fmt.Errorf("mounting at %s: %w", mountpoint, err)
	}
	served := make(chan bool)
	go func() { server.Serve(); close(served) }()
	if err := server.WaitMount(); err != nil {
		return err
	}
	if stats != "" {
		l, err := net.Listen("unix", stats)
		if err != nil {
			_ = server.Unmount()
			return err
		}
		defer l.Close()
		go m.report(l)
	}
	m.take() // forget the operations of mounting
	fmt.Println("ready")
	unmountAtEnd(server, served)
	return nil
}

// unmountAtEnd unmounts when standard input ends, or on a signal. A busy file system cannot be
// unmounted yet, so it tries again. It does not wait for mount namespaces of other programs, which
// may have copies of the mount.
func unmountAtEnd(server *fuse.Server, served <-chan bool) {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end <- syscall.SIGTERM
	}()
	select {
	case <-end:
	case <-served: // another process unmounted it
		return
	}
	for server.Unmount() != nil {
		time.Sleep(50 * time.Millisecond)
	}
}

func printCounts(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.Copy(os.Stdout, c)
	return err
}

// A meter delays and counts operations.
type meter struct {
	delay time.Duration
	rate  float64 // operations per second; 0: no limit

	mu     sync.Mutex
	next   time.Time // when rate allows the next operation
	counts map[string]int
}

// operation counts an operation and returns when it may continue.
func (m *meter) operation(kind string) {
	m.mu.Lock()
	m.counts[kind]++
	now := time.Now()
	if m.next.Before(now) {
		m.next = now
	}
	wait := m.next.Sub(now) + m.delay
	if m.rate > 0 {
		m.next = m.next.Add(time.Duration(float64(time.Second) / m.rate))
	}
	m.mu.Unlock()
	time.Sleep(wait)
}

// take returns the counts and resets them.
func (m *meter) take() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts, total := m.counts, 0
	m.counts = map[string]int{}
	for _, n := range counts {
		total += n
	}
	counts["total"] = total
	return counts
}

func (m *meter) report(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = json.NewEncoder(c).Encode(m.take())
		c.Close()
	}
}
