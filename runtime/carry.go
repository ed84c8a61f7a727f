package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Some runs are only known when the command line has been read, which is too
// late to enter or create namespaces (entry.go). The process then executes
// itself again, with the same pid, and carries its specification along: argv[0]
// is a mark for the entry point, followed by descriptors, a byte each.
//
//	hpcc+ent . . SPEC LOCK       create new namespaces
//	hpcc+jns USER MNT SPEC LOCK  enter those that these descriptors stand for
const (
	markEnter = "hpcc+ent"
	markJoin  = "hpcc+jns"
)

// noFD stands for a descriptor that there is none of: argv[0] can hold no zero.
const noFD = 1

// A carried run is what an execution of hpcc by itself found with it.
type carried struct {
	joined bool
	spec   *specs.Spec
	fds    []int  // to be closed before the program starts
	lock   *group // nil: the run shares its namespaces with nobody
}

// deferred says whether the entry point left the namespaces to later.
func deferred() bool { return entered == later }

// pickUp reads a run that was carried here; nil when this is none.
func pickUp() (*carried, error) {
	a := os.Args[0]
	if len(a) != len(markEnter)+4 || (!strings.HasPrefix(a, markEnter) && !strings.HasPrefix(a, markJoin)) {
		return nil, nil
	}
	c := &carried{joined: strings.HasPrefix(a, markJoin), spec: new(specs.Spec)}
	fd := func(i int) int { return int(a[len(markEnter)+i]) }
	if c.joined {
		c.fds = append(c.fds, fd(0), fd(1))
	}
	c.fds = append(c.fds, fd(2))
	if lock := fd(3); lock != noFD {
		c.fds = append(c.fds, lock)
		c.lock = &group{FD: lock}
	}
	// A foreign program's ladder may execute this again: the offset stays.
	var st unix.Stat_t
	if err := unix.Fstat(fd(2), &st); err != nil {
		return nil, fmt.Errorf("reading the run that was carried along: %w", err)
	}
	b := make([]byte, st.Size)
	if _, err := unix.Pread(fd(2), b, 0); err != nil {
		return nil, fmt.Errorf("reading the run that was carried along: %w", err)
	}
	if err := json.Unmarshal(b, c.spec); err != nil {
		return nil, fmt.Errorf("reading the run that was carried along: %w", err)
	}
	return c, nil
}

// resume goes on with a run that was carried here. It returns only on failure.
func (c *carried) resume() error {
	if asked, err := early(); err != nil || !asked {
		return &NamespaceError{err}
	}
	if !c.joined {
		mapEarly(c.spec)
		if _, err := early(); err != nil {
			return &NamespaceError{err}
		}
	}
	if hasNamespace(c.spec, specs.PIDNamespace) {
		return superviseInit(c.spec)
	}
	var foreign error
	if c.joined { // its root is that of the others
		if err := ownNamespaces(c.spec); err != nil {
			return failed(err)
		}
	} else {
		var err error
		if foreign, err = settle(c.spec); err != nil {
			return failed(err)
		}
	}
	if c.lock != nil {
		if err := c.lock.enter(); err != nil {
			return failed(err)
		}
	}
	c.drop()
	return launch(c.spec, foreign, execute)
}

// otherwise runs s where that takes more than this process as it is: the
// namespaces of others, other ids than the entry point gave it, an init. Done
// is false where it does not; else it returns only on failure.
func otherwise(s *specs.Spec, asked bool) (done bool, err error) {
	uid, gid := visibleIDs(s)
	switch {
	case wantsJoin(s):
		return true, join(s)
	case deferred() || (asked && (os.Geteuid() != uid || os.Getegid() != gid)):
		return true, carry(s, markEnter, noFD, noFD, noFD)
	case asked && hasNamespace(s, specs.PIDNamespace):
		return true, superviseInit(s)
	}
	return false, nil
}

// drop closes what was carried, and with it gives up the group's lock.
func (c *carried) drop() {
	for _, fd := range c.fds {
		unix.Close(fd)
	}
}

// carry executes hpcc again with s. It returns only on failure.
func carry(s *specs.Spec, mark string, user, mnt, lock int) error {
	f, err := specFile(s)
	if err != nil {
		return err
	}
	name := []byte(mark)
	for _, fd := range []int{user, mnt, int(f.Fd()), lock} {
		if fd != noFD {
			// This duplicate, unlike the original, outlives the execution.
			if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 3); err != nil {
				return fmt.Errorf("keeping a descriptor for the run: %w", err)
			}
		}
		if fd > 255 {
			return errors.New("too many open files to share namespaces: more than 250 are inherited")
		}
		name = append(name, byte(fd))
	}
	args := append([]string{string(name)}, os.Args[1:]...)
	return fmt.Errorf("executing hpcc again: %w", execute("/proc/self/exe", args, os.Environ()))
}
