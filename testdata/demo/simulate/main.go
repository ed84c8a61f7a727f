// Command simulate stands for the user's own program in the demo: it says where
// it runs, with which arguments and environment, and estimates pi.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
)

func main() {
	id := flag.Int64("id", 0, "seed of the run")
	flag.Parse()
	self, _ := os.Executable()
	dir, _ := os.Getwd()
	// The package holds a placeholder in the place of the prefix; hpcc put the
	// environment's own there.
	conf, err := os.ReadFile(filepath.Join(filepath.Dir(self), "../etc/simulate.conf"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
	const n = 1_000_000
	random, hits := rand.New(rand.NewSource(*id)), 0
	for range n {
		x, y := random.Float64(), random.Float64()
		if x*x+y*y < 1 {
			hits++
		}
	}
	fmt.Printf("%s in %s: id %d, MODE=%s, PYTHONPATH=%s, task %q of %q, %spi ≈ %.4f\n", self, dir, *id, os.Getenv("MODE"), os.Getenv("PYTHONPATH"),
		os.Getenv("HPCC_TASK_ID"), os.Getenv("HPCC_TASK_COUNT"), conf, 4*float64(hits)/n)
}
