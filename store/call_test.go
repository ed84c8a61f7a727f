package store

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// A listener records the secrets that it receives.
type listener struct {
	mu   sync.Mutex
	told []string
}

func (l *listener) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_ = req.ParseForm()
	l.mu.Lock()
	l.told = append(l.told, req.Header.Get("Authorization"), req.URL.RawQuery, req.PostForm.Encode())
	l.mu.Unlock()
	w.WriteHeader(http.StatusTeapot)
}

func (l *listener) heard(secret string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.told, " "), secret)
}

var basicSecret = base64.StdEncoding.EncodeToString([]byte("alice:" + secretWord))

// allCalls are all operations with a registry. Each fails here.
func allCalls(t *testing.T, s *Store, host string, k *credentials) map[string]error {
	t.Helper()
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	ctx := context.Background()
	_, err = s.Put(ctx, "x", img)
	testenv.Check(t, err)
	layers, err := img.Layers()
	testenv.Check(t, err)
	h, err := layers[0].Digest()
	testenv.Check(t, err)
	o, errs := Remote{Credentials: k}, map[string]error{}
	_, errs["pull"] = s.Pull(ctx, host+"/x", o)
	_, errs["push"] = s.Push(ctx, "x", host+"/x", o)
	_, errs["peek"] = s.Peek(ctx, host+"/x", o)
	errs["fetch"] = s.FetchLayer(ctx, host+"/x", LayerInfo{Digest: h, Size: 1 << 30}, o)
	errs["send"] = s.Send(ctx, img, host+"/x", o)
	errs["ask"] = MayPush(ctx, host+"/x", o)
	return errs
}

// TestSecretsComeNotBack: a registry that echoes what it received, in any usual form, causes
// no error that contains it.
func TestSecretsComeNotBack(t *testing.T) {
	asJSON := func(code, message string, detail any) string {
		b, _ := json.Marshal(map[string]any{"errors": []any{map[string]any{"code": code, "message": message, "detail": detail}}})
		return string(b)
	}
	answers := map[string]func(http.ResponseWriter, string, string){
		"plain": func(w http.ResponseWriter, h, _ string) { http.Error(w, "you sent "+h, http.StatusForbidden) },
		"word":  func(w http.ResponseWriter, _, p string) { http.Error(w, "bad password "+p+"!", http.StatusBadRequest) },
		"query": func(w http.ResponseWriter, h, p string) {
			http.Error(w, url.QueryEscape(h+"&"+p), http.StatusBadRequest)
		},
		"html": func(w http.ResponseWriter, h, p string) { http.Error(w, html.EscapeString(h+p), http.StatusBadRequest) },
		"json": func(w http.ResponseWriter, h, p string) {
			http.Error(w, asJSON("DENIED", h, []string{p}), http.StatusForbidden)
		},
		"quoted": func(w http.ResponseWriter, h, p string) {
			http.Error(w, fmt.Sprintf("%q %q", h, p), http.StatusBadRequest)
		},
		"base64": func(w http.ResponseWriter, _, p string) {
			http.Error(w, base64.RawURLEncoding.EncodeToString([]byte(p)), http.StatusBadRequest)
		},
		"code": func(w http.ResponseWriter, h, p string) {
			http.Error(w, asJSON(p, "", map[string]string{h: p}), http.StatusUnauthorized)
		},
		"redirect": func(w http.ResponseWriter, h, p string) {
			w.Header().Set("Location", "ftp://"+url.PathEscape(p)+".invalid/"+url.PathEscape(h))
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"long": func(w http.ResponseWriter, _, p string) {
			http.Error(w, strings.Repeat("x", maxReply-len(secretWord)/2)+p, http.StatusBadRequest)
		},
	}
	odd := secretWord + `"<&> +/%`
	for _, k := range []*credentials{{Username: "alice", Password: secretWord}, {Username: "alice", Password: secret(odd)}, {Token: secret(odd)}} {
		for name, answer := range answers {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // some wait before they try again
				reflected(t, k, answer)
			})
		}
	}
}

