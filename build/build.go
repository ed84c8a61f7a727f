// Package build builds an image from a Dockerfile or a conda export, step by
// step, with a cache, as an ordinary user.
//
// A build walks over stages. Each stage holds an image configuration and a list of
// layers. An instruction either changes only the configuration, or it changes the file
// system and is a step. The key of a step is a digest of the previous step, the expanded
// instruction, and the bytes that it reads. A cached key costs one small read. Otherwise
// the step runs on a private copy-on-write view of the tree, and its changes become the
// layer.
//
// The caller must be root of its own user and mount namespace (runtime.EnterFakeRoot):
// views are overlay mounts, and programs of RUN need to see themselves as root. A failed
// build leaves nothing behind.
package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"golang.org/x/sync/errgroup"

	"hpcc/build/attest"
	"hpcc/build/lint"
	"hpcc/build/source"
	"hpcc/conda"
	"hpcc/conda/program"
	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// Options are the inputs of a build, and its [Host]. The zero value builds ./Dockerfile in the current
// directory for the local platform.
type Options struct {
	Dockerfile string // path; "": Dockerfile in Context, "-": Stdin
	Context    string // files for COPY and ADD: a directory, a git repository, or "-", a tar archive on Stdin; "": "."
	// Contexts are further contexts by name: a directory, a git repository, docker-image://REF
	// or oci-layout://DIR[:TAG], with @DIGEST instead of a tag.
	Contexts map[string]string
	// IgnoreFile is the path of the list of ignored files; "": <Dockerfile>.dockerignore, or else
	// .dockerignore in Context.
	IgnoreFile string
	Hidden     []string // files that are excluded from every context, whatever .dockerignore says
	// Environment is the image for FROM conda and --from=conda; nil: none.
	Environment v1.Image
	Stdin       io.Reader         // for Dockerfile "-" or Context "-"
	Labels      map[string]string // labels of the image, which override those of the Dockerfile
	Platform    *v1.Platform      // nil: the local platform
	Args        map[string]string // --build-arg
	Target      string            // stage to stop at, by name or number; "": the last
	// Reproducible gives the same image everywhere: files and the image have the time
	// SOURCE_DATE_EPOCH, or a constant. Setting SOURCE_DATE_EPOCH implies it.
	Reproducible bool
	// Compression of new layers: "gzip", the default, or "zstd".
	Compression string
	// Entry is a static program for Platform. Unless empty, it becomes the image's entry point,
	// EntryFile, in front of the existing one: "hpcc entry".
	Entry []byte
	Pull  bool // ask the registries for newer base images
	Host
}

// A Host is what a build uses besides its inputs. No key in the cache depends on it: the same inputs
// give the same layers on every host.
type Host struct {
	NoCache bool // ignore the cache, and empty the cache mounts
	// NoCacheFilter are names or numbers of stages to which NoCache applies.
	NoCacheFilter []string
	CacheFrom     []string          // caches in registries, used for steps that are not in the store
	CacheTo       *Cache            // receives the steps of this build
	PlainHTTP     bool              // registries and channels without TLS
	Secrets       map[string]Secret // secrets for RUN --mount=type=secret, by ID
	SSH           map[string]string // sockets of agents for RUN --mount=type=ssh, by ID
	Progress      func(Event)       // called for every step, one call at a time; nil: no progress
	Inputs        *Inputs           // filled with the requests and the inputs of the build; may be nil
	// Parts, unless nil, receives the layers of an environment while they are written, so that they
	// need not be unpacked again.
	Parts *unpack.Parts
}

