// Package build makes an image from a Dockerfile or a conda export, step by
// step, with a cache, as an ordinary user.
//
// A build is a walk over stages. Each stage holds an image configuration and a
// list of layers; an instruction either changes the configuration only, or it
// changes the file system and is a step: its key is a digest of the step
// before it, the instruction with all variables filled in, and the bytes that
// it reads. A key that the store's cache knows costs one small read. Another
// one is worked on a private copy-on-write view of the tree, and what changed
// there becomes the layer.
//
// The caller must be root of its own user and mount namespace
// (runtime.EnterFakeRoot): views are overlay mounts, and programs of RUN find
// themselves root. Nothing of a failed build remains.
package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"golang.org/x/sync/errgroup"

	"hpcc/build/lint"
	"hpcc/build/source"
	"hpcc/store"
	"hpcc/store/disk"
	"hpcc/store/wait"
)

// Options say what to build. The zero value builds ./Dockerfile in the current
// directory for this machine.
type Options struct {
	Dockerfile string            // path; "" is Dockerfile in Context, "-" is Stdin
	Context    string            // what COPY and ADD read: a directory, a git repository, or "-", a tar archive on Stdin; "" is "."
	Contexts   map[string]string // other contexts by name: a directory, or docker-image://REF
	Hidden     []string          // files that no context shows, whatever .dockerignore says
	// Environment is the image that FROM conda and --from=conda mean; nil is none.
	Environment v1.Image
	Stdin       io.Reader         // for Dockerfile "-" or Context "-"
	Labels      map[string]string // of the image, above those of the Dockerfile
	Platform    *v1.Platform      // nil is this machine's
	Args        map[string]string // --build-arg
	Target      string            // stage to stop at, by name or number; "" is the last
	NoCache     bool              // do every step again
	// Compression packs new layers: "gzip", the default, or "zstd".
	Compression string
	Secrets     map[string]Secret // what RUN --mount=type=secret may show, by id
	SSH         map[string]string // sockets of agents for RUN --mount=type=ssh, by id
	CacheFrom   []string          // references of caches in registries, asked for steps that the store does not know
	CacheTo     *Cache            // gets the steps of this build
	// Entry, unless empty, is a static program for Platform that becomes the image's entry
	// point, EntryFile, before the one that it has: "hpcc entry".
	Entry     []byte
	PlainHTTP bool        // registries are without TLS
	Progress  func(Event) // told of every step, one call at a time; nil is silence
	Inputs    *Inputs     // filled with what the build was asked for and read; nil: nobody wants to know
}

// An Event is the beginning of a step, something that it does, its end, or a
// warning. Steps of several stages are under way at the same time.
type Event struct {
	Stage       int    // where the stage stands in the Dockerfile, from 0
	Step, Total int    // triggers of a base image make a stage's numbers run into the next one's
	Text        string // the instruction as written, on one line; at the beginning and the end
	Done        bool   // the end
	Cached      bool   // at the end: nothing had to be done
	Failed      bool   // at the end: the error is what the build returns
	Took        time.Duration
	Saved       time.Duration // of a cached step: what doing it took once, less Took; 0: not known
	// Output is what the step's program printed, as it came; it is the
	// receiver's for the time of the call.
	Output []byte
	// Fetched of Size bytes are downloaded; Size 0 is not known.
	Fetched, Size int64
	// Warning is FILE:LINE: RULE: what a check of the Dockerfile has to say, or
	// what is wrong with the cache; all else but the next three is empty then.
	Warning string
	Line    int    // of the warning, in the Dockerfile; 0 for others
	Rule    string // the check's name, as "# check=skip=" takes it
	URL     string // where the check is explained
}

// maxDockerfile bounds what is read of a Dockerfile.
const maxDockerfile = 4 << 20

// A LineError is a Dockerfile that cannot be built, with the line at fault.
type LineError struct {
	File string
	Line int
	End  int    // the last line of the instruction, Line or later
	Text string // the instruction
	Err  error
	Log  []byte // the last of what a failing RUN printed
	// Source is the whole Dockerfile, to show the lines from.
	Source []byte
}

