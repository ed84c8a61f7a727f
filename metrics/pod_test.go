package metrics

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

func TestLastWords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "termination-log")
	content := func() string {
		b, err := os.ReadFile(file)
		testenv.Check(t, err)
		return string(b)
	}
	none := &lastWords{file: file}
	none.say([]byte("a\n"))
	if _, err := os.Lstat(file); !os.IsNotExist(err) {
		t.Errorf("a message was made where there is no kubelet: %v", err)
	}
	testenv.Check(t, os.WriteFile(file, nil, 0o666))
	l := &lastWords{file: file}
	for _, c := range []struct{ say, want string }{
		{"head\nfoot 1\n", "head\nfoot 1\n"},
		{"", "head\nfoot 1\n"},
		{"head\nfoot 1000\n", "head\nfoot 1000\n"},
		{"head\nend\n", "head\nend\n\n\n\n\n\n\n"},
		{"head\nlast\n", "head\nlast\n\n\n\n\n\n"},
	} {
		if l.say([]byte(c.say)); content() != c.want {
			t.Errorf("after %q: %q; want %q", c.say, content(), c.want)
		}
	}
	// The program writes its own message: at the end, over ours, or it deletes the file.
	for _, own := range []string{content() + "x", strings.Replace(content(), "last", "mine", 1), ""} {
		l := &lastWords{file: file}
		testenv.Check(t, os.WriteFile(file, nil, 0o666))
		l.say([]byte("head\nlast\n\n\n\n\n\n"))
		testenv.Check(t, os.WriteFile(file, []byte(own), 0o666))
		l.say([]byte("more\n"))
		if l.say([]byte("more\n")); content() != own {
			t.Errorf("the program wrote %q; now there is %q", own, content())
		}
	}
	// Only regular files are written.
	pipe := &lastWords{file: "/dev/null"}
	if pipe.say([]byte("x")); pipe.file != "" {
		st, _ := os.Stat("/dev/null")
		t.Errorf("a message was written to /dev/null, %v", st.Mode()&fs.ModeType)
	}
}
