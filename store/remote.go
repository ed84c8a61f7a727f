package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"hpcc/files"
)

// Remote holds the connection options for a registry. The zero value is the usual case: TLS,
// plain HTTP for loopback, and docker's credentials.
type Remote struct {
	Platform  *v1.Platform // nil: this machine's, or the only one
	PlainHTTP bool
	TLS       bool                    // always TLS, also for loopback and private networks
	Name      string                  // name under which Pull stores the image
	Progress  func(done, total int64) // bytes of layers; calls do not overlap

	Credentials *credentials // nil: docker's
}

// Pull fetches an image of one platform and stores it as o.Name, or as ref. Layers are
// downloaded in parallel, and broken transfers resume.
func (s *Store) Pull(ctx context.Context, ref string, o Remote) (v1.Image, error) {
	c, err := o.call(ref)
	if err != nil {
		return nil, err
	}
	keep := o.Name
	if keep == "" {
		keep = ref
	}
	key, err := Canonical(keep)
	if err != nil {
		return nil, err
	}
	d, err := s.pull(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("pulling %s: %w", ref, c.explain(err))
	}
	if err := s.putRef(key, d, o.source(ref, key)); err != nil {
		return nil, err
	}
	found, err := s.choose(key, *d, o.Platform, 0)
	if err != nil {
		return nil, err
	}
	return s.open(key, found)
}

// source returns the arguments that pull ref under the name key.
func (o Remote) source(ref, key string) string {
	text := "pull "
	if o.Platform != nil {
		text += "--platform " + o.Platform.String() + " "
	}
	if o.PlainHTTP {
		text += "--plain-http "
	}
	if own, err := Canonical(ref); err == nil && own == key {
		return text + ref
	}
	return text + ref + " " + key
}

// PulledFrom returns the reference and the options with which the image of a name was
// pulled. ok is false if it was not pulled.
func (s *Store) PulledFrom(n string) (from string, o Remote, ok bool) {
	key, err := Canonical(n)
	if err != nil {
		return "", o, false
	}
	r, err := s.readRef(key)
	f := strings.Fields(r.Source)
	if err != nil || len(f) < 2 || f[0] != "pull" {
		return "", o, false
	}
	o.Name = key
	for f = f[1:]; len(f) > 0; f = f[1:] {
		switch {
		case f[0] == "--plain-http":
			o.PlainHTTP = true
		case f[0] == "--platform" && len(f) > 1:
			f = f[1:]
			if o.Platform, err = v1.ParsePlatform(f[0]); err != nil {
				return "", o, false
			}
		default:
			return f[0], o, true
		}
	}
	return "", o, false
}

// pull fetches the image of the reference with its attestations.
func (s *Store) pull(ctx context.Context, c *call) (*v1.Descriptor, error) {
	desc, err := remote.Get(c.ref, c.options(ctx)...)
	if err != nil {
		return nil, err
	}
	var idx v1.ImageIndex
	for depth := 0; desc.MediaType.IsIndex(); depth++ {
		if depth > maxDepth {
			return nil, fmt.Errorf("indexes are nested deeper than %d", maxDepth)
		}
		if idx, err = desc.ImageIndex(); err != nil {
			return nil, err
		}
		m, err := idx.IndexManifest()
		if err != nil {
			return nil, err
		}
		found, err := pick(c.ref.Name(), m, c.Platform)
		if err != nil {
			return nil, err
		}
		if desc, err = remote.Get(c.ref.Context().Digest(found.Digest.String()), c.options(ctx)...); err != nil {
			return nil, err
		}
	}
	img, err := desc.Image()
	if err == nil {
		err = checkConfig(img)
	}
	if err != nil {
		return nil, err
	}
	if c.Platform != nil {
		cfg, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		if have := cfg.Platform(); have != nil && !have.Satisfies(*c.Platform) {
			return nil, &PlatformError{c.ref.Name(), *c.Platform, []string{have.String()}}
		}
	}
	d, err := s.fetch(ctx, c, img)
	if err != nil || idx == nil {
		return d, err
	}
	return s.keepAttestations(ctx, idx, d)
}

