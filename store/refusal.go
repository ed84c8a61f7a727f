package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"hpcc/text"
)

// A refusalRule explains the failures of calls that match its pattern. The pattern matches
// "DOING LOGIN STATUS REASON":
//
//   - DOING is pull, push, login, or ping for the first request, which every registry answers,
//   - LOGIN is anonymous, rejected or known: without credentials, with credentials that the
//     server refused, or with others,
//   - STATUS is the status of the answer, or 0 if the request got none,
//   - REASON is the server's text, or that of the error.
//
// Texts may contain {host}, {repository}, {project}, {tag}, {who} (the user or the entry of
// creds.yaml), {server} (the registry, its token server, or the host of a redirection),
// {proxy} and {login} (the command that logs in).
type refusalRule struct{ pattern, text, advice string }

// The beginnings of patterns.
const (
	noAnswer = `^\w+ \w+ 0 .*`
	answered = `^\w+ \w+ [1-9]\d\d .*`
	pushed   = `^push \w+ [1-9]\d\d .*`
	pulled   = `^pull \w+ [1-9]\d\d .*`
)

// Advice that several rules give.
const (
	againAdvice = "repeat the command: the registry keeps the layers that arrived"
	adminAdvice = "ask the administrators of {host}"
	elseAdvice  = `run hpcc where the registry is reachable, set HTTPS_PROXY, or move the image with "hpcc save" and "hpcc load"`
)

