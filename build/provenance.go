package build

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"hpcc/build/attest"
	"hpcc/text"
)

// Build types, which define the parameters of a provenance. Dockerfile builds use BuildKit's
// (its "SLSA definitions"), which existing readers understand; environments use the one in
// docs/attestations.md.
const (
	buildkitType = "https://github.com/moby/buildkit/blob/master/docs/attestations/slsa-definitions.md"
	condaType    = "urn:hpcc:build:conda"
	builderID    = "urn:hpcc:build"
)

// ProvenanceOptions select the content of a provenance.
type ProvenanceOptions struct {
	Max       bool   // include build arguments, labels, IDs of secrets, the Dockerfile and its steps
	BuilderID string // URI of the builder; "": hpcc
}

// ParseProvenance reads the value of --provenance, as in docker build. It returns nil for no provenance.
func ParseProvenance(s string) (*ProvenanceOptions, error) {
	switch s {
	case "false", "disabled=true":
		return nil, nil
	case "true":
		s = "mode=min"
	}
	o := &ProvenanceOptions{}
	for _, kv := range strings.Split(s, ",") {
		k, v, _ := strings.Cut(kv, "=")
		switch {
		case k == "mode" && (v == "min" || v == "max"):
			o.Max = v == "max"
		case k == "builder-id" && strings.Contains(v, ":"):
			o.BuilderID = v
		case k == "version" && v == "v1":
		default:
			return nil, text.Usagef("provenance: %q is not mode=min, mode=max, builder-id=URI or version=v1", kv)
		}
	}
	return o, nil
}

// provenance is the predicate of a provenance (SLSA 1.1, "Provenance").
type provenance struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string             `json:"buildType"`
	ExternalParameters   externalParameters `json:"externalParameters"`
	InternalParameters   internalParameters `json:"internalParameters"`
	ResolvedDependencies []resource         `json:"resolvedDependencies,omitempty"`
}

type externalParameters struct {
	ConfigSource configSource `json:"configSource"`
	Request      request      `json:"request"`
}

type internalParameters struct {
	BuildConfig     *buildConfig `json:"buildConfig,omitempty"`
	BuilderPlatform string       `json:"builderPlatform"`
	TargetPlatform  string       `json:"targetPlatform"`
}

// A buildConfig lists the instructions in the order of the Dockerfile.
type buildConfig struct {
	Steps []buildStep `json:"steps"`
}

type buildStep struct {
	ID          string `json:"id"`
	Stage       int    `json:"stage"`
	Instruction string `json:"instruction"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
	Metadata metadata `json:"metadata"`
}

// metadata omits SLSA's invocationId, startedOn and finishedOn, which differ between builds
// with the same inputs.
type metadata struct {
	Completeness struct {
		Request              bool `json:"request"`
		ResolvedDependencies bool `json:"resolvedDependencies"`
	} `json:"buildkit_completeness"`
	Hermetic bool `json:"buildkit_hermetic,omitempty"`
	BuildKit struct {
		Source *sourceMap `json:"source,omitempty"`
	} `json:"buildkit_metadata"`
}

// A sourceMap maps steps to lines of the recipe.
type sourceMap struct {
	Locations map[string]locations `json:"locations"`
	Infos     []sourceInfo         `json:"infos"`
}

type locations struct {
	Locations []ranges `json:"locations"`
}

type ranges struct {
	Ranges []sourceRange `json:"ranges"`
}

type sourceRange struct {
	Start line `json:"start"`
	End   line `json:"end"`
}

type line struct {
	Line int `json:"line"`
}

type sourceInfo struct {
	Filename string `json:"filename"`
	Language string `json:"language"`
	Data     []byte `json:"data"` // base64 in JSON
}

// Provenance returns the statement of how an image was built from these inputs. The same
// inputs give the same statement on all machines of one architecture.
func (in *Inputs) Provenance(o ProvenanceOptions) attest.Statement {
	in.mu.Lock()
	defer in.mu.Unlock()
	var p provenance
	def := &p.BuildDefinition
	def.BuildType = in.kind
	def.ExternalParameters = externalParameters{in.source, in.request}
	def.InternalParameters = internalParameters{BuilderPlatform: in.builder.String(), TargetPlatform: in.target.String()}
	for _, k := range slices.Sorted(maps.Keys(in.used)) {
		def.ResolvedDependencies = append(def.ResolvedDependencies, in.used[k])
	}
	p.RunDetails.Builder.ID = builderID
	if o.BuilderID != "" {
		p.RunDetails.Builder.ID = o.BuilderID
	}
	m := &p.RunDetails.Metadata
	m.Completeness.Request = true
	m.Completeness.ResolvedDependencies = !in.partly
	m.Hermetic = !in.partly && !in.networks
	if o.Max {
		in.addRecipe(def, m)
	} else {
		m.Completeness.Request = !withhold(&def.ExternalParameters.Request)
	}
	return attest.Statement{Type: attest.Provenance, Predicate: p}
}

// withhold removes data that users may not want to publish.
func withhold(r *request) bool {
	n := len(r.Args)
	r.Args = maps.Clone(r.Args)
	maps.DeleteFunc(r.Args, func(k, _ string) bool {
		return strings.HasPrefix(k, "build-arg:") || strings.HasPrefix(k, "label:")
	})
	held := len(r.Args) < n || len(r.Secrets)+len(r.SSH) > 0
	r.Secrets, r.SSH = nil, nil
	return held
}

// addRecipe adds the Dockerfile and its steps, with line numbers.
func (in *Inputs) addRecipe(def *buildDefinition, m *metadata) {
	if len(in.steps) == 0 {
		return // an environment has no Dockerfile
	}
	src := &sourceMap{Infos: []sourceInfo{{Filename: in.source.Path, Language: "Dockerfile", Data: in.text}},
		Locations: map[string]locations{}}
	m.BuildKit.Source = src
	def.InternalParameters.BuildConfig = &buildConfig{}
	for _, stage := range slices.Sorted(maps.Keys(in.steps)) {
		for _, st := range in.steps[stage] {
			steps := &def.InternalParameters.BuildConfig.Steps
			id := fmt.Sprintf("step%d", len(*steps))
			*steps = append(*steps, buildStep{id, stage, st.text})
			src.Locations[id] = locations{[]ranges{{lines(st.at)}}}
		}
	}
}

func lines(at []parser.Range) []sourceRange {
	out := []sourceRange{}
	for _, r := range at {
		out = append(out, sourceRange{line{r.Start.Line}, line{r.End.Line}})
	}
	return out
}