// checkConfig refuses an image whose configuration is too large for memory, before reading
// it.
func checkConfig(img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	if m.Config.Size > maxManifest {
		return fmt.Errorf("the configuration has %d bytes; the maximum is %d", m.Config.Size, maxManifest)
	}
	return nil
}

// fetch stores a remote image's blobs.
func (s *Store) fetch(ctx context.Context, c *call, img v1.Image) (*v1.Descriptor, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	var total int64
	for _, l := range m.Layers {
		total += l.Size
	}
	t := &transferred{total: total, progress: c.Progress}
	if err := s.fetchBlobs(ctx, c, m.Layers, t); err != nil {
		return nil, err
	}
	return s.putConfig(ctx, img)
}

// fetchBlobs downloads blobs of one repository, some in parallel.
func (s *Store) fetchBlobs(ctx context.Context, c *call, ds []v1.Descriptor, t *transferred) error {
	client, err := c.client(ctx, transport.PullScope)
	if err != nil {
		return err
	}
	var g errgroup.Group // without a context, so that complete blobs are kept for the next attempt
	g.SetLimit(files.MaxParallel(4, 4))
	for _, d := range ds {
		g.Go(func() error { return s.fetchBlob(ctx, client, c.ref.Context(), d, t) })
	}
	return g.Wait()
}

// Peek returns the image of ref without storing it. It reads the manifest and configuration
// now, layers on demand.
func (s *Store) Peek(ctx context.Context, ref string, o Remote) (v1.Image, error) {
	c, err := o.call(ref)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(c.ref, c.options(ctx)...)
	if err == nil {
		err = checkConfig(img)
	}
	if err == nil {
		_, err = img.RawConfigFile()
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ref, c.explain(err))
	}
	return img, nil
}

// FetchLayer stores one layer of the image of ref.
func (s *Store) FetchLayer(ctx context.Context, ref string, l LayerInfo, o Remote) error {
	c, err := o.call(ref)
	if err != nil {
		return err
	}
	d := v1.Descriptor{Digest: l.Digest, Size: l.Size, MediaType: l.MediaType}
	if err := s.fetchBlobs(ctx, c, []v1.Descriptor{d}, &transferred{total: l.Size, progress: o.Progress}); err != nil {
		return fmt.Errorf("fetching layer %s of %s: %w", l.Digest, ref, c.explain(err))
	}
	return nil
}

// Send pushes an image without a name in the store to a registry.
func (s *Store) Send(ctx context.Context, img v1.Image, ref string, o Remote) error {
	c, err := o.call(ref)
	if err != nil {
		return err
	}
	if err := c.push(ctx, img); err != nil {
		return fmt.Errorf("sending %s: %w", ref, c.explain(err))
	}
	return nil
}

// fetchBlob downloads one blob. A broken transfer resumes if the registry supports ranges.
func (s *Store) fetchBlob(ctx context.Context, c *http.Client, repo name.Repository, d v1.Descriptor, t *transferred) error {
	checked := &countingWriter{w: t}
	if have, err := s.intactLayer(ctx, d.Digest, d.Size, checked); have || err != nil {
		return err
	}
	t.add(-checked.n)
	resp, err := requestBlob(ctx, c, repo, d.Digest)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return s.writeBlob(ctx, io.TeeReader(io.LimitReader(resp.Body, d.Size), t), d.Digest, d.Size)
}

// transferred counts the bytes of parallel transfers.
type transferred struct {
	mu       sync.Mutex
	done     int64
	total    int64
	progress func(done, total int64)
}

// Write counts received bytes.
func (t *transferred) Write(p []byte) (int, error) {
	t.add(int64(len(p)))
	return len(p), nil
}

func (t *transferred) add(n int64) {
	if t.progress == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	t.progress(t.done, t.total)
}

// A countingWriter counts the bytes that it passes on.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Pushed describes a pushed image.
type Pushed struct {
	Digest    v1.Hash
	Reference string // by digest: registry.example/team/base@sha256:…
	Sent      int64  // bytes of blobs and manifests sent, without those that the registry had
	Size      int64  // bytes of all blobs and manifests of the image
	NotNoted  error  // why the store could not record the push, which succeeded
}

