// The files of this directory become part of BuildKit's own test package
// (frontend/dockerfile), where they register hpcc as the builder under test. See
// testdata/corpora/buildkit/main.go.
package dockerfile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	controlapi "github.com/moby/buildkit/api/services/control"
	apitypes "github.com/moby/buildkit/api/types"
	"github.com/moby/buildkit/client/buildid"
	gwpb "github.com/moby/buildkit/frontend/gateway/pb"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/grpchijack"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/grpcerrors"
	"github.com/moby/buildkit/util/testutil/integration"
	"github.com/moby/buildkit/util/testutil/workers"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func init() { integration.Register(hpccWorker{}) }

// Environment variables that main.go sets.
const (
	programVariable = "HPCC_PROGRAM"     // the hpcc binary
	storeVariable   = "HPCC_IMAGE_STORE" // a store with the base images
)

// An hpccWorker starts a server of BuildKit's API that builds with hpcc.
type hpccWorker struct{}

func (hpccWorker) Name() string        { return "hpcc" }
func (hpccWorker) Rootless() bool      { return true }
func (hpccWorker) NetNSDetached() bool { return false }
func (hpccWorker) Close() error        { return nil }

// unsupported are the features of BuildKit that hpcc does not have. BuildKit's tests skip
// themselves where they need one of them; table.txt lists these tests.
var unsupported = map[string]bool{
	workers.FeatureCacheBackendAzblob: true,
	workers.FeatureCacheBackendGha:    true,
	workers.FeatureCacheBackendInline: true,
	workers.FeatureCacheBackendLocal:  true,
	workers.FeatureCacheBackendS3:     true,
	workers.FeatureCDI:                true,
	workers.FeatureCNINetwork:         true,
	workers.FeatureFrontendOutline:    true,
	workers.FeatureFrontendTargets:    true,
	workers.FeatureMergeDiff:          true,
	workers.FeatureMultiCacheExport:   true,
	workers.FeatureSecurityMode:       true,
}

// An hpccBackend is a running server.
type hpccBackend struct{ address string }

func (b hpccBackend) Address() string              { return b.address }
func (b hpccBackend) DockerAddress() string        { return "" }
func (b hpccBackend) ContainerdAddress() string    { return "" }
func (b hpccBackend) DebugAddress() string         { return "" }
func (b hpccBackend) Rootless() bool               { return true }
func (b hpccBackend) NetNSDetached() bool          { return false }
func (b hpccBackend) Snapshotter() string          { return "" }
func (b hpccBackend) ExtraEnv() []string           { return nil }
func (b hpccBackend) Supports(feature string) bool { return !unsupported[feature] }

func (hpccWorker) New(_ context.Context, cfg *integration.BackendConfig) (integration.Backend, func() error, error) {
	dir, err := os.MkdirTemp("", "hpcc-buildkit-")
	if err != nil {
		return nil, nil, err
	}
	s := &server{dir: dir, store: filepath.Join(dir, "store"), log: &bytes.Buffer{}, builds: map[string]*build{}, refs: map[string]*image{}}
	if s.sessions, err = session.NewManager(); err != nil {
		return nil, nil, err
	}
	cfg.Logs["hpcc"] = s.log
	if out, err := exec.Command("cp", "-a", os.Getenv(storeVariable), s.store).CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("copying the store of base images: %w: %s", err, out)
	}
	if s.base, err = s.names(); err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		return nil, nil, err
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(grpcerrors.UnaryServerInterceptor), grpc.StreamInterceptor(grpcerrors.StreamServerInterceptor))
	controlapi.RegisterControlServer(g, s)
	gwpb.RegisterLLBBridgeServer(g, &bridge{server: s})
	go g.Serve(l)
	return hpccBackend{address: "unix://" + l.Addr().String()}, func() error {
		g.Stop()
		_ = exec.Command("chmod", "-R", "u+rwX", dir).Run()
		return os.RemoveAll(dir)
	}, nil
}

// A server is BuildKit's control API in front of hpcc.
type server struct {
	controlapi.UnimplementedControlServer
	dir      string // private directory
	store    string // hpcc's store
	sessions *session.Manager

	mu     sync.Mutex
	log    *bytes.Buffer // command lines and output of hpcc, shown for failed tests
	builds map[string]*build
	base   []string          // images of the store at the start
	refs   map[string]*image // images of gateway builds, by reference
	last   int               // number of the newest image
}

// A build is one call of Solve.
type build struct {
	begun   chan struct{} // closed when session and outputs are set
	session string
	outputs []*controlapi.Exporter
	events  chan *controlapi.StatusResponse
	done    chan struct{} // closed at the end of Solve
	result  chan returned // of a gateway build
}

