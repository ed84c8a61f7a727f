package dockerfile

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	contentlocal "github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/distribution/reference"
	controlapi "github.com/moby/buildkit/api/services/control"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/subrequests/lint"
	"github.com/moby/buildkit/session"
	sessioncontent "github.com/moby/buildkit/session/content"
	"github.com/moby/buildkit/session/filesync"
	"github.com/moby/buildkit/session/secrets"
	"github.com/moby/buildkit/session/sshforward"
	"github.com/moby/buildkit/session/upload"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/contentutil"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/tonistiigi/fsutil"
	fstypes "github.com/tonistiigi/fsutil/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A request is what a client wants to build.
type request struct {
	caller       session.Caller
	attrs        map[string]string
	hasInputs    bool // LLB of a frontend, which hpcc cannot build
	entitlements []string
	cache        *controlapi.CacheOptions
	outputs      []*controlapi.Exporter
	close        func() // after the build; may be nil
}

// An image is the result of a build.
type image struct {
	name    string // in the store
	dir     string // with a file or directory out-N for output N
	request *request
	digest  string
	config  string
}

// Attributes of a request that only change what hpcc does not have, and are not needed for the
// result that a test expects, or that the server handles by itself.
var ignored = []string{"filename", "context", "contextkey", "dockerfilekey", "contextsubdir", "target", "no-cache", "platform",
	"multi-platform", "cache-from", "cache-imports", "image-resolve-mode", "frontend.caps", "requestid", "build-arg:BUILDKIT_SYNTAX", "source", "source-date-epoch"}

// image builds an image with hpcc.
func (s *server) image(ctx context.Context, b *build, r *request) (*image, error) {
	img, args, cleanup, err := s.arguments(ctx, r)
	defer cleanup()
	if r.close != nil {
		defer r.close()
	}
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, b, img, args); err != nil {
		return nil, err
	}
	var meta map[string]string
	data, err := os.ReadFile(filepath.Join(img.dir, "metadata"))
	if err == nil {
		err = json.Unmarshal(data, &meta)
	}
	img.digest, img.config = meta["containerimage.digest"], meta["containerimage.config.digest"]
	return img, err
}

