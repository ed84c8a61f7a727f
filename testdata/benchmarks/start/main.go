// Command start measures how long programs take to start. Each round runs all commands
// of a file in a new random order, so that other load on the machine affects all of
// them equally. For each case it prints a row of Markdown
// with the medians of wall-clock and processor time and their ratio.
//
//	start ROUNDS CASES.json
package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"
)

// A Case is one situation, started by hpcc and by a peer that does the same.
type Case struct {
	Name       string
	Dir        string   // current directory
	Env        []string // added to the environment of this process
	Hpcc, Peer []string // argv
	Status     int      // exit status of Hpcc; Peer always ends with 0
}

// sample is the duration of one start, in milliseconds.
type sample struct{ wall, cpu float64 }

const warmups = 5

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "start:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: start ROUNDS CASES.json")
	}
	var rounds int
	if _, err := fmt.Sscan(args[0], &rounds); err != nil || rounds < 1 {
		return fmt.Errorf("%q is not a number of rounds", args[0])
	}
	b, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var cases []Case
	if err := json.Unmarshal(b, &cases); err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	took := make([][2][]sample, len(cases))
	for round := range warmups + rounds {
		for _, i := range rand.Perm(2 * len(cases)) {
			c, peer := &cases[i/2], i%2
			argv, status := c.Hpcc, c.Status
			if peer == 1 {
				argv, status = c.Peer, 0
			}
			s, err := start(c, argv, status)
			if err != nil {
				return err
			}
			if round >= warmups {
				took[i/2][peer] = append(took[i/2][peer], s)
			}
		}
	}
	wall := func(s sample) float64 { return s.wall }
	cpu := func(s sample) float64 { return s.cpu }
	for i, c := range cases {
		hpcc, peer := took[i][0], took[i][1]
		w, pw := median(hpcc, wall), median(peer, wall)
		p, pp := median(hpcc, cpu), median(peer, cpu)
		fmt.Printf("| %s | %.2f · %.2f | %.2f | %.2f · %.2f | %.2f |\n", c.Name, w, pw, w/pw, p, pp, p/pp)
	}
	return nil
}

// start runs argv to its end.
func start(c *Case, argv []string, status int) (sample, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return sample{}, err
	}
	defer null.Close()
	began := time.Now()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: c.Dir, Env: append(os.Environ(), c.Env...), Files: []*os.File{null, null, null}})
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", c.Name, err)
	}
	state, err := p.Wait()
	wall := time.Since(began)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", c.Name, err)
	}
	if got := state.ExitCode(); got != status {
		return sample{}, fmt.Errorf("%s: %q ended with status %d; want %d", c.Name, argv, got, status)
	}
	used := state.SysUsage().(*syscall.Rusage)
	ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
	return sample{ms(wall), ms(time.Duration(used.Utime.Nano() + used.Stime.Nano()))}, nil
}

// median returns the median of one field.
func median(samples []sample, field func(sample) float64) float64 {
	v := make([]float64, len(samples))
	for i, s := range samples {
		v[i] = field(s)
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
