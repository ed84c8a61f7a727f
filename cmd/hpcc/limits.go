package main

import (
	"fmt"
	"os"
	goruntime "runtime"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/runtime/probe"
)

// watchCPU ends hpcc with a message shortly before it has used the CPU time that
// the system allows (ulimit -t): at the limit the kernel would kill it without
// one. Programs that hpcc starts have their own account of CPU time.
func watchCPU() {
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
		os.Exit(tellError((&message{err: fmt.Errorf("hpcc has used the %d s of CPU time that it may use", l.Cur)}).
			hint("the limit of CPU time is %d s; raise it with \"ulimit -t unlimited\", or run this in a job", l.Cur)))
	}()
}

// limitsFeature reports resource limits that are too small for some commands.
func limitsFeature() probe.Feature {
	f := probe.Feature{State: probe.OK, Why: "none that hpcc meets"}
	small := ""
	for _, l := range []struct {
		resource    int
		least, unit uint64
		what, cure  string
	}{
		{unix.RLIMIT_NOFILE, 256, 1, "%d open files (-n)", "-n 1024"},
		{unix.RLIMIT_NPROC, 64, 1, "%d processes and threads (-u)", "-u 4096"},
		{unix.RLIMIT_AS, 2 << 30, 1024, "%d KiB of address space (-v)", "-v unlimited"},
		{unix.RLIMIT_DATA, 1 << 30, 1024, "%d KiB of data (-d)", "-d unlimited"},
		{unix.RLIMIT_FSIZE, 1 << 40, 1024, "%d KiB a file (-f)", "-f unlimited"},
		{unix.RLIMIT_CPU, 3600, 1, "%d s of CPU time (-t)", "-t unlimited"},
	} {
		var r unix.Rlimit
		if unix.Getrlimit(l.resource, &r) != nil || r.Cur >= l.least {
			continue
		}
		if small != "" {
			small, f.Do = small+", ", f.Do+"; "
		}
		small += fmt.Sprintf(l.what, r.Cur/l.unit)
		f.Do += "ulimit " + l.cure
	}
	if small != "" {
		f.State, f.Why = probe.Limited, small
	}
	return f
}
