package store

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"hpcc/web"
)

// A secret is a password or a token. No format prints it.
type secret string

// Format writes a placeholder instead of the secret.
func (secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalText is [secret.Format] for encoders.
func (secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// hidden replaces a secret in text.
const hidden = "(hidden)"

// credentials are the user's credentials for a registry. Without password and token,
// docker's credentials are used.
type credentials struct {
	Username string
	Password secret // with Username
	Token    secret // a bearer token, instead of both
	From     string // source for messages: entry "jfrog" of /home/u/creds.yaml
}

func (c *credentials) empty() bool { return c == nil || (c.Password == "" && c.Token == "") }

// Authorization implements [authn.Authenticator].
func (c *credentials) Authorization() (*authn.AuthConfig, error) {
	return &authn.AuthConfig{Username: c.Username, Password: string(c.Password), RegistryToken: string(c.Token)}, nil
}

// A call is one exchange with a registry about one reference. All its requests pass through
// RoundTrip, which records the secrets that are sent and removes them from errors: a
// registry may echo anything in its answers.
type call struct {
	Remote
	ref  name.Reference
	sent atomic.Int64 // bytes of requests

	doing string // pull, push or login, for messages; "" means pull

	mu      sync.Mutex
	secrets map[string]bool
	user    string // whose password was sent
}

// call parses a registry reference.
func (o Remote) call(ref string) (*call, error) {
	var opts []name.Option
	if o.PlainHTTP {
		opts = append(opts, name.Insecure)
	}
	r, err := parseRef(ref, opts...)
	if err != nil {
		return nil, fmt.Errorf("reading reference %q: %w", ref, err)
	}
	return &call{Remote: o, ref: r, secrets: map[string]bool{}}, nil
}

func (c *call) options(ctx context.Context) []remote.Option {
	who := remote.WithAuthFromKeychain(keychain{})
	if !c.Credentials.empty() {
		who = remote.WithAuth(c.Credentials)
	}
	return []remote.Option{
		remote.WithContext(ctx),
		who,
		remote.WithTransport(c),
		remote.WithUserAgent("hpcc"),
		remote.WithJobs(4),
		// Package web repeats requests; the library's retries ignore Retry-After and the
		// context.
		remote.WithRetryPredicate(func(error) bool { return false }),
		remote.WithRetryStatusCodes(),
	}
}

// client returns a client for our own requests, authorized for scope.
func (c *call) client(ctx context.Context, scope string) (*http.Client, error) {
	var who authn.Authenticator = c.Credentials
	if c.Credentials.empty() {
		var err error
		if who, err = authn.Resolve(ctx, keychain{}, c.ref.Context()); err != nil {
			return nil, err
		}
	}
	rt, err := transport.NewWithContext(ctx, c.ref.Context().Registry, who, c, []string{c.ref.Scope(scope)})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: rt}, nil
}

// MayPush checks whether a registry accepts a push to the reference, by starting an upload
// and cancelling it. It finds errors before a long build instead of after it.
func MayPush(ctx context.Context, ref string, o Remote) error {
	c, err := o.call(ref)
	if err != nil {
		return err
	}
	if err := c.mayPush(ctx); err != nil {
		return fmt.Errorf("asking to push to %s: %w", ref, c.explain(err))
	}
	return nil
}

// mayPush opens an upload session (distribution-spec, "Pushing a blob in chunks") and closes
// it.
func (c *call) mayPush(ctx context.Context) error {
	c.doing = "push"
	client, err := c.client(ctx, transport.PushScope)
	if err != nil {
		return err
	}
	repo := c.ref.Context()
	at := url.URL{Scheme: repo.Scheme(), Host: repo.RegistryStr(), Path: "/v2/" + repo.RepositoryStr() + "/blobs/uploads/"}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusAccepted, http.StatusCreated); err != nil {
		return err
	}
	session, err := resp.Location()
	if err != nil || session.Host != at.Host {
		return nil // the registry drops it eventually
	}
	if req, err = http.NewRequestWithContext(ctx, http.MethodDelete, session.String(), nil); err == nil {
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
	}
	return nil
}

