package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/store"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// An answer replaces that of the real registry. nth counts the requests of a path.
type answer = func(w http.ResponseWriter, r *http.Request, nth int) bool

// reply answers the requests of a method whose paths contain a text: "PUT /manifests/".
func reply(request string, status int, body string) answer {
	method, path, _ := strings.Cut(request, " ")
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method != method || !strings.Contains(r.URL.Path, path) {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return true
	}
}

// spec returns an error as in the distribution specification.
func spec(code, message string) string {
	return fmt.Sprintf(`{"errors":[{"code":%q,"message":%q}]}`, code, message)
}

// first answers only the first n requests that match.
func first(n int32, request string, a answer) answer {
	method, path, _ := strings.Cut(request, " ")
	var seen atomic.Int32
	return func(w http.ResponseWriter, r *http.Request, nth int) bool {
		return r.Method == method && strings.Contains(r.URL.Path, path) && seen.Add(1) <= n && a(w, r, nth)
	}
}

// tokens lets a registry require tokens of its own token server, which knows alice. allowed
// reports whether a token may be used for a request; users are anonymous without a password.
func tokens(allowed func(token string, r *http.Request) bool) answer {
	var issued atomic.Int32
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if r.URL.Path == "/token" {
			user, password, given := r.BasicAuth()
			if given && (user != condatest.RegistryUser || password != condatest.RegistryPassword) {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(w, `{"details":"incorrect username or password"}`)
				return true
			}
			fmt.Fprintf(w, `{"token":"token-%d"}`, issued.Add(1))
			return true
		}
		if token == "" || !allowed(token, r) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="here",scope="repository:lab/app:pull,push",error="insufficient_scope"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, spec("UNAUTHORIZED", "authentication required"))
			return true
		}
		return false
	}
}

// pulls allows everything but pushes.
func pulls(_ string, r *http.Request) bool { return r.Method == "GET" || r.Method == "HEAD" }

const (
	start    = "POST /blobs/uploads/"
	data     = "PATCH /blobs/uploads/"
	end      = "PUT /blobs/uploads/"
	manifest = "PUT /manifests/"
	saves    = `"hpcc login -u NAME HOST" saves a login`
	nginx413 = "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>\r\n<center><h1>413 Request Entity Too Large</h1></center>\r\n<hr><center>nginx/1.22.1</center>\r\n</body>\r\n</html>\r\n"
)

// A situation is a call that fails, or one that succeeds after a fault if want is "".
type situation struct {
	name     string
	private  bool   // the registry has accounts
	password string // alice's, in docker's configuration
	do       string // push, pull or login
	answer   answer
	want     string // the error without the call
	advice   string // a part of the advice
}

