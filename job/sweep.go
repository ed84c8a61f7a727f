package job

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/files"
	"hpcc/text"
)

// Params hold the values of {name} in the arguments for each task of an array: all
// combinations of some lists, or the rows of a file. The zero value has no parameters.
type Params struct {
	Axes []axis `json:"axes,omitempty"`   // the last varies fastest
	File string `json:"file,omitempty"`   // absolute; CSV with a header, or a JSON array of objects
	Sum  string `json:"sha256,omitempty"` // of the file: tasks that start later must read the same rows

	Names []string   `json:"-"` // of the parameters, once the lists or the file are read
	Rows  [][]string `json:"-"` // values of each parameter, or of each row of the file
}

// An axis is a parameter and its list of values.
type axis struct {
	Name   string `json:"name"`
	Values string `json:"values"` // as written: 0.1,0.01 or 1..4 or 0..100:25
}

// Bounds of parameters.
const (
	maxParamsFile = 64 << 20 // bytes
	maxValues     = 1_000_000
)

var (
	axisText  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })
	rangeText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(-?\d{1,9})\.\.(-?\d{1,9})(?::(\d{1,9}))?$`) })
	likeRange = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-?\d*\.?\d+\.\.-?\d*\.?\d+(:[\d.]+)?$`) })
)

// ParseParams parses the --sweep NAME=VALUES flags or --params FILE. In a task, sum is the SHA-256
// that the file had at submission; else it is "".
func ParseParams(sweeps []string, file, sum string) (Params, error) {
	var p Params
	if file != "" {
		if len(sweeps) > 0 {
			return p, errors.New("--params cannot be used with --sweep")
		}
		return readParams(file, sum)
	}
	for _, s := range sweeps {
		name, values, ok := strings.Cut(s, "=")
		if !ok || !axisText().MatchString(name) || "{"+name+"}" == Placeholder {
			return p, fmt.Errorf("%q: not of the form NAME=VALUE,VALUE or NAME=1..4", text.Short(s))
		}
		p.Axes = append(p.Axes, axis{name, values})
	}
	return p, p.open()
}

// Args returns the flags of "hpcc task" that repeat the parameters.
func (p *Params) Args() []string {
	var w []string
	for _, a := range p.Axes {
		w = append(w, "--sweep="+a.Name+"="+a.Values)
	}
	if p.File != "" {
		w = append(w, "--params="+p.File, "--params-sum="+p.Sum)
	}
	return w
}

// Parse reads the flags that Args returned.
func (p *Params) Parse(flags []string) (err error) {
	var sweeps []string
	var file, sum string
	for _, f := range flags {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "--sweep":
			sweeps = append(sweeps, value)
		case "--params":
			file = value
		case "--params-sum":
			sum = value
		}
	}
	*p, err = ParseParams(sweeps, file, sum)
	return err
}

// Reopen reads the lists or the file again after the job was read from its record.
func (p *Params) Reopen() (err error) {
	if p.File != "" {
		*p, err = readParams(p.File, p.Sum)
		return err
	}
	p.Names, p.Rows = nil, nil
	return p.open()
}

// open expands the lists.
func (p *Params) open() error {
	count := 1
	for _, a := range p.Axes {
		values, err := a.values()
		if err != nil {
			return fmt.Errorf("parameter %s: %w", a.Name, err)
		}
		if slices.Contains(p.Names, a.Name) {
			return fmt.Errorf("parameter %s appears twice", a.Name)
		}
		if count *= len(values); count > maxIndex {
			return fmt.Errorf("the parameters have more than %d combinations", maxIndex)
		}
		p.Names, p.Rows = append(p.Names, a.Name), append(p.Rows, values)
	}
	return nil
}

// values expands a list or a range.
func (a axis) values() ([]string, error) {
	m := rangeText().FindStringSubmatch(a.Values)
	if m == nil {
		values := strings.Split(a.Values, ",")
		if len(values) > maxValues {
			return nil, fmt.Errorf("more than %d values", maxValues)
		}
		for i, v := range values {
			if v == "" || slices.Contains(values[:i], v) {
				return nil, fmt.Errorf("value %q is empty or appears twice", v)
			}
			if likeRange().MatchString(v) {
				return nil, fmt.Errorf("value %q: a range has whole numbers and stands alone; write all values, separated by commas", v)
			}
		}
		return values, nil
	}
	first, _ := strconv.Atoi(m[1])
	last, _ := strconv.Atoi(m[2])
	step := 1
	if m[3] != "" {
		step, _ = strconv.Atoi(m[3])
	}
	if last < first || step < 1 || (last-first)/step >= maxValues {
		return nil, fmt.Errorf("range %s is empty or has more than %d values", a.Values, maxValues)
	}
	width := 0
	if strings.HasPrefix(m[1], "0") { // 01..10, as in shells
		width = len(m[1])
	}
	var out []string
	for v := first; v <= last; v += step {
		out = append(out, fmt.Sprintf("%0*d", width, v))
	}
	return out, nil
}