// reflected calls a registry whose answers contain the header and the password or token that
// it received.
func reflected(t *testing.T, k *credentials, answer func(w http.ResponseWriter, header, password string)) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header := req.Header.Get("Authorization")
		if header == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, p, _ := req.BasicAuth()
		if p == "" {
			_, p, _ = strings.Cut(header, " ")
		}
		answer(w, header, p)
	}))
	defer server.Close()
	for what, err := range allCalls(t, open(t), strings.TrimPrefix(server.URL, "http://"), k) {
		if err == nil {
			t.Fatalf("%s: no error", what)
		}
		for _, s := range []string{secretWord, url.QueryEscape(secretWord), basicSecret[:16], base64.RawURLEncoding.EncodeToString([]byte(secretWord))[:12]} {
			if strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q shows %q", what, err, s)
			}
		}
		if len(err.Error()) > maxReply+1000 {
			t.Errorf("%s: an error of %d bytes", what, len(err.Error()))
		}
	}
}

// TestSecretsOfConfigurations: also if the registry echoes only for the configuration, which
// comes last.
func TestSecretsOfConfigurations(t *testing.T) {
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	manifest, err := img.RawManifest()
	testenv.Check(t, err)
	reflected := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch header := req.Header.Get("Authorization"); {
		case header == "":
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(req.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
			_, _ = w.Write(manifest)
		case strings.Contains(req.URL.Path, "/blobs/"):
			http.Error(w, "you sent "+header, http.StatusForbidden)
		}
	}))
	defer reflected.Close()
	s, o := open(t), Remote{Credentials: &credentials{Username: "alice", Password: secretWord}}
	peeked, err := s.Peek(context.Background(), strings.TrimPrefix(reflected.URL, "http://")+"/x", o)
	if err == nil {
		_, err = peeked.ConfigFile()
	}
	if err == nil || strings.Contains(err.Error(), basicSecret) {
		t.Errorf("Peek: %v", err)
	}
}

// TestCredentialsStay: credentials are sent to the registry only, not to hosts that it names
// without TLS or redirects to.
func TestCredentialsStay(t *testing.T) {
	other := &listener{}
	evil := httptest.NewServer(other)
	defer evil.Close()
	for name, c := range map[string]struct {
		k      *credentials
		answer func(w http.ResponseWriter, req *http.Request, self string)
	}{
		"redirect": {&credentials{Username: "alice", Password: secretWord}, func(w http.ResponseWriter, req *http.Request, _ string) {
			if req.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			http.Redirect(w, req, evil.URL+req.URL.Path, http.StatusTemporaryRedirect)
		}},
		"redirect of a bearer": {&credentials{Token: secretWord}, func(w http.ResponseWriter, req *http.Request, _ string) {
			if req.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			http.Redirect(w, req, evil.URL+req.URL.Path, http.StatusTemporaryRedirect)
		}},
		"upload elsewhere": {&credentials{Username: "alice", Password: secretWord}, func(w http.ResponseWriter, req *http.Request, _ string) {
			switch {
			case req.Header.Get("Authorization") == "":
				w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				w.WriteHeader(http.StatusUnauthorized)
			case req.Method == http.MethodPost:
				w.Header().Set("Location", evil.URL+"/v2/x/blobs/uploads/1")
				w.WriteHeader(http.StatusAccepted)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}},
		"token server that sends on": {&credentials{Username: "alice", Password: secretWord}, func(w http.ResponseWriter, req *http.Request, self string) {
			if req.URL.Path == "/token" {
				http.Redirect(w, req, evil.URL+"/token", http.StatusTemporaryRedirect)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+self+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var server *httptest.Server
			var asked atomic.Bool // a request may still run when its call has failed by another
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Header.Get("Authorization") != "" {
					asked.Store(true)
				}
				c.answer(w, req, server.URL)
			}))
			defer server.Close()
			for what, err := range allCalls(t, open(t), strings.TrimPrefix(server.URL, "http://"), c.k) {
				if err == nil && what != "ask" {
					t.Errorf("%s: no error", what)
				}
				if err != nil && strings.Contains(err.Error(), secretWord) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if !asked.Load() {
				t.Error("the registry itself never got the credentials")
			}
			if other.heard(secretWord) || other.heard(basicSecret) {
				t.Error("the other host got the credentials")
			}
		})
	}
}

