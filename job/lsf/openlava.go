package lsf

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"hpcc/job/invoke"
)

// openLava converts the options of a script for OpenLava and its forks, such as volclava, which have the
// commands of an early LSF. It removes units. It refuses options of several letters that "bsub -h" does not
// list, because bsub would read "-env all" as "-e nv" and a program "all".
func openLava(ctx context.Context, script string) (string, error) {
	if !newOption().MatchString(script) {
		return script, nil
	}
	out, err := invoke.Call(ctx, "/", "lsid")
	product, _, _ := strings.Cut(string(out), ",")
	if err != nil || !strings.Contains(strings.ToLower(product), "lava") {
		return script, nil
	}
	usage, _ := invoke.Call(ctx, "/", "bsub", "-h") // its exit status is not 0
	lines := strings.SplitAfter(script, "\n")
	for i, line := range lines {
		f := strings.Fields(line)
		switch {
		case len(f) < 2 || f[0] != "#BSUB":
		case f[1] == "-M" && len(f) > 2:
			if mb, err := strconv.ParseInt(strings.TrimSuffix(f[2], "MB"), 10, 64); err == nil && strings.HasSuffix(f[2], "MB") {
				if !strings.Contains(product, "volclava") { // its unit is MB, OpenLava's is KB
					mb <<= 10
				}
				lines[i] = fmt.Sprintf("#BSUB -M %d\n", mb)
			}
		case f[1] == "-R":
			lines[i] = megabytes().ReplaceAllString(line, "$1")
		case len(f[1]) > 2 && f[1][0] == '-' && !strings.Contains(string(usage), f[1]):
			return "", fmt.Errorf("%s does not support the option %s; submit the job without it", product, strings.Join(f[1:], " "))
		}
	}
	return strings.Join(lines, ""), nil
}

// newOption matches the directives that OpenLava may not have.
var newOption = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^#BSUB (-[[:alpha:]]{2}|-M|-R .*mem=[0-9]+MB)`) })

// megabytes matches an amount of memory in a resource requirement.
var megabytes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b(mem=[0-9]+)MB\b`) })
