package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// freePortsCommand is freeports NAME: find a port for a Slurm of testdata/slurm/up.sh, which takes
// some above it as well, and keep it as $NAME. No other script gets them, though nobody listens there yet.
func freePortsCommand(ts *testscript.TestScript, _ bool, args []string) {
	givenPorts.Lock()
	defer givenPorts.Unlock()
next:
	for range 100 {
		port := 20000 + rand.IntN(9000)
		for _, n := range []int{0, 1, 101, 102} {
			if givenPorts.all[port+n] {
				continue next
			}
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+n))
			if err != nil {
				continue next
			}
			l.Close()
		}
		for _, n := range []int{0, 1, 101, 102} {
			givenPorts.all[port+n] = true
		}
		ts.Setenv(args[0], fmt.Sprint(port))
		return
	}
	ts.Fatalf("no free ports")
}

// givenPorts are those that scripts have.
var givenPorts = struct {
	sync.Mutex
	all map[int]bool
}{all: map[int]bool{}}