// TestIdentityTokenStays: docker's identity token is sent in a form, which a redirect would
// carry along.
func TestIdentityTokenStays(t *testing.T) {
	other := &listener{}
	evil := httptest.NewServer(other)
	defer evil.Close()
	var server *httptest.Server
	var told atomic.Bool
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/token" {
			_ = req.ParseForm()
			if req.PostForm.Get("refresh_token") == secretWord {
				told.Store(true)
			}
			http.Redirect(w, req, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)+"/token?"+secretWord, http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", dir)
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q,"identitytoken":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("<token>:")), secretWord)
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	err := MayPush(context.Background(), host+"/x", Remote{})
	if err == nil || strings.Contains(err.Error(), secretWord) {
		t.Errorf("MayPush: %v", err)
	}
	if !told.Load() {
		t.Error("the token server itself never got the credentials")
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	if strings.Contains(strings.Join(other.told, " "), "refresh_token") {
		t.Error("the other host got the credentials")
	}
}

// TestTLSOnly: an entry with https always uses TLS, even for this machine.
func TestTLSOnly(t *testing.T) {
	told := &listener{}
	server := httptest.NewServer(told)
	defer server.Close()
	err := MayPush(context.Background(), strings.TrimPrefix(server.URL, "http://")+"/x", Remote{TLS: true, Credentials: &credentials{Username: "alice", Password: secretWord}})
	if err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("MayPush: %v", err)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	if len(told.told) > 0 {
		t.Errorf("it was asked: %q", told.told)
	}
}

// TestRefusedUser: a refusal names the source of the credentials and the alternative.
func TestRefusedUser(t *testing.T) {
	for _, c := range []struct {
		k      *credentials
		status int
		want   string
	}{
		{nil, 401, `HOST requires a login (401 Unauthorized); "hpcc login -u NAME HOST" saves a login`},
		{&credentials{From: `entry "a" of c.yaml`}, 401, `HOST requires a login (401 Unauthorized); entry "a" of c.yaml has no password, so docker's credentials were used: "hpcc login -u NAME HOST" saves a login`},
		{&credentials{From: `entry "a" of c.yaml`, Username: "u", Password: secretWord}, 401, `HOST refuses the login of entry "a" of c.yaml (401 Unauthorized); correct the password of entry "a" of c.yaml, or remove it: "hpcc login -u NAME HOST" saves a login`},
		{&credentials{From: `entry "a" of c.yaml`, Username: "u", Password: secretWord}, 403, `entry "a" of c.yaml may not push to x (403 Forbidden); check the name, or ask for the right to push to x`},
	} {
		t.Setenv("HOME", t.TempDir())
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Authorization") == "" && c.k != nil && !c.k.empty() {
				w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if req.URL.Path != "/v2/" {
				w.WriteHeader(c.status)
			}
		}))
		host := strings.TrimPrefix(server.URL, "http://")
		err := MayPush(context.Background(), host+"/x", Remote{Credentials: c.k})
		var refused *callError
		if want := strings.ReplaceAll(c.want, "HOST", host); !errors.As(err, &refused) || !strings.Contains(refused.text+"; "+refused.advice, want) {
			t.Errorf("status %d: %v; want %q", c.status, err, want)
		}
		server.Close()
	}
}

