package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/text"
)

// Open returns the containers of a state directory: root, or else one in XDG_RUNTIME_DIR, or else one
// in the temporary directory. Its records name processes to signal and hooks to execute, so it must
// belong to the user, and no other user may be able to replace it. A missing directory is created, or
// without create counts as one without containers.
func Open(root string, create bool) (*Containers, error) {
	dir, err := stateDir(root, create)
	if errors.Is(err, fs.ErrNotExist) && !create {
		return &Containers{}, nil
	}
	return &Containers{Root: dir}, err
}

func stateDir(root string, create bool) (string, error) {
	d := root
	if x := os.Getenv("XDG_RUNTIME_DIR"); d == "" && filepath.IsAbs(x) {
		d = filepath.Join(x, "hpcc")
	}
	refused := func(err error) error {
		return text.Hint(fmt.Errorf("opening the state directory: %w", err),
			"set XDG_RUNTIME_DIR to a directory of your own, or use --root DIR")
	}
	if d == "" {
		parent, err := files.Trusted(os.TempDir())
		if err == nil {
			d, err = files.PrivateDir(parent, "hpcc-oci-"+strconv.Itoa(os.Geteuid()), create)
		}
		if err != nil {
			return "", refused(err)
		}
		return d, nil
	}
	if st, err := os.Lstat(d); err == nil && st.IsDir() && os.Geteuid() == 0 && st.Sys().(*syscall.Stat_t).Uid != 0 {
		if err := becomeOwner(st.Sys().(*syscall.Stat_t)); err != nil {
			return "", err
		}
	}
	physical, exposed, err := files.Resolve(d)
	if errors.Is(err, fs.ErrNotExist) && create && len(exposed) == 0 {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return "", fmt.Errorf("creating the state directory: %w", err)
		}
		physical, exposed, err = files.Resolve(d)
	}
	if len(exposed) > 0 {
		return "", refused(exposed[0])
	}
	if err != nil {
		return "", refused(err)
	}
	st, err := os.Lstat(physical)
	if err != nil {
		return "", refused(err)
	}
	if st.Mode().Perm()&0o022 != 0 || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return "", refused(fmt.Errorf("other users can write to %q", d))
	}
	return physical, nil
}

// becomeOwner switches from root to the owner of a directory. Slurm queries, kills and deletes
// the containers of a user as root. The user's records must not make root signal or remove
// anything else.
func becomeOwner(s *syscall.Stat_t) error {
	err := syscall.Setgroups(nil)
	if err == nil {
		err = syscall.Setresgid(int(s.Gid), int(s.Gid), int(s.Gid))
	}
	if err == nil {
		err = syscall.Setresuid(int(s.Uid), int(s.Uid), int(s.Uid))
	}
	if err != nil {
		return fmt.Errorf("acting as user %d, who owns the state directory: %w", s.Uid, err)
	}
	return nil
}

// A Log is the file in which container engines look for errors.
type Log struct {
	File string // "" for no log
	JSON bool   // write JSON instead of text
}

// Failed writes an error to the log and returns it.
func (l Log) Failed(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, l.Write("error", err.Error()))
}

// Write adds a line in the format of logrus, which runc and crun use. level is that of logrus, such as
// "warning".
func (l Log) Write(level, text string) error {
	if l.File == "" {
		return nil
	}
	now := time.Now().Format(time.RFC3339)
	line := fmt.Sprintf("time=%q level=%s msg=%q\n", now, level, text)
	if l.JSON {
		b, err := json.Marshal(map[string]string{"level": level, "msg": text, "time": now})
		if err != nil {
			return err
		}
		line = string(b) + "\n"
	}
	f, err := os.OpenFile(l.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// ParseSignal parses a signal: a number, or a name with or without SIG.
func ParseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= 64 {
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if n := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); n != 0 {
		return n, nil
	}
	return 0, text.Usagef("unknown signal %q", s).Hint("write a name (TERM) or a number (15)")
}
