package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"hpcc/testdata/testenv"
)

// languageFile has the ceilings of TestLanguage, a line for each package and page. "go test
// -run TestLanguage -update" lowers them; only an editor raises them.
const languageFile = "../../testdata/language.txt"

// phrases are the habits that make English read as translated, with what to write instead.
var phrases = []struct {
	name string
	re   *regexp.Regexp
}{
	{"of", regexp.MustCompile(`(?:^|[.:;] )Of [^c]`)},                                        // "Of several the last counts": name the subject first
	{"is-no", regexp.MustCompile(`\b(?:is|are|was|were) (?:no (?:[^lm]|l[^o]|m[^o])|none)`)}, // "is no file": is not a file
	{"what", regexp.MustCompile(`(?:^|\. )(?:What|Who|Whoever|Whatever|That which) [^?]*$`)}, // "Who calls it": name the subject
	{"tells", regexp.MustCompile(`\b(?:tells?|told)\b`)},                                     // reports, returns, prints
	{"retired", regexp.MustCompile(`\b(?:beside|handed? (?:it )?in|hands (?:it )?in|not to be had|as far as|newcomers?|ranch|kin|whoever)\b`)},
}

// retired are words that no declared name may contain, except as
// part of a longer word.
var retired = map[string]bool{
	"beside": true, "tell": true, "told": true, "tells": true, "kin": true, "newcomer": true, "stranger": true, "strangers": true, "ranch": true,
	"hole": true, "holes": true, "wishes": true, "standing": true, "whole": true, "said": true, "says": true, "words": true, "room": true, "rooms": true,
}

// TestLanguage counts phrases and names that read as translated, in comments, texts and
// declarations of each package and in each page. The counts may only go down. With -v, it
// lists them.
func TestLanguage(t *testing.T) {
	got := map[string]map[string]int{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel("../..", path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(name, ".git") || name == "bin" || name == "dist"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".md") && name != "docs/cli.md":
			countPage(t, path, counts(got, name))
		case strings.HasSuffix(name, ".go"):
			countFile(t, path, counts(got, filepath.Dir(name)))
		}
		return nil
	})
	testenv.Check(t, err)
	want := readCeilings(t)
	for name, c := range got {
		for kind, n := range c {
			if n > want[name][kind] {
				t.Errorf("%s has %d of %q; the ceiling is %d", name, n, kind, want[name][kind])
			}
			if n < want[name][kind] && !*update {
				t.Errorf("%s has only %d of %q: lower the ceiling of %d with -update", name, n, kind, want[name][kind])
			}
		}
	}
	if *update {
		writeCeilings(t, got, want)
	}
}

// counts returns the counts of a package or page, all present.
func counts(all map[string]map[string]int, name string) map[string]int {
	if all[name] == nil {
		all[name] = map[string]int{"names": 0}
		for _, p := range phrases {
			all[name][p.name] = 0
		}
	}
	return all[name]
}

func countPage(t *testing.T, path string, c map[string]int) {
	t.Helper()
	b, err := os.ReadFile(path)
	testenv.Check(t, err)
	n := 0
	for line := range strings.Lines(string(b)) {
		if n++; !strings.HasPrefix(line, "    ") { // an example
			countText(t, token.Position{Filename: path, Line: n}, line, c)
		}
	}
}

// thereIs matches the plain form of a phrase that "is-no" would count.
var thereIs = regexp.MustCompile(`(?i)\bthere (?:is|are|was|were) no`)

func countText(t *testing.T, at token.Position, text string, c map[string]int) {
	t.Helper()
	text = thereIs.ReplaceAllString(strings.TrimSpace(text), "there")
	for _, p := range phrases {
		n := len(p.re.FindAllString(text, -1))
		if c[p.name] += n; n > 0 && testing.Verbose() {
			t.Logf("%s:%d: %s: %s", at.Filename, at.Line, p.name, text)
		}
	}
}

// countFile counts in the comments, string literals and declared names of a Go file.
func countFile(t *testing.T, path string, c map[string]int) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	testenv.Check(t, err)
	for _, group := range file.Comments {
		for _, comment := range group.List {
			text := strings.TrimPrefix(comment.Text, "//")
			countText(t, fset.Position(comment.Pos()), text, c)
		}
	}
	name := func(ids ...*ast.Ident) {
		for _, id := range ids {
			for _, w := range wordsOf(id.Name) {
				if retired[w] {
					c["names"]++
					if testing.Verbose() {
						t.Logf("%s: name %s", fset.Position(id.Pos()), id.Name)
					}
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING && strings.Contains(n.Value, " ") {
				countText(t, fset.Position(n.Pos()), strings.Trim(n.Value, "\"`"), c)
			}
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.TypeSpec:
			name(n.Name)
		case *ast.ValueSpec:
			name(n.Names...)
		case *ast.Field:
			name(n.Names...)
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					name(id)
				}
			}
		}
		return true
	})
}

// wordsOf splits an identifier in mixed case into lower-case words.
func wordsOf(name string) (out []string) {
	begin := 0
	for i, r := range name {
		if i > begin && unicode.IsUpper(r) {
			out = append(out, strings.ToLower(name[begin:i]))
			begin = i
		}
	}
	return append(out, strings.ToLower(name[begin:]))
}

func readCeilings(t *testing.T) map[string]map[string]int {
	t.Helper()
	f, err := os.Open(languageFile)
	testenv.Check(t, err)
	defer f.Close()
	out := map[string]map[string]int{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, list, ok := strings.Cut(s.Text(), ": ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		out[name] = map[string]int{}
		for _, pair := range strings.Fields(list) {
			kind, number, _ := strings.Cut(pair, "=")
			n := 0
			_, err := fmt.Sscan(number, &n)
			testenv.Check(t, err)
			out[name][kind] = n
		}
	}
	return out
}

// writeCeilings writes the lower of the counts and the ceilings.
func writeCeilings(t *testing.T, got, want map[string]map[string]int) {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Ceilings of TestLanguage: phrases and names that read as translated. They may only go down.\n")
	for _, name := range slices.Sorted(maps.Keys(got)) {
		text := ""
		for _, kind := range slices.Sorted(maps.Keys(got[name])) {
			if n := min(got[name][kind], want[name][kind]); n > 0 {
				text += fmt.Sprintf(" %s=%d", kind, n)
			}
		}
		if text != "" {
			b.WriteString(name + ":" + text + "\n")
		}
	}
	testenv.Check(t, os.WriteFile(languageFile, []byte(b.String()), 0o644))
}