// refusalRules is the table of explanations for all calls of registries. The first rule that
// matches explains a failure; the others keep the error's text.
var refusalRules = []refusalRule{
	// The way to the registry.
	{noAnswer + `certificate signed by unknown authority`,
		"this machine does not trust the authority of {host}'s certificate",
		"set SSL_CERT_FILE to a file with the authority's certificate, or ask the administrators of this machine to install it"},
	{noAnswer + `x509: .*(?:is valid for|is not valid for|doesn't contain any IP SANs|not valid for any names)`, "the certificate of {host} is for another name", "use the registry's name in its certificate"},
	{noAnswer + `x509: certificate has expired or is not yet valid`, "the certificate of {host} is not valid now", "compare the clock of this machine (date); " + adminAdvice},
	{noAnswer + `(?:x509|tls): `, "the TLS connection to {host} failed", adminAdvice},
	{noAnswer + `server gave HTTP response to HTTPS client`, "{host} uses HTTP without TLS", `add --plain-http, or write http://{host} in creds.yaml; passwords are then sent unencrypted`},
	{noAnswer + `(?:proxyconnect |the proxy |invalid proxy address)`, "the proxy does not connect to {host}", "correct {proxy}, or add the host to NO_PROXY"},
	{noAnswer + `lookup \S+\.svc\b.*no such host`, "this machine does not know the host name of {host}", `only pods know the internal name of OpenShift's registry; "oc registry info" prints its public host`},
	{noAnswer + `(?:no such host|server misbehaving|Temporary failure in name resolution)`, "this machine does not know the host name of {host}", "check the spelling; or " + elseAdvice},
	{noAnswer + `connection refused`, "no registry listens at {host}", "check the host and the port; a registry that restarts answers later"},
	{noAnswer + `(?:no route to host|network is unreachable)`, "this machine has no route to {host}", elseAdvice},
	{noAnswer + `(?:no answer within|took no data for|stalled for|i/o timeout|timed out|TLS handshake timeout|deadline exceeded)`, "{host} does not respond", "check the host and the port; HPCC_HTTP_TIMEOUT=5m waits longer; or " + elseAdvice},
	{`^push \w+ 0 .*(?:EOF|connection reset|broken pipe|connection aborted|closed network connection|stream error|http2: )`, "the connection to {host} broke", againAdvice + "; if it breaks at the same layer again, a proxy may limit the size: " + adminAdvice},
	{noAnswer + `(?:EOF|connection reset|broken pipe|connection aborted|closed network connection|stream error|http2: )`, "the connection to {host} broke", "repeat the command"},
	{answered + `HTTP request to an HTTPS server`, "{host} requires TLS", "leave out --plain-http, or write https://{host} in creds.yaml"},

	// Limits of the registry and of proxies in front of it.
	{`^\w+ anonymous (?:429 |\d+ .*TOOMANYREQUESTS)`, "{host} limits the requests of anonymous users", "{login}; or repeat the command later"},
	{`^\w+ \w+ (?:429 |\d+ .*TOOMANYREQUESTS)`, "{host} limits the number of requests", "repeat the command later"},
	{pushed + `(?i:no space left|disk quota exceeded|"Err":(?:28|122)\b)`, "the storage of {host} is full", adminAdvice + "; then " + againAdvice},
	{pushed + `(?i:quota|upper limit|storage limit|maximum storage|limit exceeded)`, "the quota of {project} on {host} is exhausted", `delete old tags in the registry, or ask for a larger quota ("oc describe quota,limits" shows OpenShift's)`},
	{`^push \w+ 507 `, "the storage of {host} is full", adminAdvice + "; then " + againAdvice},
	{`^push \w+ 413 `, "the layer is larger than {host}, or a proxy in front of it, accepts", "split the layer into several instructions of the Dockerfile, or " + adminAdvice + " to raise the limit (nginx: client_max_body_size)"},

	// Registries that do not accept this image.
	{pushed + `(?i:immutable|cannot be overwritten|tag .*already exists)`, "{repository} already has the tag {tag}, and its tags cannot change", "push another tag than {tag}"},
	{`^push \w+ (?:405 |\d+ .*(?i:read.?only|maintenance mode))`, "{host} accepts no pushes: it is read-only", "repeat the command after the maintenance, or push to another registry; a cache of another registry is always read-only"},
	{pushed + `(?:MANIFEST_BLOB_UNKNOWN|BLOB_UNKNOWN|BLOB_UPLOAD_UNKNOWN)`, "{host} lost a layer of this push", "repeat the command"},
	{pushed + `(?:DIGEST_INVALID|SIZE_INVALID|BLOB_UPLOAD_INVALID)`, "{host} received other data than hpcc sent", `repeat the command; "hpcc gc --verify" checks the store`},
	{pushed + `(?:NAME_INVALID|TAG_INVALID)`, "{host} does not accept the name {repository}:{tag}", "push under another name; some registries require PROJECT/NAME"},
	{`^push \w+ (?:415 |4\d\d .*(?:MANIFEST_INVALID|MANIFEST_UNVERIFIED|(?i:media ?type|manifest type)))`, "{host} does not accept the manifest", "an old registry may not know OCI images, indexes or attestations: push one platform, built without --provenance, or ask for a newer registry"},

	// Users.
	{`^\w+ \w+ 40[13] .*(?i:token .*expired|expired .*token)`, "the login for {host} has expired", "{login}"},
	{`^login \w+ 40[13] `, "{server} refuses the login of {who}", `check the name and the password; many registries take an access token as password; {login}`},
	{`^\w+ rejected `, "{server} refuses the login of {who}", "{login}"},
	{`^push known 40[13] `, "{who} may not push to {repository}", `check the name, or ask for the right to push to {project} (OpenShift: "oc policy add-role-to-user registry-editor USER -n {project}"; a token needs the scope for writing)`},
	{`^pull known 40[13] `, "{who} may not pull {repository}, or it does not exist", "check the name, or ask for the right to pull from {project}"},
	{`^push anonymous 40[13] `, "{host} requires a login", "{login}"},
	{`^pull anonymous 40[13] `, "{host} requires a login for this image, or does not have it", "check the name; {login}"},

	// Names.
	{`^ping \w+ 404 `, "{host} is not a registry", "check the host and the port"},
	{`^push \w+ 404 `, "{host} does not have {project} or {repository}", `create it in the registry first (OpenShift: "oc new-project {project}", "oc create imagestream {image} -n {project}"; ECR: "aws ecr create-repository --repository-name {repository}")`},
	{`^pull \w+ 404 .*(?:BLOB_UNKNOWN)`, "{host} lost a layer of the image", "push the image again, or " + adminAdvice},
	{`^pull anonymous 404 `, "{host} does not have this image or repository", "check the name and the tag; {login}, if the image is private"},
	{`^pull \w+ 404 `, "{host} does not have this image or repository", "check the name and the tag"},
	{pulled + `MANIFEST_UNKNOWN`, "{host} does not have this image", "check the name and the tag"},

	// Damaged and unknown content.
	{`^pull \w+ 0 .*(?i:unsupported MediaType)`, "this is not an image, or has a format that hpcc does not read", "check the name and the tag; Helm charts, signatures and images of schema 1 are not images that run"},
	{`^pull \w+ 0 .*(?i:digest mismatch|does not match|verifying)`, "{host} sent other data than the digest says", "repeat the command; if the error stays, push the image again"},
	{`^\w+ \w+ 5\d\d `, "{host} fails", "repeat the command later; the registry keeps the layers that arrived; if the error stays, " + adminAdvice},
	{`^\w+ \w+ 407 `, "the proxy requires a login", "correct {proxy} (http://USER:PASSWORD@HOST:PORT)"},
}

