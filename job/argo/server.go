package argo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"hpcc/files"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/kube"
	"hpcc/text"
	"hpcc/web"
)

// The variables that locate an Argo server: those of the argo command, and two for files. They are
// stored with a cluster, so that a job's status finds the server again.
const (
	ServerVariable     = "ARGO_SERVER"               // URL, or host:port
	TokenFileVariable  = "ARGO_TOKEN_FILE"           // path; instead of the token
	SecureVariable     = "ARGO_SECURE"               // false: http, if the URL has no scheme
	UnverifiedVariable = "ARGO_INSECURE_SKIP_VERIFY" // true: accept any certificate
	CAFileVariable     = "ARGO_CA_FILE"              // path of trusted certificates, in addition to SSL_CERT_FILE

	argoToken = "ARGO_TOKEN" // never stored in a cluster, to keep it out of job records
)

// Limits in bytes for an Argo server's answers, and for the user's token and certificates.
const (
	maxArgoAnswer = 64 << 20 // a workflow with the states of ten thousand steps
	maxLogLine    = 1 << 20
	maxToken      = 64 << 10
	maxRefusal    = 4 << 10

	maxCertificates = 16 << 20
)

// A Server is a client of an Argo server's REST interface.
type Server struct {
	base  *url.URL
	token string // "" sends none
	http  *http.Client
}

// A serverError is a refusal: the server's message with advice.
type serverError struct {
	status  int // HTTP status
	text    string
	foreign bool // the address is not that of an Argo server
}

// isGone reports whether an Argo server answered that an object does not exist.
func isGone(err error) bool {
	refused := new(serverError)
	return errors.As(err, &refused) && refused.status == http.StatusNotFound && !refused.foreign
}

func (e *serverError) Error() string { return e.text }

// openServer returns a client for the server that the environment names, or nil if it names none.
// It does not send a request.
func openServer(ctx context.Context) (*Server, error) {
	where := invoke.Getenv(ctx, ServerVariable)
	if where == "" {
		return nil, nil
	}
	base, err := serverURL(where, invoke.Getenv(ctx, SecureVariable) != "false")
	if err != nil {
		return nil, err
	}
	s := &Server{base: base}
	if s.token, err = login(ctx); err != nil {
		return nil, err
	}
	if s.token != "" && base.Scheme == "http" && !loopback(base.Hostname()) && invoke.Getenv(ctx, SecureVariable) != "false" {
		return nil, fmt.Errorf("the Argo server %s: http:// would expose the token on the network; use https://, or set "+
			"%s=false", base.Redacted(), SecureVariable)
	}
	tlsConfig := &tls.Config{InsecureSkipVerify: invoke.Getenv(ctx, UnverifiedVariable) == "true"}
	if file := invoke.Getenv(ctx, CAFileVariable); file != "" {
		if tlsConfig.RootCAs, err = certificates(file); err != nil {
			return nil, err
		}
	}
	s.http = &http.Client{
		Transport: web.Transport{Base: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSClientConfig:     tlsConfig,
			TLSHandshakeTimeout: 10 * time.Second,
			ForceAttemptHTTP2:   true,
			IdleConnTimeout:     10 * time.Second, // each poll has its own transport
		}},
		// Do not send the token to another host; a login page is not an answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, nil
}

