package condatest

import (
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"hpcc/testdata/helpers/testenv"
)

// The user of a registry with accounts.
const (
	RegistryUser     = "alice"
	RegistryPassword = "hunter2-S3CRET"
	registryAccount  = RegistryUser + ":$2y$05$deH3ZSo3ogV6N3qEDiqT5O9Y4WZdEDtnjHiYIIMkk0k6Z83XhYE.2\n"
)

// Registry starts docker-registry behind a proxy, the site, whose answer may come first. The
// registry wants an account if private is set.
func Registry(t testing.TB, private bool) *Site {
	t.Helper()
	testenv.NeedProgram(t, "docker-registry")
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	address := l.Addr().String()
	testenv.Check(t, l.Close())
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q}\n", filepath.Join(dir, "blobs"), address)
	if private {
		testenv.Write(t, filepath.Join(dir, "accounts"), registryAccount)
		config += fmt.Sprintf("auth: {htpasswd: {realm: here, path: %q}}\n", filepath.Join(dir, "accounts"))
	}
	testenv.Write(t, filepath.Join(dir, "registry.yml"), config)
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "registry.yml"))
	output, err := os.Create(filepath.Join(dir, "log"))
	testenv.Check(t, err)
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	testenv.Check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			break
		}
		if time.Since(begun) > time.Minute {
			text, _ := os.ReadFile(output.Name())
			t.Fatalf("docker-registry does not listen: %v: %s", err, text)
		}
	}
	return startSite(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: address})
		r.Out.Host = r.In.Host
	}, ErrorLog: log.New(io.Discard, "", 0)}, nil)
}

// Host returns the host and port of a site.
func (s *Site) Host() string { return strings.TrimPrefix(s.URL, "http://") }

// PushChannel stores the channel in dir as a channel of a registry, in the layout of
// conda-oci-mirror, and returns its URL.
func PushChannel(t testing.TB, s *Site, dir, channel string) string {
	t.Helper()
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(file)
		testenv.Check(t, err)
		rel, _ := filepath.Rel(dir, filepath.Dir(file))
		stem, mediaType := "", "application/vnd.conda.package.v2"
		if s, ok := strings.CutSuffix(e.Name(), ".conda"); ok {
			stem = s
		} else if s, ok := strings.CutSuffix(e.Name(), ".tar.bz2"); ok {
			stem, mediaType = s, "application/vnd.conda.package.v1"
		}
		at := channel + "/" + filepath.ToSlash(rel) + "/"
		switch parts := strings.Split(stem, "-"); {
		case e.Name() == "repodata.json":
			z, err := zstd.NewWriter(nil)
			testenv.Check(t, err)
			PushArtifact(t, s, at+"repodata.json:latest", "application/vnd.conda.repodata.v1+json", b, "application/vnd.conda.repodata.v1+json+zst", z.EncodeAll(b, nil))
		case len(parts) >= 3:
			n := len(parts) - 2
			name := strings.Join(parts[:n], "-")
			if name[0] == '_' {
				name = "zzz" + name
			}
			tag := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(parts[n]+"-"+parts[n+1], "+", "__p__"), "!", "__e__"), "=", "__eq__")
			PushArtifact(t, s, at+name+":"+tag, "application/vnd.conda.info.index.v1+json", []byte("{}"), mediaType, b)
		}
		return nil
	})
	testenv.Check(t, err)
	return "oci://" + s.Host() + "/" + channel
}

// PushArtifact stores an artifact with layers: pairs of a media type, a string, and content, bytes.
func PushArtifact(t testing.TB, s *Site, ref string, layers ...any) {
	t.Helper()
	to, err := name.ParseReference(s.Host() + "/" + ref)
	testenv.Check(t, err)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.unknown.config.v1+json")
	for i := 0; i < len(layers); i += 2 {
		l := static.NewLayer(layers[i+1].([]byte), types.MediaType(layers[i].(string)))
		img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: types.MediaType(layers[i].(string))})
		testenv.Check(t, err)
	}
	testenv.Check(t, remote.Write(to, img, remote.WithAuth(&authn.Basic{Username: RegistryUser, Password: RegistryPassword})))
}