// RoundTrip sends one request, unless that would expose a secret.
func (c *call) RoundTrip(req *http.Request) (*http.Response, error) {
	secret := c.notice(req)
	switch {
	case req.URL.Scheme == "http" && c.TLS:
		return nil, &refusedError{fmt.Sprintf("refusing to contact %s without TLS", req.URL.Host)}
	case !secret:
	case req.URL.Scheme == "http" && c.ref.Context().Scheme() == "https":
		return nil, &refusedError{fmt.Sprintf("credentials are not sent to %s without TLS", req.URL.Host)}
	case req.Response != nil && req.Response.Request != nil && req.Response.Request.URL.Host != req.URL.Host:
		return nil, &refusedError{fmt.Sprintf("credentials are not sent on from %s to %s", req.Response.Request.URL.Host, req.URL.Host)}
	}
	if req.Body != nil {
		own := *req
		own.Body = &sentBody{req.Body, &c.sent}
		if again := req.GetBody; again != nil {
			// The library repeats a request with a new token after the body was read.
			body, err := again()
			req.Body.Close()
			if err != nil {
				return nil, err
			}
			own.Body = &sentBody{body, &c.sent}
			own.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				return &sentBody{body, &c.sent}, err
			}
		}
		req = &own
	}
	return web.Transport{}.RoundTrip(req)
}

// A refusedError reports a request that was not sent.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// identityUser stands for the user of an identity token, whose name is unknown.
const identityUser = "<token>"

// notice records the secrets in a request and reports whether it contains one, in its header
// or in a token request's form.
func (c *call) notice(req *http.Request) bool {
	var found []string
	user := ""
	scheme, value, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if value != "" {
		found = append(found, value)
	}
	if plain, err := base64.StdEncoding.DecodeString(value); err == nil && strings.EqualFold(scheme, "basic") {
		var password string
		user, password, _ = strings.Cut(string(plain), ":")
		found = append(found, string(plain), password)
	}
	if req.Header.Get("Content-Type") == "application/x-www-form-urlencoded" && req.GetBody != nil {
		if body, err := req.GetBody(); err == nil {
			own := *req
			own.Body = http.MaxBytesReader(nil, body, 1<<20)
			if own.ParseForm() == nil {
				found = append(found, own.PostForm.Get("refresh_token"), own.PostForm.Get("password"))
				user = cmp.Or(own.PostForm.Get("username"), identityUser)
			}
			body.Close()
		}
	}
	found = slices.DeleteFunc(found, func(s string) bool { return s == "" })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range found {
		c.secrets[s] = true
	}
	c.user = cmp.Or(user, c.user)
	return len(found) > 0
}

// leastSecret is the length of the shortest secret that is hidden, in bytes. Shorter ones
// occur in any text.
const leastSecret = 4

// hide removes the secrets of the call from a text, in the forms that a registry is likely
// to return.
func (c *call) hide(text string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var forms []string
	for s := range c.secrets {
		quoted, _ := json.Marshal(s)
		forms = append(forms, s, url.QueryEscape(s), url.PathEscape(s), html.EscapeString(s), strings.Trim(string(quoted), `"`),
			strings.Trim(fmt.Sprintf("%q", s), `"`), base64.StdEncoding.EncodeToString([]byte(s)),
			base64.RawStdEncoding.EncodeToString([]byte(s)),
			base64.URLEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)))
	}
	// Longer forms come first, because they may contain others.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, f := range slices.Compact(forms) {
		if len(f) >= leastSecret {
			text = strings.ReplaceAll(text, f, hidden)
		}
	}
	return text
}

// Ping checks that a registry answers. A request for credentials is an answer.
func Ping(ctx context.Context, host string) error {
	c, err := registryCall(host, Remote{})
	if err != nil {
		return err
	}
	c.doing = "login"
	if _, err := transport.Ping(ctx, c.ref.Context().Registry, c); err != nil {
		return fmt.Errorf("asking %s: %w", host, c.explain(err))
	}
	return nil
}

// registryCall returns a call of a registry without a repository.
func registryCall(host string, o Remote) (*call, error) {
	if _, err := name.NewRegistry(host); err != nil {
		return nil, fmt.Errorf("reading registry %q: %w", host, err)
	}
	return o.call(host + "/any")
}
