package kube

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// flagOf returns hpcc's flag for a resource of the cluster, such as limits.cpu, or "".
func flagOf(resource string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(resource, "requests."), "limits.")
	switch {
	case name == "cpu":
		return "--cpus"
	case name == "memory":
		return "--mem"
	case name == "ephemeral-storage":
		return "--scratch"
	case strings.HasSuffix(name, "/gpu"), strings.Contains(name, "/mig-"), strings.HasPrefix(name, "gpu.intel.com/"):
		return "--gpus"
	case name == "pods", strings.HasPrefix(name, "count/"):
		return "--array 1-100%10"
	}
	return ""
}

// flagsOf returns the flags for several resources, without repetitions.
func flagsOf(resources []string) string {
	var flags []string
	for _, r := range resources {
		if f := flagOf(r); f != "" && !slices.Contains(flags, f) {
			flags = append(flags, f)
		}
	}
	return strings.Join(flags, ", ")
}

// lessAdvice returns advice for a lack of resources: which flags request less, or only to wait.
func lessAdvice(resources []string, rest string) string {
	if flags := flagsOf(resources); flags != "" {
		return "request less with " + flags + ", " + rest
	}
	return strings.TrimPrefix(rest, "or ")
}

// overQuota explains a refusal by a ResourceQuota: pairs such as limits.cpu=4 for the request, the use
// and the limit.
func overQuota(_ *fact, groups []string) (text, advice string) {
	requested, used, limited := pairsOf(groups[2]), pairsOf(groups[3]), pairsOf(groups[4])
	var names, rows []string
	for _, r := range requested {
		names = append(names, r[0])
		rows = append(rows, fmt.Sprintf("%s: %s more, with %s of %s in use", r[0], r[1], valueOf(used, r[0]), valueOf(limited, r[0])))
	}
	return fmt.Sprintf("exceeded quota %s of the namespace: %s", groups[1], strings.Join(rows, "; ")),
		lessAdvice(names, "or wait until other jobs end")
}

// maxListed is the number of items of a list in foreign text that are read.
const maxListed = 20

// pairsOf parses "limits.cpu=4,pods=1".
func pairsOf(list string) [][2]string {
	var out [][2]string
	for item := range strings.SplitSeq(list, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		if ok && len(out) < maxListed {
			out = append(out, [2]string{name, strings.TrimRight(value, ";. ")})
		}
	}
	return out
}

func valueOf(pairs [][2]string, name string) string {
	for _, p := range pairs {
		if p[0] == name {
			return p[1]
		}
	}
	return "?"
}

// unspecified explains the refusal of a pod without a limit that a quota needs: "limits.cpu for: main;
// limits.memory for: main".
func unspecified(_ *fact, groups []string) (text, advice string) {
	var names []string
	for item := range strings.SplitSeq(groups[2], ";") {
		list, _, _ := strings.Cut(strings.TrimSpace(item), " for: ")
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name != "" && len(names) < maxListed {
				names = append(names, name)
			}
		}
	}
	text = fmt.Sprintf("quota %s of the namespace needs requests of %s", groups[1], strings.Join(names, ", "))
	if flags := flagsOf(names); flags != "" {
		advice = "set " + flags
	}
	return text, advice
}

// outOfRange explains a refusal by a LimitRange: "maximum memory usage per Container is 2Gi, but limit
// is 4Gi".
func outOfRange(f *fact, groups []string) (text, advice string) {
	if flag := flagOf(groups[1]); flag != "" {
		advice = "request an amount in this range with " + flag
	}
	return f.message, advice
}

// quotaShortage matches one resource that lacks quota of Kueue, in one flavor.
var quotaShortage = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed`)
})

// belowRequest explains a request for more than the unused quota of Kueue.
func belowRequest(f *fact, _ []string) (text, advice string) {
	var rows []string
	for _, m := range quotaShortage().FindAllStringSubmatch(f.message, -1) {
		rows = append(rows, fmt.Sprintf("%s (%s more needed in flavor %s)", m[1], m[3], m[2]))
	}
	return fmt.Sprintf("queue %s: waits until other jobs release %s", f.about.queue, strings.Join(rows, ", ")), ""
}

// quotaCapacity matches the numbers of a request above a quota, as Kueue 0.10 and later write them.
var quotaCapacity = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:podset request \((\S+)\) > maximum capacity \(|maximum capacity \((\S+) > )(\S+)\)$`)
})

// aboveQueue explains a request that is larger than a quota of Kueue.
func aboveQueue(f *fact, groups []string) (text, advice string) {
	amounts := groups[3]
	if m := quotaCapacity().FindStringSubmatch(amounts); m != nil {
		amounts = m[1] + m[2] + " > " + m[3]
	}
	text = fmt.Sprintf("queue %s: the job requests more %s than flavor %s has in total: %s", f.about.queue, groups[1], groups[2], amounts)
	rest := "or choose another --queue"
	if f.about.several {
		rest = "run fewer pods at once (--array 1-100%10, --nodes), " + rest
	}
	return text, lessAdvice(groups[1:2], rest)
}