// An Event is the start of a step, its progress, its end, or something about the whole build. Steps of
// several stages can run at the same time.
type Event struct {
	Platform    string // of the image, if a [Request] builds for several; else ""
	Stage       int    // index of the stage in the Dockerfile
	Step, Total int    // triggers of a base image can make the numbers of two stages overlap
	Text        string // the instruction as written, on one line; at the start and the end
	Done        bool   // end of the step
	Cached      bool   // at the end: the result came from the cache
	Failed      bool   // at the end: the build returns an error for this step
	Took        time.Duration
	Saved       time.Duration // of a cached step: original duration minus Took; 0: unknown
	// Output is the raw output of the step's program. It is valid until Progress returns.
	Output []byte
	// Fetched of Size bytes are downloaded; Size 0: unknown. Or packages of Installed of
	// Size bytes are installed.
	Fetched, Installed, Size int64
	// Warning is FILE:LINE: RULE: a finding of a Dockerfile check, or a problem with the
	// cache. Only the fields below are set then.
	Warning string
	Line    int    // of the warning, in the Dockerfile; 0: none
	Rule    string // name of the check, as in "# check=skip="
	URL     string // documentation of the check
	// Description is what the check is about.
	Description string

	// An event about the image has one of these.
	Note      string       // for people
	Moves     []conda.Move // packages of an environment that differ from its export
	Unpacking bool         // Unpacked of Size bytes of the image are unpacked, or it is Done
	Unpacked  int64
}

// maxDockerfile limits the size of a Dockerfile, in bytes.
const maxDockerfile = 4 << 20

// A LineError is the error of an instruction, with its position in the Dockerfile.
type LineError struct {
	File string
	Line int    // 0: unknown
	End  int    // last line of the instruction
	Text string // the instruction
	Err  error
	Log  []byte // end of the output of a failed RUN
	// Source is the complete Dockerfile, to show lines of it.
	Source []byte
}