var situations = []situation{
	// Users.
	{"push without a login", true, "", "push", nil, `HOST requires a login (401 UNAUTHORIZED: authentication required)`, saves},
	{"pull without a login", true, "", "pull", nil, `HOST requires a login for this image, or does not have it (401 UNAUTHORIZED: authentication required)`, "check the name; " + saves},
	{"push with a wrong password", true, "wrong", "push", nil, `HOST refuses the login of user "alice" (401 UNAUTHORIZED: authentication required)`, saves},
	{"pull with a wrong password", true, "wrong", "pull", nil, `HOST refuses the login of user "alice" (401 UNAUTHORIZED: authentication required)`, saves},
	{"login with a wrong password", true, "wrong", "login", nil, `HOST refuses the login of user "alice" (401 UNAUTHORIZED: authentication required)`, "many registries take an access token as password"},
	{"login with the password", true, condatest.RegistryPassword, "login", nil, "", ""},
	{"login at a host without a registry", false, "x", "login", reply("GET /v2/", 404, "<html><body>Not found</body></html>"), "HOST is not a registry (404 Not found)", "check the host and the port"},
	{"token server, wrong password", false, "wrong", "push", tokens(pulls), `HOST refuses the login of user "alice" (401 {"details":"incorrect username or password"})`, saves},
	{"token server, login", false, "wrong", "login", tokens(pulls), `HOST refuses the login of user "alice" (401 {"details":"incorrect username or password"})`, "check the name and the password"},
	{"token server, anonymous", false, "", "push", tokens(pulls), `HOST requires a login (401 UNAUTHORIZED: authentication required)`, saves},
	{"insufficient scope", false, condatest.RegistryPassword, "push", tokens(pulls), `user "alice" may not push to lab/app (401 UNAUTHORIZED: authentication required)`, "ask for the right to push to lab (OpenShift: \"oc policy add-role-to-user registry-editor USER -n lab\""},
	{"denied", true, condatest.RegistryPassword, "push", reply(start, 403, spec("DENIED", "requested access to the resource is denied")), `user "alice" may not push to lab/app (403 DENIED: requested access to the resource is denied)`, "ask for the right to push"},
	{"denied, GHCR", true, condatest.RegistryPassword, "push", reply(start, 403, spec("DENIED", "permission_denied: write_package")), `user "alice" may not push to lab/app (403 DENIED: permission_denied: write_package)`, "a token needs the scope for writing"},
	{"denied, without words for HEAD", true, condatest.RegistryPassword, "push", func(w http.ResponseWriter, r *http.Request, n int) bool {
		return reply("HEAD /blobs/", 403, "")(w, r, n) || reply(start, 403, spec("DENIED", "not yours"))(w, r, n)
	}, `user "alice" may not push to lab/app (403 DENIED: not yours)`, "ask for the right to push"},
	{"pull denied", true, condatest.RegistryPassword, "pull", reply("GET /manifests/", 403, spec("DENIED", "requested access to the resource is denied")), `user "alice" may not pull lab/app, or it does not exist (403 DENIED: requested access to the resource is denied)`, "ask for the right to pull from lab"},
	{"expired login, ECR", true, condatest.RegistryPassword, "push", reply(start, 403, spec("DENIED", "Your authorization token has expired. Reauthenticate and try again.")), "the login for HOST has expired (403 DENIED: Your authorization token has expired. Reauthenticate and try again.)", saves},
	{"token that expires during an upload", false, condatest.RegistryPassword, "push", tokens(func(token string, r *http.Request) bool { return token != "token-1" || r.Method != "PATCH" }), "", ""},

	// Names and content.
	{"no repository, ECR", false, "", "push", reply(start, 404, spec("NAME_UNKNOWN", "The repository with name 'lab/app' does not exist in the registry with id '123'")), "HOST does not have lab or lab/app (404 NAME_UNKNOWN: The repository with name 'lab/app' does not exist in the registry with id '123')", `"oc create imagestream app -n lab"`},
	{"no project, Harbor", false, "", "push", reply(start, 404, spec("NOT_FOUND", "project lab not found")), "HOST does not have lab or lab/app (404 NOT_FOUND: project lab not found)", `"oc new-project lab"`},
	{"no image", false, "", "pull", nil, "HOST does not have this image or repository (404 MANIFEST_UNKNOWN: manifest unknown)", "check the name and the tag; " + saves},
	{"immutable tag, Harbor", false, "", "push", reply(manifest, 412, spec("PRECONDITION", "Failed to process request due to 'app:1' configured as immutable.")), "lab/app already has the tag 1, and its tags cannot change (412 PRECONDITION: Failed to process request due to 'app:1' configured as immutable.)", "push another tag than 1"},
	{"immutable tag, ECR", false, "", "push", reply(manifest, 400, spec("TAG_INVALID", "The image tag '1' already exists in the 'lab/app' repository and cannot be overwritten because the tag is immutable.")), "lab/app already has the tag 1, and its tags cannot change (400 TAG_INVALID: The image tag '1' already exists in the 'lab/app' repository and cannot be overwritten because the tag is immutable.)", "push another tag"},
	{"invalid manifest", false, "", "push", reply(manifest, 400, spec("MANIFEST_INVALID", "manifest invalid")), "HOST does not accept the manifest (400 MANIFEST_INVALID: manifest invalid)", "built without --provenance"},
	{"unsupported media type", false, "", "push", reply(manifest, 415, ""), "HOST does not accept the manifest (415 Unsupported Media Type)", "ask for a newer registry"},
	{"digest of an upload", false, "", "push", reply(end, 400, spec("DIGEST_INVALID", "provided digest did not match uploaded content")), "HOST received other data than hpcc sent (400 DIGEST_INVALID: provided digest did not match uploaded content)", `"hpcc gc --verify" checks the store`},
	{"lost layer", false, "", "push", reply(manifest, 404, spec("MANIFEST_BLOB_UNKNOWN", "blob unknown to registry")), "HOST lost a layer of this push (404 MANIFEST_BLOB_UNKNOWN: blob unknown to registry)", "repeat the command"},
	{"not an image", false, "", "pull", func(w http.ResponseWriter, r *http.Request, n int) bool {
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+json")
		return reply("GET /manifests/", 200, "{}")(w, r, n)
	}, `this is not an image, or has a format that hpcc does not read (unsupported MediaType: "application/vnd.docker.distribution.manifest.v1+json")`, "Helm charts"},

	// Limits.
	{"quota, Harbor", false, "", "push", reply(start, 403, spec("DENIED", "adding 5.0 MiB of storage resource, which when updated to current usage of 95.2 MiB will exceed the configured upper limit of 100.0 MiB.")), "the quota of lab on HOST is exhausted (403 DENIED: adding 5.0 MiB of storage resource, which when updated to current usage of 95.2 MiB will exceed the configured upper limit of 100.0 MiB.)", "ask for a larger quota"},
	{"quota, Quay", false, "", "push", reply(data, 403, spec("DENIED", "Quota has been exceeded on namespace")), "the quota of lab on HOST is exhausted (403 DENIED: Quota has been exceeded on namespace)", `"oc describe quota,limits"`},
	{"quota, 507", false, "", "push", reply(data, 507, "namespace quota"), "the quota of lab on HOST is exhausted (507 namespace quota)", "delete old tags"},
	{"storage full, 507", false, "", "push", reply(data, 507, ""), "the storage of HOST is full (507 Insufficient Storage)", "ask the administrators of HOST"},
	{"storage full, distribution", false, "", "push", reply(end, 500, `{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":{"DriverName":"filesystem","Enclosed":{"Op":"write","Path":"/var/x","Err":28}}}]}`), `the storage of HOST is full (the server returned 500 Internal Server Error (gave up after 3 attempts): UNKNOWN: unknown error: {"DriverName":"filesystem","Enclosed":{"Err":28,"Op":"write","Path":"/var/x"}})`, "the registry keeps the layers that arrived"},
	{"storage full, string", false, "", "push", reply(data, 500, `{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":"write x/data: no space left on device"}]}`), `the storage of HOST is full (the server returned 500 Internal Server Error (gave up after 3 attempts): UNKNOWN: unknown error: "write x/data: no space left on device")`, "ask the administrators"},
	{"layer too large", false, "", "push", reply(data, 413, nginx413), "the layer is larger than HOST, or a proxy in front of it, accepts (413 Request Entity Too Large nginx/1.22.1)", "client_max_body_size"},
	{"layer too large, body unread", false, "", "push", func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method != "PATCH" {
			return false
		}
		w.Header().Set("Connection", "close")
		w.WriteHeader(413)
		return true
	}, "the layer is larger than HOST, or a proxy in front of it, accepts (413 Request Entity Too Large)", "client_max_body_size"},
	{"read-only", false, "", "push", reply(start, 405, spec("UNSUPPORTED", "The operation is unsupported.")), "HOST accepts no pushes: it is read-only (405 UNSUPPORTED: The operation is unsupported.)", "after the maintenance"},
	{"read-only, Harbor", true, condatest.RegistryPassword, "push", reply(start, 403, spec("DENIED", "The system is in read only mode. Any modification is prohibited.")), "HOST accepts no pushes: it is read-only (403 DENIED: The system is in read only mode. Any modification is prohibited.)", "after the maintenance"},
	{"rate limit, Docker Hub", false, "", "pull", reply("GET /manifests/", 429, spec("TOOMANYREQUESTS", "You have reached your unauthenticated pull rate limit.")), "HOST limits the requests of anonymous users (429 TOOMANYREQUESTS: You have reached your unauthenticated pull rate limit.)", saves},
	{"5xx", false, "", "push", reply(data, 502, "bad gateway"), "HOST fails (the server returned 502 Bad Gateway (gave up after 3 attempts): bad gateway)", "repeat the command later"},

	// Faults that pass.
	{"5xx for a while", false, "", "push", first(2, data, reply(data, 503, "")), "", ""},
	{"5xx for a while, manifest", false, "", "push", first(2, manifest, reply(manifest, 500, "")), "", ""},
	{"upload that is cut", false, "", "push", first(2, data, func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		_, _ = io.CopyN(io.Discard, r.Body, 1000)
		panic(http.ErrAbortHandler)
	}), "", ""},

	// Foreign words.
	{"control characters", false, "", "push", reply(start, 400, "\x1b[2J\u202eevil\r\nhpcc: error: fake\x00"), "400 [2Jevil hpcc: error: fake", ""},
	{"long answer", false, "", "push", reply(start, 400, strings.Repeat("x", 5000)), "400 " + strings.Repeat("x", 600) + "…", ""},
}

