package main

import (
	"fmt"
	"math/rand/v2"
	"net"

	"github.com/rogpeppe/go-internal/testscript"
)

// freePortsCommand is freeports NAME: find a port for a Slurm of testdata/slurm/up.sh, which takes
// some above it as well, and keep it as $NAME.
func freePortsCommand(ts *testscript.TestScript, _ bool, args []string) {
next:
	for range 100 {
		port := 20000 + rand.IntN(9000)
		for _, n := range []int{0, 1, 101, 102} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+n))
			if err != nil {
				continue next
			}
			l.Close()
		}
		ts.Setenv(args[0], fmt.Sprint(port))
		return
	}
	ts.Fatalf("no free ports")
}
