package lsf

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/quantity"
	"hpcc/text"
)

// LSF's resource strings (bsub -R) have the sections select[…], rusage[…], span[…] and affinity[…]. Text
// outside a section is a selection.

// section matches one section of a resource string.
var section = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([a-z]+)\[([^\[\]]*)\]`) })

// readResources parses a resource string, section by section. If hpcc does not support a part of it, the
// part becomes a native option for LSF. For other targets, the row lists the part, or is refused if
// hpcc supports no part of the string.
func readResources(r *dialect.Reader, v string) error {
	if strings.ContainsAny(v, "{}") { // compound or alternative requirements
		return r.Native(`-R "` + strings.ReplaceAll(v, `"`, "'") + `"`)
	}
	rest := strings.TrimSpace(section().ReplaceAllString(v, ""))
	found := section().FindAllStringSubmatch(v, -1)
	if rest != "" {
		found = append(found, []string{rest, "select", rest})
	}
	var unsupported []string
	for _, s := range found {
		read := sections[s[1]]
		if read == nil {
			unsupported = append(unsupported, s[0])
			continue
		}
		for _, item := range read(r, s[2]) {
			unsupported = append(unsupported, s[1]+"["+item+"]")
		}
	}
	if len(unsupported) == 0 {
		return nil
	}
	what := strings.Join(unsupported, " ")
	if r.Own() {
		r.Job.Native = append(slices.Clip(r.Job.Native), `-R "`+strings.ReplaceAll(what, `"`, "'")+`"`)
		return nil
	}
	if !r.Row.Filled() {
		return fmt.Errorf("only LSF has %s", what)
	}
	r.Changed("without %s, which only LSF has", what)
	return nil
}

// joiners holds the separator that joins the contents of equal sections. LSF accepts the other
// sections only once.
var joiners = map[string]string{"select": " && ", "order": ":", "same": ":", "rusage": ","}

// joinResources merges the options -R into one, at the position of the first. LSF 10.1 merges several itself; bsub of
// OpenLava and its relatives refuses a second one. Options that cannot be merged stay separate.
func joinResources(options []string) []string {
	var out, names []string
	sections := map[string][]string{}
	first, merged := -1, 0
	for _, o := range options {
		parts := splitResources(o)
		if parts == nil || !joinable(sections, parts) {
			out = append(out, o)
			continue
		}
		if merged++; first < 0 {
			first = len(out)
			out = append(out, o)
		}
		for _, p := range parts {
			name, content := p[1], strings.TrimSpace(p[2])
			if len(sections[name]) == 0 {
				names = append(names, name)
			}
			if !slices.Contains(sections[name], content) {
				sections[name] = append(sections[name], content)
			}
		}
	}
	if merged < 2 {
		return options
	}
	slices.SortStableFunc(names, func(a, b string) int { return slices.Index(sectionOrder, a) - slices.Index(sectionOrder, b) })
	for i, name := range names {
		list := sections[name]
		for k, s := range list {
			if name == "select" && len(list) > 1 && strings.Contains(s, "||") {
				list[k] = "(" + s + ")"
			}
		}
		names[i] = name + "[" + strings.Join(list, joiners[name]) + "]"
	}
	out[first] = `-R "` + strings.Join(names, " ") + `"`
	return out
}

// sectionOrder is the order of sections in IBM's manual.
var sectionOrder = []string{"select", "order", "rusage", "span", "same", "cu", "affinity"}

// splitResources splits an option -R into its sections, as matches of [section]. It returns nil for other options and
// for resource strings that cannot be merged.
func splitResources(option string) [][]string {
	args, err := text.Words(option, false)
	if err != nil || len(args) != 2 || args[0].Text != "-R" || strings.ContainsAny(args[1].Text, `{}"`) {
		return nil
	}
	v := args[1].Text
	parts := section().FindAllStringSubmatch(v, -1)
	if rest := strings.TrimSpace(section().ReplaceAllString(v, "")); rest != "" {
		parts = append(parts, []string{rest, "select", rest})
	}
	for _, p := range parts {
		if !slices.Contains(sectionOrder, p[1]) {
			return nil
		}
	}
	return parts
}

// joinable reports whether LSF's syntax can join new sections to those of earlier options.
func joinable(sections map[string][]string, parts [][]string) bool {
	for _, p := range parts {
		name, before := p[1], sections[p[1]]
		switch {
		case len(before) == 0 || slices.Contains(before, strings.TrimSpace(p[2])):
		case joiners[name] == "":
			return false
		case name == "rusage" && strings.Contains(strings.Join(before, "")+p[2], "||"):
			return false
		}
	}
	return true
}

// sections holds the parser of each section. A parser returns the items that hpcc does not support.
var sections = map[string]func(r *dialect.Reader, s string) []string{
	"span": readSpan, "rusage": readUsage, "select": readSelect, "affinity": readAffinity,
}