// TestRefusals lets a proxy in front of the real registry answer as other registries and
// proxies do.
func TestRefusals(t *testing.T) {
	for _, c := range situations {
		t.Run(c.name, func(t *testing.T) { c.check(t) })
	}
}

func (c *situation) check(t *testing.T) {
	site := condatest.Registry(t, c.private)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	if c.password != "" && c.do != "login" {
		keepPassword(t, site.Host(), c.password)
	}
	site.SetAnswer(c.answer)
	err := c.call(t, site.Host())
	if c.want == "" {
		if err != nil {
			t.Errorf("%s: %v; want success", c.do, err)
		}
		return
	}
	if err == nil {
		t.Fatalf("%s succeeded; want %q", c.do, c.want)
	}
	var advised interface{ Advice() string }
	advice := ""
	if errors.As(err, &advised) {
		advice = strings.ReplaceAll(advised.Advice(), site.Host(), "HOST")
	}
	call := map[string]string{"push": "pushing app to HOST/lab/app:1: ", "pull": "pulling HOST/lab/app:1: ", "login": "logging in to HOST: "}[c.do]
	if got := strings.ReplaceAll(err.Error(), site.Host(), "HOST"); got != call+c.want || !strings.Contains(advice, c.advice) || (c.advice == "") != (advice == "") {
		t.Errorf("%s:\n     %s\nwant %s\nadvice %q; want %q", c.do, got, call+c.want, advice, c.advice)
	}
}