// serverURL parses a server's address: a URL, or host:port like the argo command.
func serverURL(where string, secure bool) (*url.URL, error) {
	if !strings.Contains(where, "://") {
		scheme := "https://"
		if !secure {
			scheme = "http://"
		}
		where = scheme + where
	}
	u, err := url.Parse(where)
	switch {
	case err != nil:
		return nil, fmt.Errorf("address of the Argo server: %q is not a URL", text.Short(where))
	case (u.Scheme != "https" && u.Scheme != "http") || u.Host == "":
		return nil, fmt.Errorf("address of the Argo server: %q is not an http or https URL", text.Short(u.Redacted()))
	case u.User != nil:
		return nil, fmt.Errorf("address of the Argo server: %s contains a user name or a password, which would be stored "+
			"with the job; pass a token with $%s or --token-file", u.Redacted(), argoToken)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("address of the Argo server: %q has text after the path; use https://HOST[:PORT][/PATH]", text.Short(where))
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// login returns the value of the Authorization header, or "" without a token.
func login(ctx context.Context) (string, error) {
	token, from := os.Getenv(argoToken), "$"+argoToken
	if file := invoke.Getenv(ctx, TokenFileVariable); file != "" {
		from = file
		f, err := files.Open(file)
		if err != nil {
			return "", fmt.Errorf("reading the token for the Argo server: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
		if err != nil {
			return "", fmt.Errorf("reading the token for the Argo server: %w", err)
		}
		if len(bytes.TrimSpace(b)) == 0 {
			return "", fmt.Errorf("reading the token for the Argo server: %s is empty", file)
		}
		token = string(b)
	}
	token = strings.TrimSpace(token)
	scheme, rest, hasScheme := strings.Cut(token, " ")
	if hasScheme && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "Basic")) {
		token = rest
	} else if scheme = "Bearer"; token == "" {
		return "", nil
	}
	if len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the token for the Argo server in %s is invalid: expected one word of letters, digits and punctuation", from)
	}
	return scheme + " " + token, nil
}

// certificates returns the certificates that this machine trusts, and those of a file.
func certificates(file string) (*x509.CertPool, error) {
	pem, err := files.ReadFile(file, maxCertificates)
	if err != nil {
		return nil, fmt.Errorf("reading certificates: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading certificates: %s does not contain PEM certificates", file)
	}
	return pool, nil
}

// call sends a request and decodes the answer into out, unless that is nil. The elements of path are
// not escaped. A refusal is a [serverError].
func (s *Server) call(ctx context.Context, method string, path []string, query url.Values, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, invoke.LongTimeout)
	defer cancel()
	resp, err := s.send(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxArgoAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading the answer of Argo server %s: %w", s.base, err)
	case len(b) > maxArgoAnswer:
		return fmt.Errorf("the Argo server %s: the answer has more than %d bytes", s.base, maxArgoAnswer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return s.foreign(resp, b)
	}
	return nil
}

// send sends a request and returns a successful response, or an error.
func (s *Server) send(ctx context.Context, method string, path []string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	u := s.base.JoinPath(append([]string{"api", "v1"}, path...)...)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", s.token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, s.unreached(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxLogLine))
	return nil, s.refusal(resp, b)
}

// refusal converts an unsuccessful response to an error.
func (s *Server) refusal(resp *http.Response, body []byte) error {
	var reply struct{ Message string }
	if resp.StatusCode/100 == 3 || json.Unmarshal(body, &reply) != nil || reply.Message == "" {
		if e := s.foreign(resp, body); resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return e
		}
		reply.Message = resp.Status
	}
	text := text.OneLine(reply.Message)
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		text = fmt.Sprintf("the Argo server %s rejects the token (%s); get another from \"argo auth token\" or \"kubectl "+
			"create token SERVICEACCOUNT\", and pass it with $%s or --token-file", s.base, text, argoToken)
		if s.token == "" {
			text = fmt.Sprintf("the Argo server %s requires a token; get one from \"argo auth token\" or \"kubectl create "+
				"token SERVICEACCOUNT\", and pass it with $%s or --token-file", s.base, argoToken)
		}
	case http.StatusForbidden:
		text = fmt.Sprintf("the Argo server %s: %s; choose another --namespace, or ask the administrator for a role with "+
			"workflows in this one", s.base, text)
	default:
		text = fmt.Sprintf("the Argo server %s: %s", s.base, text)
	}
	return &serverError{status: resp.StatusCode, text: text[:min(len(text), maxRefusal)]}
}

// foreign returns the error for an address that is not an Argo server.
func (s *Server) foreign(resp *http.Response, body []byte) error {
	what := cmp.Or(resp.Header.Get("Content-Type"), "no content type")
	switch to := resp.Header.Get("Location"); {
	case resp.StatusCode/100 == 3 && to != "":
		if u, err := url.Parse(to); err == nil {
			to = cmp.Or(u.Host, s.base.Host) + u.Path // a query may hold secrets
		}
		return &serverError{foreign: true, status: resp.StatusCode,
			text: fmt.Sprintf("the Argo server %s redirects to %s, where hpcc does not send the token; this may be a login "+
				"page or a wrong address", s.base, text.Short(to))}
	case bytes.Contains(body, []byte("HTTP request to an HTTPS server")):
		return &serverError{foreign: true, status: resp.StatusCode,
			text: fmt.Sprintf("the Argo server %s uses TLS; use https://%s", s.base, s.base.Host)}
	}
	return &serverError{foreign: true, status: resp.StatusCode,
		text: fmt.Sprintf("%s is not an Argo server: it returned %s, %s", s.base, resp.Status, text.Short(what))}
}

// unreached adds advice to the error of a request that got no answer. It returns a [batch.NoAnswer],
// unless the user interrupted the request.
func (s *Server) unreached(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // the wrapper repeats the address
	}
	advice := ""
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return &batch.NoAnswer{Err: fmt.Errorf("the Argo server %s does not answer within %v", s.base, invoke.LongTimeout)}
	case errors.Is(err, syscall.ECONNREFUSED):
		advice = "; no server listens on that port; \"kubectl -n argo port-forward service/argo-server 2746\" provides one " +
			"at https://localhost:2746"
	case errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &host):
		advice = "; pass the certificate of its CA with --ca-file FILE, or use --insecure-skip-verify on a trusted network"
	case errors.As(err, &dns):
		advice = "; check the host name"
	case strings.Contains(err.Error(), "first record does not look like a TLS handshake"),
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		advice = "; it does not use TLS; use http://" + s.base.Host
	}
	return &batch.NoAnswer{Err: fmt.Errorf("reaching Argo server %s: %w%s", s.base, err, advice)}
}