var refusalPatterns = sync.OnceValue(func() []*regexp.Regexp {
	out := make([]*regexp.Regexp, len(refusalRules))
	for i, r := range refusalRules {
		out[i] = regexp.MustCompile(r.pattern)
	}
	return out
})

// loginHints has the commands that log in to registries with their own kinds of passwords.
var loginHints = []struct{ host, advice string }{
	{`\.dkr\.ecr\.`, `"aws ecr get-login-password | hpcc login -u AWS {host}" logs in for 12 hours`},
	{`(?i)openshift|^image-registry\.`, `"oc whoami -t | hpcc login -u openshift {host}" logs in with the token of oc`},
	{`^ghcr\.io$`, `"hpcc login -u NAME {host}" saves a login; its password is a classic token with write:packages`},
	{``, `"hpcc login -u NAME {host}" saves a login`},
}

// A refusal is a failed call.
type refusal struct {
	status int    // 0: no answer
	reason string // of the server, or the error; safe to print
	shown  string // the reason with the status
	server string // host that answered
	path   string // of the request
	login  string // anonymous, rejected or known
}

// A callError is the error of a call, without secrets. Advice is the next action of the
// user, or "".
type callError struct {
	error
	text, advice string
}

func (e *callError) Error() string  { return e.text }
func (e *callError) Unwrap() error  { return e.error }
func (e *callError) Advice() string { return e.advice }

// explain returns the error of a call with the reason and the next action.
func (c *call) explain(err error) error {
	var own *refusedError
	if ours := (*PlatformError)(nil); errors.As(err, &own) || errors.As(err, &ours) || errors.Is(err, context.Canceled) {
		return &callError{err, c.masked(err.Error()), ""}
	}
	f := c.refusal(err)
	doing := cmp.Or(c.doing, "pull")
	if f.status == http.StatusNotFound && f.path == "/v2/" {
		doing = "ping"
	}
	fact := fmt.Sprintf("%s %s %d %s", doing, f.login, f.status, f.reason)
	for i, p := range refusalPatterns() {
		if p.MatchString(fact) {
			r := refusalRules[i]
			return &callError{err, c.fill(r.text, f) + " (" + f.shown + ")", c.fill(r.advice, f)}
		}
	}
	return &callError{err, f.shown, ""}
}

// refusal reads an error.
func (c *call) refusal(err error) refusal {
	var te *transport.Error
	var cert *tls.CertificateVerificationError
	var busy interface{ Answer() (int, []byte) }
	f := refusal{server: c.host(), login: "known"}
	if c.anonymous() {
		f.login = "anonymous"
	}
	switch {
	case errors.As(err, &cert): // the request without TLS that follows has an answer
		f.reason = c.masked(cert.Error())
		f.shown = f.reason
	case errors.As(err, &te):
		f.status = te.StatusCode
		f.reason = c.reason(te)
		status := strconv.Itoa(f.status) + " "
		f.shown = status + strings.TrimPrefix(cmp.Or(f.reason, http.StatusText(f.status)), status)
		c.readRequest(te, &f)
	case errors.As(err, &busy):
		status, body := busy.Answer()
		te = &transport.Error{}
		_ = json.Unmarshal(body, te) // other answers are text
		te.StatusCode = status
		if f.status, f.reason = status, c.reason(te); len(te.Errors) == 0 {
			f.reason = c.masked(string(body))
		}
		f.shown = strings.TrimSuffix(c.masked(withoutURL(err.Error()))+": "+f.reason, ": ")
	default:
		f.reason = c.masked(withoutURL(err.Error()))
		f.shown = f.reason
	}
	return f
}

// readRequest reads who was refused, and by which server.
func (c *call) readRequest(te *transport.Error, f *refusal) {
	if te.Request == nil {
		return
	}
	f.path = te.Request.URL.Path
	if te.Request.URL.Host != c.ref.Context().RegistryStr() {
		f.server = te.Request.URL.Host
	}
	scheme, _, _ := strings.Cut(te.Request.Header.Get("Authorization"), " ")
	own := !c.Credentials.empty() && c.Credentials.Token != ""
	if f.login == "known" && te.StatusCode == http.StatusUnauthorized && (own || !strings.EqualFold(scheme, "bearer")) {
		f.login = "rejected"
	}
}

