// Command load uses known amounts of resources, for tests of "hpcc run --measure":
//
//	load cpu SECONDS THREADS   counts
//	load memory MIB            fills memory and frees it
//	load processes N MIB       starts N simultaneous processes that each fill memory and count
//	load short N               starts N short-lived processes that count, in sequence
//	load interrupts SECONDS    counts interrupts, until SECONDS after the first one; exits with status 7
//	load io DIR MIB            writes a file to storage, and reads it from there
//
// The program holds the memory until the record of the run, $LOAD_RECORD, has samples of it. Without
// LOAD_RECORD, it holds the memory for a moment.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	number := func(i int) float64 {
		n, err := strconv.ParseFloat(os.Args[i], 64)
		check(err)
		return n
	}
	switch os.Args[1] {
	case "cpu":
		var all sync.WaitGroup
		for range int(number(3)) {
			all.Add(1)
			go func() {
				runtime.LockOSThread()
				spin(time.Duration(number(2) * float64(time.Second)))
				all.Done()
			}()
		}
		all.Wait()
	case "memory":
		fill(int(number(2)))
		if os.Getenv("LOAD_RECORD") == "-" { // the parent process waits for the samples
			fmt.Println("full")
			_, _ = os.Stdin.Read(make([]byte, 1))
		} else {
			hold(os.Getenv("LOAD_RECORD"))
		}
	case "processes":
		processes(int(number(2)), os.Args[3])
	case "short":
		for range int(number(2)) {
			check(exec.Command("/proc/self/exe", "cpu", "0.005", "1").Run())
		}
	case "interrupts":
		interrupts(time.Duration(number(2) * float64(time.Second)))
	case "io":
		storage(os.Args[2], int(number(3)))
	}
}

func interrupts(most time.Duration) {
	c := make(chan os.Signal, 10)
	signal.Notify(c, os.Interrupt)
	fmt.Println("ready")
	end := time.After(time.Minute)
	for n := 0; ; n++ {
		select {
		case <-c:
			if n == 0 {
				end = time.After(most)
			}
		case <-end:
			fmt.Println("interrupts in all:", n)
			os.Exit(7)
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// spin uses the given processor time in this thread.
func spin(most time.Duration) {
	for x := 1; ; {
		for range 100_000 {
			x = x*1664525 + 1013904223
		}
		var t syscall.Timespec
		const threadTime = 3 // CLOCK_THREAD_CPUTIME_ID
		syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadTime, uintptr(unsafe.Pointer(&t)), 0)
		if time.Duration(t.Nano()) > most || x == 0 {
			return
		}
	}
}

// processes starts n processes that fill memory, and ends them when the record has samples of all.
func processes(n int, mib string) {
	var full, all sync.WaitGroup
	var ends []io.Closer
	for range n {
		cmd := exec.Command("/proc/self/exe", "memory", mib)
		cmd.Env = append(os.Environ(), "LOAD_RECORD=-")
		in, err := cmd.StdinPipe()
		check(err)
		out, err := cmd.StdoutPipe()
		check(err)
		check(cmd.Start())
		ends = append(ends, in)
		full.Add(1)
		all.Go(func() {
			_, _ = out.Read(make([]byte, 8))
			full.Done()
			check(cmd.Wait())
		})
	}
	full.Wait()
	hold(os.Getenv("LOAD_RECORD"))
	for _, in := range ends {
		in.Close()
	}
	all.Wait()
}

// hold waits until the record has grown twice: the second addition comes from a sample that
// started after the call.
func hold(record string) {
	time.Sleep(2 * time.Second)
	if record == "" {
		return
	}
	size := func() int64 {
		fi, err := os.Stat(record)
		check(err)
		return fi.Size()
	}
	for range 2 {
		before := size()
		for i := 0; i < 600 && size() == before; i++ {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// fill allocates memory and touches all its pages.
func fill(mib int) {
	b, err := syscall.Mmap(-1, 0, mib<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	check(err)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

// storage writes a file with O_DIRECT if the file system supports it, or else synchronises it.
func storage(dir string, mib int) {
	name := filepath.Join(dir, "load.data")
	defer os.Remove(name)
	block, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	check(err)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_DIRECT, 0o644)
	if err != nil {
		f, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	}
	check(err)
	for range mib {
		_, err := f.Write(block)
		check(err)
	}
	check(f.Sync())
	const dontNeed = 4 // POSIX_FADV_DONTNEED
	syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
	_, err = f.Seek(0, 0)
	check(err)
	for range mib {
		_, err := f.Read(block)
		check(err)
	}
}