func (e *LineError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s:%d: %s: %v", e.File, e.Line, e.Text, e.Err)
}
func (e *LineError) Unwrap() error { return e.Err }

// A builder is one build under way.
type builder struct {
	Options
	store *store.Store
	given string // Context as the user wrote it
	// environment is what Contexts have for the environment, by its digest.
	environment string
	file        string // the Dockerfile's name in messages
	source      []byte // its text
	lint        *lint.Linter
	escape      rune
	stages      []instructions.Stage
	metaArgs    []instructions.ArgCommand
	mu          sync.Mutex // of made, total and the telling
	made        map[int]*making
	needs       map[int]bool
	// allStages: a check looks at stages that no target needs.
	allStages bool
	context   *source.Dir
	opened    map[string]*source.Dir // this and the named ones, by name
	imports   imports
	stamp     time.Time // times of what a build makes
	begun     time.Time
	work      string // private directory of this build, in the store's tmp
	total     int
	// platformAsked is the platform that the caller named; nil: this machine's will do.
	platformAsked *v1.Platform
}

// Dockerfile builds an image. Errors in the Dockerfile are a [LineError].
func Dockerfile(ctx context.Context, s *store.Store, o Options) (v1.Image, error) {
	b, err := begin(s, o)
	if err != nil {
		return nil, err
	}
	if b.work, err = s.TempDir(); err != nil {
		return nil, err
	}
	defer disk.RemoveAll(b.work)
	// In a directory of a project, new ones may inherit its set-group-id bit: it
	// is not to get into layers.
	if err := os.Chmod(b.work, 0o700); err != nil {
		return nil, fmt.Errorf("making the build's directory private: %w", err)
	}
	target, err := b.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.takesEnvironment(); err != nil {
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
				b.report(Event{Warning: fmt.Sprintf("remembering the context's files: %v", err)})
			}
		}
		for _, m := range b.made {
			if m.stage != nil {
				m.stage.tree.close()
			}
		}
	}()
	if err := b.buildStages(ctx); err != nil {
		return nil, err
	}
	if len(b.Entry) > 0 {
		if err := b.made[target].stage.entryStep(ctx); err != nil {
			return nil, err
		}
	}
	b.export(target)
	return b.made[target].stage.image()
}

// begin starts a build: its options filled in.
func begin(s *store.Store, o Options) (*builder, error) {
	b := &builder{Options: o, store: s, made: map[int]*making{}, opened: map[string]*source.Dir{}, begun: time.Now(), platformAsked: o.Platform}
	if b.Context == "" {
		b.Context = "."
	}
	if b.Platform == nil {
		b.Platform = hostPlatform()
	}
	if err := b.nameEnvironment(); err != nil {
		return nil, err
	}
	if c := b.Compression; c != "" && c != "gzip" && c != "zstd" {
		return nil, fmt.Errorf("compression %q: known are gzip and zstd", c)
	}
	if v, ok := os.LookupEnv(epochArg); ok && b.Args[epochArg] == "" { // a build argument too, as in docker buildx
		b.Args = maps.Clone(b.Args)
		if b.Args == nil {
			b.Args = map[string]string{}
		}
		b.Args[epochArg] = v
	}
	var err error
	b.stamp, err = sourceDate(b.Args[epochArg])
	return b, err
}

// prepare reads and checks all that a build starts from: Dockerfile, context,
// and which stages the target needs. Warnings are told also when it fails.
func (b *builder) prepare(ctx context.Context) (target int, err error) {
	b.given = b.Context
	if err := b.fetchContext(ctx); err != nil {
		return 0, err
	}
	if b.source, err = b.read(); err != nil {
		return 0, err
	}
	b.Inputs.recipe(b.Options, b.given, b.source)
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
	if b.context, err = b.contextAt("", b.Context); err != nil {
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
	b.check()
	return target, nil
}

// buildStages makes the needed stages, at the same time where they do not need
// one another.
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

// epochArg names the time of a build, as an argument or in the environment
// (https://reproducible-builds.org/docs/source-date-epoch/).
const epochArg = "SOURCE_DATE_EPOCH"

// sourceDate reads the value of epochArg; "" is a fixed day, the first that zip
// archives can hold: the same input must give the same image.
func sourceDate(v string) (time.Time, error) {
	if v == "" {
		return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), nil
	}
	sec, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading SOURCE_DATE_EPOCH %q: not a number of seconds", v)
	}
	return time.Unix(sec, 0).UTC(), nil
}

