package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Results are the numbers that a program wrote about its success, by name: loss,
// val.accuracy.
type Results map[string]*Scalar

// A Scalar is a number that a program reported one or more times.
type Scalar struct {
	Last float64 `json:"last"`
	Min  float64 `json:"min"` // without NaNs; NaN if there are no numbers
	Max  float64 `json:"max"`
	N    int     `json:"n"` // number of values
}

// MarshalJSON encodes numbers that JSON lacks as text: "NaN", "Infinity", "-Infinity".
func (s Scalar) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Last any `json:"last"`
		Min  any `json:"min"`
		Max  any `json:"max"`
		N    int `json:"n"`
	}{jsonNumber(s.Last), jsonNumber(s.Min), jsonNumber(s.Max), s.N})
}

func jsonNumber(x float64) any {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	}
	return x
}

// put adds a value. It ignores names that are too long or too many.
func (r Results) put(name string, x float64) {
	s := r[name]
	if s == nil {
		if len(r) >= maxTags {
			return
		}
		s = &Scalar{Min: math.NaN(), Max: math.NaN()}
		r[name] = s
	}
	s.Last = x
	s.N++
	if !math.IsNaN(x) {
		if !(s.Min <= x) {
			s.Min = x
		}
		if !(s.Max >= x) {
			s.Max = x
		}
	}
}

// Limits for reading a task's results.
const (
	maxResultsJSON = 16 << 20 // bytes of metrics.json
	maxJSONTail    = 16 << 20 // bytes at the end of metrics.jsonl
	maxJSONLine    = 1 << 20  // bytes of one of its lines
	maxDepth       = 4        // nesting of directories with event files
	maxEntries     = 2000     // files and directories to visit
	maxNesting     = 20       // nesting of objects in metrics.json
)

// ReadResults reads the results that a task left below root: metrics.json, metrics.jsonl and
// TensorBoard's event files of a directory, or one such file. Links cannot lead out of root.
// For a damaged file it returns the values before the damage, and the error. Without results
// both are nil. If written is set, only files with such a modification time count.
func ReadResults(root *os.Root, at string, written func(time.Time) bool) (Results, error) {
	at = path.Clean(at)
	fi, err := root.Stat(at)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading results: %w", err)
	}
	r := Results{}
	var failed []error
	read := func(file, prefix string) {
		if err := r.file(root, file, prefix, written); err != nil {
			failed = append(failed, fmt.Errorf("reading results: %s: %w", file, err))
		}
	}
	if !fi.IsDir() {
		read(at, "")
	} else {
		events, err := eventFiles(root, at)
		if err != nil {
			failed = append(failed, fmt.Errorf("reading results: %w", err))
		}
		several := slices.ContainsFunc(events, func(f string) bool { return path.Dir(f) != path.Dir(events[0]) })
		for _, f := range events {
			prefix := ""
			if below := strings.TrimPrefix(path.Dir(f), at); several && below != "" { // TensorBoard names runs in this way
				prefix = strings.TrimPrefix(below, "/") + "/"
			}
			read(f, prefix)
		}
		for _, name := range []string{"metrics.jsonl", "metrics.json"} { // the latter takes precedence
			if _, err := root.Lstat(path.Join(at, name)); err == nil {
				read(path.Join(at, name), "")
			}
		}
	}
	if len(r) == 0 {
		r = nil
	}
	return r, errors.Join(failed...)
}

// eventFiles returns the event files below a directory in order of creation, which is part
// of their names.
func eventFiles(root *os.Root, dir string) (files []string, err error) {
	seen := 0
	err = fs.WalkDir(root.FS(), dir, func(p string, d fs.DirEntry, err error) error {
		if seen++; seen > maxEntries {
			return fmt.Errorf("%s has more than %d files and directories: event files behind them are not read", dir, maxEntries)
		}
		switch {
		case err != nil && p == dir:
			return err
		case err != nil: // unreadable
			return nil
		case d.IsDir() && p != dir && strings.Count(strings.TrimPrefix(p, dir), "/") >= maxDepth:
			return fs.SkipDir
		case isEvents(d.Name()) && d.Type().IsRegular():
			files = append(files, p)
		}
		return nil
	})
	slices.SortStableFunc(files, func(a, b string) int {
		if path.Dir(a) != path.Dir(b) {
			return strings.Compare(path.Dir(a), path.Dir(b))
		}
		return strings.Compare(path.Base(a), path.Base(b))
	})
	return files, err
}

// isEvents reports whether a file's name is that of a TensorBoard event file.
func isEvents(name string) bool { return strings.Contains(name, "tfevents") }