// keepPassword writes docker's configuration, which [store.Login] would check first.
func keepPassword(t *testing.T, host, password string) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	testenv.Write(t, filepath.Join(dir, "config.json"), fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, host, condatest.RegistryUser, password))
}

// call does what the situation is about.
func (c *situation) call(t *testing.T, host string) error {
	ctx := web.With(context.Background(), web.Limits{Attempts: 3, Backoff: time.Millisecond})
	s, ref := condatest.NewStore(t), host+"/lab/app:1"
	switch c.do {
	case "login":
		return store.Login(ctx, host, condatest.RegistryUser, c.password, store.Remote{})
	case "pull":
		_, err := s.Pull(ctx, ref, store.Remote{})
		return err
	}
	img, err := random.Image(4<<20, 2)
	testenv.Check(t, err)
	_, err = s.Put(ctx, "app", img)
	testenv.Check(t, err)
	if _, err := s.Push(ctx, "app", ref, store.Remote{}); err != nil || c.want != "" {
		return err
	}
	_, err = condatest.NewStore(t).Pull(ctx, ref, store.Remote{}) // checks digests
	return err
}

// TestNoAnswer checks the errors of calls that reach no registry. The host 127.0.0.2 is, unlike
// 127.0.0.1, one that needs TLS.
func TestNoAnswer(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	plain, secure, other := serve(t, "127.0.0.2:0", false), serve(t, "127.0.0.1:0", true), serve(t, "127.0.0.2:0", true)
	closed := serve(t, "127.0.0.2:0", false)
	closed.Close()
	for _, c := range []struct {
		name, host   string
		o            store.Remote
		want, advice string
	}{
		{"unknown authority", secure.host, store.Remote{}, "this machine does not trust the authority of HOST's certificate (tls: failed to verify certificate: x509: certificate signed by unknown authority)", "set SSL_CERT_FILE"},
		{"HTTP where TLS is expected", plain.host, store.Remote{}, "HOST uses HTTP without TLS (http: server gave HTTP response to HTTPS client)", "add --plain-http"},
		{"another name", other.host, store.Remote{}, "the certificate of HOST is for another name (tls: failed to verify certificate: x509: certificate is valid for 127.0.0.1, ::1, not 127.0.0.2)", "use the registry's name"},
		{"nobody listens", closed.host, store.Remote{}, "no registry listens at HOST (dial tcp HOST: connect: connection refused)", "check the host and the port"},
	} {
		ctx := web.With(context.Background(), web.Limits{Attempts: 1})
		_, err := condatest.NewStore(t).Pull(ctx, c.host+"/lab/app:1", c.o)
		var advised interface{ Advice() string }
		if !errors.As(err, &advised) {
			t.Errorf("%s: %v; want advice", c.name, err)
			continue
		}
		got := strings.ReplaceAll(err.Error(), c.host, "HOST")
		if got != "pulling HOST/lab/app:1: "+c.want || !strings.HasPrefix(advised.Advice(), c.advice) {
			t.Errorf("%s:\n     %s\nwant %s\nadvice %q; want %q", c.name, got, c.want, advised.Advice(), c.advice)
		}
	}
}

type server struct {
	*httptest.Server
	host string
}

// serve starts a server that has nothing.
func serve(t *testing.T, address string, secure bool) server {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Listener.Close()
	l, err := net.Listen("tcp", address)
	testenv.Check(t, err)
	s.Listener = l
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return server{s, l.Addr().String()}
}
