package pip

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"hpcc/conda/input"
	"hpcc/text"
)

// A wheelName is the parsed file name of a wheel (PEP 427, PEP 425).
type wheelName struct {
	file    string
	dist    string // not normalized
	version pyVersion
	build   string   // the build tag, a tie-breaker; "" if absent
	tags    []string // python-abi-platform
}

// maxTags limits the tags of one wheel: fat ones have a few dozen.
const maxTags = 1000

var buildTagText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9][A-Za-z0-9_.]*$`) })

func parseWheelName(file string) (*wheelName, error) {
	stem, ok := strings.CutSuffix(file, ".whl")
	f := strings.Split(stem, "-")
	if !ok || (len(f) != 5 && len(f) != 6) {
		return nil, errors.New("the file name is not NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl")
	}
	w := &wheelName{file: file, dist: f[0]}
	if !nameText().MatchString(strings.Trim(w.dist, "_")) || strings.ContainsAny(file, "/\\") {
		return nil, fmt.Errorf("invalid distribution name %q", text.Short(w.dist))
	}
	var err error
	if w.version, err = parseVersion(strings.ReplaceAll(f[1], "_", "-")); err != nil {
		return nil, err
	}
	if len(f) == 6 {
		if w.build = f[2]; !buildTagText().MatchString(w.build) {
			return nil, fmt.Errorf("build tag %q does not begin with a digit", text.Short(w.build))
		}
	}
	t := f[len(f)-3:]
	if many := func(s string) int { return strings.Count(s, ".") + 1 }; many(t[0])*many(t[1])*many(t[2]) > maxTags || len(file) > 1024 {
		return nil, errors.New("too many tags in the file name")
	}
	for py := range strings.SplitSeq(t[0], ".") {
		for abi := range strings.SplitSeq(t[1], ".") {
			for plat := range strings.SplitSeq(t[2], ".") {
				w.tags = append(w.tags, py+"-"+abi+"-"+plat)
			}
		}
	}
	return w, nil
}

// compareBuild orders build tags: no tag, then by number, then by the rest. w is nil for
// sources, which have no tag.
func (w *wheelName) compareBuild(o *wheelName) int {
	if w == nil || o == nil {
		return 0
	}
	i, j := input.Digits(w.build), input.Digits(o.build)
	if c := input.CompareNumbers(strings.TrimLeft(w.build[:i], "0"), strings.TrimLeft(o.build[:j], "0")); c != 0 {
		return c
	}
	return strings.Compare(w.build, o.build)
}

// oldManylinux maps minor versions of glibc to the names that manylinux had before
// PEP 600.
var oldManylinux = map[int]string{17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

// platforms returns the platform tags that the target can use, best first.
func (t *Target) platforms() ([]string, error) {
	processor, linux := strings.CutPrefix(t.Subdir, "linux-")
	machine := pythonMachine[processor]
	if machine == "" || !linux {
		return nil, fmt.Errorf("unsupported platform %s: unknown wheel tags", t.Subdir)
	}
	var out []string
	if t.Glibc != "" {
		major, minor, err := twoNumbers(t.Glibc)
		if err != nil || major != 2 {
			return nil, fmt.Errorf("glibc %q: not of the form 2.N", t.Glibc)
		}
		oldest := 17
		if machine == "x86_64" || machine == "i686" {
			oldest = 5
		}
		for n := minor; n >= oldest; n-- {
			out = append(out, fmt.Sprintf("manylinux_2_%d_%s", n, machine))
			if old := oldManylinux[n]; old != "" {
				out = append(out, old+"_"+machine)
			}
		}
	}
	if t.Musl != "" {
		major, minor, err := twoNumbers(t.Musl)
		if err != nil {
			return nil, fmt.Errorf("musl %q: not of the form 1.N", t.Musl)
		}
		for n := minor; n >= 0; n-- {
			out = append(out, fmt.Sprintf("musllinux_%d_%d_%s", major, n, machine))
		}
	}
	return append(out, "linux_"+machine), nil
}

// twoNumbers parses X and Y of "X.Y…".
func twoNumbers(version string) (x, y int, err error) {
	f := strings.SplitN(version, ".", 3)
	if len(f) < 2 {
		return 0, 0, fmt.Errorf("%q is not a version", text.Short(version))
	}
	if x, err = strconv.Atoi(f[0]); err != nil {
		return 0, 0, err
	}
	if y, err = strconv.Atoi(f[1]); err != nil {
		return 0, 0, err
	}
	if x < 0 || y < 0 || x > 999 || y > 999 {
		return 0, 0, fmt.Errorf("%q is not a version", text.Short(version))
	}
	return x, y, nil
}

// ranks numbers the tags that the target can use; the lowest is the best. The order is:
// own python and ABI, stable ABI, older pythons, any python; within each the newest C
// library first (PEP 425, PEP 600, PEP 656).
func (t *Target) ranks() (map[string]int, error) {
	major, minor, err := twoNumbers(t.Python)
	if err != nil || major != 3 {
		return nil, fmt.Errorf("unsupported python %q: want CPython 3", t.Python)
	}
	plats, err := t.platforms()
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	add := func(py, abi string, plats ...string) {
		for _, p := range plats {
			if tag := py + "-" + abi + "-" + p; out[tag] == 0 {
				out[tag] = len(out) + 1
			}
		}
	}
	cp := fmt.Sprintf("cp3%d", minor)
	abi := cp
	switch {
	case t.FreeThreaded:
		abi += "t"
	case minor < 8:
		abi += "m"
	}
	add(cp, abi, plats...)
	if !t.FreeThreaded {
		add(cp, "abi3", plats...)
	}
	add(cp, "none", plats...)
	for n := minor - 1; n >= 2 && !t.FreeThreaded; n-- {
		add(fmt.Sprintf("cp3%d", n), "abi3", plats...)
	}
	pys := []string{fmt.Sprintf("py3%d", minor), "py3"}
	for n := minor - 1; n >= 0; n-- {
		pys = append(pys, fmt.Sprintf("py3%d", n))
	}
	for _, py := range pys {
		add(py, "none", plats...)
	}
	add(cp, "none", "any")
	for _, py := range pys {
		add(py, "none", "any")
	}
	return out, nil
}

// environment returns the variables of markers in the target. Variables that only the
// running kernel knows are empty.
func (t *Target) environment() map[string]string {
	v := markerValues(t.Subdir)
	v["python_version"], v["python_full_version"], v["implementation_version"] = Minor(t.Python), t.Python, t.Python
	return v
}

// describe describes the target in messages.
func (t *Target) describe() string {
	s := "for python " + Minor(t.Python) + " and " + t.Subdir
	switch {
	case t.Glibc != "":
		s += ", glibc " + t.Glibc
	case t.Musl != "":
		s += ", musl " + t.Musl
	}
	return s
}
