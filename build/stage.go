package build

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"golang.org/x/sys/unix"

	"hpcc/build/attest"
	"hpcc/envfile"
	"hpcc/runtime"
)

// A stage is one FROM during the build: its state, and what executes instructions.
type stage struct {
	state
	b          *builder
	index      int
	number     int // number of the current step
	platform   *v1.Platform
	tree       *tree
	saved      time.Duration // original duration of the current cached step
	fetched    atomic.Bool   // something was downloaded
	lostOwners atomic.Bool   // the current step's changes of owners are lost
}

// A state is the result of the instructions so far, from which a stage or an image continues.
type state struct {
	base      v1.Image
	config    *v1.ConfigFile
	added     []mutate.Addendum // layers and history of this build on top of base
	key       string            // digest of everything that determines the file system
	steps     []keyedResult     // steps that changed the file system, including those of stages below
	created   time.Time         // when the last step ran
	buildArgs map[string]string // ARGs that no later ENV of the same name has replaced
	interval  time.Duration     // the health check's start interval, which v1.HealthConfig lacks
	ownCmd    bool              // the stage has a CMD of its own
}

// next returns the state with which a stage begins that continues this one.
func (s state) next() state {
	s.config, s.buildArgs, s.ownCmd = s.config.DeepCopy(), maps.Clone(s.buildArgs), false
	s.added, s.steps = slices.Clip(s.added), slices.Clip(s.steps)
	return s
}

// ignoresCache reports whether the steps of the stage run again.
func (st *stage) ignoresCache() bool {
	if st.b.NoCache {
		return true
	}
	for _, word := range st.b.NoCacheFilter {
		if i, ok := st.b.stageNamed(word, len(st.b.stages)); ok && i == st.index {
			return true
		}
	}
	return false
}

// start initializes the stage with an image.
func (st *stage) start(img v1.Image, cfg *v1.ConfigFile) {
	st.base, st.config = img, cfg
	if !slices.ContainsFunc(cfg.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }) {
		cfg.Config.Env = append(cfg.Config.Env, "PATH="+runtime.StandardPath)
	}
	if st.b.Compression == "zstd" {
		st.key = digestOf(st.key, "zstd")
	}
	if st.b.Reproducible {
		st.key = digestOf(st.key, st.b.dateKey())
	}
	if st.created = cfg.Created.Time; st.created.IsZero() {
		st.created = time.Unix(0, 0).UTC()
	}
	st.tree = &tree{b: st.b, image: img}
}

// image assembles the stage's image.
func (st *stage) image() (v1.Image, error) {
	mt, cmt := types.OCIManifestSchema1, types.OCIConfigJSON
	if st.layerType() == types.DockerLayer {
		mt, cmt = types.DockerManifestSchema2, types.DockerConfigJSON
	}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(st.base, mt), cmt), st.added...)
	if err != nil {
		return nil, fmt.Errorf("assembling the image: %w", err)
	}
	got, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("assembling the image: %w", err)
	}
	cfg := st.config.DeepCopy()
	cfg.RootFS, cfg.History = got.RootFS, got.History
	cfg.Created = v1.Time{Time: st.date()}
	if len(st.b.Labels) > 0 && cfg.Config.Labels == nil {
		cfg.Config.Labels = map[string]string{}
	}
	maps.Copy(cfg.Config.Labels, st.b.Labels)
	if p := st.b.platformAsked; p != nil { // overrides the platform of the base
		if p.Variant != "" || cfg.OS != p.OS || cfg.Architecture != p.Architecture {
			cfg.Variant = p.Variant
		}
		cfg.OS, cfg.Architecture = p.OS, p.Architecture
	}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return nil, fmt.Errorf("assembling the image: %w", err)
	}
	return withStartInterval(img, st.interval)
}

// layerType returns the media type of new layers, in the base's family.
func (st *stage) layerType() types.MediaType {
	if st.b.Compression == "zstd" {
		return types.OCILayerZStd
	}
	if bt, err := st.base.MediaType(); err == nil && bt == types.DockerManifestSchema2 && len(st.config.RootFS.DiffIDs) > 0 {
		return types.DockerLayer
	}
	return types.OCILayer
}

// rewrittenAnnotation marks layers without times after SOURCE_DATE_EPOCH, as BuildKit does.
const rewrittenAnnotation = "buildkit/rewritten-timestamp"

// dateKey is the part of a step's key that stands for the date of a reproducible build.
func (b *builder) dateKey() string {
	if !b.Reproducible {
		return ""
	}
	return fmt.Sprint("date ", b.date.Unix())
}

// date returns the time at which the stage's image was created. Cached steps keep theirs, so that
// building again gives the same image. Instructions without files do not count, as in BuildKit.
func (st *stage) date() time.Time {
	if st.b.Reproducible {
		return st.b.date
	}
	return st.created
}

// record adds an instruction to the image's history; layer may be nil.
func (st *stage) record(text string, layer v1.Layer) {
	h := v1.History{Created: v1.Time{Time: st.date()}, CreatedBy: attest.PublicText(text) + " # buildkit",
		Comment: "hpcc", EmptyLayer: layer == nil}
	add := mutate.Addendum{Layer: layer, History: h}
	if layer != nil && st.b.dated {
		add.Annotations = map[string]string{rewrittenAnnotation: strconv.FormatInt(st.b.date.Unix(), 10)}
	}
	st.added = append(st.added, add)
}

// ownersLost describes a step whose changes of owners could not be recorded.
const ownersLost = "owners, set-id bits after chown and capabilities that it gave were not recorded"

