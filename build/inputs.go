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

// Inputs are the requests and the inputs of a build, for its provenance. The zero value is
// ready to use; a build fills it if its options have one, for cached steps too. It never
// contains names of local directories or values of secrets.
type Inputs struct {
	mu       sync.Mutex
	kind     string // the build type
	request  request
	source   configSource
	text     []byte // content of the Dockerfile
	builder  *v1.Platform
	target   *v1.Platform
	used     map[string]resource // by its JSON
	steps    map[int][]step      // by stage
	networks bool                // a RUN had network access
	partly   bool                // the build read something that is not listed
}

// A resource is a ResourceDescriptor (in-toto attestation framework).
type resource struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

// A configSource is the origin of the recipe; URI and Digest are empty for local files.
type configSource struct {
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
	Path   string            `json:"path,omitempty"`
}

// A request holds the user's options, with the names that BuildKit's clients send to its
// frontends.
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

// A step is an executed instruction.
type step struct {
	text string
	at   []parser.Range
}

// recipe records the options of a Dockerfile build. context is as written by the user.
func (in *Inputs) recipe(o Options, context string, text []byte) {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.kind, in.text, in.builder, in.target = buildkitType, []byte(attest.PublicText(string(text))), hostPlatform(), o.Platform
	in.request.Frontend = "dockerfile.v0"
	in.steps = nil // of an image below this one
	args := map[string]string{}
	in.source.Path = "Dockerfile"
	if f := o.Dockerfile; f != "" && f != "-" {
		in.source.Path = path.Base(filepath.ToSlash(f))
		if rel, err := filepath.Rel(o.Context, f); err == nil && isBelow(o.Context, f) {
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
	if o.Reproducible {
		args["reproducible"] = "true"
	}
	for k, v := range o.Args {
		if !isProxyArg(k) {
			args["build-arg:"+k] = attest.PublicText(v)
		}
	}
	for k, v := range o.Labels {
		args["label:"+k] = attest.PublicText(v)
	}
	if isRemoteContext(context) {
		args["context"] = attest.PublicURL(context)
		if !isBelow(o.Context, o.Dockerfile) {
			in.request.Locals, in.partly = []local{{"dockerfile"}}, true
		}
	} else {
		in.request.Locals, in.partly = []local{{"context"}, {"dockerfile"}}, true
	}
	for _, k := range slices.Sorted(maps.Keys(o.Contexts)) {
		args["context:"+k] = o.Contexts[k]
		switch v := o.Contexts[k]; {
		case strings.HasPrefix(v, layoutContext):
			args["context:"+k] = "oci-layout:" + k
		case source.IsRemote(v):
			args["context:"+k] = attest.PublicURL(v)
		case !strings.HasPrefix(v, imageContext):
			args["context:"+k] = "local:" + k
			in.request.Locals, in.partly = append(in.request.Locals, local{k}), true
		}
	}
	in.request.Args = args
}

// isBelow reports whether file is in a directory; "" is.
func isBelow(dir, file string) bool {
	rel, err := filepath.Rel(dir, file)
	return file == "" || (err == nil && filepath.IsLocal(rel))
}

// image records an image from which a build used files.
func (in *Inputs) image(ref string, p *v1.Platform, img v1.Image) {
	if d, err := img.Digest(); err == nil {
		in.add(attest.ImagePURL(ref, p), d.Algorithm, d.Hex)
	}
}

// repository records a repository; that of the context is the origin of the recipe.
func (in *Inputs) repository(word, commit string, isContext bool) {
	algorithm := "sha1"
	if len(commit) == 64 {
		algorithm = "sha256"
	}
	in.fetched(attest.PublicURL(word), algorithm, commit, isContext)
}

// fetched records a source from a server; that of the context is the origin of the recipe.
func (in *Inputs) fetched(uri, algorithm, hexDigest string, isContext bool) {
	in.add(uri, algorithm, hexDigest)
	if in != nil && isContext {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.source.URI, in.source.Digest = uri, map[string]string{algorithm: hexDigest}
	}
}

// add records an input with its digest.
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

// did records an instruction of a stage and its access to the host.
func (in *Inputs) did(stage int, text string, at []parser.Range, c instructions.Command) {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.steps == nil {
		in.steps = map[int][]step{}
	}
	in.steps[stage] = append(in.steps[stage], step{attest.PublicText(text), at})
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

// once inserts n into a sorted list unless it is there.
func once(list []named, n named) []named {
	i, ok := slices.BinarySearchFunc(list, n, func(a, b named) int { return strings.Compare(a.ID, b.ID) })
	if ok {
		list[i].Optional = list[i].Optional && n.Optional
		return list
	}
	return slices.Insert(list, i, n)
}

// environment records the options and the downloads of a conda build. It omits the text of
// the export, whose URLs may contain credentials and directories.
func (in *Inputs) environment(o CondaOptions, pkgs []conda.Package, wheels []pip.Wheel) {
	if in == nil {
		return
	}
	in.mu.Lock()
	in.kind, in.builder, in.target = condaType, hostPlatform(), o.Platform
	in.source.Path = strings.Join(o.Sources(), " ")
	in.request = request{Frontend: "conda", Locals: []local{{"export"}},
		Args: map[string]string{"filename": in.source.Path, "from": o.From}}
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
