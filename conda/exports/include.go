package exports

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/pip"
	"hpcc/files"
	"hpcc/text"
)

// maxIncludes limits the files that an export includes, directly or not.
const maxIncludes = 64

// An include is a file that a "-r" or "-c" row names.
type include struct {
	file        string
	line        int  // row of the export, or of the including file
	constraints bool // of "-c": the rows limit versions and install nothing
}

// openRegular opens a file that an export includes. It refuses devices, which may never end.
func openRegular(name string) (io.ReadCloser, error) {
	fi, err := os.Stat(name)
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, err
	}
	return files.Open(name)
}

// file returns the file that is being read: the export, or a file that it includes.
func (r *reader) file() string {
	if n := len(r.within); n > 0 {
		return r.within[n-1].file
	}
	return r.e.File
}

// position returns the row of the export for a line of the file that is being read. within is
// FILE:LINE if that is an included file, else "".
func (r *reader) position(line int) (row int, within string) {
	if len(r.within) == 0 {
		return line, ""
	}
	return r.within[0].line, fmt.Sprintf("%s:%d", r.file(), line)
}

// include reads the file that a row names, relative to the file that contains the row.
func (r *reader) include(line int, option, name string) {
	x := include{line: line, constraints: option == "-c" || option == "--constraint"}
	fail := func(format string, a ...any) {
		r.wrong(line, "%s %s: %s", option, text.Short(hideText(name)), fmt.Sprintf(format, a...))
	}
	name = strings.Trim(name, `"'`)
	var err error
	switch x.file, err = fetch.Expand(name); {
	case name == "":
		fail("the row names no file")
		return
	case err != nil:
		fail("%v", err)
		return
	case strings.Contains(name, "://"):
		fail("URLs are not followed; download the file and name it")
		return
	case r.open == nil:
		fail("only a file can include others; insert the rows of that file")
		return
	case r.includes == maxIncludes:
		fail("more than %d files are included", maxIncludes)
		return
	case !filepath.IsAbs(x.file):
		x.file = filepath.Join(filepath.Dir(r.file()), x.file)
	}
	if x.file == filepath.Clean(r.e.File) || slices.ContainsFunc(r.within, func(y include) bool { return y.file == x.file }) {
		fail("the file includes itself; remove the row")
		return
	}
	r.includes++
	lines, err := r.includedLines(x.file)
	if err != nil {
		fail("%v", err)
		return
	}
	r.within = append(r.within, x)
	r.requirementLines(lines)
	r.within = r.within[:len(r.within)-1]
}

func (r *reader) includedLines(file string) ([]string, error) {
	f, err := r.open(file)
	if err != nil {
		return nil, fmt.Errorf("reading the included file: %w", err)
	}
	defer f.Close()
	lines, err := readLines(f)
	if err != nil {
		return nil, fmt.Errorf("reading the included file: %w", err)
	}
	return lines, nil
}

// rebase makes a path in an included file relative to the directory of the export.
func (r *reader) rebase(location string) string {
	if len(r.within) == 0 {
		return location
	}
	return rebase(location, filepath.Dir(r.file()), filepath.Dir(r.e.File))
}

// rebase makes a path relative to directory to if it is relative to directory from. It returns
// absolute paths and URLs unchanged.
func rebase(location, from, to string) string {
	path := strings.TrimPrefix(location, "file:")
	if path == "" || strings.Contains(path, "://") || strings.IndexByte("/~$", path[0]) >= 0 {
		return location
	}
	if rel, err := filepath.Rel(to, from); err == nil {
		from = rel
	}
	return "." + string(filepath.Separator) + filepath.Join(from, path)
}

// keep adds a requirement or, from a file of constraints, a constraint.
func (r *reader) keep(p pip.Requirement) {
	n := len(r.within)
	if n == 0 {
		r.e.Pip = append(r.e.Pip, p)
		return
	}
	if r.within[n-1].constraints && (p.Name == "" || p.URL != "" || p.Editable || len(p.Extras) > 0) {
		r.wrong(p.Line, "%s: a constraint is a name with versions; write NAME==VERSION", p)
		return
	}
	if p.URL != "" {
		p.URL = r.rebase(p.URL)
	}
	p.Line, p.Within = r.position(p.Line)
	if r.within[n-1].constraints {
		r.e.Constraints = append(r.e.Constraints, p)
	} else {
		r.e.Pip = append(r.e.Pip, p)
	}
}
