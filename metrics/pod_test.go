package metrics

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestTerminationMessage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "termination-log")
	content := func() string {
		b, err := os.ReadFile(file)
		testenv.Check(t, err)
		return string(b)
	}
	missing := &terminationMessage{file: file}
	missing.write([]byte("a\n"))
	if _, err := os.Lstat(file); !os.IsNotExist(err) {
		t.Errorf("a message was written without a kubelet: %v", err)
	}
	testenv.Check(t, os.WriteFile(file, nil, 0o666))
	l := &terminationMessage{file: file}
	for _, c := range []struct{ write, want string }{
		{"head\nfoot 1\n", "head\nfoot 1\n"},
		{"", "head\nfoot 1\n"},
		{"head\nfoot 1000\n", "head\nfoot 1000\n"},
		{"head\nend\n", "head\nend\n\n\n\n\n\n\n"},
		{"head\nlast\n", "head\nlast\n\n\n\n\n\n"},
	} {
		if l.write([]byte(c.write)); content() != c.want {
			t.Errorf("after %q: %q; want %q", c.write, content(), c.want)
		}
	}
	// The program writes its own message: at the end, over ours, or it deletes the file.
	for _, own := range []string{content() + "x", strings.Replace(content(), "last", "mine", 1), ""} {
		l := &terminationMessage{file: file}
		testenv.Check(t, os.WriteFile(file, nil, 0o666))
		l.write([]byte("head\nlast\n\n\n\n\n\n"))
		testenv.Check(t, os.WriteFile(file, []byte(own), 0o666))
		l.write([]byte("more\n"))
		if l.write([]byte("more\n")); content() != own {
			t.Errorf("the program wrote %q; now there is %q", own, content())
		}
	}
	// Only regular files are written.
	pipe := &terminationMessage{file: "/dev/null"}
	if pipe.write([]byte("x")); pipe.file != "" {
		st, _ := os.Stat("/dev/null")
		t.Errorf("a message was written to /dev/null, %v", st.Mode()&fs.ModeType)
	}
}
