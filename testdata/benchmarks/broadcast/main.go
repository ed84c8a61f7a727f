// Scale sends a file to many nodes in the two ways that docs/scale.md compares, and predicts how
// long each takes. run.sh starts it in network namespaces with limited links.
//
//	scale node ADDRESS                       serves the other commands on a node
//	scale read SERVER SIZE NODE...           lets all nodes read a file from one server
//	scale send FANOUT BLOCK SIZE NODE...     sends a file to all nodes in a tree
//	scale predict RATE SERVER-RATE FANOUT SIZE NODES   prints the times of both in seconds
//
// A tree is that of sbcast: blocks follow one another, each node passes a full block on to
// at most FANOUT others at the same time, and the sender waits for all nodes before the next block.
// Rates are in bytes per second.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: scale node|read|send|predict ARG...; see testdata/benchmarks/broadcast/main.go")
	}
	rest := args[1:]
	if args[0] == "node" {
		return serve(rest[0])
	}
	start := time.Now()
	var err error
	switch args[0] {
	case "read":
		var n []float64
		if n, err = numbers(rest[1:], 1); err == nil {
			err = each(rest[2:], func(node string) error {
				return call(node, &order{Op: "fetch", From: rest[0], Size: int64(n[0])}, 0)
			})
		}
	case "send":
		var n []float64
		if n, err = numbers(rest, 3); err == nil {
			err = send(int(n[0]), int64(n[1]), int64(n[2]), rest[3:])
		}
	case "predict":
		var n []float64
		if n, err = numbers(rest, 5); err == nil {
			fmt.Printf("%.2f %.2f\n", readTime(n[0], n[1], n[3], int(n[4])), treeTime(n[0], int(n[2]), n[3], int(n[4])))
		}
		return err
	default:
		err = fmt.Errorf("unknown command %q", args[0])
	}
	if err == nil {
		fmt.Printf("%.2f\n", time.Since(start).Seconds())
	}
	return err
}

// numbers parses the first n arguments.
func numbers(args []string, n int) ([]float64, error) {
	if len(args) < n {
		return nil, fmt.Errorf("%d numbers are needed", n)
	}
	out := make([]float64, n)
	for i := range out {
		var err error
		if out[i], err = strconv.ParseFloat(args[i], 64); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// payload is the part of an Ethernet frame of 1514 bytes that TCP with timestamps uses for data.
const payload = 1448.0 / 1514

// readTime returns the time in seconds until n nodes have read size bytes from one server.
func readTime(rate, serverRate, size float64, n int) float64 {
	return max(float64(n)*size/serverRate, size/rate) / payload
}

// treeTime returns the time in seconds until n nodes have received size bytes in a tree.
func treeTime(rate float64, fanout int, size float64, n int) float64 {
	return size / rate * float64(blocks(fanout, n)) / payload
}

// blocks returns how many copies of a block are sent one after another. The sender is on the first
// node, which gets its copy at once and passes it on while the sender still sends: both share the
// link of this node.
func blocks(fanout, n int) int {
	ceil := func(n, parts int) int { return (n + parts - 1) / parts }
	first := ceil(n, fanout) - 1 // nodes that get the block from the first node
	shared := min(fanout, n) - 1 + min(fanout, first)
	second := 0 // nodes that get it from the first node of the second part
	if fanout > 1 {
		second = ceil(n-first-1, fanout-1) - 1
	}
	return shared + max(turns(fanout, first)-min(fanout, first), turns(fanout, second))
}

// turns returns how many copies of a block are sent one after another below a node that passes it
// on to n nodes: each node on the longest path sends it to up to fanout others over its own link.
func turns(fanout, n int) int {
	if n <= 0 {
		return 0
	}
	return min(fanout, n) + turns(fanout, (n+fanout-1)/fanout-1)
}

// split divides the nodes into at most fanout parts of almost the same size.
func split(nodes []string, fanout int) [][]string {
	var out [][]string
	for parts := min(fanout, len(nodes)); parts > 0; parts-- {
		n := (len(nodes) + parts - 1) / parts
		out, nodes = append(out, nodes[:n]), nodes[n:]
	}
	return out
}

// An order is the first line of a connection to a node. The data of a block follows.
type order struct {
	Op     string // block: pass the data on, fetch: read a file from From, file: answer with a file
	Size   int64
	From   string   `json:",omitempty"`
	To     []string `json:",omitempty"` // nodes that get the block from this one
	Fanout int      `json:",omitempty"`
}

// serve executes orders.
func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := answer(c); err != nil {
				fmt.Fprintln(os.Stderr, "scale:", address, err)
			}
		}()
	}
}

func answer(c net.Conn) error {
	r := bufio.NewReader(c)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	switch o.Op {
	case "file":
		_, err := io.CopyN(c, zeros{}, o.Size)
		return err
	case "fetch":
		err = call(o.From, &order{Op: "file", Size: o.Size}, o.Size)
	case "block":
		if _, err = io.CopyN(io.Discard, r, o.Size); err == nil {
			err = pass(o.Fanout, o.Size, o.To)
		}
	}
	if err != nil {
		return err
	}
	_, err = c.Write([]byte{0})
	return err
}

// send sends the blocks of a file one after another.
func send(fanout int, block, size int64, nodes []string) error {
	for ; size > 0; size -= block {
		if err := pass(fanout, min(block, size), nodes); err != nil {
			return err
		}
	}
	return nil
}

// pass sends a block to the first node of each part, which passes it on to the others.
func pass(fanout int, size int64, nodes []string) error {
	parts := map[string][]string{}
	var first []string
	for _, p := range split(nodes, fanout) {
		first, parts[p[0]] = append(first, p[0]), p[1:]
	}
	return each(first, func(node string) error {
		return call(node, &order{Op: "block", Size: size, To: parts[node], Fanout: fanout}, 0)
	})
}

// call sends an order to a node, with the data of a block. It waits for an answer of want bytes, or
// for the byte that confirms the order.
func call(node string, o *order, want int64) error {
	c, err := net.Dial("tcp", node)
	if err != nil {
		return err
	}
	defer c.Close()
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := c.Write(append(line, '\n')); err != nil {
		return err
	}
	if o.Op == "block" {
		if _, err := io.CopyN(c, zeros{}, o.Size); err != nil {
			return err
		}
	}
	if o.Op != "file" {
		want = 1
	}
	_, err = io.CopyN(io.Discard, c, want)
	return err
}

// each calls do for all nodes at the same time.
func each(nodes []string, do func(node string) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = do(n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
