package argo

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The fields that servers know, in the form that testdata/fields writes and
// describes. They are read only when somebody's manifest is.
var (
	//go:embed fields_argo.txt
	argoFields string
	//go:embed fields_kubernetes.txt
	kubernetesFields string
)

// A schema is which fields the objects of a server may have.
type schema struct {
	roots map[string]string         // type of a document, by apiVersion and kind
	types map[string]map[string]fit // fields of a type, by name
}

// A fit is what a field takes; see testdata/fields.
type fit struct {
	kind     string
	required bool
}

var (
	argoSchema       = sync.OnceValue(func() *schema { return readSchema(argoFields) })
	kubernetesSchema = sync.OnceValue(func() *schema { return readSchema(kubernetesFields) })
)

func readSchema(text string) *schema {
	s := &schema{roots: map[string]string{}, types: map[string]map[string]fit{}}
	var fields map[string]fit
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case line[0] == '#':
		case line[0] == '@':
			s.roots[f[0][1:]+" "+f[1]] = f[2]
		case line[0] == ' ':
			kind, required := strings.CutSuffix(f[1], "!")
			fields[f[0]] = fit{kind, required}
		default:
			fields = map[string]fit{}
			s.types[f[0]] = fields
		}
	}
	return s
}

// schemaOf is the schema that knows a document, nil when none does.
func schemaOf(apiVersion, kind string) *schema {
	for _, s := range []*schema{argoSchema(), kubernetesSchema()} {
		if s.roots[apiVersion+" "+kind] != "" {
			return s
		}
	}
	return nil
}

// fieldNames are those of a type, by name.
func (s *schema) fieldNames(of string) []string { return slices.Sorted(maps.Keys(s.types[of])) }