// uncovered explains a request for a resource that is not part of the quota of Kueue.
func uncovered(f *fact, groups []string) (text, advice string) {
	text = fmt.Sprintf("queue %s does not provide %s", f.about.queue, groups[1])
	if flag := flagOf(groups[1]); flag != "" {
		advice = "leave out " + flag + ", or "
	}
	return text, advice + "choose another --queue"
}

// A shortage is a reason why nodes do not fit a pod, in the scheduler's words and ours.
type shortage struct {
	pattern, text, advice string
}

// shortages are reasons of the plugins of kube-scheduler 1.29 to 1.34.
var shortages = []shortage{
	{`^Insufficient (\S+)`, "insufficient $1", ""}, // its advice depends on the resource
	{`^Too many pods`, "no room for another pod", ""},
	{`taint \{nvidia\.com/gpu\b.*`, "reserved for pods with GPUs", "request one with --gpus"},
	{`taint \{node\.kubernetes\.io/(?:unreachable|not-ready)\b`, "not ready", ""},
	{`taint \{node\.kubernetes\.io/(\S+?)-pressure\b`, "low on $1", ""},
	{`were unschedulable|taint \{node\.kubernetes\.io/unschedulable\b`, "closed for new pods", ""},
	{`taint\(?s?\)? \{(\S+?):`, "reserved by taint $1", ""},
	{`taint`, "reserved or not ready, by a taint", ""}, // since 1.34 without its name
	{`didn't match Pod's node affinity/selector`, "without the requested labels or names",
		"change --gpu-type, --node-label or the list of nodes"},
	{`anti-affinity`, "in use by other jobs", "leave out --exclusive or --nodes, or wait until other jobs end"},
	{`volume node affinity conflict|volume zone`, "without access to the volume", "use a claim that these nodes can mount"},
	{`exceed max volume count`, "with too many volumes", ""},
	{`didn't find available persistent volumes to bind|did not have enough free storage`, "without storage for the claim", ""},
}

var shortagePatterns = sync.OnceValue(func() []*regexp.Regexp {
	list := make([]*regexp.Regexp, len(shortages))
	for i := range shortages {
		list[i] = regexp.MustCompile(shortages[i].pattern)
	}
	return list
})

// The parts of the scheduler's message: "1 Insufficient cpu, 2 node(s) were unschedulable. preemption: …".
var (
	shortageItem = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|, )([0-9]+) ([A-Za-z])`) })
	shortageEnd  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`[.,] (?:no new claims|preemption: )|\. [a-z].*$|\.$`)
	})
)

// unschedulable explains the scheduler's message about the nodes of the cluster.
func unschedulable(f *fact, groups []string) (text, advice string) {
	total, _, _ := strings.Cut(strings.TrimPrefix(groups[1], "0/"), " ")
	list := groups[2]
	if end := shortageEnd().FindStringIndex(list); end != nil {
		list = list[:end[0]]
	}
	items := shortageItem().FindAllStringSubmatchIndex(list, maxListed)
	if len(items) == 0 { // a reason for all nodes, such as an unbound claim
		return fmt.Sprintf("no node of %s fits: %s", total, list), ""
	}
	var rows, short, hints []string
	for i, at := range items {
		end := len(list)
		if i+1 < len(items) {
			end = items[i+1][0]
		}
		count, reason := list[at[2]:at[3]], list[at[4]:end]
		row, hint := reason, ""
		for k, p := range shortagePatterns() {
			m := p.FindStringSubmatchIndex(reason)
			if m == nil {
				continue
			}
			row, hint = string(p.ExpandString(nil, shortages[k].text, reason, m)), shortages[k].advice
			if k == 0 {
				name := reason[m[2]:m[3]]
				short = append(short, name)
				row += f.about.requested(name)
			}
			break
		}
		rows = append(rows, fmt.Sprintf("%s %s", count, row))
		if hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	if len(short) > 0 {
		hints = append([]string{lessAdvice(short, "or wait until other jobs end; \"hpcc nodes\" shows what nodes have")}, hints...)
	}
	return fmt.Sprintf("no node of %s fits: %s", total, strings.Join(rows, ", ")), strings.Join(hints, "; ")
}

// requested returns the pod's request of a resource in parentheses, or "".
func (s *subject) requested(resource string) string {
	for item := range strings.SplitSeq(s.requests, ",") {
		if name, amount, _ := strings.Cut(item, "="); name == resource {
			return " (" + amount + " requested)"
		}
	}
	return ""
}