// configure executes an instruction that only changes the configuration.
func (st *stage) configure(c instructions.Command, text string) error {
	cfg := &st.config.Config
	switch c := c.(type) {
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			cfg.Env = envfile.Set(cfg.Env, kv.Key, kv.Value)
			delete(st.buildArgs, kv.Key)
		}
	case *instructions.ArgCommand:
		if err := st.declare(c); err != nil {
			return err
		}
	case *instructions.LabelCommand:
		if cfg.Labels == nil {
			cfg.Labels = map[string]string{}
		}
		for _, kv := range c.Labels {
			cfg.Labels[kv.Key] = kv.Value
		}
	case *instructions.MaintainerCommand:
		st.config.Author = c.Maintainer
	case *instructions.UserCommand:
		cfg.User = c.User
	case *instructions.CmdCommand:
		cfg.Cmd, cfg.ArgsEscaped, st.ownCmd = st.argv(c.ShellDependantCmdLine), true, true
	case *instructions.EntrypointCommand:
		cfg.Entrypoint = st.argv(c.ShellDependantCmdLine)
		if !st.ownCmd {
			cfg.Cmd = nil // a new ENTRYPOINT resets the base's CMD (Dockerfile reference)
		}
	case *instructions.ShellCommand:
		cfg.Shell = c.Shell
	case *instructions.StopSignalCommand:
		if !isSignal(c.Signal) {
			return fmt.Errorf("%q is not a signal; use a name such as SIGTERM, or a number", c.Signal)
		}
		cfg.StopSignal = c.Signal
	case *instructions.ExposeCommand:
		if err := st.expose(c); err != nil {
			return err
		}
	case *instructions.VolumeCommand:
		if cfg.Volumes == nil {
			cfg.Volumes = map[string]struct{}{}
		}
		for _, v := range c.Volumes {
			if strings.TrimSpace(v) == "" {
				return errors.New("empty volume path")
			}
			cfg.Volumes[v] = struct{}{}
		}
	case *instructions.HealthCheckCommand:
		cfg.Healthcheck = &v1.HealthConfig{Test: c.Health.Test, Interval: c.Health.Interval, Timeout: c.Health.Timeout,
			StartPeriod: c.Health.StartPeriod, Retries: c.Health.Retries}
		st.interval = c.Health.StartInterval
	case *instructions.WorkdirCommand: // the root; see workdir
		cfg.WorkingDir, text = "/", "WORKDIR /"
	case *instructions.OnbuildCommand:
		cfg.OnBuild = append(cfg.OnBuild, c.Expression)
	default:
		return fmt.Errorf("unknown instruction %s", strings.ToUpper(c.Name()))
	}
	st.record(text, nil)
	return nil
}

// isSignal reports whether word is a signal: a number, or a name in any case with or
// without SIG, including real-time signals (RTMIN+n, RTMAX-n).
func isSignal(word string) bool {
	if n, err := strconv.Atoi(word); err == nil {
		return n > 0
	}
	name := strings.TrimPrefix(strings.ToUpper(word), "SIG")
	for _, head := range []string{"RTMIN", "RTMAX"} {
		if rest, ok := strings.CutPrefix(name, head); ok {
			n, err := strconv.Atoi(rest)
			return rest == "" || (err == nil && (head == "RTMIN") == (n > 0) && n > -15 && n < 16)
		}
	}
	return unix.SignalNum("SIG"+name) != 0
}

// argv returns a command line as images store it.
func (st *stage) argv(c instructions.ShellDependantCmdLine) []string {
	if len(c.CmdLine) == 0 {
		return nil // "[]" in a Dockerfile; the configuration omits it
	}
	if !c.PrependShell {
		return c.CmdLine
	}
	return append(st.shell(), strings.Join(c.CmdLine, " "))
}

// shell returns the stage's SHELL.
func (st *stage) shell() []string {
	if s := st.config.Config.Shell; len(s) > 0 {
		return append([]string(nil), s...)
	}
	return []string{"/bin/sh", "-c"}
}

// expose executes EXPOSE: PORT[-PORT][/PROTOCOL].
func (st *stage) expose(c *instructions.ExposeCommand) error {
	cfg := &st.config.Config
	if cfg.ExposedPorts == nil {
		cfg.ExposedPorts = map[string]struct{}{}
	}
	for _, p := range c.Ports {
		ports, err := exposed(p)
		if err != nil {
			return err
		}
		for _, x := range ports {
			cfg.ExposedPorts[x] = struct{}{}
		}
	}
	return nil
}

// exposed returns the ports of one argument of EXPOSE.
func exposed(word string) ([]string, error) {
	spec, proto, _ := strings.Cut(word, "/")
	if proto = strings.ToLower(proto); proto == "" {
		proto = "tcp"
	}
	if proto != "tcp" && proto != "udp" && proto != "sctp" {
		return nil, fmt.Errorf("port %q: protocol %q is not tcp, udp or sctp", word, proto)
	}
	if i := strings.LastIndex(spec, ":"); i >= 0 {
		spec = spec[i+1:] // the host port has no meaning in an image
	}
	lo, hi, ranged := strings.Cut(spec, "-")
	if !ranged {
		hi = lo
	}
	a, aerr := strconv.Atoi(lo)
	z, zerr := strconv.Atoi(hi)
	if aerr != nil || zerr != nil || a < 0 || z > 65535 || a > z {
		return nil, fmt.Errorf("port %q is not a number or range between 0 and 65535", word)
	}
	var out []string
	for ; a <= z; a++ {
		out = append(out, fmt.Sprintf("%d/%s", a, proto))
	}
	return out, nil
}

// absolute resolves a path relative to WORKDIR.
func (st *stage) absolute(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", st.config.Config.WorkingDir, p)
}
