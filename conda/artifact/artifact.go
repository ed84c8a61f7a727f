// Package artifact reads conda channels in OCI registries, at oci:// URLs, as mirrors of
// conda-forge are.
//
//	oci://HOST/CHANNEL/linux-64/zlib-1.2.13-h1_0.conda → HOST/CHANNEL/linux-64/zlib:1.2.13-h1_0 → blob
//
// Each version of a package is an artifact, and its archive is the layer with the media type of
// the archive's format. The index of a platform is the artifact repodata.json:latest. The layout
// is that of conda-oci-mirror, which mamba and pixi read too.
package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
)

// mediaTypes has the media type of a layer by the end of the name of its file.
var mediaTypes = []struct{ end, mediaType string }{
	{".conda", "application/vnd.conda.package.v2"},
	{".tar.bz2", "application/vnd.conda.package.v1"},
	{"/repodata.json", "application/vnd.conda.repodata.v1+json"},
	{"/repodata.json.zst", "application/vnd.conda.repodata.v1+json+zst"},
}

type plainKey struct{}

// WithPlainHTTP returns a context in which registries need no TLS.
func WithPlainHTTP(ctx context.Context) context.Context {
	return context.WithValue(ctx, plainKey{}, true)
}

// IsURL reports whether u is the URL of an artifact.
func IsURL(u string) bool { return strings.HasPrefix(u, "oci:") }

// Get requests the file at an oci URL with docker's credentials for the registry. If etag is
// that of the file, the response has the status 304 and no body. sha256 is the hexadecimal
// digest of the file, or "" if it is unknown; a registry needs no manifest to find a digest.
// The error is fs.ErrNotExist if the registry lacks the file or denies access to it.
func Get(ctx context.Context, u, etag, sha256 string) (*http.Response, error) {
	ref, mediaType, err := locate(u)
	if err != nil {
		return nil, err
	}
	plain, _ := ctx.Value(plainKey{}).(bool)
	registry := store.Remote{PlainHTTP: plain}
	if sha256 != "" {
		d := v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: sha256}}
		body, err := registry.OpenBlob(ctx, ref, d)
		if !errors.Is(err, fs.ErrNotExist) {
			return response(d, body), err
		}
		// A cache may get its blobs only when the manifest is requested.
	}
	m, err := registry.Artifact(ctx, ref)
	if err != nil {
		return nil, err
	}
	for _, d := range m.Layers {
		if string(d.MediaType) != mediaType {
			continue
		}
		if etag != "" && etag == tag(d) {
			return &http.Response{StatusCode: http.StatusNotModified, Body: http.NoBody}, nil
		}
		body, err := registry.OpenBlob(ctx, ref, d)
		return response(d, body), err
	}
	return nil, fmt.Errorf("%s has no layer of the media type %s: %w", ref, mediaType, fs.ErrNotExist)
}

// response returns the answer with a blob.
func response(d v1.Descriptor, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, ContentLength: d.Size, Header: http.Header{"Etag": {tag(d)}}, Body: body}
}

// tag returns the entity tag of a blob.
func tag(d v1.Descriptor) string { return `"` + d.Digest.String() + `"` }

// encoder replaces the characters of versions that a tag cannot have.
var encoder = strings.NewReplacer("+", "__p__", "!", "__e__", "=", "__eq__")

// locate returns the reference of the artifact with the file at an oci URL, and the media type
// of the file's layer.
func locate(u string) (ref, mediaType string, err error) {
	p, err := url.Parse(u)
	switch {
	case err != nil:
		return "", "", errors.New("parsing an oci URL: not valid")
	case p.User != nil:
		return "", "", fmt.Errorf("an oci URL has no user or password; run \"hpcc login %s\" to store them", p.Host)
	case p.Host == "" || p.Opaque != "":
		return "", "", errors.New("not of the form oci://HOST/CHANNEL")
	case !strings.ContainsAny(p.Host, ".:") && p.Host != "localhost":
		return "", "", fmt.Errorf("the host %q has no domain; add its port, as in oci://%s:443/CHANNEL", p.Host, p.Host)
	}
	dir, file := path.Split(p.Path)
	for _, m := range mediaTypes {
		if strings.HasSuffix("/"+file, m.end) {
			mediaType = m.mediaType
			file = strings.TrimSuffix(file, m.end)
		}
	}
	name, version := "repodata.json", "latest"
	switch {
	case mediaType == "":
		return "", "", fmt.Errorf("%s: a channel in a registry has packages, repodata.json and repodata.json.zst only: %w", file, fs.ErrNotExist)
	case !strings.HasPrefix(file, "repodata.json"):
		if name, version, err = split(file); err != nil {
			return "", "", err
		}
	}
	return p.Host + dir + name + ":" + encoder.Replace(version), mediaType, nil
}

// split splits the name of a package's file, without its end, into the name of the package and
// version-build. A name in a registry cannot begin with an underscore.
func split(file string) (name, version string, err error) {
	i := strings.LastIndexByte(file, '-')
	if i = strings.LastIndexByte(file[:max(i, 0)], '-'); i <= 0 {
		return "", "", fmt.Errorf("the name of the package %q is not name-version-build", file)
	}
	name = file[:i]
	if strings.HasPrefix(name, "_") {
		name = "zzz" + name
	}
	return name, file[i+1:], nil
}
