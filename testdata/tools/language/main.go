// Command language lists phrases and names that make English read as translated, in the comments,
// texts and declarations of Go files and in Markdown pages:
//
//	go run ./testdata/tools/language [FILE|DIR...]
//
// It is a help for editors, not a check: not every finding is a mistake.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// phrases are the habits, with what to write instead.
var phrases = []struct {
	advice string
	re     *regexp.Regexp
}{
	{"name the subject first", regexp.MustCompile(`(?:^|[.:;] )Of [^c]`)}, // "Of several the last counts"
	{"write: is not a, there are no", regexp.MustCompile(`\b(?:is|are|was|were) (?:no (?:[^lm]|l[^o]|m[^o])|none)`)},
	{"name the subject", regexp.MustCompile(`(?:^|\. )(?:What|Who|Whoever|Whatever|That which) [^?]*$`)},
	{"write: reports, returns, prints", regexp.MustCompile(`\b(?:tells?|told)\b`)},
	{"use the field's term", regexp.MustCompile(`\b(?:beside|handed? (?:it )?in|hands (?:it )?in|not to be had|as far as|newcomers?|ranch|kin|whoever)\b`)},
}

// retired are words that no name should contain, except as part of a longer word.
var retired = map[string]bool{
	"beside": true, "tell": true, "told": true, "tells": true, "kin": true, "newcomer": true, "stranger": true, "strangers": true, "ranch": true,
	"hole": true, "holes": true, "wishes": true, "standing": true, "whole": true, "said": true, "says": true, "words": true, "room": true, "rooms": true,
}

// thereIs matches the plain form of a phrase that would be found otherwise.
var thereIs = regexp.MustCompile(`(?i)\bthere (?:is|are|was|were) no`)

func main() {
	roots := os.Args[1:]
	if len(roots) == 0 {
		roots = []string{"."}
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "dist"):
				return fs.SkipDir
			case strings.HasSuffix(path, ".md"):
				return page(path)
			case strings.HasSuffix(path, ".go"):
				return source(path)
			}
			return nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "language:", err)
			os.Exit(1)
		}
	}
}

// text prints the phrases in a text.
func text(at token.Position, s string) {
	s = strings.TrimSpace(s)
	for _, p := range phrases {
		if p.re.MatchString(thereIs.ReplaceAllString(s, "there")) {
			fmt.Printf("%s:%d: %s: %s\n", at.Filename, at.Line, p.advice, s)
		}
	}
}

// page reads a page, without its examples.
func page(path string) error {
	b, err := os.ReadFile(path)
	for i, line := range strings.Split(string(b), "\n") {
		if !strings.HasPrefix(line, "    ") {
			text(token.Position{Filename: path, Line: i + 1}, line)
		}
	}
	return err
}

// source reads the comments, string literals and declared names of a Go file.
func source(path string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			text(fset.Position(c.Pos()), strings.TrimPrefix(c.Text, "//"))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING && strings.Contains(n.Value, " ") {
				text(fset.Position(n.Pos()), strings.Trim(n.Value, "\"`"))
			}
		case *ast.Ident:
			if n.Obj != nil && n.Obj.Pos() == n.Pos() { // a declaration
				for _, w := range words(n.Name) {
					if retired[w] {
						fmt.Printf("%s: name %s: use the field's term for %q\n", fset.Position(n.Pos()), n.Name, w)
					}
				}
			}
		}
		return true
	})
	return nil
}

// words splits an identifier in mixed case into lower-case words.
func words(name string) (out []string) {
	begin := 0
	for i, r := range name {
		if i > begin && unicode.IsUpper(r) {
			out = append(out, strings.ToLower(name[begin:i]))
			begin = i
		}
	}
	return append(out, strings.ToLower(name[begin:]))
}