// TestMayPushLeavesNothing: the opened session is closed.
func TestMayPushLeavesNothing(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got = append(got, req.Method+" "+req.URL.Path)
		if req.Method == http.MethodPost {
			w.Header().Set("Location", "/v2/team/x/blobs/uploads/7")
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	defer server.Close()
	testenv.Check(t, MayPush(context.Background(), strings.TrimPrefix(server.URL, "http://")+"/team/x:1", Remote{}))
	if want := "GET /v2/,POST /v2/team/x/blobs/uploads/,DELETE /v2/team/x/blobs/uploads/7"; strings.Join(got, ",") != want {
		t.Errorf("asked %q; want %q", got, want)
	}
}

// TestExplain checks the explanations of errors that a test on one machine does not get from
// the network.
func TestExplain(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://me:S3CRET@proxy.example:3128")
	dial := func(err error) error {
		return &url.Error{Op: "Put", URL: "https://r.example/v2/?_state=abc", Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}}
	}
	for _, c := range []struct {
		host string
		err  error
		want string
	}{
		{"r.example", dial(syscall.EHOSTUNREACH), `this machine has no route to r.example (dial tcp: no route to host); run hpcc where`},
		{"r.example", dial(syscall.ETIMEDOUT), `r.example does not respond (dial tcp: connection timed out); check the host and the port; HPCC_HTTP_TIMEOUT=5m waits longer`},
		{"r.example", dial(&net.DNSError{Err: "no such host", Name: "r.example", IsNotFound: true}), `this machine does not know the host name of r.example (dial tcp: lookup r.example: no such host); check the spelling; or run hpcc where the registry is reachable`},
		{"r.ns.svc", dial(&net.DNSError{Err: "no such host", Name: "r.ns.svc", IsNotFound: true}), `this machine does not know the host name of r.ns.svc (dial tcp: lookup r.ns.svc: no such host); only pods know the internal name of OpenShift's registry; "oc registry info"`},
		{"r.example", dial(x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"q.example"}}, Host: "r.example"}), `the certificate of r.example is for another name (dial tcp: x509: certificate is valid for q.example, not r.example)`},
		{"r.example", dial(x509.CertificateInvalidError{Reason: x509.Expired}), `the certificate of r.example is not valid now (dial tcp: x509: certificate has expired or is not yet valid:); compare the clock`},
		{"r.example", &url.Error{Op: "Get", URL: "https://r.example/v2/", Err: &net.OpError{Op: "proxyconnect", Net: "tcp", Err: syscall.ECONNREFUSED}}, `the proxy does not connect to r.example (proxyconnect tcp: connection refused); correct HTTPS_PROXY=http://me:xxxxx@proxy.example:3128, or add the host to NO_PROXY`},
		{"r.example", &web.StallError{Text: "no answer within 1m0s"}, `r.example does not respond (no answer within 1m0s)`},
		{"r.example", fmt.Errorf("digest mismatch: sha256:a, expected sha256:b"), `r.example sent other data than the digest says (digest mismatch: sha256:a, expected sha256:b); repeat the command`},
		{"r.example", syscall.ENOSPC, `no space left on device; `},
		{"1234.dkr.ecr.eu-west-1.amazonaws.com", &transport.Error{StatusCode: 401}, `"aws ecr get-login-password | hpcc login -u AWS 1234.dkr.ecr.eu-west-1.amazonaws.com" logs in for 12 hours`},
		{"default-route-openshift-image-registry.apps.example", &transport.Error{StatusCode: 401}, `"oc whoami -t | hpcc login -u openshift default-route-openshift-image-registry.apps.example" logs in with the token of oc`},
		{"docker.io", &transport.Error{StatusCode: 401}, `docker.io requires a login for this image, or does not have it (401 Unauthorized); check the name; "hpcc login -u NAME docker.io" saves a login`},
	} {
		call, err := Remote{}.call(c.host + "/lab/app:1")
		testenv.Check(t, err)
		var e *callError
		if !errors.As(call.explain(c.err), &e) || !strings.Contains(e.text+"; "+e.advice, c.want) {
			t.Errorf("%v:\n     %s; %s\nwant %s", c.err, e.text, e.advice, c.want)
		}
	}
}