// returned is the result that the callback of a gateway build chose.
type returned struct {
	images map[string]*image // by platform; "" for a single one
	err    error
}

// logf adds a line to the log.
func (s *server) logf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.log, format+"\n", args...)
}

// build returns the build with an ID, which Status may name before Solve.
func (s *server) build(id string) *build {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.builds[id] == nil {
		s.builds[id] = &build{begun: make(chan struct{}), events: make(chan *controlapi.StatusResponse, 1000), done: make(chan struct{}), result: make(chan returned, 1)}
	}
	return s.builds[id]
}

func (s *server) Session(stream controlapi.Control_SessionServer) error {
	conn, closed, opts := grpchijack.Hijack(stream)
	defer conn.Close()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		<-closed
		cancel()
	}()
	return s.sessions.HandleConn(ctx, conn, opts)
}

func (s *server) Status(req *controlapi.StatusRequest, stream controlapi.Control_StatusServer) error {
	b := s.build(req.Ref)
	for {
		select {
		case e := <-b.events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-b.done:
			for {
				select {
				case e := <-b.events:
					if err := stream.Send(e); err != nil {
						return err
					}
				default:
					return nil
				}
			}
		}
	}
}

func (s *server) ListWorkers(context.Context, *controlapi.ListWorkersRequest) (*controlapi.ListWorkersResponse, error) {
	return &controlapi.ListWorkersResponse{Record: []*apitypes.WorkerRecord{{
		ID:        "hpcc",
		Platforms: []*pb.Platform{{OS: "linux", Architecture: runtime.GOARCH}},
	}}}, nil
}

func (s *server) Info(context.Context, *controlapi.InfoRequest) (*controlapi.InfoResponse, error) {
	return &controlapi.InfoResponse{BuildkitVersion: &apitypes.BuildkitVersion{Package: "hpcc"}}, nil
}

// Prune removes everything but the base images from the store.
func (s *server) Prune(_ *controlapi.PruneRequest, _ controlapi.Control_PruneServer) error {
	names, err := s.names()
	if err != nil {
		return err
	}
	for _, n := range names {
		if !slices.Contains(s.base, n) {
			if out, err := s.command(context.Background(), "rm", n).CombinedOutput(); err != nil {
				return fmt.Errorf("hpcc rm %s: %w: %s", n, err, out)
			}
		}
	}
	if out, err := s.command(context.Background(), "gc", "--age", "0").CombinedOutput(); err != nil {
		return fmt.Errorf("hpcc gc: %w: %s", err, out)
	}
	return nil
}

// names returns the names of the images in the store.
func (s *server) names() ([]string, error) {
	out, err := s.command(context.Background(), "images", "-q").Output()
	if err != nil {
		return nil, fmt.Errorf("hpcc images: %w", err)
	}
	return strings.Fields(string(out)), nil
}

func (s *server) DiskUsage(context.Context, *controlapi.DiskUsageRequest) (*controlapi.DiskUsageResponse, error) {
	return &controlapi.DiskUsageResponse{}, nil
}

// command returns hpcc with arguments.
func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv(programVariable), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), "HPCC_STORE="+s.store)
	return cmd
}

