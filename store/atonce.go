package store

import "golang.org/x/sys/unix"

// keptOpen is how many descriptors a command of hpcc uses besides those of the
// work that it divides: standard streams, Go's poller, the store, an archive.
const keptOpen = 12

// AtOnce returns how many pieces of work may go on at the same time when each
// opens up to files descriptors: want, or fewer (at least 1) where the limit of
// open files (ulimit -n) does not allow that many.
func AtOnce(want, files int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur > 1<<20 {
		return want
	}
	return max(1, min(want, (int(l.Cur)-keptOpen)/files))
}
