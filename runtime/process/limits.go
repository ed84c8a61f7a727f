package process

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"syscall"
	"time"

	"hpcc/text"

	"golang.org/x/sys/unix"
)

// limitNumbers are the resource numbers of getrlimit(2), the same on all supported
// architectures.
var limitNumbers = map[string]int{
	"RLIMIT_CPU": 0, "RLIMIT_FSIZE": 1, "RLIMIT_DATA": 2, "RLIMIT_STACK": 3, "RLIMIT_CORE": 4,
	"RLIMIT_RSS": 5, "RLIMIT_NPROC": 6, "RLIMIT_NOFILE": 7,
	"RLIMIT_MEMLOCK": 8, "RLIMIT_AS": 9, "RLIMIT_LOCKS": 10, "RLIMIT_SIGPENDING": 11, "RLIMIT_MSGQUEUE": 12,
	"RLIMIT_NICE": 13, "RLIMIT_RTPRIO": 14, "RLIMIT_RTTIME": 15,
}

// SetLimit sets a limit of resources, or if the user may not set it, the closest permitted value.
// The name is that of the runtime specification, such as RLIMIT_NOFILE.
func SetLimit(name string, soft, hard uint64) error {
	nr, ok := limitNumbers[name]
	if !ok {
		return fmt.Errorf("process.rlimits: unknown limit %q", name)
	}
	if soft > hard {
		return fmt.Errorf("process.rlimits: %s: the soft limit %d is above the hard limit %d", name, soft, hard)
	}
	want := syscall.Rlimit{Cur: soft, Max: hard}
	// syscall.Setrlimit also keeps Go from restoring the limit on open files on exec.
	err := syscall.Setrlimit(nr, &want)
	if errors.Is(err, unix.EPERM) {
		var have syscall.Rlimit
		if err = syscall.Getrlimit(nr, &have); err == nil {
			want = syscall.Rlimit{Cur: min(want.Cur, have.Max), Max: min(want.Max, have.Max)}
			err = syscall.Setrlimit(nr, &want)
		}
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return nil
}

// WatchCPU calls end with an error shortly before this process reaches the limit of CPU time
// (ulimit -t), where the kernel would kill it without a message. The limit applies to each process,
// so it does not count programs that hpcc starts.
func WatchCPU(end func(error)) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CPU, &l) != nil || l.Cur > 1<<30 { // 34 years; infinity
		return
	}
	cores := time.Duration(goruntime.GOMAXPROCS(0))
	allowed := time.Duration(l.Cur) * time.Second
	allowed -= min(allowed/5, 500*time.Millisecond) // a busy machine may wake this late
	go func() {
		for {
			var used unix.Rusage
			if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
				return
			}
			left := allowed - time.Duration(used.Utime.Nano()+used.Stime.Nano())
			if left <= 0 {
				break
			}
			time.Sleep(max(left/(2*cores), 2*time.Millisecond))
		}
		end(text.Hint(fmt.Errorf("hpcc has reached the limit of CPU time (%d s)", l.Cur),
			"raise the limit with \"ulimit -t unlimited\", or run the command in a job"))
	}()
}