// file reads one file into r and adds prefix to each name.
func (r Results) file(root *os.Root, name, prefix string, written func(time.Time) bool) error {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a pipe would block
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil || (written != nil && !written(fi.ModTime())) {
		return err
	}
	own := Results{}
	switch base := path.Base(name); {
	case isEvents(base):
		err = own.readEvents(f)
	case strings.HasSuffix(base, ".jsonl"):
		err = own.readJSONLines(f, fi.Size())
	default:
		err = own.readJSON(f)
	}
	for k, s := range own {
		if _, ok := r[prefix+k]; ok || len(r) < maxTags {
			if old := r[prefix+k]; old != nil { // from an earlier file of the same run
				s.Min, s.Max, s.N = least(old.Min, s.Min), most(old.Max, s.Max), old.N+s.N
			}
			r[prefix+k] = s
		}
	}
	return err
}

// least and most ignore NaNs.
func least(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

func most(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}

// readJSON reads the numbers of a JSON object into r. Names of nested objects are joined
// with dots. Lists, text and null are ignored, true and false are 1 and 0. It accepts NaN
// and Infinity, which Python writes although JSON lacks them.
func (r Results) readJSON(in io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(in, maxResultsJSON+1))
	if err != nil {
		return err
	}
	if len(b) > maxResultsJSON {
		return fmt.Errorf("it has more than %d bytes", maxResultsJSON)
	}
	return r.object(b)
}

func (r Results) object(b []byte) error {
	var all map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(pythonNumbers(b))).Decode(&all); err != nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	r.flatten("", all, 0)
	return nil
}

// flatten adds the numbers of an object. Ignored values are not decoded, because a list may
// be large.
func (r Results) flatten(before string, all map[string]json.RawMessage, depth int) {
	for _, k := range slices.Sorted(maps.Keys(all)) {
		v, name := all[k], before+k
		if len(name) > maxTag {
			continue
		}
		switch v[0] {
		case '[', 'n':
		case '{':
			var below map[string]json.RawMessage
			if depth < maxNesting && json.Unmarshal(v, &below) == nil {
				r.flatten(name+".", below, depth+1)
			}
		case '"':
			var text string
			if len(v) < 20 && json.Unmarshal(v, &text) == nil {
				if x, ok := notFinite[text]; ok {
					r.put(name, x)
				}
			}
		case 't':
			r.put(name, 1)
		case 'f':
			r.put(name, 0)
		default:
			if x, err := strconv.ParseFloat(string(v), 64); err == nil || math.IsInf(x, 0) {
				r.put(name, x)
			}
		}
	}
}

// notFinite lists the numbers that JSON lacks.
var notFinite = map[string]float64{"NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1)}

// pythonNumbers quotes NaN, Infinity and -Infinity where they are values.
func pythonNumbers(b []byte) []byte {
	if !bytes.Contains(b, []byte("NaN")) && !bytes.Contains(b, []byte("Infinity")) {
		return b
	}
	out := make([]byte, 0, len(b)+64)
	for i := 0; i < len(b); {
		n := 1
		switch c := b[i]; {
		case c == '"': // a string, to its end
			for n < len(b)-i && b[i+n] != '"' {
				if b[i+n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(b)-i)
		case c == 'N' || c == 'I' || c == '-':
			for word := range notFinite {
				if bytes.HasPrefix(b[i:], []byte(word)) {
					out = append(append(append(out, '"'), word...), '"')
					i, n = i+len(word), 0
					break
				}
			}
		}
		out = append(out, b[i:i+n]...)
		i += n
	}
	return out
}

// readJSONLines reads the end of a file with a JSON object on each line, and keeps the last
// value of each name. It skips invalid and overlong lines; the first and the last may be
// truncated.
func (r Results) readJSONLines(f io.ReaderAt, size int64) error {
	from := max(size-maxJSONTail, 0)
	in := bufio.NewReaderSize(io.NewSectionReader(f, from, size-from), int(min(size-from+1, maxJSONLine)))
	some, found, complete := false, false, from == 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return err
		}
		full := errors.Is(err, bufio.ErrBufferFull)
		text := bytes.TrimSpace(line)
		some = some || len(text) > 0
		if complete && !full && len(text) > 0 && text[0] == '{' {
			found = r.object(text) == nil || found
		}
		complete = !full // else the rest of the line follows
		if errors.Is(err, io.EOF) {
			break
		}
	}
	if some && !found {
		return errors.New("its last lines are not JSON objects")
	}
	return nil
}