// maxErrors bounds the errors of one answer that users see.
const maxErrors = 3

// reason returns the reason that a registry gives in an answer.
func (c *call) reason(te *transport.Error) string {
	var reasons []string
	for _, e := range te.Errors {
		text := string(e.Code)
		if e.Message != "" {
			text += ": " + e.Message
		}
		if detail, err := json.Marshal(e.Detail); err == nil && e.Detail != nil && e.Code == transport.UnknownErrorCode {
			text += ": " + string(detail)
		}
		if len(reasons) < maxErrors && (len(reasons) == 0 || reasons[len(reasons)-1] != text) {
			reasons = append(reasons, text)
		}
	}
	if len(reasons) > 0 {
		return c.masked(strings.Join(reasons, "; "))
	}
	_, body, _ := strings.Cut(te.Error(), fmt.Sprintf("unexpected status code %d %s: ", te.StatusCode, http.StatusText(te.StatusCode)))
	return c.masked(body)
}

var requestURL = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:Get|Head|Post|Put|Patch|Delete) "[^"]*": |, see https://github\.com/\S+`)
})

// withoutURL removes the URLs of requests, which contain the state of uploads, and of the
// library's issues from an error.
// An error of both HTTPS and HTTP becomes one.
func withoutURL(text string) string {
	text = requestURL().ReplaceAllString(text, "")
	if first, second, ok := strings.Cut(text, "; "); ok && first == second {
		return first
	}
	return text
}

// maxReply bounds foreign text in messages, in bytes.
const maxReply = 600

var (
	markup = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?is)<(?:head|style|script)\b.*?</(?:head|style|script)>|<!--.*?-->|<[^>]*>`)
	})
	page = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)<(?:!doctype|html)\b`) })
)

// masked returns foreign text that is safe to print: one bounded line without secrets,
// markup and control characters.
func (c *call) masked(reply string) string {
	reply = c.hide(reply)
	if page().MatchString(reply) {
		reply = html.UnescapeString(markup().ReplaceAllString(reply, " "))
	}
	reply = c.hide(text.OneLine(reply)) // a removed character may have hidden a secret
	return text.Cut(reply, maxReply)
}

// fill inserts the names of a call into the text of a rule.
func (c *call) fill(text string, f refusal) string {
	repository := c.ref.Context().RepositoryStr()
	project := path.Dir(repository)
	if project == "." {
		project = repository
	}
	text = strings.ReplaceAll(text, "{login}", c.cure(f))
	return strings.NewReplacer("{host}", c.host(), "{server}", f.server, "{repository}", repository, "{project}", project,
		"{image}", path.Base(repository), "{tag}", c.ref.Identifier(), "{who}", c.who(), "{proxy}", c.proxy()).Replace(text)
}

// host returns the registry's host as users write it.
func (c *call) host() string {
	if h := c.ref.Context().RegistryStr(); h != name.DefaultRegistry {
		return h
	}
	return "docker.io"
}

// anonymous reports whether the call sent no credentials.
func (c *call) anonymous() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.user == "" && c.Credentials.empty()
}

// who names the user for messages.
func (c *call) who() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.Credentials.empty() && c.Credentials.From != "":
		return c.Credentials.From
	case c.user == "" || c.user == identityUser:
		return "this user"
	}
	return "user " + strconv.Quote(c.user)
}

// proxy returns the variable with the address of the proxy, without a password.
func (c *call) proxy() string {
	scheme := strings.ToUpper(c.ref.Context().Scheme())
	for _, n := range []string{scheme + "_PROXY", strings.ToLower(scheme) + "_proxy"} {
		if v := os.Getenv(n); v != "" {
			if u, err := url.Parse(v); err == nil {
				v = u.Redacted()
			}
			return n + "=" + c.masked(v)
		}
	}
	return scheme + "_PROXY"
}

// cure returns the command that logs in, and the source of credentials that are wrong.
func (c *call) cure(f refusal) string {
	login := ""
	for _, h := range loginHints {
		if regexp.MustCompile(h.host).MatchString(c.host()) {
			login = h.advice
			break
		}
	}
	switch {
	case c.Credentials == nil || c.Credentials.From == "":
		return login
	case c.Credentials.empty():
		return c.Credentials.From + " has no password, so docker's credentials were used: " + login
	}
	return "correct the password of " + c.Credentials.From + ", or remove it: " + login
}