// arguments returns the command line of a request, whose sources it fetches from the client.
func (s *server) arguments(ctx context.Context, r *request) (img *image, args []string, cleanup func(), err error) {
	cleanup = func() {}
	if r.hasInputs {
		return nil, nil, cleanup, status.Error(codes.Unimplemented, "hpcc cannot build inputs that are LLB")
	}
	s.mu.Lock()
	s.last++
	img = &image{name: fmt.Sprintf("result-%d", s.last), dir: filepath.Join(s.dir, fmt.Sprintf("image-%d", s.last)), request: r}
	s.mu.Unlock()
	if err := os.Mkdir(img.dir, 0o700); err != nil {
		return nil, nil, cleanup, err
	}
	sourceContext, args, dockerfile, err := s.source(ctx, r, img.dir)
	if err != nil {
		return nil, nil, cleanup, err
	}
	for _, k := range slices.Sorted(mapKeys(r.attrs)) {
		more, err := s.attribute(ctx, r, img.dir, k, r.attrs[k])
		if err != nil {
			return nil, nil, cleanup, err
		}
		args = append(args, more...)
	}
	if r.cache != nil {
		for _, c := range r.cache.Exports {
			if c.Type != "registry" {
				return nil, nil, cleanup, status.Errorf(codes.Unimplemented, "hpcc has no cache of type %q", c.Type)
			}
			args = append(args, "--cache-to", c.Attrs["ref"]+",mode="+or(c.Attrs["mode"], "min"))
		}
		for _, c := range r.cache.Imports {
			args = append(args, "--cache-from", c.Attrs["ref"])
		}
	}
	private, cleanup, err := s.private(ctx, r.caller, img.dir, dockerfile)
	args = append(args, private...)
	args = append(args, outputArguments(img, r.outputs)...)
	return img, append(args, sourceContext), cleanup, err
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// source fetches the context and the Dockerfile. It returns the context, the arguments that name
// the Dockerfile, and the text of a local Dockerfile.
func (s *server) source(ctx context.Context, r *request, dir string) (where string, args []string, dockerfile string, err error) {
	name := or(r.attrs["filename"], "Dockerfile")
	local := or(r.attrs["contextkey"], "context")
	if remote, ok := r.attrs["context"]; ok && strings.HasPrefix(remote, uploadPrefix) {
		return s.upload(ctx, r, dir, remote)
	} else if ok {
		if sub := r.attrs["contextsubdir"]; sub != "" {
			return "", nil, "", status.Error(codes.Unimplemented, "hpcc has no contextsubdir")
		}
		if _, ok := r.attrs["dockerfilekey"]; ok {
			if err := s.sync(ctx, r, r.attrs["dockerfilekey"], dir+"/dockerfile"); err != nil {
				return "", nil, "", err
			}
			return remote, []string{"-f", filepath.Join(dir, "dockerfile", name)}, "", nil
		}
		if r.attrs["filename"] != "" {
			return remote, []string{"-f", name}, "", nil
		}
		return remote, nil, "", nil
	}
	if err := s.sync(ctx, r, or(r.attrs["dockerfilekey"], "dockerfile"), dir+"/dockerfile"); err != nil {
		return "", nil, "", err
	}
	// A context may be missing: a Dockerfile need not read one.
	if err := s.sync(ctx, r, local, dir+"/context"); err != nil && !strings.Contains(err.Error(), "no access allowed to dir") && !strings.Contains(err.Error(), "not found") {
		return "", nil, "", err
	}
	file := filepath.Join(dir, "dockerfile", name)
	if _, err := os.Lstat(file); err != nil && name == "Dockerfile" { // hpcc looks for the lower-case name by itself
		if _, err := os.Stat(strings.ToLower(file)); err == nil {
			file = strings.Replace(file, "/Dockerfile", "/dockerfile", 1)
		}
	}
	text, _ := os.ReadFile(file)
	return filepath.Join(dir, "context"), []string{"-f", file}, string(text), nil
}

// uploadPrefix begins the address of a context that the client uploads through the session.
const uploadPrefix = "http://buildkit-session/"

// upload stores a context from the client as an archive, which hpcc reads from a server of
// this process, as it would from any other.
func (s *server) upload(ctx context.Context, r *request, dir, address string) (where string, args []string, dockerfile string, err error) {
	u, err := upload.New(ctx, r.caller, &url.URL{Path: strings.TrimPrefix(address, "http://buildkit-session"), Host: "buildkit-session"})
	if err != nil {
		return "", nil, "", err
	}
	name := filepath.Join(dir, "uploaded.tar")
	f, err := os.Create(name)
	if err != nil {
		return "", nil, "", err
	}
	if _, err := u.WriteTo(f); err != nil {
		return "", nil, "", err
	}
	if err := f.Close(); err != nil {
		return "", nil, "", err
	}
	files := httptest.NewServer(http.FileServer(http.Dir(dir)))
	r.close = files.Close
	if key, ok := r.attrs["dockerfilekey"]; ok {
		if err := s.sync(ctx, r, key, dir+"/dockerfile"); err != nil {
			return "", nil, "", err
		}
		args = []string{"-f", filepath.Join(dir, "dockerfile", or(r.attrs["filename"], "Dockerfile"))}
	} else if r.attrs["filename"] != "" {
		args = []string{"-f", r.attrs["filename"]}
	}
	return files.URL + "/uploaded.tar", args, "", nil
}

// sync copies a directory of the client.
func (s *server) sync(ctx context.Context, r *request, name, dest string) error {
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return err
	}
	c := r.caller
	if id := r.attrs["local-sessionid:"+name]; id != "" {
		var err error
		if c, err = s.sessions.Get(ctx, id, false); err != nil {
			return err
		}
	}
	return filesync.FSSync(ctx, c, filesync.FSSendRequestOpt{Name: name, DestDir: dest, Filter: func(_ string, st *fstypes.Stat) bool {
		st.Uid, st.Gid = uint32(os.Getuid()), uint32(os.Getgid())
		return true
	}})
}

