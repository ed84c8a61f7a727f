package exports

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestInclude follows "-r" and "-c" rows from requirements.txt and from "pip:".
func TestInclude(t *testing.T) {
	dir := testenv.Tree(t, map[string]string{
		"requirements.txt":  "a==1\n-r sub/more.txt # more\n--constraint=limits.txt\n",
		"environment.yml":   "dependencies:\n- python=3.11\n- pip:\n  - a==1\n  - -r sub/more.txt\n  - -climits.txt\n",
		"limits.txt":        "b < 2\nz==1 ; sys_platform == 'win32'\n-r sub/deep/even.txt\n",
		"sub/more.txt":      "b \\\n  >= 1\n--find-links wheels\n./x.whl\n-e ../src\n-r deep/even.txt\nhttps://h/y.whl\n",
		"sub/deep/even.txt": "c\nd @ file:d.whl\n",
	})
	for _, file := range []string{"requirements.txt", "environment.yml"} {
		e, err := ReadFile(filepath.Join(dir, file), ReadOptions{Subdir: "linux-64"})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		row := map[string]int{"requirements.txt": 2, "environment.yml": 5}[file]
		var got []string
		for _, p := range e.Pip {
			got = append(got, fmt.Sprint(p.Line, " ", p, " ", strings.TrimPrefix(p.Within, dir+"/")))
		}
		more, even := fmt.Sprint(row, " "), "sub/deep/even.txt:"
		want := []string{fmt.Sprint(row-1, " a==1 "), more + "b>=1 sub/more.txt:1", more + "./sub/x.whl sub/more.txt:4", more + "-e ./src sub/more.txt:5", more + "c " + even + "1", more + "d @ ./sub/deep/d.whl " + even + "2", more + "https://h/y.whl sub/more.txt:7",
			fmt.Sprint(row+1, " c ", even, "1"), fmt.Sprint(row+1, " d @ ./sub/deep/d.whl ", even, "2")}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: Pip =\n%s\nwant\n%s", file, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if c := e.Constraints; len(c) != 1 || c[0].String() != "b<2" || c[0].Line != row+1 || c[0].Within != filepath.Join(dir, "limits.txt")+":1" {
			t.Errorf("%s: Constraints = %+v; want b<2 of limits.txt:1", file, c)
		}
		if l := e.PipIndexes.FindLinks; len(l) != 1 || l[0] != "./sub/wheels" {
			t.Errorf("%s: FindLinks = %q; want ./sub/wheels", file, l)
		}
		if n := strings.Join(e.Notes, "\n"); !strings.Contains(n, "limits.txt:2: z==1 is not for linux-64") {
			t.Errorf("%s: Notes = %q; want limits.txt:2", file, n)
		}
	}
}

// TestIncludeRefuses reports mistakes with the file and line of the included row.
func TestIncludeRefuses(t *testing.T) {
	dir := testenv.Tree(t, map[string]string{
		"bad.txt": "ok\nx ==\n", "loop.txt": "-r sub/back.txt\n", "sub/back.txt": "y\n-r ../loop.txt\n", "self.txt": "-r self.txt\n",
		"limits.txt": "a[x]<2\n./b.whl\n-e c\nd @ https://h/d.whl\n", "many.txt": "z\n",
	})
	testenv.Check(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for in, want := range map[string]string{
		"-r bad.txt":                             `main.txt:2: DIR/bad.txt:2: "x ==": "" is not a version`,
		"-r none.txt":                            "main.txt:2: -r none.txt: reading the included file: stat DIR/none.txt: no such file or directory",
		"-r .":                                   "not a regular file",
		"-c fifo":                                "not a regular file",
		"-r":                                     "the row names no file",
		"-r https://u:secret@h/r.txt":            "-r https://h/r.txt: URLs are not followed",
		"-r $HPCC_NO_SUCH/r.txt":                 "variable HPCC_NO_SUCH is not set",
		"-r loop.txt":                            "DIR/sub/back.txt:2: -r ../loop.txt: the file includes itself",
		"-r self.txt":                            "DIR/self.txt:1: -r self.txt: the file includes itself",
		"-r main.txt":                            "-r main.txt: the file includes itself",
		"-c limits.txt":                          "limits.txt:1: a[x]<2: a constraint is a name with versions; write NAME==VERSION; DIR/limits.txt:2: ./b.whl: a constraint is a name with versions; write NAME==VERSION; DIR/limits.txt:3: -e c: a constraint",
		strings.Repeat("-r many.txt\n", 70):      "more than 64 files are included",
		"-c many.txt\n-r bad.txt\n-c limits.txt": "line 4: DIR/limits.txt:1: a[x]<2",
	} {
		file := filepath.Join(dir, "main.txt")
		testenv.Write(t, file, "first\n"+in+"\n")
		e, err := ReadFile(file, ReadOptions{})
		if err == nil {
			t.Errorf("%q: Export %+v; want an error", in, e)
			continue
		}
		if text := strings.ReplaceAll(err.Error(), dir, "DIR"); !strings.Contains(text, want) || strings.Contains(text, "secret") {
			t.Errorf("%q: %s; want %q", in, text, want)
		}
	}
}

// FuzzInclude reads files that include each other.
func FuzzInclude(f *testing.F) {
	f.Add("a\n-r x/b.txt\n-c c.txt\n", "b==1\n-f w\n./b.whl\n")
	f.Add("-rb\n", "-r ../b\n-r b\n-c $HOME/b\n")
	f.Fuzz(func(t *testing.T, in, included string) {
		opened := 0
		open := func(string) (io.ReadCloser, error) {
			opened++
			return io.NopCloser(strings.NewReader(included)), nil
		}
		e, err := Read(strings.NewReader(in), "requirements.txt", ReadOptions{Subdir: "linux-64", Open: open})
		if (e == nil) != (err != nil) || opened > maxIncludes {
			t.Fatalf("read = %v, %v with %d included files; want one result and at most %d files", e, err, opened, maxIncludes)
		}
		if err != nil {
			return
		}
		for _, c := range e.Constraints {
			if !c.ValidName() || c.URL != "" || c.Within == "" || c.Line < 1 || c.Line > strings.Count(in, "\n")+1 {
				t.Fatalf("Read(%q, %q) has constraint %+v", in, included, c)
			}
		}
	})
}