// Push sends an image, with all its platforms, to a registry, and records the location for
// [Store.Pushed].
func (s *Store) Push(ctx context.Context, n, ref string, o Remote) (*Pushed, error) {
	c, err := o.call(ref)
	if err != nil {
		return nil, err
	}
	d, err := s.ref(n)
	if err != nil {
		return nil, err
	}
	var what remote.Taggable
	if d.MediaType.IsIndex() {
		what, err = s.index(d)
	} else {
		what, err = s.open(n, d)
	}
	p := &Pushed{Digest: d.Digest, Reference: byDigestIn(c.ref.Context(), d.Digest)}
	if err == nil {
		p.Size, err = s.sizeOf(d)
	}
	if err == nil {
		err = c.push(ctx, what)
	}
	if err != nil {
		return nil, fmt.Errorf("pushing %s to %s: %w", n, ref, c.explain(err))
	}
	p.Sent, p.NotNoted = c.sent.Load(), s.notePushed(n, pushedTo{d.Digest, p.Reference})
	return p, nil
}

// sizeOf returns the total size of the blobs of an image or index, each counted once.
func (s *Store) sizeOf(d v1.Descriptor) (n int64, err error) {
	blobs, err := s.closure(d)
	seen := map[v1.Hash]bool{}
	for _, b := range blobs {
		if !seen[b.Digest] {
			n += b.Size
		}
		seen[b.Digest] = true
	}
	return n, err
}

// A sentBody counts the bytes of a request.
type sentBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// Login checks a user's credentials for a registry, and stores them in docker's configuration
// file ($DOCKER_CONFIG or ~/.docker/config.json), readable only for the user. Only PlainHTTP
// of o is used.
func Login(ctx context.Context, host, user, password string, o Remote) error {
	if password == "" {
		return errors.New("the password is empty")
	}
	c, err := registryCall(host, Remote{PlainHTTP: o.PlainHTTP, Credentials: &credentials{Username: user, Password: secret(password)}})
	if err != nil {
		return err
	}
	if err := c.checkLogin(ctx); err != nil {
		return fmt.Errorf("logging in to %s: %w", host, c.explain(err))
	}
	if r := c.ref.Context().RegistryStr(); r == name.DefaultRegistry {
		host = authn.DefaultAuthKey // docker's name for Docker Hub
	}
	return keepLogin(host, user, password)
}

// checkLogin asks a registry, or its token server, whether it accepts the credentials.
func (c *call) checkLogin(ctx context.Context) error {
	c.doing = "login"
	registry := c.ref.Context().Registry
	rt, err := transport.NewWithContext(ctx, registry, c.Credentials, c, nil)
	if err != nil {
		return err
	}
	at := registry.Scheme() + "://" + registry.RegistryStr() + "/v2/"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return transport.CheckError(resp, http.StatusOK)
}

// keepLogin stores credentials in docker's configuration file.
func keepLogin(host, user, password string) error {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("finding docker's configuration: %w", err)
		}
		dir = filepath.Join(home, ".docker")
	}
	file := filepath.Join(dir, "config.json")
	cfg := map[string]json.RawMessage{}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading credentials: %w", err)
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &cfg); err != nil {
			return fmt.Errorf("reading credentials %s: %w", file, err)
		}
	}
	auths := map[string]json.RawMessage{}
	if a, ok := cfg["auths"]; ok {
		if err := json.Unmarshal(a, &auths); err != nil {
			return fmt.Errorf("reading credentials %s: %w", file, err)
		}
	}
	secret := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	auths[host] = json.RawMessage(fmt.Sprintf("{%q:%q}", "auth", secret))
	if cfg["auths"], err = json.Marshal(auths); err != nil {
		return err
	}
	out, err := json.MarshalIndent(cfg, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keeping credentials: %w", err)
	}
	if err := files.WritePrivate(file, string(out)+"\n"); err != nil {
		return fmt.Errorf("keeping credentials: %w", err)
	}
	return nil
}
