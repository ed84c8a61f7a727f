// Command simulate is the user's own program in the demo: it estimates pi and prints where
// it runs, with which arguments and environment.
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
	points := flag.Int("points", 1_000_000, "number of random points")
	need := flag.String("need", "", "fail if this file does not exist")
	flag.Parse()
	self, _ := os.Executable()
	dir, _ := os.Getwd()
	if *need != "" {
		if _, err := os.Stat(*need); err != nil {
			fmt.Fprintln(os.Stderr, "simulate:", err)
			os.Exit(3)
		}
	}
	// The package contains a placeholder for the prefix, which hpcc replaced.
	conf, err := os.ReadFile(filepath.Join(filepath.Dir(self), "../etc/simulate.conf"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
	random, hits := rand.New(rand.NewSource(*id)), 0
	for range *points {
		x, y := random.Float64(), random.Float64()
		if x*x+y*y < 1 {
			hits++
		}
	}
	fmt.Printf("%s in %s: id %d, MODE=%s, PYTHONPATH=%s, task %q of %q, %spi ≈ %.4f\n", self, dir, *id, os.Getenv("MODE"), os.Getenv("PYTHONPATH"),
		os.Getenv("HPCC_TASK_ID"), os.Getenv("HPCC_TASK_COUNT"), conf, 4*float64(hits)/float64(*points))
}
