// Command modulepath renames the Go module in the current directory: it writes the
// new path to go.mod and into the imports of all Go files.
//
//	go run ./testdata/modulepath example.org/lab/hpcc
package main

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("want one argument, the new module path"))
	}
	if err := rename(os.Args[1]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "modulepath:", err)
	os.Exit(1)
}

func rename(to string) error {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return err
	}
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(mod)
	if m == nil {
		return fmt.Errorf("go.mod has no module line")
	}
	if out, err := exec.Command("go", "mod", "edit", "-module", to).CombinedOutput(); err != nil { // checks the path
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	from := string(m[1])
	if err := renameTools(from, to); err != nil {
		return err
	}
	return filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		switch filepath.Ext(file) {
		case ".go":
			return renameImports(file, from, to)
		case ".s":
			return renameSymbols(file, from, to)
		}
		return nil
	})
}

// renameTools writes the new path into the tool lines of go.mod.
func renameTools(from, to string) error {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return err
	}
	return replace("go.mod", mod, bytes.ReplaceAll(mod, []byte("\t"+from+"/"), []byte("\t"+to+"/")))
}

// renameSymbols writes the new path into the symbols of other packages that a file
// of assembly names. There a division slash stands for / and a middle dot for a dot.
func renameSymbols(file, from, to string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	symbol := strings.NewReplacer("/", "∕", ".", "·")
	renamed := bytes.ReplaceAll(text, []byte(symbol.Replace(from)+"∕"), []byte(symbol.Replace(to)+"∕"))
	return replace(file, text, renamed)
}

// replace writes the new text of a file, if it differs, and keeps the file's mode.
func replace(file string, old, text []byte) error {
	if bytes.Equal(old, text) {
		return nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, info.Mode().Perm())
}

// renameImports writes the new path into the import declarations of a file, and
// nothing else: a string such as a label of Kubernetes can look like one.
func renameImports(file, from, to string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, text, parser.ImportsOnly)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	done := 0
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil || (path != from && !strings.HasPrefix(path, from+"/")) {
			continue
		}
		start := fset.Position(i.Path.Pos()).Offset
		out.Write(text[done:start])
		fmt.Fprintf(&out, "%q", to+strings.TrimPrefix(path, from))
		done = start + len(i.Path.Value)
	}
	out.Write(text[done:])
	return replace(file, text, out.Bytes())
}
