package main

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// echoes implements "echoes": it starts a server at port $ECHO of the loopback interface, which all
// test nodes share. The server reads each connection to the end and sends the data back.
func echoes(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv("ECHO", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if b, err := io.ReadAll(c); err == nil {
					_, _ = c.Write(b)
				}
			}()
		}
	}()
}

// exchange implements "exchange FILE|unix:PATH N BYTES": N connections at once to the address in
// FILE send BYTES bytes, close their side and expect the same data back.
func exchange(ts *testscript.TestScript, _ bool, args []string) {
	network, addr := "tcp", ""
	if path, ok := strings.CutPrefix(args[0], "unix:"); ok {
		network, addr = "unix", path
	} else {
		b, err := os.ReadFile(args[0])
		ts.Check(err)
		addr = strings.TrimSpace(string(b))
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	size, err := strconv.Atoi(args[2])
	ts.Check(err)
	problems := make(chan error, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() { problems <- echoed(network, addr, size) })
	}
	all.Wait()
	for range n {
		ts.Check(<-problems)
	}
}

func echoed(network, addr string, size int) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	sent := make([]byte, size)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = c.Write(sent)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err == nil && sha256.Sum256(got) != sha256.Sum256(sent) {
		err = fmt.Errorf("received %d bytes that differ from the %d bytes sent", len(got), size)
	}
	return err
}
