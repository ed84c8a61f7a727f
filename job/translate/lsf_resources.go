package translate

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/quantity"
)

// Resource strings of LSF (bsub -R): sections select[…], rusage[…], span[…],
// affinity[…]; what stands in no section is a selection.

var lsfSection = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([a-z]+)\[([^\[\]]*)\]`) })

// lsfResources reads a resource string, section by section. A section that hpcc
// cannot say otherwise refuses the string, unless it is only a condition on what is asked for anyway.
func lsfResources(r *reader, v string) error {
	rest := strings.TrimSpace(lsfSection().ReplaceAllString(v, ""))
	sections := lsfSection().FindAllStringSubmatch(v, -1)
	if rest != "" {
		sections = append(sections, []string{rest, "select", rest})
	}
	var unsaid []string
	for _, s := range sections {
		read := lsfSections[s[1]]
		if read == nil {
			unsaid = append(unsaid, s[0])
			continue
		}
		for _, item := range read(r, s[2]) {
			unsaid = append(unsaid, s[1]+"["+item+"]")
		}
	}
	if len(unsaid) == 0 {
		return nil
	}
	what := strings.Join(unsaid, " ")
	if r.t.To == job.LSF {
		r.job.Native = append(r.job.Native[:len(r.job.Native):len(r.job.Native)], `-R "`+strings.ReplaceAll(what, `"`, "'")+`"`)
		return nil
	}
	if len(r.row.fields) == 0 {
		return fmt.Errorf("no other scheduler has %s", what)
	}
	r.changed("without %s, which no other scheduler has", what)
	return nil
}

// lsfSections read a section each, and return the items that they do not know.
var lsfSections = map[string]func(r *reader, s string) []string{
	"span": lsfSpan, "rusage": lsfUsage, "select": lsfSelect, "affinity": lsfAffinity,
}

func lsfSpan(r *reader, s string) []string {
	key, value, _ := strings.Cut(strings.ReplaceAll(s, " ", ""), "=")
	n, ok := lsfNumber(value)
	switch {
	case key == "ptile" && ok:
		r.n.perHost = n
	case key == "hosts" && n == 1 && ok:
		r.job.Nodes = 1
	default:
		return []string{s}
	}
	r.fills(fNodes, fTasksPerNode)
	return nil
}

// lsfUsage reads mem=N[UNIT][/host|/task|/job] and the GPU counts of LSF 9.
func lsfUsage(r *reader, s string) []string {
	var left []string
	for _, item := range listOf(strings.ReplaceAll(s, " ", ""), ",:") {
		key, value, _ := strings.Cut(item, "=")
		switch key {
		case "mem":
			if err := lsfReserve(r, value); err != nil {
				left = append(left, item)
			}
		case "ngpus_excl_p", "ngpus_shared", "ngpus_physical", "ngpus":
			count, _, _ := strings.Cut(value, ".")
			n, ok := lsfNumber(count)
			if !ok {
				left = append(left, item)
				continue
			}
			r.job.GPUs = n
			r.fills(fGPUs)
		default:
			left = append(left, item)
		}
	}
	return left
}

func lsfReserve(r *reader, v string) error {
	amount, per, _ := strings.Cut(v, "/")
	n, err := quantity.Size(amount, lsfUnits("MB"))
	if err != nil {
		return err
	}
	r.fills(fMemory)
	switch per {
	case "task", "slot":
		r.n.perTask = n
	case "job":
		r.n.perJob = n
	case "", "host":
		r.job.Memory = n
		if per == "" {
			r.row.become("", fmt.Sprintf("%s on each host", quantity.FormatMemory(n)))
		}
	default:
		return fmt.Errorf("per %q", per)
	}
	return nil
}

var (
	lsfFree    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(mem|maxmem)>=?[0-9.]+[KMGTB]*$`) })
	lsfFeature = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })
	lsfHost    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^hname(==|!=)['"]?([A-Za-z0-9._-]+)['"]?$`) })
)

// lsfSelect reads conditions that are joined by &&.
func lsfSelect(r *reader, s string) []string {
	if strings.Contains(s, "||") || strings.ContainsAny(s, "()") {
		return []string{s}
	}
	var left []string
	for _, c := range strings.Split(s, "&&") {
		c = strings.ReplaceAll(strings.TrimSpace(c), " ", "")
		m := lsfHost().FindStringSubmatch(c)
		switch {
		case lsfFree().MatchString(c) && r.t.To != job.LSF:
			r.changed("%s is left out: the memory that is reserved is asked for", c)
			r.fills(fMemory)
		case c == "type==any" || c == "":
		case m != nil && m[1] == "==":
			r.job.Hosts = append(r.job.Hosts[:len(r.job.Hosts):len(r.job.Hosts)], m[2])
			r.fills(fHosts)
		case m != nil:
			r.job.NotHosts = append(r.job.NotHosts[:len(r.job.NotHosts):len(r.job.NotHosts)], m[2])
			r.fills(fNotHosts)
		case lsfFeature().MatchString(c):
			r.job.Features = append(r.job.Features[:len(r.job.Features):len(r.job.Features)], c)
			r.fills(fFeatures)
		default:
			left = append(left, c)
		}
	}
	return left
}

var lsfCore = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(core|thread)(?:\(([0-9]{1,5})\))?$`) })

// lsfAffinity reads core(N): processors of each process.
func lsfAffinity(r *reader, s string) []string {
	first, rest, more := strings.Cut(strings.ReplaceAll(s, " ", ""), ":")
	m := lsfCore().FindStringSubmatch(first)
	if m == nil {
		return []string{s}
	}
	r.job.CPUs = 1
	if n, ok := lsfNumber(m[2]); ok {
		r.job.CPUs = n
	}
	r.fills(fCPUs)
	if m[1] == "thread" {
		r.changed("threads are taken for processors")
	}
	if more {
		r.changed("without %s", rest)
	}
	return nil
}
