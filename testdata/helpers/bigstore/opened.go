package bigstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// Opened returns how often do opens each file and directory below dir, by its path in dir. It does
// not count files that do creates, and failures to open one.
func Opened(t testing.TB, dir string, do func()) map[string]int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	testenv.Check(t, err)
	defer unix.Close(fd)
	var dirs []string
	testenv.Check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	}))
	watched := map[int]string{}
	for _, path := range dirs {
		// The end of each use is an event too, because the kernel merges equal events.
		w, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_CLOSE)
		testenv.Check(t, err)
		watched[w], err = filepath.Rel(dir, path)
		testenv.Check(t, err)
	}
	do()
	opened := map[string]int{}
	for b := make([]byte, 1<<20); ; {
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EAGAIN) {
			return opened
		}
		testenv.Check(t, err)
		for e := b[:n]; len(e) > 0; {
			w, mask, size := int(int32(binary.NativeEndian.Uint32(e))), binary.NativeEndian.Uint32(e[4:]), binary.NativeEndian.Uint32(e[12:])
			name, rest := string(bytes.TrimRight(e[16:16+size], "\x00")), e[16+size:]
			if e = rest; mask&unix.IN_Q_OVERFLOW != 0 {
				t.Fatal("too many events; use a smaller store")
			}
			if inParent := mask&unix.IN_ISDIR != 0 && name != ""; mask&unix.IN_OPEN != 0 && !inParent {
				opened[filepath.Join(watched[w], name)]++
			}
		}
	}
}

// Count sums the openings of files whose base name matches a pattern.
func Count(opened map[string]int, pattern string) (n int) {
	for path, times := range opened {
		if match, _ := filepath.Match(pattern, filepath.Base(path)); match {
			n += times
		}
	}
	return n
}

// Below sums the openings below a directory, and of the directory.
func Below(opened map[string]int, dir string) (n int) {
	for path, times := range opened {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			n += times
		}
	}
	return n
}
