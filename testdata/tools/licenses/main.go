// Command licenses prints the licence texts of all modules, and of the Go standard
// library, whose code is linked into the named packages. It fails if one has no text.
//
//	go run ./testdata/tools/licenses -tags urfave_cli_no_docs -arch amd64,arm64 ./cmd/hpcc
//
// github.com/google/go-licenses omits the standard library, and fails where Go's toolchain
// is not the one that compiled it (its issue 244).
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenseFile matches the names of files that hold terms, notices and grants.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents)([-.].*)?$`)

// rule separates the texts.
var rule = strings.Repeat("=", 80)

func main() {
	tags := flag.String("tags", "", "build tags of the program")
	arches := flag.String("arch", "amd64,arm64,ppc64le", "architectures of the program")
	flag.Parse()
	texts := texts{}
	for _, arch := range strings.Split(*arches, ",") {
		if err := texts.addLinked(arch, *tags, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "licenses:", err)
			os.Exit(1)
		}
	}
	texts.print(os.Stdout)
}

// linked is a package, with the needed fields of "go list -json".
type linked struct {
	ImportPath, Dir, Root string
	Standard              bool
	Module                *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// texts maps each licence text to the modules and files that have it, such as
// "example.org/m v1.0.0 LICENSE".
type texts map[string]map[string]bool

// addLinked adds the texts of everything that is linked into packages on an architecture.
func (t texts) addLinked(arch, tags string, packages []string) error {
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,Root,Standard,Module", "-tags", tags}, packages...)
	list := exec.Command("go", args...)
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	version, err := exec.Command("go", "env", "GOVERSION").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	goVersion := "Go standard library " + strings.TrimSpace(string(version))
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p linked
		err := d.Decode(&p)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("go list: %w", err)
		case p.Standard:
			err = t.addFrom(goVersion, p.Root, p.Root)
		case !p.Module.Main:
			err = t.addFrom(p.Module.Path+" "+p.Module.Version, p.Module.Dir, p.Dir)
		}
		if err != nil {
			return err
		}
	}
}

// addFrom adds the texts of a module that hold for the package in dir: those in dir and in
// the directories above it, up to the module's root, which must have one.
func (t texts) addFrom(module, root, dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", module, err)
		}
		found := false
		for _, e := range entries {
			if !e.Type().IsRegular() || !licenseFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			found = true
			if err := t.addFile(module, root, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
		if dir == root {
			if !found {
				return fmt.Errorf("%s: no file with its licence in %s", module, root)
			}
			return nil
		}
	}
}

func (t texts) addFile(module, root, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	name, err := filepath.Rel(root, file)
	if err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	key := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
	if t[key] == nil {
		t[key] = map[string]bool{}
	}
	t[key][module+" "+filepath.ToSlash(name)] = true
	return nil
}

// print writes each text once, below the modules and files that have it.
func (t texts) print(w io.Writer) {
	headed := map[string]string{} // the texts by their sorted modules
	for text, files := range t {
		headed[strings.Join(slices.Sorted(maps.Keys(files)), "\n")] = text
	}
	fmt.Fprintln(w, "hpcc contains code of these modules, under the terms below their names.")
	for _, head := range slices.Sorted(maps.Keys(headed)) {
		fmt.Fprintf(w, "\n%s\n%s\n%s\n\n%s\n", rule, head, rule, headed[head])
	}
}