// attribute returns the arguments of one attribute of a request.
func (s *server) attribute(ctx context.Context, r *request, dir, k, v string) ([]string, error) {
	kind, name, _ := strings.Cut(k, ":")
	switch {
	case kind == "build-arg":
		return []string{"--build-arg", name + "=" + v}, nil
	case kind == "label":
		return []string{"--label", name + "=" + v}, nil
	case k == "target":
		return []string{"--target", v}, nil
	case k == "platform":
		return []string{"--platform", v}, nil
	case k == "no-cache" && v == "":
		return []string{"--no-cache"}, nil
	case k == "no-cache":
		var args []string
		for _, stage := range strings.Split(v, ",") {
			args = append(args, "--no-cache-filter", stage)
		}
		return args, nil
	case k == "cache-from":
		return []string{"--cache-from", v}, nil
	case k == "cache-imports":
		var list []*controlapi.CacheOptionsEntry
		var args []string
		err := json.Unmarshal([]byte(v), &list)
		for _, c := range list {
			args = append(args, "--cache-from", c.Attrs["ref"])
		}
		return args, err
	case kind == "attest":
		return []string{"--attest", "type=" + name + "," + v}, nil
	case kind == "context":
		return s.namedContext(ctx, r, dir, strings.TrimPrefix(k, "context:"), v)
	case kind == "local-sessionid", kind == "input-metadata", kind == "vcs", slices.Contains(ignored, k):
		return nil, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "hpcc has no attribute %s=%s", k, v)
}

// namedContext returns the arguments of a named context.
func (s *server) namedContext(ctx context.Context, r *request, dir, name, v string) ([]string, error) {
	if local, ok := strings.CutPrefix(v, "local:"); ok {
		dest := filepath.Join(dir, "named", url.PathEscape(name))
		if err := s.sync(ctx, r, local, dest); err != nil {
			return nil, err
		}
		v = dest
	}
	if layout, ok := strings.CutPrefix(v, "oci-layout:"); ok {
		dest := filepath.Join(dir, "layout", url.PathEscape(name))
		ref, err := layoutOf(ctx, r, strings.TrimPrefix(layout, "//"), dest)
		if err != nil {
			return nil, err
		}
		v = "oci-layout://" + ref
	}
	if strings.HasPrefix(v, "input:") {
		return nil, status.Error(codes.Unimplemented, "hpcc cannot build inputs that are LLB")
	}
	return []string{"--build-context", name + "=" + v}, nil
}

// layoutOf copies an image from a content store of the client into an OCI layout, and returns
// the layout's reference. ref is STORE@DIGEST.
func layoutOf(ctx context.Context, r *request, ref, dest string) (string, error) {
	store, dgst, ok := strings.Cut(ref, "@")
	if !ok {
		return "", status.Errorf(codes.InvalidArgument, "oci-layout %q has no digest", ref)
	}
	store, _, _ = strings.Cut(store, ":")
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return "", err
	}
	target, err := contentlocal.NewStore(dest)
	if err != nil {
		return "", err
	}
	id := "oci:" + store
	from := sessioncontent.NewCallerStore(r.caller, id)
	info, err := from.Info(ctx, digest.Digest(dgst))
	if err != nil {
		return "", fmt.Errorf("oci-layout %q: %w", ref, err)
	}
	ra, err := from.ReaderAt(ctx, ocispecs.Descriptor{Digest: info.Digest, Size: info.Size})
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.NewSectionReader(ra, 0, ra.Size()))
	ra.Close()
	if err != nil {
		return "", err
	}
	var m struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return "", err
	}
	desc := ocispecs.Descriptor{MediaType: or(m.MediaType, ocispecs.MediaTypeImageManifest), Digest: info.Digest, Size: info.Size}
	if err := contentutil.CopyChain(ctx, target, from, desc); err != nil {
		return "", err
	}
	index, err := json.Marshal(ocispecs.Index{Manifests: []ocispecs.Descriptor{desc}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dest, "index.json"), index, 0o644); err != nil {
		return "", err
	}
	return dest + "@" + dgst, os.WriteFile(filepath.Join(dest, ocispecs.ImageLayoutFile), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644)
}

var mountIDs = regexp.MustCompile(`type=(secret|ssh)((?:,[a-z]+(?:=[^,\s]*)?)*)`)

