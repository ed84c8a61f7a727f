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
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"
)

// Remote says how to speak with a registry. The zero value is the usual case:
// TLS, but plain http to loopback, and docker's credentials.
type Remote struct {
	Platform  *v1.Platform // nil: this machine's, or the only one
	PlainHTTP bool
	TLS       bool                    // never without TLS, to loopback and private networks neither
	Name      string                  // Pull: keep the image under this name
	Progress  func(done, total int64) // bytes of layers; calls do not overlap

	Credentials *Credentials // nil: docker's
}

// tries is how often a transfer is begun again, with growing pauses between.
const tries = 5

// Pull fetches an image of one platform and keeps it as o.Name, else as ref
// itself. Layers come in parallel; a broken transfer goes on where it stopped.
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

// source is the command that pulls ref as the name key.
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

// PulledFrom returns the reference and the options with which the image of a name
// was pulled; false if it came from elsewhere.
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

// pull fetches what the reference stands for: an image, with what is attested of it.
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

// checkConfig refuses an image with a configuration that would not fit into
// memory, before it is read.
func checkConfig(img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	if m.Config.Size > maxManifest {
		return fmt.Errorf("its configuration has %d bytes; the most that is read is %d", m.Config.Size, maxManifest)
	}
	return nil
}

// fetch keeps a remote image's blobs.
func (s *Store) fetch(ctx context.Context, c *call, img v1.Image) (*v1.Descriptor, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	var total int64
	for _, l := range m.Layers {
		total += l.Size
	}
	t := &transferred{total: total, tell: c.Progress}
	if err := s.fetchBlobs(ctx, c, m.Layers, t); err != nil {
		return nil, err
	}
	return s.putImage(ctx, img, nil) // layers are there; configuration and manifest follow
}

// fetchBlobs downloads blobs of one repository, some at the same time.
func (s *Store) fetchBlobs(ctx context.Context, c *call, ds []v1.Descriptor, t *transferred) error {
	client, err := c.client(ctx, transport.PullScope)
	if err != nil {
		return err
	}
	var g errgroup.Group // without a context: what comes whole is there for the next try
	g.SetLimit(4)
	for _, d := range ds {
		g.Go(func() error { return s.fetchBlob(ctx, client, c.ref.Context(), d, t) })
	}
	return g.Wait()
}

// Peek returns the image that ref stands for without keeping any of it: its
// manifest and configuration are read now, layers when they are asked for.
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

// FetchLayer keeps one layer of the image that ref stands for.
func (s *Store) FetchLayer(ctx context.Context, ref string, l LayerInfo, o Remote) error {
	c, err := o.call(ref)
	if err != nil {
		return err
	}
	d := v1.Descriptor{Digest: l.Digest, Size: l.Size, MediaType: l.MediaType}
	if err := s.fetchBlobs(ctx, c, []v1.Descriptor{d}, &transferred{total: l.Size, tell: o.Progress}); err != nil {
		return fmt.Errorf("fetching layer %s of %s: %w", l.Digest, ref, c.explain(err))
	}
	return nil
}

// Send puts an image into a registry that has no name in the store.
func (s *Store) Send(ctx context.Context, img v1.Image, ref string, o Remote) error {
	c, err := o.call(ref)
	if err != nil {
		return err
	}
	if err := remote.Write(c.ref, img, c.options(ctx)...); err != nil {
		return fmt.Errorf("sending %s: %w", ref, c.explain(err))
	}
	return nil
}

// fetchBlob downloads one blob, and goes on where a broken transfer stopped
// when the registry answers ranges.
func (s *Store) fetchBlob(ctx context.Context, c *http.Client, repo name.Repository, d v1.Descriptor, t *transferred) error {
	if have, err := s.intactLayer(ctx, d.Digest, d.Size); have || err != nil {
		t.add(d.Size)
		return err
	}
	src := &resuming{ctx: ctx, client: c, size: d.Size, t: t,
		url: fmt.Sprintf("%s://%s/v2/%s/blobs/%s", repo.Scheme(), repo.RegistryStr(), repo.RepositoryStr(), d.Digest)}
	defer src.close()
	return s.writeBlob(ctx, src, d.Digest, d.Size)
}