func (e *LineError) Error() string {
	at := e.File
	if e.Line > 0 {
		at += fmt.Sprintf(":%d", e.Line)
	}
	if e.Text == "" {
		return fmt.Sprintf("%s: %v", at, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", at, e.Text, e.Err)
}
func (e *LineError) Unwrap() error { return e.Err }

// A builder is the state of one build.
type builder struct {
	Options
	store *store.Store
	given string // Context as written by the user
	// environment is the name of the environment in Contexts, by digest.
	environment string
	fetched     bool   // the context was not a local directory
	file        string // name of the Dockerfile in messages
	path        string // path of the Dockerfile; "": standard input
	source      []byte // content of the Dockerfile
	lint        *lint.Linter
	escape      rune
	stages      []instructions.Stage
	metaArgs    []instructions.ArgCommand
	mu          sync.Mutex // guards builds, total and calls of Progress
	builds      map[int]*stageBuild
	needs       map[int]bool
	// allStages: also check stages that the target does not need.
	allStages bool
	context   *source.Dir
	openedMu  sync.Mutex
	opened    map[string]*source.Dir // contexts by name
	imports   imports
	fetches   fetches
	emptied   map[string]bool // cache mounts that this build has emptied
	date      time.Time       // of the image, if it is reproducible
	dated     bool            // SOURCE_DATE_EPOCH sets date
	stamp     time.Time       // latest modification time of files, if the image is reproducible
	started   time.Time
	work      string // private directory of this build, in the store's tmp
	views     views  // directory for the changes of steps
	total     int
	// platformAsked is the platform that the caller requested; nil: the local platform.
	platformAsked *v1.Platform
}

// Dockerfile builds an image. Errors in the Dockerfile are of type [LineError]. Credentials in
// URLs appear in no error, event or history.
func Dockerfile(ctx context.Context, s *store.Store, o Options) (img v1.Image, err error) {
	defer func() { err = public(err) }()
	b, err := begin(s, o)
	if err != nil {
		return nil, err
	}
	defer b.closeWork()
	if err := b.openWork(); err != nil {
		return nil, err
	}
	target, err := b.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.takesEnvironment(); err != nil {
		return nil, err
	}
	if err := b.setDate(ctx); err != nil {
		return nil, err
	}
	for i := range b.stages {
		if b.needs[i] {
			b.total += 1 + len(b.stages[i].Commands)
		}
	}
	if len(b.Entry) > 0 {
		b.total++
	}
	defer func() {
		for _, c := range b.opened {
			if err := c.Save(); err != nil {
				b.report(Event{Warning: fmt.Sprintf("caching the digests of the context's files: %v", err)})
			}
		}
		for _, m := range b.builds {
			if m.stage != nil {
				m.stage.tree.close()
			}
		}
	}()
	if err := b.buildStages(ctx); err != nil {
		return nil, err
	}
	if len(b.Entry) > 0 {
		if err := b.builds[target].stage.entryStep(ctx); err != nil {
			return nil, err
		}
	}
	b.export(target)
	return b.builds[target].stage.image()
}

// begin starts a build and fills in its options.
func begin(s *store.Store, o Options) (*builder, error) {
	b := &builder{Options: o, store: s, builds: map[int]*stageBuild{}, opened: map[string]*source.Dir{},
		emptied: map[string]bool{}, started: time.Now(), platformAsked: o.Platform}
	if b.Context == "" {
		b.Context = "."
	}
	if b.Platform == nil {
		b.Platform = hostPlatform()
	}
	b.Platform = normalized(b.Platform)
	if err := b.nameEnvironment(); err != nil {
		return nil, err
	}
	if c := b.Compression; c != "" && c != "gzip" && c != "zstd" {
		return nil, fmt.Errorf("compression %q: want gzip or zstd", c)
	}
	b.environmentDate()
	return b, nil
}

// openWork creates the private directory of the build.
func (b *builder) openWork() (err error) {
	if b.work, err = b.store.TempDir(); err != nil {
		return err
	}
	// New directories may inherit a set-group-ID bit from the parent, which must not get
	// into layers.
	if err := os.Chmod(b.work, 0o700); err != nil {
		return fmt.Errorf("making the build's directory private: %w", err)
	}
	return nil
}

// closeWork removes the directories of the build.
func (b *builder) closeWork() {
	b.views.close()
	if b.work != "" {
		_ = files.RemoveAll(b.work)
	}
}

// prepare reads and checks Dockerfile and context, and finds the stages that the target
// needs. It reports warnings even if it fails.
func (b *builder) prepare(ctx context.Context) (target int, err error) {
	b.given = b.Context
	if err := b.fetchContext(ctx); err != nil {
		return 0, err
	}
	if b.source, err = b.read(); err != nil {
		return 0, err
	}
	o := b.Options
	if o.Dockerfile != "-" && (o.Dockerfile != "" || filepath.Base(b.path) != "Dockerfile") {
		o.Dockerfile = b.path
	}
	b.Inputs.recipe(o, b.given, b.source)
	if err := b.startLint(); err != nil {
		return 0, err
	}
	defer func() {
		if lerr := b.reportWarnings(); err == nil {
			err = lerr
		}
	}()
	if err := b.parse(); err != nil {
		return 0, err
	}
	if target, err = b.target(); err != nil {
		return 0, err
	}
	if b.context, err = b.contextAt(ctx, "", b.Context); err != nil {
		return 0, err
	}
	targets := []int{target}
	if b.allStages {
		targets = nil
		for i := range b.stages {
			targets = append(targets, i)
		}
	}
	if b.needs, err = b.needed(targets...); err != nil {
		return 0, err
	}
	if _, _, err := b.findDate(); err != nil {
		return 0, err
	}
	b.check()
	return target, nil
}

// buildStages builds the needed stages, in parallel if they are independent.
func (b *builder) buildStages(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range b.stages {
		if b.needs[i] {
			g.Go(func() error {
				_, err := b.finished(ctx, i)
				return err
			})
		}
	}
	return g.Wait()
}

// parse parses the Dockerfile into stages.
func (b *builder) parse() error {
	res, err := parser.Parse(bytes.NewReader(b.source))
	if err != nil {
		return b.located(err)
	}
	b.escape = res.EscapeToken
	b.lint.AddParserWarnings(res.Warnings)
	if b.stages, b.metaArgs, err = instructions.Parse(res.AST, b.lint.Rules()); err != nil {
		return b.located(err)
	}
	if len(b.stages) == 0 {
		return b.lineError(parser.Range{Start: parser.Position{Line: 1}}, "",
			errors.New("no FROM: a Dockerfile must begin with FROM; only ARG may precede it"))
	}
	return nil
}

// read returns the content of the Dockerfile.
func (b *builder) read() ([]byte, error) {
	if b.Options.Dockerfile == "-" {
		b.file = "Dockerfile (standard input)"
		return b.readFrom(b.Stdin)
	}
	if err := b.findDockerfile(); err != nil {
		return nil, err
	}
	f, err := files.Open(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		where := "; name it with -f"
		if b.fetched {
			where = " in the context; name one of its files with -f"
		}
		return nil, fmt.Errorf("opening Dockerfile %s: %w%s", b.file, syscall.ENOENT, where)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the Dockerfile: %w", err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.IsDir() {
		return nil, fmt.Errorf("reading %s: it is a directory; name a file with -f", b.file)
	}
	return b.readFrom(f)
}

// findDockerfile sets the path of the Dockerfile, and its name in messages. In a context that
// is not a local directory, the name is relative to the context.
func (b *builder) findDockerfile() error {
	name := b.Options.Dockerfile
	if name != "" && (!b.fetched || filepath.IsAbs(name)) {
		b.file, b.path = name, name
		return nil
	}
	if err := source.CheckDir(b.Context); err != nil {
		return err
	}
	if name != "" {
		return b.setDockerfile(name)
	}
	if err := b.setDockerfile("dockerfile"); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(b.Context, "Dockerfile")); err != nil {
		if _, err := os.Stat(b.path); err == nil {
			return nil
		}
	}
	return b.setDockerfile("Dockerfile")
}

// setDockerfile sets the path and name of a Dockerfile in the context.
func (b *builder) setDockerfile(name string) (err error) {
	b.path = filepath.Join(b.Context, name)
	if b.file = b.path; !b.fetched {
		return nil
	}
	b.file = name
	if b.path, err = securejoin.SecureJoin(b.Context, name); err != nil {
		err = fmt.Errorf("finding Dockerfile %s: %w", name, err)
	}
	return err
}

// readFrom reads a Dockerfile of limited size.
func (b *builder) readFrom(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxDockerfile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", b.file, err)
	}
	if len(text) > maxDockerfile {
		return nil, fmt.Errorf("reading %s: larger than %d bytes", b.file, maxDockerfile)
	}
	return text, nil
}