// private fetches the secrets and agents that a Dockerfile names.
func (s *server) private(ctx context.Context, c session.Caller, dir, dockerfile string) (args []string, cleanup func(), err error) {
	var closers []func() error
	cleanup = func() {
		for _, c := range closers {
			_ = c()
		}
	}
	seen := map[string]bool{}
	for _, m := range append(mountIDs.FindAllStringSubmatch(dockerfile, -1), []string{"", "secret", ",id=GIT_AUTH_TOKEN"}, []string{"", "secret", ",id=GIT_AUTH_HEADER"}) {
		id := ""
		for _, kv := range strings.Split(m[2], ",") {
			k, v, _ := strings.Cut(kv, "=")
			switch {
			case k == "id":
				id = v
			case m[1] == "secret" && id == "" && (k == "target" || k == "dst" || k == "destination"):
				id = filepath.Base(v)
			}
		}
		if id == "" && m[1] == "ssh" {
			id = "default"
		}
		if key := m[1] + " " + id; id == "" || seen[key] {
			continue
		} else {
			seen[key] = true
		}
		if m[1] == "ssh" {
			if err := sshforward.CheckSSHID(ctx, c, id); err != nil {
				continue
			}
			socket, closer, err := sshforward.MountSSHSocket(ctx, c, sshforward.SocketOpt{ID: id, UID: os.Getuid(), GID: os.Getgid(), Mode: 0o600})
			if err != nil {
				return args, cleanup, err
			}
			closers = append(closers, closer)
			args = append(args, "--ssh", id+"="+socket)
			continue
		}
		data, err := secrets.GetSecret(ctx, c, id)
		if err != nil {
			continue
		}
		file := filepath.Join(dir, "secret-"+url.PathEscape(id))
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return args, cleanup, err
		}
		args = append(args, "--secret", "id="+id+",src="+file)
	}
	return args, cleanup, nil
}

// outputArguments returns the arguments for the names and outputs of an image.
func outputArguments(img *image, outputs []*controlapi.Exporter) (args []string) {
	var names []string
	for i, e := range outputs {
		if n := e.Attrs["name"]; n != "" {
			names = append(names, strings.Split(n, ",")...)
		}
		for k, v := range e.Attrs {
			switch {
			case k == "compression":
				args = append(args, "--compression", v)
			case strings.HasPrefix(k, "annotation."):
				args = append(args, "--annotation", strings.TrimPrefix(k, "annotation.")+"="+v)
			}
		}
		if e.Attrs["rewrite-timestamp"] == "true" && !rewrites(e) { // keeps the times of files
			args = append(args, "--build-arg", "SOURCE_DATE_EPOCH=")
		}
		kind := e.Type
		if kind == "image" {
			if rewrites(e) {
				args = append(args, "-o", "type=image,rewrite-timestamp=true")
			}
			continue
		}
		o := fmt.Sprintf("type=%s,dest=%s/out-%d", kind, img.dir, i)
		if rewrites(e) {
			o += ",rewrite-timestamp=true"
		}
		if v := e.Attrs["platform-split"]; v != "" {
			o += ",platform-split=" + v
		}
		args = append(args, "-o", o)
	}
	if len(names) > 0 {
		img.name = names[0]
	} else {
		names = []string{img.name}
	}
	for _, n := range names {
		args = append(args, "-t", n)
	}
	return append(args, "--metadata-file", filepath.Join(img.dir, "metadata"))
}

// rewrites reports whether an exporter changes times, which needs a date.
func rewrites(e *controlapi.Exporter) bool {
	date, isSet := e.Attrs["source-date-epoch"]
	return e.Attrs["rewrite-timestamp"] == "true" && (!isSet || date != "")
}

// An event is a line of --progress json.
type event struct {
	Type                  string
	Stage, Step           int
	Total                 int
	Text, Line            json.RawMessage
	Done, Cached          bool
	Failed                bool
	Rule, URL, File       string
	Platform, Description string
	End                   int32
}

func (e *event) text() string   { return unquote(e.Text) }
func (e *event) output() string { return unquote(e.Line) }
func (e *event) line() (n int32) {
	_ = json.Unmarshal(e.Line, &n)
	return n
}

func unquote(b json.RawMessage) (s string) {
	_ = json.Unmarshal(b, &s)
	return s
}

