package main

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

const designFile = "../../docs/design.md"

// TestDesign checks docs/design.md against the code: its map of packages, its walks and its length.
func TestDesign(t *testing.T) {
	page, err := os.ReadFile(designFile)
	testenv.Check(t, err)
	const begin, end = "<!-- map: make docs writes it -->\n", "<!-- end of the map -->\n"
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no markers for the map of packages", designFile)
	}
	got := head + begin + packageMap(t) + end + tail
	if *update {
		testenv.Check(t, os.WriteFile(designFile, []byte(got), 0o644))
	} else if got != string(page) {
		t.Errorf("the map of packages in %s is outdated; run \"make docs\"", designFile)
	}
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if n := strings.Count(head+tail, "\n"); n > 250 { // the map grows with the packages
		t.Errorf("%s has %d lines without the map; at most 250", designFile, n)
	}
	for i, l := range lines {
		if len([]rune(l)) > 100 {
			t.Errorf("%s:%d: more than 100 columns", designFile, i+1)
		}
	}
	walks := regexp.MustCompile(`(?m)^### .*\n`).Split(got, -1)[1:]
	if len(walks) < 4 {
		t.Fatalf("%d walks; want one for each journey", len(walks))
	}
	for _, w := range walks {
		checkWalk(t, w)
	}
}

// TestDesignLibraries checks that docs/libraries.md has the purpose of each direct dependency.
func TestDesignLibraries(t *testing.T) {
	page, err := os.ReadFile("../../docs/libraries.md")
	testenv.Check(t, err)
	modules, err := os.ReadFile("../../go.mod")
	testenv.Check(t, err)
	// The line of an indirect module ends with a comment.
	for _, m := range regexp.MustCompile(`(?m)^\t(?:github\.com/)?(\S+?)(?:/v\d+)? v\S+$`).FindAllStringSubmatch(string(modules), -1) {
		if !regexp.MustCompile(`(?m)^\|[^|]*[ |]` + regexp.QuoteMeta(m[1]) + `[ ,|]`).Match(page) {
			t.Errorf("docs/libraries.md does not have the purpose of %s", m[1])
		}
	}
}

// packageMap lists the packages with the first sentence of their comments and their files.
func packageMap(t *testing.T) string {
	var b strings.Builder
	dirs := packages(t)
	b.WriteString("```\n")
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		testenv.Check(t, err)
		about, names := "", []string{}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".go"))
			parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ParseComments|parser.PackageClauseOnly)
			testenv.Check(t, err)
			if about == "" && parsed.Doc != nil {
				about = new(doc.Package).Synopsis(parsed.Doc.Text())
			}
		}
		if about == "" {
			t.Errorf("package %s has no comment", dir)
		}
		text := dir + ": " + strings.TrimSpace(regexp.MustCompile(`^(Package|Command) \w+ `).ReplaceAllString(about, ""))
		if len(names) > 1 || names[0] != filepath.Base(dir) {
			text += " [" + strings.Join(names, " ") + "]"
		}
		b.WriteString(wrapLines(text, "    "))
	}
	b.WriteString("```\n")
	return b.String()
}

// wrapLines breaks a text into lines of at most 100 columns. Lines after the first begin with indent.
func wrapLines(text, indent string) string {
	var b strings.Builder
	column := 0
	for i, w := range strings.Fields(text) {
		if i > 0 && column+1+len([]rune(w)) > 100 {
			b.WriteString("\n" + indent)
			column = len(indent)
		} else if i > 0 {
			b.WriteString(" ")
			column++
		}
		b.WriteString(w)
		column += len([]rune(w))
	}
	return b.String() + "\n"
}

// checkWalk checks a numbered walk: it has at most 15 functions in at most 8 files. Each function
// exists, and an earlier function of the same or a higher package calls it.
func checkWalk(t *testing.T, walk string) {
	steps := regexp.MustCompile("(?m)^ *([0-9]+)\\. `([a-z0-9/_]+\\.go)` `([A-Za-z.]+)`").FindAllStringSubmatch(walk, -1)
	if len(steps) == 0 || len(steps) > 15 {
		t.Errorf("a walk has %d functions; at most 15", len(steps))
	}
	var files, bodies []string
	for i, s := range steps {
		file, name := s[2], s[3]
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
		body, ok := functionText(t, filepath.Join("../..", file), name)
		bodies = append(bodies, body)
		if !ok {
			t.Errorf("%s. %s has no function %s", s[1], file, name)
			continue
		}
		short := name[strings.LastIndexByte(name, '.')+1:]
		called := i == 0 || strings.HasPrefix(short, "parse") || short == "run" // action of cmd/hpcc calls these
		for k := 0; k < i && !called; k++ {
			above, here := filepath.Dir(steps[k][2]), filepath.Dir(file)
			called = (above == here || mayImport(above, here)) && regexp.MustCompile(`\b`+short+`\b`).MatchString(bodies[k])
		}
		if !called {
			t.Errorf("%s. no earlier function of the same or a higher package calls %s", s[1], name)
		}
	}
	if len(files) > 8 {
		t.Errorf("a walk has %d files; at most 8: %v", len(files), files)
	}
}

// functionText returns the source of a function, or of a method as Type.method.
func functionText(t *testing.T, file, name string) (string, bool) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return "", false
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, 0)
	testenv.Check(t, err)
	receiver, method, isMethod := strings.Cut(name, ".")
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || (fn.Recv != nil) != isMethod {
			continue
		}
		if isMethod {
			on := strings.TrimLeft(string(src[fset.Position(fn.Recv.List[0].Type.Pos()).Offset:fset.Position(fn.Recv.List[0].Type.End()).Offset]), "*")
			ok = fn.Name.Name == method && on == receiver
		} else {
			ok = fn.Name.Name == name
		}
		if ok {
			return string(src[fset.Position(fn.Pos()).Offset:fset.Position(fn.End()).Offset]), true
		}
	}
	return "", false
}
