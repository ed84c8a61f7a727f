package slurm

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"hpcc/text"
)

// errTooMany is the error for a host list that exceeds its limit.
var errTooMany = errors.New("too many hosts")

// maxHosts is the largest number of hosts in an answer of Slurm.
const maxHosts = 1 << 17

// hostText matches a host name that directives can hold.
var hostText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._@:,+/=\[\]-]{1,255}$`) })

// expandHosts expands a host list in Slurm's notation (scontrol(1), show hostnames):
// n[1-3,07],gpu1, rack[1-2]n[1-4]. More than limit hosts are an error.
func expandHosts(s string, limit int) ([]string, error) {
	var out []string
	for s != "" {
		end, depth := len(s), 0
		for i, r := range s {
			if r == '[' {
				depth++
			} else if r == ']' {
				depth--
			} else if r == ',' && depth == 0 {
				end = i
				break
			}
		}
		names, err := expandWord(s[:end], limit-len(out))
		if err != nil {
			return nil, fmt.Errorf("host list %q: %w", text.Short(s), err)
		}
		out = append(out, names...)
		s = strings.TrimPrefix(s[end:], ",")
	}
	return out, nil
}

// expandWord expands one element of a host list.
func expandWord(word string, limit int) ([]string, error) {
	head, rest, ok := strings.Cut(word, "[")
	if !ok {
		if limit < 1 {
			return nil, errTooMany
		}
		if !hostText().MatchString(word) {
			return nil, fmt.Errorf("%q is not a host name", text.Short(word))
		}
		return []string{word}, nil
	}
	list, tail, ok := strings.Cut(rest, "]")
	if !ok {
		return nil, errors.New("a bracket is not closed")
	}
	if !hostText().MatchString(head + "1") {
		return nil, fmt.Errorf("%q is not the start of a host name", text.Short(head))
	}
	ends := []string{""}
	if tail != "" {
		var err error
		if ends, err = expandWord(tail, limit); err != nil {
			return nil, err
		}
	}
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 0 || b < a || len(first) > 9 {
			return nil, fmt.Errorf("%q is not a range", text.Short(part))
		}
		if b-a+1 > (limit-len(out))/len(ends) {
			return nil, errTooMany
		}
		for k := a; k <= b; k++ {
			for _, e := range ends {
				out = append(out, fmt.Sprintf("%s%0*d%s", head, len(first), k, e))
			}
		}
	}
	return out, nil
}
