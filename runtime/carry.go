package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/inherit"
)

// Some runs are known only after the command line has been parsed, which is too late to
// enter or create namespaces (entry.go). The process then executes itself again, with the
// same pid, and passes its specification on. argv[0] is a mark for the entry point, followed
// by file descriptors, one byte each.
//
//	hpcc+ent . . SPEC LOCK       create new namespaces
//	hpcc+jns USER MNT SPEC LOCK  enter those that these descriptors stand for
const (
	markEnter = "hpcc+ent"
	markJoin  = "hpcc+jns"
)

// noFD marks an absent descriptor. It is not zero because argv[0] cannot contain a zero
// byte.
const noFD = 1

// A carried run is the state that hpcc passed to itself across an exec.
type carried struct {
	joined bool
	spec   *specs.Spec
	fds    []int  // closed when the program starts
	lock   *group // nil if the run shares its namespaces with no other task
}

// deferred reports whether the entry point left the namespaces to main.
func deferred() bool { return entered == later }

// pickUp reads the run that was passed across an exec, or nil if there is none.
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
	// Running a foreign program may execute hpcc once more: keep the file offset.
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

// resume continues a run that was passed across an exec. It returns only on failure.
func (c *carried) resume() error {
	if requested, err := earlyNamespaces(); err != nil || !requested {
		return &NamespaceError{err}
	}
	if !c.joined {
		mapEarly(c.spec)
		if _, err := earlyNamespaces(); err != nil {
			return &NamespaceError{err}
		}
	}
	if hasNamespace(c.spec, specs.PIDNamespace) {
		c.release()
		return superviseInit(c.spec)
	}
	var foreign error
	if c.joined { // the group's other tasks have mounted the root
		if err := ownNamespaces(c.spec); err != nil {
			return setupError(err)
		}
	} else {
		var err error
		if foreign, err = setUp(c.spec); err != nil {
			return setupError(err)
		}
	}
	if c.lock != nil {
		if err := c.lock.enter(); err != nil {
			return setupError(err)
		}
	}
	c.release()
	return launch(c.spec, foreign, inherit.Exec)
}

// runIndirectly runs s if this process cannot simply become the program, because the run
// needs the namespaces of other tasks, other IDs than the entry point mapped, or an init. It
// returns false if the run needs none of these, and true only if the run failed.
func runIndirectly(s *specs.Spec, requested bool) (done bool, err error) {
	uid, gid := visibleIDs(s)
	switch {
	case wantsJoin(s):
		return true, join(s)
	case deferred() || (requested && (os.Geteuid() != uid || os.Getegid() != gid)):
		return true, carry(s, markEnter, noFD, noFD, noFD)
	case requested && hasNamespace(s, specs.PIDNamespace):
		return true, superviseInit(s)
	}
	return false, nil
}

// release gives up the descriptors that were passed on, and so the group's lock, when the
// program starts.
func (c *carried) release() {
	for _, fd := range c.fds {
		unix.CloseOnExec(fd)
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
			// Unlike the original, this duplicate survives the exec.
			if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 3); err != nil {
				return fmt.Errorf("keeping a descriptor for the run: %w", err)
			}
		}
		if fd > 255 {
			return errors.New("too many open files to share namespaces: more than 250 are inherited")
		}
		name = append(name, byte(fd))
	}
	return Again(append([]string{string(name)}, os.Args[1:]...))
}
