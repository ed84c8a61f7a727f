package main

import (
	"fmt"
	"net"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// TestTurns compares the formula with the tree that pass builds.
func TestTurns(t *testing.T) {
	var longest func(fanout int, nodes []string) int
	longest = func(fanout int, nodes []string) int {
		parts := split(nodes, fanout)
		if len(parts) == 0 {
			return 0
		}
		most, count := 0, 0
		for _, p := range parts {
			most, count = max(most, longest(fanout, p[1:])), count+len(p)
		}
		if count != len(nodes) {
			t.Fatalf("the parts of %d nodes have %d", len(nodes), count)
		}
		return len(parts) + most
	}
	for _, fanout := range []int{1, 2, 8, 50} {
		for n := range 300 {
			if got, want := turns(fanout, n), longest(fanout, make([]string, n)); got != want {
				t.Errorf("turns(%d, %d) = %d; want %d", fanout, n, got, want)
			}
		}
	}
	for _, c := range []struct{ fanout, n, want int }{
		{8, 1, 0}, {8, 4, 3}, {8, 10, 9}, {8, 16, 9}, {8, 64, 21}, {8, 100, 24}, {8, 1000, 32},
		{3, 4, 3}, {1, 1, 0}, {1, 3, 2}, {50, 50, 49},
	} {
		if got := blocks(c.fanout, c.n); got != c.want {
			t.Errorf("blocks(%d, %d) = %d; want %d", c.fanout, c.n, got, c.want)
		}
	}
}

// TestTransfer sends a file to nodes of this process in both ways.
func TestTransfer(t *testing.T) {
	var nodes []string
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testenv.Check(t, err)
		address := l.Addr().String()
		testenv.Check(t, l.Close())
		go func() { _ = serve(address) }()
		for i := 0; i < 1000 && call(address, &order{Op: "file"}, 0) != nil; i++ {
			continue
		}
		nodes = append(nodes, address)
	}
	testenv.Check(t, run(append([]string{"read", nodes[0], "100000"}, nodes...)))
	testenv.Check(t, run(append([]string{"send", "3", "10000", "25000"}, nodes...)))
	for _, bad := range []string{"read 127.0.0.1:1 x", "send 1 2", "fly a"} {
		var args []string
		for _, a := range []byte(bad) {
			args = append(args, string(a))
		}
		if err := run(args); err == nil {
			t.Errorf("%s succeeds", fmt.Sprint(bad))
		}
	}
}