func (s *Server) create(ctx context.Context, wf *item, dry bool) (stored json.RawMessage, err error) {
	in := map[string]any{"workflow": wf}
	if dry {
		in["serverDryRun"] = true
	}
	return stored, s.call(ctx, http.MethodPost, []string{"workflows", kube.Namespace(ctx)}, nil, in, &stored)
}

func (s *Server) template(ctx context.Context, name string) (stored json.RawMessage, err error) {
	return stored, s.call(ctx, http.MethodGet, []string{"workflow-templates", kube.Namespace(ctx), name}, nil, nil, &stored)
}

// workflowFields are the fields that a state query requests, because a workflow also contains a
// copy of the submitted manifest.
const workflowFields = "metadata.name,metadata.creationTimestamp,status.phase,status.message," +
	"status.progress,status.startedAt,status.finishedAt,status.nodes"

func (s *Server) get(ctx context.Context, name string) (*Workflow, error) {
	wf := &Workflow{}
	err := s.call(ctx, http.MethodGet, []string{"workflows", kube.Namespace(ctx), name}, url.Values{"fields": {workflowFields}}, nil, wf)
	if isGone(err) {
		return nil, nil
	}
	return wf, err
}

func (s *Server) why(ctx context.Context, _ []string) *kube.StepReader {
	return &kube.StepReader{Events: func(selector string) []json.RawMessage { return s.events(ctx, selector) }}
}

// Limits of the events that an Argo server streams: first those that the cluster has, then new ones.
const (
	maxEvents  = 2000
	eventsTime = 5 * time.Second        // for all
	eventsIdle = 300 * time.Millisecond // after an event, in which the next of those that the cluster has follows
)

// events returns the events of the namespace with these fields, or nil if the server may not read them. The
// stream ends after a second, with an error.
func (s *Server) events(ctx context.Context, selector string) (list []json.RawMessage) {
	limits := web.LimitsOf(ctx)
	limits.Attempts = 1 // a stream without events ends with the status 429
	ctx, cancel := context.WithTimeout(web.Forever(web.With(ctx, limits)), eventsTime)
	defer cancel()
	q := url.Values{"listOptions.fieldSelector": {selector}, "listOptions.timeoutSeconds": {"1"}}
	resp, err := s.send(ctx, http.MethodGet, []string{"stream", "events", kube.Namespace(ctx)}, q, nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	idle := time.AfterFunc(eventsIdle, cancel)
	defer idle.Stop()
	lines := bufio.NewScanner(io.LimitReader(resp.Body, maxArgoAnswer))
	lines.Buffer(nil, maxLogLine)
	for len(list) < maxEvents && lines.Scan() {
		idle.Reset(eventsIdle)
		var line struct{ Result json.RawMessage }
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Result == nil {
			break
		}
		list = append(list, line.Result)
	}
	return list
}

func (s *Server) terminate(ctx context.Context, name string) error {
	return s.call(ctx, http.MethodPut, []string{"workflows", kube.Namespace(ctx), name, "terminate"}, nil, map[string]string{}, nil)
}

// retry reruns the failed steps of a workflow.
func (s *Server) retry(ctx context.Context, name string) error {
	return s.call(ctx, http.MethodPut, []string{"workflows", kube.Namespace(ctx), name, "retry"}, nil, map[string]string{}, nil)
}

// Log copies the output of the main container of a step's pod. With follow it continues until the
// pod has ended.
func (s *Server) Log(ctx context.Context, name, pod string, follow bool, out io.Writer) error {
	q := url.Values{"logOptions.container": {kube.MainContainer}, "podName": {pod}}
	if follow {
		q.Set("logOptions.follow", "true")
		ctx = web.Forever(ctx)
	}
	resp, err := s.send(ctx, http.MethodGet, []string{"workflows", kube.Namespace(ctx), name, "log"}, q, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLogLine)
	for lines.Scan() {
		var line struct {
			Result struct{ Content string }
			Error  struct{ Message string }
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return s.foreign(resp, nil)
		}
		if line.Error.Message != "" {
			return fmt.Errorf("the Argo server %s: %s", s.base, line.Error.Message)
		}
		if _, err := io.WriteString(out, line.Result.Content+"\n"); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("reading the log of %s from Argo server %s: %w", pod, s.base, err)
	}
	return ctx.Err()
}