// run runs "hpcc build" and forwards its progress to the client. The error has the position in
// the Dockerfile, as BuildKit's has.
func (s *server) run(ctx context.Context, b *build, img *image, args []string) error {
	args = append([]string{"build", "--progress", "json"}, args...)
	cmd := s.command(ctx, args...)
	s.logf("$ hpcc %s", strings.Join(args, " "))
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var failed *event
	var rest []string
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.logf("%s", lines.Text())
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Type == "" {
			rest = append(rest, lines.Text())
			continue
		}
		if e.Type == "error" {
			failed = &e
		}
		if r := statusOf(img, &e); r != nil {
			select {
			case b.events <- r:
			case <-ctx.Done():
			}
		}
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case failed == nil:
		return fmt.Errorf("hpcc: %w: %s", err, strings.Join(rest, "\n"))
	}
	err = errors.New(buildkitText(failed))
	data, rerr := os.ReadFile(failed.File)
	if n := failed.line(); n > 0 && rerr == nil {
		src := &errdefs.Source{Info: &pb.SourceInfo{Filename: filepath.Base(failed.File), Language: "Dockerfile", Data: data, Definition: &pb.Definition{}}}
		for end := max(n, failed.End); n <= end; n++ {
			src.Ranges = append(src.Ranges, &pb.Range{Start: &pb.Position{Line: n}, End: &pb.Position{Line: n}})
		}
		err = errdefs.WithSource(err, src)
	}
	return err
}

// buildkitText returns the text of an error with the position in BuildKit's form.
func buildkitText(e *event) string {
	text := strings.TrimPrefix(e.text(), e.File+":")
	if line, rest, ok := strings.Cut(text, ": "); ok && e.File != "" && line == fmt.Sprint(e.line()) {
		return fmt.Sprintf("dockerfile parse error on line %s: %s", line, rest)
	}
	return text
}

// statusOf converts an event of hpcc to one of BuildKit, or nil.
func statusOf(img *image, e *event) *controlapi.StatusResponse {
	now := timestamppb.Now()
	id := digest.FromString(fmt.Sprint(img.dir, e.Platform, e.Stage, e.Step)).String()
	switch e.Type {
	case "step":
		v := &controlapi.Vertex{Digest: id, Name: fmt.Sprintf("[%d/%d] %s", e.Step, e.Total, e.text()), Started: now, Cached: e.Cached}
		if e.Done {
			v.Completed = now
		}
		if e.Failed {
			v.Error = "failed"
		}
		return &controlapi.StatusResponse{Vertexes: []*controlapi.Vertex{v}}
	case "output":
		return &controlapi.StatusResponse{Logs: []*controlapi.VertexLog{{Vertex: id, Stream: 1, Msg: []byte(e.output() + "\n"), Timestamp: now}}}
	case "warning":
		if e.Rule == "" {
			return nil
		}
		w := &controlapi.VertexWarning{
			Vertex: id, Level: 1, Url: e.URL, Detail: [][]byte{[]byte(e.Description)},
			Short:  []byte(linter.LintFormatShort(e.Rule, e.detail(), int(e.line()))),
			Ranges: []*pb.Range{{Start: &pb.Position{Line: e.line()}, End: &pb.Position{Line: max(e.line(), e.End)}}},
		}
		return &controlapi.StatusResponse{Warnings: []*controlapi.VertexWarning{w}}
	}
	return nil
}

// detail returns the text of a warning without FILE:LINE: RULE.
func (e *event) detail() string {
	_, text, _ := strings.Cut(e.text(), ": "+e.Rule+": ")
	return text
}

