package pbs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// Used returns the usage of this user's jobs, including ended ones if PBS still knows them.
func (System) Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error) {
	out, err := invoke.Call(ctx, "/", "qstat", append([]string{"-x", "-f", "-t", "-F", "json"}, ids...)...)
	if err != nil && len(out) == 0 {
		return nil, fmt.Errorf("querying PBS for usage: %w", invoke.Error(out, err))
	}
	return used(out), nil
}

// used parses the JSON of "qstat -f". Tasks of an array, such as 17[3].h, count for the array, 17[].h.
func used(out []byte) map[string]capacity.Usage {
	var list struct {
		Jobs map[string]struct {
			Used struct {
				CPU    string `json:"cput"`
				Memory string `json:"mem"`
			} `json:"resources_used"`
		}
	}
	m := map[string]capacity.Usage{}
	if json.Unmarshal(out, &list) != nil {
		return m
	}
	for id, j := range list.Jobs {
		if number, rest, ok := strings.Cut(id, "["); ok {
			_, server, _ := strings.Cut(rest, "]")
			id = number + "[]" + server
		}
		u := m[id]
		if cpu, err := quantity.Clock(j.Used.CPU, time.Second, time.Minute, time.Hour); err == nil {
			u.CPU += cpu
		}
		u.Peak = max(u.Peak, quantity.Bytes(j.Used.Memory, 1))
		m[id] = u
	}
	return m
}