// IsZero reports whether the job has no parameters.
func (p Params) IsZero() bool { return len(p.Axes) == 0 && p.File == "" }

// Count returns the number of combinations or rows.
func (p *Params) Count() int {
	if p.File != "" {
		return len(p.Rows)
	}
	n := 1
	for _, values := range p.Rows {
		n *= len(values)
	}
	return n
}

// Row returns the values of task k, from 1, or nil if there are none.
func (p *Params) Row(k int) map[string]string {
	if p.IsZero() || k < 1 || k > p.Count() {
		return nil
	}
	out := map[string]string{}
	if p.File != "" {
		for i, name := range p.Names {
			out[name] = p.Rows[k-1][i]
		}
		return out
	}
	k--
	for i := len(p.Names) - 1; i >= 0; i-- {
		n := len(p.Rows[i])
		out[p.Names[i]] = p.Rows[i][k%n]
		k /= n
	}
	return out
}

// unused returns a parameter whose {name} is in none of the arguments, or "".
func (p *Params) unused(argv []string) string {
	for _, n := range p.Names {
		if !slices.ContainsFunc(argv, func(w string) bool { return strings.Contains(w, "{"+n+"}") }) {
			return n
		}
	}
	return ""
}

// readParams reads a file of rows. If sum is not "", the file must have it.
func readParams(file, sum string) (Params, error) {
	p := Params{}
	fail := func(err error) (Params, error) {
		return Params{}, fmt.Errorf("reading the parameters of %s: %w", file, err)
	}
	var err error
	if p.File, err = filepath.Abs(file); err != nil {
		return fail(err)
	}
	f, err := files.Open(p.File)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxParamsFile+1))
	if err == nil && len(b) > maxParamsFile {
		err = fmt.Errorf("more than %d bytes", maxParamsFile)
	}
	if err != nil {
		return fail(err)
	}
	h := sha256.Sum256(b)
	if p.Sum = hex.EncodeToString(h[:]); sum != "" && p.Sum != sum {
		return fail(errors.New("the file changed after the job was submitted; submit the job again"))
	}
	if strings.HasSuffix(file, ".json") {
		err = p.readJSON(b)
	} else {
		err = p.readCSV(b)
	}
	if err == nil && len(p.Rows) == 0 {
		err = errors.New("no rows")
	}
	if err == nil && len(p.Rows) > maxIndex {
		err = fmt.Errorf("more than %d rows", maxIndex)
	}
	for i, n := range p.Names {
		if err == nil && (!axisText().MatchString(n) || "{"+n+"}" == Placeholder || slices.Contains(p.Names[:i], n)) {
			err = fmt.Errorf("name %q appears twice, or has other characters than letters, digits and _", text.Short(n))
		}
	}
	if err != nil {
		return fail(err)
	}
	return p, nil
}

// readCSV reads RFC 4180: a header, then the rows.
func (p *Params) readCSV(b []byte) error {
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))))
	r.TrimLeadingSpace = true
	rows, err := r.ReadAll()
	if err != nil || len(rows) == 0 {
		return err
	}
	p.Names, p.Rows = rows[0], rows[1:]
	return nil
}

// readJSON reads an array of objects with the same keys.
func (p *Params) readJSON(b []byte) error {
	var list []map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&list); err != nil {
		return fmt.Errorf("not an array of objects: %w", err)
	}
	for i, o := range list {
		if i == 0 {
			for n := range o {
				p.Names = append(p.Names, n)
			}
			slices.Sort(p.Names)
		}
		row := make([]string, len(p.Names))
		for j, n := range p.Names {
			switch v := o[n].(type) {
			case string:
				row[j] = v
			case json.Number, bool:
				row[j] = fmt.Sprint(v)
			default:
				return fmt.Errorf("row %d: %q is not a string, number or boolean", i+1, n)
			}
		}
		if len(o) != len(p.Names) {
			return fmt.Errorf("row %d: its names differ from those of row 1", i+1)
		}
		p.Rows = append(p.Rows, row)
	}
	return nil
}

var placeholderText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{(\w+)\}`) })

// CheckPlaceholders refuses misspelled placeholders such as {tsk} in the arguments of an array. Other names in braces
// belong to the program. The error has a hint.
func (j *Job) CheckPlaceholders() error {
	if j.Array.IsZero() {
		return nil
	}
	known := append(slices.Clone(j.Params.Names), strings.Trim(Placeholder, "{}"))
	for _, arg := range j.Args {
		for _, m := range placeholderText().FindAllStringSubmatch(arg, -1) {
			if like := text.Nearest(m[1], known); like != "" {
				return text.Usagef("%q: unknown placeholder %s", arg, m[0]).Hint("did you mean {%s}?", like)
			}
		}
	}
	return nil
}
