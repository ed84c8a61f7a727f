package wrapper

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/runtime/runconf"
	"hpcc/testdata/helpers/testenv"
)

// FuzzWrapper checks that a wrapper contains the arguments that were written to it, for all paths of
// hpcc.
func FuzzWrapper(f *testing.F) {
	f.Add("/usr/bin/hpcc", "--set-env=PATH=/d/bin:$PATH", "/opt/conda/bin/python")
	f.Add("/a b/it's/hpcc", "", "#x")
	f.Add("/"+strings.Repeat("long/", 40)+"hpcc", "~/\"$HOME\"\\", "'")
	f.Fuzz(func(t *testing.T, hpcc, flag, inside string) {
		if strings.Contains(hpcc+flag+inside, "\x00") || strings.Contains(hpcc, "\n") {
			t.Skip()
		}
		p := program{Name: "x", argv: []string{inside}, argv0: runconf.WrapperName}
		text, err := p.text(Options{Hpcc: hpcc, Dir: "/d", Image: "image", Flags: []string{flag}})
		if refused := strings.Contains(flag+inside, "\n"); err != nil || refused {
			if (err != nil) != refused {
				t.Fatalf("text(%q, %q): %v", flag, inside, err)
			}
			return
		}
		file := filepath.Join(t.TempDir(), "x")
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o755))
		argv, err := runconf.ReadWrapper(file)
		if want := []string{"/d/.inside/x", ".", flag, "image", "--", inside}; err != nil || !slices.Equal(argv, want) {
			t.Errorf("the wrapper of %q, %q has the arguments %q, %v\n%s", flag, inside, argv, err, text)
		}
	})
}

// tree creates a tree of files. A text that begins with "->" is a link; other texts are executable.
func tree(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		if target, isLink := strings.CutPrefix(text, "->"); isLink {
			testenv.Check(t, os.Symlink(target, file))
			continue
		}
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o755))
	}
	return dir
}

// TestSelect checks which programs of an environment are selected and how they are started.
func TestSelect(t *testing.T) {
	root := tree(t, map[string]string{
		"opt/conda/bin/python3.12": "\x7fELF", "opt/conda/bin/python": "->python3.12", "opt/conda/bin/jupyter": "#!/opt/conda/bin/python3.12 -E \nx",
		"opt/conda/bin/run": "#! /opt/conda/bin/python\n", "opt/conda/bin/samtools": "\x7fELF", "opt/conda/bin/openssl": "\x7fELF",
		"opt/conda/bin/asked": "#!/bin/sh\n", "opt/conda/bin/away": "->/etc/away", "etc/away": "\x7fELF", "opt/conda/bin/loop": "->loop",
		"opt/conda/bin/other":         "#!/usr/bin/python3\n",
		"opt/conda/conda-meta/a.json": `{"name":"samtools","depends":["openssl >=3","python"],"files":["bin/samtools","bin/away","share/x/bin/no"]}`,
		"opt/conda/conda-meta/b.json": `{"name":"openssl","files":["bin/openssl"]}`,
		"opt/conda/conda-meta/c.json": `{"name":"python","files":["bin/python","bin/python3.12"]}`,
		"opt/conda/conda-meta/d.json": `{"name":"asked","files":["bin/asked"],"requested_spec":"asked"}`,
		"opt/conda/conda-meta/e.json": `{"name":"last","depends":["asked"]}`,
	})
	for _, c := range []struct {
		patterns []string
		all      bool
		want     string // NAME=ARGV0:ARGV, or "!" and a part of the error
	}{
		{nil, false, "asked=-:/opt/conda/bin/asked|away=-:/opt/conda/bin/away|jupyter=/d/bin/python3.12:/opt/conda/bin/python3.12 -E /opt/conda/bin/jupyter|" +
			"python=.:/opt/conda/bin/python|python3.12=.:/opt/conda/bin/python3.12|run=/d/bin/python:/opt/conda/bin/python /opt/conda/bin/run|samtools=-:/opt/conda/bin/samtools"},
		{[]string{"jup*"}, false, "jupyter=/d/bin/python3.12:/opt/conda/bin/python3.12 -E /opt/conda/bin/jupyter|python3.12=.:/opt/conda/bin/python3.12"},
		{[]string{"/etc/away", "openssl"}, false, "away=-:/etc/away|openssl=-:/opt/conda/bin/openssl"},
		{[]string{"nothing"}, false, `!no program "nothing" in /opt/conda/bin, /none`},
		{[]string{"/etc/nothing"}, false, "!no program /etc/nothing"},
		{[]string{"loop"}, false, `!no program "loop"`},
		{[]string{"["}, false, "!not a valid pattern"},
	} {
		list, err := selectPrograms(selection{Tree: root, Path: []string{"/opt/conda/bin", "/none"}, Prefix: "/opt/conda", Patterns: c.patterns, All: c.all}, "/d")
		var got []string
		for _, p := range list {
			got = append(got, fmt.Sprintf("%s=%s:%s", p.Name, p.argv0, strings.Join(p.argv, " ")))
		}
		if part, fails := strings.CutPrefix(c.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("selectPrograms(%q): %v; want an error with %q", c.patterns, err, part)
			}
			continue
		}
		if text := strings.Join(got, "|"); err != nil || text != c.want {
			t.Errorf("selectPrograms(%q) = %s, %v; want %s", c.patterns, text, err, c.want)
		}
	}
}

// TestResolve checks that links of an image lead to paths in the image.
func TestResolve(t *testing.T) {
	root := tree(t, map[string]string{"a/b/f": "", "abs": "->/a/b", "up": "->../../../a", "a/rel": "->../abs/f", "loop": "->loop", "out": "->/../../etc/passwd"})
	for in, want := range map[string]string{"/abs/f": "/a/b/f", "/up/b/f": "/a/b/f", "/a/rel": "/a/b/f", "/a/../a/./b": "/a/b", "/loop": "", "/out": "", "/none": "", "/": "/"} {
		if got, err := resolve(root, in); (err == nil) != (want != "") || (err == nil && got != filepath.Join(root, want)) {
			t.Errorf("resolve(%s) = %s, %v; want %q below %s", in, got, err, want, root)
		}
	}
}

// TestQuotes checks strings in module files.
func TestQuotes(t *testing.T) {
	for in, want := range map[string][2]string{
		`a b`:    {`"a b"`, `"a b"`},
		`$x[y]"`: {`"\$x\[y\]\""`, `"$x[y]\""`},
		`\{}`:    {`"\\\{\}"`, `"\\{}"`},
		"ü\n":    {"\"ü\n\"", `"ü\n"`},
	} {
		if tcl, lua := tclQuote(in), luaQuote(in); tcl != want[0] || lua != want[1] {
			t.Errorf("quoted %q: %s and %s; want %s", in, tcl, lua, want)
		}
	}
}
