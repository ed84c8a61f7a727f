package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"hpcc/web"
)

// Artifact returns the manifest of an artifact in a registry. The error is fs.ErrNotExist if
// the registry lacks the artifact or denies access to it: registries do not distinguish these.
func (o Remote) Artifact(ctx context.Context, ref string) (*v1.Manifest, error) {
	c, err := o.call(ref)
	if err != nil {
		return nil, err
	}
	desc, err := remote.Get(c.ref, c.options(ctx)...)
	if err != nil {
		return nil, c.missing(err)
	}
	if !desc.MediaType.IsImage() {
		return nil, fmt.Errorf("%s has the media type %.100q; want the manifest of one artifact", ref, desc.MediaType)
	}
	m, err := v1.ParseManifest(bytes.NewReader(desc.Manifest))
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of %s: %w", ref, err)
	}
	return m, nil
}

// OpenBlob opens a blob in the repository of ref. A size of 0 is unknown. A broken transfer
// resumes. Reading fails before the last bytes if the blob does not have its digest. The error
// is fs.ErrNotExist as for [Remote.Artifact].
func (o Remote) OpenBlob(ctx context.Context, ref string, d v1.Descriptor) (io.ReadCloser, error) {
	c, err := o.call(ref)
	if err != nil {
		return nil, err
	}
	sum, err := v1.Hasher(d.Digest.Algorithm)
	if err != nil {
		return nil, err
	}
	client, err := c.client(ctx, transport.PullScope)
	if err != nil {
		return nil, c.missing(err)
	}
	resp, err := requestBlob(ctx, client, c.ref.Context(), d.Digest)
	if err != nil {
		return nil, c.missing(err)
	}
	return &checkedBlob{ReadCloser: resp.Body, d: d, sum: sum}, nil
}

// missing explains an error, and marks it if the registry lacks the artifact.
func (c *call) missing(err error) error {
	var te *transport.Error
	explained := c.explain(err)
	if errors.As(err, &te) && (te.StatusCode == http.StatusNotFound || te.StatusCode == http.StatusForbidden) {
		return fmt.Errorf("%w: %w", explained, fs.ErrNotExist)
	}
	return explained
}

// requestBlob requests a blob of a repository. The body resumes after a failure.
func requestBlob(ctx context.Context, c *http.Client, repo name.Repository, digest v1.Hash) (*http.Response, error) {
	at := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", repo.Scheme(), repo.RegistryStr(), repo.RepositoryStr(), digest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // the blob unchanged
	resp, err := web.Get(c, req, true)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, transport.CheckError(resp, http.StatusOK)
	}
	return resp, nil
}

// A checkedBlob is the content of a blob. It returns the last bytes only if the digest is
// correct.
type checkedBlob struct {
	io.ReadCloser
	d   v1.Descriptor
	sum hash.Hash
	n   int64 // bytes that were read
}

func (b *checkedBlob) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	_, _ = b.sum.Write(p[:n])
	if b.d.Size > 0 && b.n > b.d.Size {
		return 0, fmt.Errorf("blob %s is larger than %d bytes, its size in the manifest", b.d.Digest, b.d.Size)
	}
	if err != io.EOF && (b.d.Size == 0 || b.n < b.d.Size) {
		return n, err
	}
	if got := hex.EncodeToString(b.sum.Sum(nil)); got != b.d.Digest.Hex {
		return 0, fmt.Errorf("digest mismatch: %s:%s, expected %s", b.d.Digest.Algorithm, got, b.d.Digest)
	}
	return n, err
}