// parse reads the Dockerfile into stages.
func (b *builder) parse() error {
	res, err := parser.Parse(bytes.NewReader(b.source))
	if err != nil {
		return b.located(err)
	}
	b.escape = res.EscapeToken
	b.lint.Lines(res.Warnings)
	if b.stages, b.metaArgs, err = instructions.Parse(res.AST, b.lint.Rules()); err != nil {
		return b.located(err)
	}
	if len(b.stages) == 0 {
		return b.lineError(parser.Range{Start: parser.Position{Line: 1}}, "", errors.New("no FROM: a Dockerfile begins with it, after ARG at most"))
	}
	return nil
}

// read returns the Dockerfile's text.
func (b *builder) read() ([]byte, error) {
	r := b.Stdin
	b.file = "Dockerfile (standard input)"
	if b.Options.Dockerfile != "-" {
		if b.file = b.Options.Dockerfile; b.file == "" {
			if err := source.CheckDir(b.Context); err != nil {
				return nil, err
			}
			b.file = filepath.Join(b.Context, "Dockerfile")
		}
		f, err := wait.Open(b.file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("opening the Dockerfile: %w; name it with -f", err)
		}
		if err != nil {
			return nil, fmt.Errorf("opening the Dockerfile: %w", err)
		}
		defer f.Close()
		if fi, err := f.Stat(); err == nil && fi.IsDir() {
			return nil, fmt.Errorf("reading %s: it is a directory; name a file with -f", b.file)
		}
		r = f
	}
	text, err := io.ReadAll(io.LimitReader(r, maxDockerfile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", b.file, err)
	}
	if len(text) > maxDockerfile {
		return nil, fmt.Errorf("reading %s: larger than %d bytes", b.file, maxDockerfile)
	}
	return text, nil
}

// located turns an error of the parser into one with file and line.
func (b *builder) located(err error) error {
	place := parser.Range{Start: parser.Position{Line: 1}}
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		place = at.Locations[0][0]
		place.Start.Line = max(1, place.Start.Line) // of an empty file
	}
	if errors.Is(err, io.EOF) || strings.Contains(err.Error(), "file with no instructions") {
		err = errors.New("no instructions: a Dockerfile begins with FROM")
	}
	if strings.Contains(err.Error(), "no build stage in current context") {
		err = errors.New("no FROM before it: a Dockerfile begins with FROM")
	}
	text := strings.TrimPrefix(err.Error(), fmt.Sprintf("dockerfile parse error on line %d: ", place.Start.Line))
	return b.lineError(place, "", errors.New(text))
}

// lineError is an error at a place of the Dockerfile.
func (b *builder) lineError(at parser.Range, text string, err error) *LineError {
	return &LineError{File: b.file, Line: at.Start.Line, End: max(at.Start.Line, at.End.Line), Text: oneLine(text), Err: err, Source: b.source}
}

// at wraps an error with the place of the instruction.
func (b *builder) at(loc []parser.Range, text string, err error) error {
	var le *LineError
	if err == nil || errors.As(err, &le) || errors.Is(err, context.Canceled) {
		return err
	}
	var place parser.Range
	if len(loc) > 0 {
		place = loc[0]
		place.End = loc[len(loc)-1].End
	}
	e := b.lineError(place, text, err)
	var failed *runError
	if errors.As(err, &failed) {
		e.Log = failed.log
	}
	return e
}

// oneLine shows an instruction on one line of bounded length.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 100 {
		s = string(r[:99]) + "…"
	}
	return s
}
