package argo

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The fields that servers know, in the format that testdata/fields writes and documents. They are
// only parsed to check a user's manifest.
var (
	//go:embed fields_argo.txt
	argoFields string
	//go:embed fields_kubernetes.txt
	kubernetesFields string
)

// A schema lists the fields that a server's objects may have.
type schema struct {
	roots map[string]string         // type of a document, by apiVersion and kind
	types map[string]map[string]fit // fields of a type, by name
}

// A fit describes the values of a field; see testdata/fields.
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

// schemaOf returns the schema for a kind of document, or nil if it is unknown.
func schemaOf(apiVersion, kind string) *schema {
	for _, s := range []*schema{argoSchema(), kubernetesSchema()} {
		if s.roots[apiVersion+" "+kind] != "" {
			return s
		}
	}
	return nil
}

// fieldNames returns the field names of a type, sorted.
func (s *schema) fieldNames(of string) []string { return slices.Sorted(maps.Keys(s.types[of])) }