func readSpan(r *dialect.Reader, s string) []string {
	key, value, _ := strings.Cut(strings.ReplaceAll(s, " ", ""), "=")
	n, ok := positive(value)
	switch {
	case key == "ptile" && ok:
		r.N.PerHost = n
	case key == "hosts" && n == 1 && ok:
		r.Job.Nodes = 1
	default:
		return []string{s}
	}
	r.Row.Fills(field.Nodes, field.TasksPerNode)
	return nil
}

// readUsage parses mem=N[UNIT][/host|/task|/job] and the GPU counts of LSF 9.
func readUsage(r *dialect.Reader, s string) []string {
	var left []string
	for _, item := range dialect.List(strings.ReplaceAll(s, " ", ""), ",:") {
		key, value, _ := strings.Cut(item, "=")
		switch key {
		case "mem":
			if err := reserve(r, value); err != nil {
				left = append(left, item)
			}
		case "ngpus_excl_p", "ngpus_shared", "ngpus_physical", "ngpus":
			count, _, _ := strings.Cut(value, ".")
			n, ok := positive(count)
			if !ok {
				left = append(left, item)
				continue
			}
			r.Job.GPUs = n
			r.Row.Fills(field.GPUs)
		default:
			left = append(left, item)
		}
	}
	return left
}

func reserve(r *dialect.Reader, v string) error {
	amount, per, _ := strings.Cut(v, "/")
	n, err := quantity.Size(amount, units("MB"))
	if err != nil {
		return err
	}
	r.Row.Fills(field.Memory)
	switch per {
	case "task", "slot":
		r.N.PerTask = n
	case "job":
		r.N.PerJob = n
	case "", "host":
		r.Job.Memory = n
		if per == "" {
			r.Row.Become("", fmt.Sprintf("%s on each host", quantity.FormatMemory(n)))
		}
	default:
		return fmt.Errorf("per %q", per)
	}
	return nil
}

var (
	freeMemory    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(mem|maxmem)>=?[0-9.]+[KMGTB]*$`) })
	feature       = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })
	hostCondition = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^hname(==|!=)['"]?([A-Za-z0-9._-]+)['"]?$`) })
)

// readSelect parses conditions that are joined by &&.
func readSelect(r *dialect.Reader, s string) []string {
	var left []string
	for _, c := range conjuncts(s) {
		c = strings.ReplaceAll(strings.TrimSpace(c), " ", "")
		m := hostCondition().FindStringSubmatch(c)
		switch {
		case strings.ContainsAny(c, "|()"):
			left = append(left, c)
		case freeMemory().MatchString(c) && !r.Own():
			r.Changed("%s is left out, because the job requests the reserved memory", c)
			r.Row.Fills(field.Memory)
		case c == "type==any" || c == "":
		case m != nil && m[1] == "==":
			r.Job.Hosts = append(slices.Clip(r.Job.Hosts), m[2])
			r.Row.Fills(field.Hosts)
		case m != nil:
			r.Job.NotHosts = append(slices.Clip(r.Job.NotHosts), m[2])
			r.Row.Fills(field.NotHosts)
		case feature().MatchString(c):
			r.Job.Features = append(slices.Clip(r.Job.Features), c)
			r.Row.Fills(field.Features)
		default:
			left = append(left, c)
		}
	}
	return left
}

// conjuncts splits a selection at && outside of parentheses. If it has || outside of parentheses, it is a single
// condition.
func conjuncts(s string) []string {
	var out []string
	depth, start := 0, 0
	for i := 0; i < len(s); i++ {
		switch rest := s[i:]; {
		case s[i] == '(':
			depth++
		case s[i] == ')':
			depth--
		case depth == 0 && strings.HasPrefix(rest, "||"):
			return []string{s}
		case depth == 0 && strings.HasPrefix(rest, "&&"):
			out = append(out, s[start:i])
			i++
			start = i + 1
		}
	}
	return append(out, s[start:])
}

var core = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(core|thread)(?:\(([0-9]{1,5})\))?$`) })

// readAffinity parses core(N), the number of processors of each process.
func readAffinity(r *dialect.Reader, s string) []string {
	first, rest, more := strings.Cut(strings.ReplaceAll(s, " ", ""), ":")
	m := core().FindStringSubmatch(first)
	if m == nil {
		return []string{s}
	}
	r.Job.CPUs = 1
	if n, ok := positive(m[2]); ok {
		r.Job.CPUs = n
	}
	r.Row.Fills(field.CPUs)
	if m[1] == "thread" {
		r.Changed("threads count as CPUs")
	}
	if more {
		r.Changed("without %s", rest)
	}
	return nil
}
