package build

import (
	"cmp"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"hpcc/build/attest"
	"hpcc/build/source"
	"hpcc/conda"
	"hpcc/conda/pip"
)

// Inputs are what a build was asked for and what it read: the material of its
// provenance. The zero value is ready; a build fills it, cached steps included,
// when its options have one. Names of directories of this machine and values
// of secrets never get into it.
type Inputs struct {
	mu       sync.Mutex
	kind     string // the build type
	request  request
	source   configSource
	text     []byte // of the Dockerfile
	builder  *v1.Platform
	target   *v1.Platform
	used     map[string]resource // by its text
	steps    map[int][]step      // by stage
	networks bool                // a RUN could reach the network
	partly   bool                // something was read that is not listed
}

// A resource is a ResourceDescriptor (in-toto attestation framework).
type resource struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

// A configSource is where the recipe came from; URI and Digest are empty for
// one of this machine.
type configSource struct {
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
	Path   string            `json:"path,omitempty"`
}

// A request is what the user asked for, in the words that BuildKit's clients
// use towards its frontends.
type request struct {
	Frontend string            `json:"frontend"`
	Args     map[string]string `json:"args,omitempty"`
	Secrets  []named           `json:"secrets,omitempty"`
	SSH      []named           `json:"ssh,omitempty"`
	Locals   []local           `json:"locals,omitempty"`
}

type named struct {
	ID       string `json:"id"`
	Optional bool   `json:"optional,omitempty"`
}

type local struct {
	Name string `json:"name"`
}

// A step is an instruction that was carried out.
type step struct {
	text string
	at   []parser.Range
}

// recipe notes what a build of a Dockerfile was asked for. context is as the
// user wrote it.
func (in *Inputs) recipe(o Options, context string, text []byte) {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.kind, in.text, in.builder, in.target = buildkitType, text, hostPlatform(), o.Platform
	in.request.Frontend = "dockerfile.v0"
	args := map[string]string{}
	in.source.Path = "Dockerfile"
	if f := o.Dockerfile; f != "" && f != "-" {
		in.source.Path = path.Base(filepath.ToSlash(f))
		if rel, err := filepath.Rel(o.Context, f); err == nil && filepath.IsLocal(rel) {
			in.source.Path = filepath.ToSlash(rel)
		}
		args["filename"] = in.source.Path
	}
	if o.Target != "" {
		args["target"] = o.Target
	}
	if len(o.Entry) > 0 {
		args["entry"] = entryDigest(o.Entry)
	}
	for k, v := range o.Args {
		if !slices.Contains(proxyArgs, k) {
			args["build-arg:"+k] = v
		}
	}
	for k, v := range o.Labels {
		args["label:"+k] = v
	}
	if source.IsGit(context) {
		args["context"] = attest.PublicURL(context)
	} else {
		in.request.Locals, in.partly = []local{{"context"}, {"dockerfile"}}, true
	}
	for _, k := range slices.Sorted(maps.Keys(o.Contexts)) {
		args["context:"+k] = o.Contexts[k]
		if !strings.HasPrefix(o.Contexts[k], imageContext) {
			args["context:"+k] = "local:" + k
			in.request.Locals, in.partly = append(in.request.Locals, local{k}), true
		}
	}
	in.request.Args = args
}

// image notes an image that a build took files from.
func (in *Inputs) image(ref string, p *v1.Platform, img v1.Image) {
	if d, err := img.Digest(); err == nil {
		in.add(attest.ImagePURL(ref, p), d.Algorithm, d.Hex)
	}
}

// repository notes a repository; the context's own is where the recipe is from.
func (in *Inputs) repository(word, commit string, isContext bool) {
	algorithm := "sha1"
	if len(commit) == 64 {
		algorithm = "sha256"
	}
	in.add(attest.PublicURL(word), algorithm, commit)
	if in != nil && isContext {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.source.URI, in.source.Digest = attest.PublicURL(word), map[string]string{algorithm: commit}
	}
}

// add notes a thing that was read, with its digest.
func (in *Inputs) add(uri, algorithm, hexDigest string) {
	if in == nil {
		return
	}
	r := resource{URI: uri}
	if hexDigest != "" {
		r.Digest = map[string]string{algorithm: hexDigest}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.used == nil {
		in.used = map[string]resource{}
	}
	in.used[uri+"\x00"+hexDigest] = r
	in.partly = in.partly || hexDigest == ""
}

// did notes an instruction of a stage, and what of the machine it could use.
func (in *Inputs) did(stage int, text string, at []parser.Range, c instructions.Command) {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.steps == nil {
		in.steps = map[int][]step{}
	}
	in.steps[stage] = append(in.steps[stage], step{text, at})
	run, ok := c.(*instructions.RunCommand)
	if !ok {
		return
	}
	in.networks = in.networks || instructions.GetNetwork(run) != instructions.NetworkNone
	for _, m := range instructions.GetMounts(run) {
		switch m.Type {
		case instructions.MountTypeSecret:
			in.request.Secrets = once(in.request.Secrets, named{secretID(m), !m.Required})
		case instructions.MountTypeSSH:
			in.request.SSH = once(in.request.SSH, named{sshID(m), !m.Required})
		}
	}
}

// once adds n to a list that is sorted and has no two of a kind.
func once(list []named, n named) []named {
	i, ok := slices.BinarySearchFunc(list, n, func(a, b named) int { return strings.Compare(a.ID, b.ID) })
	if ok {
		list[i].Optional = list[i].Optional && n.Optional
		return list
	}
	return slices.Insert(list, i, n)
}

// environment notes what a build of a conda export was asked for and fetched.
// Its text is left out, for its URLs may hold credentials and directories.
func (in *Inputs) environment(o CondaOptions, pkgs []conda.Package, wheels []pip.Wheel) {
	if in == nil {
		return
	}
	in.mu.Lock()
	in.kind, in.builder, in.target = condaType, hostPlatform(), o.Platform
	in.source.Path = filepath.Base(cmp.Or(o.File, o.Live))
	in.request = request{Frontend: "conda", Locals: []local{{"export"}}, Args: map[string]string{"filename": in.source.Path, "from": o.From}}
	if o.Prefix != "" {
		in.request.Args["prefix"] = o.Prefix
	}
	if len(o.Entry) > 0 {
		in.request.Args["entry"] = entryDigest(o.Entry)
	}
	if o.NoRun {
		in.request.Args["no-run"] = "true"
	}
	in.mu.Unlock()
	for _, p := range pkgs {
		uri := p.URL
		if uri == "" {
			uri = attest.PURL("conda", "", p.Name, p.Version, "build", p.Build, "subdir", p.Subdir)
		}
		if p.SHA256 != "" {
			in.add(uri, "sha256", p.SHA256)
		} else {
			in.add(uri, "md5", p.MD5)
		}
	}
	for _, w := range wheels {
		for _, b := range w.BuiltWith {
			in.add(cmp.Or(b.URL, attest.PURL("pypi", "", b.Name, b.Version)), "sha256", b.SHA256)
		}
		in.add(cmp.Or(w.URL, attest.PURL("pypi", "", w.Name, w.Version)), "sha256", w.SHA256)
	}
}