// located adds file and line to an error of the parser.
func (b *builder) located(err error) error {
	position := parser.Range{Start: parser.Position{Line: 1}}
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		position = at.Locations[0][0]
		position.Start.Line = max(1, position.Start.Line) // 0 for an empty file
	}
	if errors.Is(err, io.EOF) || strings.Contains(err.Error(), "file with no instructions") {
		err = errors.New("no instructions: a Dockerfile begins with FROM")
	}
	if strings.Contains(err.Error(), "no build stage in current context") {
		err = errors.New("no FROM before it: a Dockerfile begins with FROM")
	}
	text := strings.TrimPrefix(err.Error(), fmt.Sprintf("dockerfile parse error on line %d: ", position.Start.Line))
	return b.lineError(position, "", errors.New(text))
}

// lineError returns an error with a position in the Dockerfile.
func (b *builder) lineError(at parser.Range, text string, err error) *LineError {
	return &LineError{File: b.file, Line: at.Start.Line, End: max(at.Start.Line, at.End.Line), Text: oneLine(text), Err: public(err),
		Source: []byte(attest.PublicText(string(b.source)))}
}

// A publicError has a text without the credentials of URLs.
type publicError struct {
	text string
	err  error
}

func (e *publicError) Error() string { return e.text }
func (e *publicError) Unwrap() error { return e.err }

// public returns an error without the credentials of URLs in its text.
func public(err error) error {
	if err == nil {
		return nil
	}
	if text := attest.PublicText(err.Error()); text != err.Error() {
		return &publicError{text, err}
	}
	return err
}

// at adds the position of the instruction to an error.
func (b *builder) at(loc []parser.Range, text string, err error) error {
	var le *LineError
	if err == nil || errors.As(err, &le) || errors.Is(err, context.Canceled) {
		return err
	}
	var position parser.Range
	if len(loc) > 0 {
		position = loc[0]
		position.End = loc[len(loc)-1].End
	}
	e := b.lineError(position, text, err)
	var failed *program.Error
	if errors.As(err, &failed) {
		e.Log = failed.Log
	}
	return e
}

// oneLine returns an instruction on one line of limited length, without the credentials of
// URLs.
func oneLine(s string) string { return text.Cut(text.OneLine(attest.PublicText(s)), 100) }