func (s *server) Solve(ctx context.Context, req *controlapi.SolveRequest) (*controlapi.SolveResponse, error) {
	b := s.build(req.Ref)
	b.session, b.outputs = req.Session, req.Exporters
	close(b.begun)
	defer close(b.done)
	caller, err := s.sessions.Get(ctx, req.Session, false)
	if err != nil {
		return nil, err
	}
	var got returned
	switch {
	case req.Frontend == "dockerfile.v0":
		img, err := s.image(ctx, b, &request{caller: caller, attrs: req.FrontendAttrs, hasInputs: len(req.FrontendInputs) > 0, entitlements: req.Entitlements, cache: req.Cache, outputs: req.Exporters})
		if err != nil {
			return nil, err
		}
		got.images = map[string]*image{"": img}
	case req.Definition == nil && req.Frontend == "":
		select {
		case got = <-b.result:
			if got.err != nil {
				return nil, got.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	default:
		return nil, status.Errorf(codes.Unimplemented, "hpcc builds Dockerfiles only, not LLB or frontend %q", req.Frontend)
	}
	response := map[string]string{}
	for i, e := range req.Exporters {
		for _, img := range got.images {
			if err := s.export(ctx, caller, i, e, img, response); err != nil {
				return nil, err
			}
		}
	}
	return &controlapi.SolveResponse{ExporterResponse: response}, nil
}

func (s *server) ListenBuildHistory(*controlapi.BuildHistoryRequest, controlapi.Control_ListenBuildHistoryServer) error {
	return status.Error(codes.Unimplemented, "hpcc keeps no build history")
}

// A bridge is BuildKit's gateway API, with which a client's callback solves requests
// during a build.
type bridge struct {
	gwpb.UnimplementedLLBBridgeServer
	server *server
}

// build returns the build of a call of the gateway API.
func (g *bridge) build(ctx context.Context) (*build, error) {
	id := buildid.FromIncomingContext(ctx)
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "no build ID")
	}
	b := g.server.build(id)
	select {
	case <-b.begun:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *bridge) Ping(context.Context, *gwpb.PingRequest) (*gwpb.PongResponse, error) {
	return &gwpb.PongResponse{FrontendAPICaps: gwpb.Caps.All(), LLBCaps: pb.Caps.All(), Workers: []*apitypes.WorkerRecord{{ID: "hpcc"}}}, nil
}

func (g *bridge) Solve(ctx context.Context, req *gwpb.SolveRequest) (*gwpb.SolveResponse, error) {
	b, err := g.build(ctx)
	if err != nil {
		return nil, err
	}
	if req.Frontend != "dockerfile.v0" {
		return nil, status.Errorf(codes.Unimplemented, "hpcc builds Dockerfiles only, not LLB or frontend %q", req.Frontend)
	}
	caller, err := g.server.sessions.Get(ctx, b.session, false)
	if err != nil {
		return nil, err
	}
	r := &request{caller: caller, attrs: req.FrontendOpt, hasInputs: len(req.FrontendInputs) > 0, outputs: b.outputs}
	if kind := req.FrontendOpt["requestid"]; kind == "frontend.lint" {
		text, err := g.server.lint(ctx, b, r)
		if err != nil {
			return nil, err
		}
		return &gwpb.SolveResponse{Result: &gwpb.Result{Metadata: map[string][]byte{"result.json": text}}}, nil
	} else if kind != "" {
		return nil, status.Errorf(codes.Unimplemented, "hpcc has no subrequest %q", kind)
	}
	img, err := g.server.image(ctx, b, r)
	if err != nil {
		return nil, err
	}
	g.server.mu.Lock()
	g.server.refs[img.name] = img
	g.server.mu.Unlock()
	return &gwpb.SolveResponse{Result: &gwpb.Result{Result: &gwpb.Result_Ref{Ref: &gwpb.Ref{Id: img.name}}}}, nil
}

func (g *bridge) Return(ctx context.Context, req *gwpb.ReturnRequest) (*gwpb.ReturnResponse, error) {
	b, err := g.build(ctx)
	if err != nil {
		return nil, err
	}
	got := returned{images: map[string]*image{}}
	add := func(platform, id string) {
		g.server.mu.Lock()
		defer g.server.mu.Unlock()
		if img := g.server.refs[id]; img != nil {
			got.images[platform] = img
		}
	}
	if req.Error != nil {
		got.err = status.Error(codes.Code(req.Error.Code), req.Error.Message)
	}
	switch r := req.GetResult().GetResult().(type) {
	case *gwpb.Result_Ref:
		add("", r.Ref.GetId())
	case *gwpb.Result_Refs:
		for p, ref := range r.Refs.GetRefs() {
			add(p, ref.GetId())
		}
	case *gwpb.Result_RefDeprecated:
		add("", r.RefDeprecated)
	}
	b.result <- got
	return &gwpb.ReturnResponse{}, nil
}

func (g *bridge) ReadFile(ctx context.Context, req *gwpb.ReadFileRequest) (*gwpb.ReadFileResponse, error) {
	path, err := g.path(ctx, req.Ref, req.FilePath)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if req.Range != nil && req.Range.Length > 0 {
		r = io.NewSectionReader(f, req.Range.Offset, req.Range.Length)
	}
	data, err := io.ReadAll(r)
	return &gwpb.ReadFileResponse{Data: data}, err
}

func (g *bridge) Evaluate(context.Context, *gwpb.EvaluateRequest) (*gwpb.EvaluateResponse, error) {
	return &gwpb.EvaluateResponse{}, nil // Solve has built the image
}

func (g *bridge) Inputs(context.Context, *gwpb.InputsRequest) (*gwpb.InputsResponse, error) {
	return &gwpb.InputsResponse{}, nil
}

func (g *bridge) Warn(context.Context, *gwpb.WarnRequest) (*gwpb.WarnResponse, error) {
	return &gwpb.WarnResponse{}, nil
}

// path returns the path of a file of an image, which it unpacks.
func (g *bridge) path(ctx context.Context, ref, name string) (string, error) {
	g.server.mu.Lock()
	img := g.server.refs[ref]
	g.server.mu.Unlock()
	if img == nil {
		return "", status.Errorf(codes.NotFound, "no such reference %q", ref)
	}
	tree, err := g.server.tree(ctx, img)
	return filepath.Join(tree, filepath.Clean("/"+name)), err
}