// lint checks a Dockerfile and returns the result in BuildKit's form.
func (s *server) lint(ctx context.Context, b *build, r *request) ([]byte, error) {
	_, args, cleanup, err := s.arguments(ctx, r)
	defer cleanup()
	if err != nil {
		return nil, err
	}
	if i := slices.Index(args, "--metadata-file"); i >= 0 {
		args = slices.Delete(args, i, i+2)
	}
	args = append([]string{"build", "--check", "--progress", "json"}, args...)
	s.logf("$ hpcc %s", strings.Join(args, " "))
	cmd := s.command(ctx, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	runErr := cmd.Run()
	s.logf("%s", errs.String())
	data, err := os.ReadFile(args[slices.Index(args, "-f")+1])
	if err != nil {
		return nil, err
	}
	out := lint.LintResults{Sources: []*pb.SourceInfo{{Filename: "Dockerfile", Language: "Dockerfile", Data: data, Definition: &pb.Definition{}}}}
	for _, line := range strings.Split(errs.String(), "\n") {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			continue
		}
		at := &pb.Location{Ranges: []*pb.Range{{Start: &pb.Position{Line: e.line()}, End: &pb.Position{Line: max(e.line(), e.End)}}}}
		switch {
		case e.Type == "warning" && e.Rule != "":
			out.Warnings = append(out.Warnings, lint.Warning{RuleName: e.Rule, Description: e.Description, URL: e.URL, Detail: e.detail(), Location: at})
		case e.Type == "error" && runErr != nil && !strings.HasPrefix(e.text(), "the Dockerfile has "):
			out.Error = &lint.BuildError{Message: buildkitText(&e)}
			out.Error.Location.Ranges = at.Ranges
		}
	}
	return json.Marshal(out)
}

// export sends an output to the client.
func (s *server) export(ctx context.Context, c session.Caller, i int, e *controlapi.Exporter, img *image, response map[string]string) error {
	response["containerimage.digest"], response["containerimage.config.digest"] = img.digest, img.config
	out := filepath.Join(img.dir, fmt.Sprintf("out-%d", i))
	switch {
	case e.Type == "image":
		response["image.name"] = e.Attrs["name"]
		if e.Attrs["push"] != "true" {
			return nil
		}
		for _, name := range strings.Split(e.Attrs["name"], ",") {
			if text, err := s.command(ctx, "push", name).CombinedOutput(); err != nil {
				return fmt.Errorf("hpcc push %s: %w: %s", name, err, text)
			}
		}
		return nil
	case e.Type == "local":
		fs, err := fsutil.NewFS(out)
		if err != nil {
			return err
		}
		return filesync.CopyToCaller(ctx, fs, i, c, nil)
	case e.Attrs["tar"] == "false":
		return exportLayout(ctx, c, out, e.Attrs["name"], response)
	}
	f, err := os.Open(out)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := filesync.CopyFileWriter(ctx, response, i, c)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		return err
	}
	return w.Close()
}

// tree unpacks an image and returns the directory.
func (s *server) tree(ctx context.Context, img *image) (string, error) {
	dir := filepath.Join(img.dir, "tree")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	text, err := s.command(ctx, "unpack", img.name, dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("hpcc unpack: %w: %s", err, text)
	}
	return dir, nil
}

// exportLayout sends the blobs of an OCI archive to the content store of the client, and
// sets the image's descriptor and names in the response, for index.json.
func exportLayout(ctx context.Context, c session.Caller, archive, names string, response map[string]string) error {
	dest := sessioncontent.NewCallerStore(c, "export")
	var index ocispecs.Index
	err := eachFile(archive, func(name string, size int64, r io.Reader) error {
		if name == ocispecs.ImageIndexFile {
			return json.NewDecoder(r).Decode(&index)
		}
		hex, ok := strings.CutPrefix(name, "blobs/sha256/")
		if !ok {
			return nil
		}
		d := ocispecs.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, hex), Size: size}
		return content.WriteBlob(ctx, dest, d.Digest.String(), r, d)
	})
	if err != nil {
		return err
	}
	if len(index.Manifests) == 0 {
		return fmt.Errorf("%s lists no image", archive)
	}
	d := index.Manifests[0]
	d.Annotations = nil
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	response[exptypes.ExporterImageDescriptorKey] = base64.StdEncoding.EncodeToString(data)
	var full []string
	for _, name := range strings.Split(names, ",") {
		if ref, err := reference.ParseNormalizedNamed(name); err == nil {
			full = append(full, reference.TagNameOnly(ref).String())
		}
	}
	if len(full) > 0 {
		response[exptypes.ExporterImageNameKey] = strings.Join(full, ",")
	}
	return nil
}

// eachFile calls f for each regular file of an archive.
func eachFile(archive string, f func(name string, size int64, r io.Reader) error) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil && h.Typeflag == tar.TypeReg {
			err = f(h.Name, h.Size, r)
		}
		if err != nil {
			return err
		}
	}
}
