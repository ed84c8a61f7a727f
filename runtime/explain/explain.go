// Package explain compares the specification of a run with those of runs that have fewer settings. The source of a value
// is the setting that first gave it.
//
//	Caller ──► Sources.Compare("caller") ──► Run ──► Sources.Compare("image") ──► … ──► Write
package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime"
	"hpcc/text"
	"hpcc/text/terminal"
)

// A Fact is a property of a run that its program sees, or a setting of the job that starts the run.
type Fact struct {
	Kind   string `json:"kind"` // command, directory, user, hostname, namespace, mount, setting, variable or job
	Name   string `json:"name,omitempty"`
	Value  string `json:"value"`
	Source string `json:"source"`          // caller, hpcc, image, FILE:LINE or a flag
	Unset  bool   `json:"unset,omitempty"` // a variable of the caller that the program does not get
}

// Sources holds the last value of each fact, by kind and name.
type Sources map[string]Fact

// Compare fills in the sources of facts. A fact keeps its source as long as its value stays the same.
func (s Sources) Compare(source string, now []Fact) {
	seen := map[string]bool{}
	for i, f := range now {
		key := f.Kind + " " + f.Name
		if now[i].Source = source; s[key].Value == f.Value && s[key].Source != "" && !s[key].Unset {
			now[i].Source = s[key].Source
		}
		s[key], seen[key] = now[i], true
	}
	for key, f := range s {
		if !seen[key] && !f.Unset {
			f.Unset, f.Source = true, source
			s[key] = f
		}
	}
}

// Unset returns the variables that the last facts lack, sorted by name.
func (s Sources) Unset() (list []Fact) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if f := s[key]; f.Unset && f.Kind == "variable" {
			list = append(list, f)
		}
	}
	return list
}

// Caller returns the facts of this process, as if it were a program with this command line.
func Caller(argv []string) []Fact {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	return append(variables(os.Environ()), Fact{Kind: "directory", Value: dir}, Fact{Kind: "hostname", Value: host},
		Fact{Kind: "user", Value: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())},
		Fact{Kind: "command", Value: text.CommandLine(argv)})
}

func variables(env []string) (out []Fact) {
	for _, kv := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(kv, "=")
		out = append(out, Fact{Kind: "variable", Name: name, Value: value})
	}
	return out
}

// Run returns the facts of a specification.
func Run(s *specs.Spec) []Fact {
	host := s.Hostname
	if host == "" {
		host, _ = os.Hostname()
	}
	out := []Fact{
		{Kind: "command", Value: text.CommandLine(s.Process.Args)}, {Kind: "directory", Value: s.Process.Cwd},
		{Kind: "hostname", Value: host},
		{Kind: "user", Value: fmt.Sprintf("%d:%d", s.Linux.UIDMappings[0].ContainerID, s.Linux.GIDMappings[0].ContainerID)},
	}
	for _, n := range s.Linux.Namespaces {
		if n.Type != specs.UserNamespace && n.Type != specs.MountNamespace {
			out = append(out, Fact{Kind: "namespace", Name: string(n.Type), Value: "of the program"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Annotations)) {
		if short, ok := strings.CutPrefix(name, "hpcc."); ok && name != runtime.Architecture {
			out = append(out, Fact{Kind: "setting", Name: short, Value: s.Annotations[name]})
		}
	}
	access := "rw"
	if s.Root.Readonly {
		access = "ro"
	}
	out = append(out, Fact{Kind: "mount", Name: "/", Value: s.Root.Path + " (" + access + ")"})
	for _, m := range s.Mounts {
		out = append(out, Fact{Kind: "mount", Name: m.Destination,
			Value: strings.TrimSuffix(m.Source+" ("+strings.Join(m.Options, ",")+")", " ()")})
	}
	return append(out, variables(s.Process.Env)...)
}

// Write writes facts as a table, or as one JSON object.
func Write(w io.Writer, facts []Fact, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(map[string]any{"type": "explanation", "version": 1, "facts": facts})
	}
	t := terminal.NewTable("WHAT", "SOURCE", "VALUE")
	for _, f := range facts {
		name := strings.TrimSpace(f.Kind + " " + f.Name)
		if f.Kind == "variable" {
			name, f.Value = f.Kind, f.Name+"="+f.Value
		}
		if f.Unset {
			f.Value = "(not passed) " + f.Name
		}
		t.Row(name, f.Source, f.Value)
	}
	return t.Write(w)
}