// resuming reads a URL to its end over as many requests as it takes.
type resuming struct {
	ctx    context.Context
	client *http.Client
	url    string
	size   int64
	off    int64
	body   io.ReadCloser
	failed int
	t      *transferred
}

func (r *resuming) Read(p []byte) (int, error) {
	for {
		if r.off >= r.size {
			return 0, io.EOF
		}
		if r.body == nil {
			if err := r.request(); err != nil {
				if err := r.pause(err); err != nil {
					return 0, err
				}
				continue
			}
		}
		n, err := r.body.Read(p)
		r.off += int64(n)
		r.t.add(int64(n))
		if n > 0 {
			r.failed = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		r.close()
		if r.off >= r.size {
			return 0, io.EOF
		}
		if err := r.pause(err); err != nil {
			return 0, err
		}
	}
}

// A statusError is an answer that no repetition makes better.
type statusError struct{ status string }

func (e *statusError) Error() string { return "the registry answers " + e.status }

// request asks for the rest.
func (r *resuming) request() error {
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return err
	}
	if r.off > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.off, r.size-1))
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusPartialContent && r.off > 0:
	case resp.StatusCode == http.StatusOK:
		if _, err := io.CopyN(io.Discard, resp.Body, r.off); err != nil {
			resp.Body.Close()
			return err
		}
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
		resp.Body.Close()
		return errors.New("the registry answers " + resp.Status)
	default:
		resp.Body.Close()
		return &statusError{resp.Status}
	}
	r.body = resp.Body
	return nil
}

// pause waits before the next try, or gives up with err.
func (r *resuming) pause(err error) error {
	var final *statusError
	if r.failed++; r.failed >= tries || errors.As(err, &final) {
		return fmt.Errorf("downloading (%d of %d bytes came): %w", r.off, r.size, err)
	}
	select {
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-time.After(time.Duration(100<<r.failed) * time.Millisecond):
		return nil
	}
}

func (r *resuming) close() {
	if r.body != nil {
		r.body.Close()
		r.body = nil
	}
}

// transferred adds up bytes of parallel transfers.
type transferred struct {
	mu    sync.Mutex
	done  int64
	total int64
	tell  func(done, total int64)
}

func (t *transferred) add(n int64) {
	if t.tell == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	t.tell(t.done, t.total)
}

// Pushed tells of an image that was sent to a registry.
type Pushed struct {
	Digest    v1.Hash
	Reference string // by digest: registry.example/team/base@sha256:…
	Sent      int64  // bytes of blobs and manifests that went over; what the registry had did not
	Size      int64  // bytes of all blobs and manifests of the image
	NotNoted  error  // why the store could not note where the image lies; it was sent all the same
}

// Push sends an image, all its platforms, to a registry, and notes for
// [Store.Pushed] where it lies now.
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
		err = push(c.ref, what, o.Progress, c.options(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("pushing %s to %s: %w", n, ref, c.explain(err))
	}
	p.Sent, p.NotNoted = c.sent.Load(), s.notePushed(n, pushedTo{d.Digest, p.Reference})
	return p, nil
}

// sizeOf adds up the blobs of an image or index, each once.
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

// push sends an image or index. When it returns, tell is called no more.
func push(to name.Reference, what remote.Taggable, tell func(done, total int64), opts []remote.Option) error {
	if tell == nil {
		return remote.Push(to, what, opts...)
	}
	updates, told := make(chan v1.Update, 16), make(chan bool)
	go func() {
		defer close(told)
		for u := range updates {
			if u.Error == nil {
				tell(u.Complete, u.Total)
			}
		}
	}()
	err := remote.Push(to, what, append(opts, remote.WithProgress(updates))...) // it closes updates
	<-told
	return err
}

// Login keeps a user's credentials for a registry in docker's configuration
// file ($DOCKER_CONFIG or ~/.docker/config.json), readable by the user alone.
func Login(host, user, password string) error {
	if _, err := name.NewRegistry(host); err != nil {
		return fmt.Errorf("reading registry %q: %w", host, err)
	}
	if password == "" {
		return errors.New("the password is empty")
	}
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
	tmp, err := os.CreateTemp(dir, ".config.json.") // mode 0600
	if err != nil {
		return fmt.Errorf("keeping credentials: %w", err)
	}
	_, err = tmp.Write(append(out, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("keeping credentials: %w", err)
	}
	return nil
}
