package argo

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/kube"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// argoAt is a server of Argo at an address, as a cluster with these variables has it.
func argoAt(t *testing.T, env map[string]string) (*Server, error) {
	t.Helper()
	return openServer(invoke.Within(context.Background(), env))
}

func TestOpenArgoServer(t *testing.T) {
	t.Setenv(argoToken, "")
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		testenv.Check(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
		want string // URL and Authorization, or the error
	}{
		{"host", map[string]string{ServerVariable: "argo.example:2746"}, "https://argo.example:2746 "},
		{"host without TLS", map[string]string{ServerVariable: "argo.example:2746", SecureVariable: "false"}, "http://argo.example:2746 "},
		{"path", map[string]string{ServerVariable: "https://a.example/argo/"}, "https://a.example/argo "},
		{"token", map[string]string{ServerVariable: "https://a.example", TokenFileVariable: file("t", "abc.def\n")}, "https://a.example Bearer abc.def"},
		{"as argo has it", map[string]string{ServerVariable: "https://a.example", TokenFileVariable: file("b", "Bearer abc\n")}, "https://a.example Bearer abc"},
		{"loopback", map[string]string{ServerVariable: "http://127.0.0.1:1", TokenFileVariable: file("l", "abc")}, "http://127.0.0.1:1 Bearer abc"},
		{"in the clear", map[string]string{ServerVariable: "http://a.example", TokenFileVariable: file("c", "abc")}, "would expose the token"},
		{"password", map[string]string{ServerVariable: "https://me:secret@a.example"}, "contains a user name or a password"},
		{"scheme", map[string]string{ServerVariable: "ftp://a.example"}, "is not an http or https URL"},
		{"query", map[string]string{ServerVariable: "https://a.example/?x=1"}, "has text after the path"},
		{"no token", map[string]string{ServerVariable: "https://a.example", TokenFileVariable: file("e", " \n")}, "is empty"},
		{"two words", map[string]string{ServerVariable: "https://a.example", TokenFileVariable: file("w", "a\nb")}, "is invalid: expected one word"},
		{"no file", map[string]string{ServerVariable: "https://a.example", TokenFileVariable: dir + "/none"}, "no such file"},
		{"no certificate", map[string]string{ServerVariable: "https://a.example", CAFileVariable: file("ca", "x")}, "does not contain PEM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := argoAt(t, tt.env)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = s.base.String() + " " + s.token
			}
			if (err == nil && got != tt.want) || !strings.Contains(got, tt.want) {
				t.Errorf("openArgoServer: %s; want %s", got, tt.want)
			}
			if strings.Contains(got, "secret") || (err != nil && strings.Contains(got, "abc")) {
				t.Errorf("openArgoServer prints a secret: %s", got)
			}
		})
	}
}

// TestArgoServerAnswers: the message of each answer that reports a failure says what to do.
func TestArgoServerAnswers(t *testing.T) {
	t.Setenv(argoToken, "sesame")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another host was asked, with %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	for _, tt := range []struct {
		name, want string
		answer     http.HandlerFunc
	}{
		{"token", `rejects the token (Unauthorized)`, say(401, `{"code":16,"message":"Unauthorized"}`)},
		{"right", `User "a" cannot create; choose another --namespace`, say(403, `{"code":7,"message":"User \"a\" cannot create"}`)},
		{"words", `: templates.main: no`, say(400, `{"code":3,"message":"templates.main:\n no"}`)},
		{"redirect", "redirects to", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/login?secret=1", http.StatusTemporaryRedirect)
		}},
		{"page", "is not an Argo server: it returned 200 OK, text/html", say(200, "<html>")},
		{"page of an error", "is not an Argo server: it returned 502 Bad Gateway", say(502, "<html>")},
		{"page of nothing", "is not an Argo server: it returned 404 Not Found", say(404, "<html>")},
		{"cut off", "unexpected EOF (gave up after 5 attempts)", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"meta`)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			here := httptest.NewServer(tt.answer)
			defer here.Close()
			s, err := argoAt(t, map[string]string{ServerVariable: here.URL})
			testenv.Check(t, err)
			_, err = s.get(web.With(t.Context(), web.Limits{Backoff: time.Millisecond}), "a")
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "secret=1") {
				t.Errorf("get: %v; want %q", err, tt.want)
			}
		})
	}
}

func say(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(text, "{") {
			w.Header().Set("Content-Type", "application/json")
		} else {
			w.Header().Set("Content-Type", "text/html")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// TestArgoServerUnreached has the reason why nobody answers, with TLS and without.
func TestArgoServerUnreached(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Check(t, err)
	free := "http://" + l.Addr().String()
	l.Close()
	tlsServer := httptest.NewTLSServer(say(200, `{"metadata":{"name":"a"}}`))
	tlsServer.Config.ErrorLog = nil
	defer tlsServer.Close()
	plain := httptest.NewServer(say(200, `{"metadata":{"name":"a"}}`))
	defer plain.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tlsServer.Certificate().Raw})
	testenv.Check(t, os.WriteFile(ca, cert, 0o644))
	for _, tt := range []struct {
		name, want string
		env        map[string]string
	}{
		{"nobody", "no server listens on that port", map[string]string{ServerVariable: free}},
		{"unknown certificate", "--ca-file FILE", map[string]string{ServerVariable: tlsServer.URL}},
		{"known certificate", "", map[string]string{ServerVariable: tlsServer.URL, CAFileVariable: ca}},
		{"any certificate", "", map[string]string{ServerVariable: tlsServer.URL, UnverifiedVariable: "true"}},
		{"no TLS there", "it does not use TLS; use http://", map[string]string{ServerVariable: strings.Replace(plain.URL, "http:", "https:", 1)}},
		{"TLS there", "uses TLS; use https://", map[string]string{ServerVariable: strings.Replace(tlsServer.URL, "https:", "http:", 1)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := argoAt(t, tt.env)
			testenv.Check(t, err)
			wf, err := s.get(t.Context(), "a")
			if (tt.want == "" && (err != nil || wf.Metadata.Name != "a")) || (tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want))) {
				t.Errorf("get: %v; want %q", err, tt.want)
			}
			if tt.want == "no server listens on that port" && !errors.As(err, new(*batch.NoAnswer)) {
				t.Errorf("get: %v; it is not the server's refusal", err)
			}
		})
	}
}

func TestArgoServerLog(t *testing.T) {
	var asked string
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Authorization") + " " + r.URL.String()
		for i := range 3 {
			fmt.Fprintf(w, `{"result":{"content":"line %d","podName":"p"}}`+"\n", i)
		}
		if r.URL.Query().Get("podName") == "bad" {
			fmt.Fprintln(w, `{"error":{"message":"it is gone"}}`)
		}
	}))
	defer here.Close()
	t.Setenv(argoToken, "Bearer sesame")
	s, err := argoAt(t, map[string]string{ServerVariable: here.URL + "/base"})
	testenv.Check(t, err)
	ctx := invoke.Within(t.Context(), map[string]string{kube.NamespaceVariable: "ns"})
	var out bytes.Buffer
	if err := s.Log(ctx, "wf", "p", true, &out); err != nil || out.String() != "line 0\nline 1\nline 2\n" {
		t.Errorf("log: %q, %v", out.String(), err)
	}
	if want := "Bearer sesame /base/api/v1/workflows/ns/wf/log?logOptions.container=main&logOptions.follow=true&podName=p"; asked != want {
		t.Errorf("log asked %s; want %s", asked, want)
	}
	if err := s.Log(ctx, "wf", "bad", false, io.Discard); err == nil || !strings.Contains(err.Error(), "it is gone") {
		t.Errorf("log: %v", err)
	}
	stop := errors.New("full")
	if err := s.Log(ctx, "wf", "p", false, writerFunc(func([]byte) (int, error) { return 0, stop })); !errors.Is(err, stop) {
		t.Errorf("log: %v; want %v", err, stop)
	}
}

// TestArgoServerWhy explains the steps of a workflow that a real cluster printed, with its events in the
// form in which an Argo server streams them: all that the cluster has, then nothing until an error.
func TestArgoServerWhy(t *testing.T) {
	workflow, err := os.ReadFile("testdata/why.json")
	testenv.Check(t, err)
	b, err := os.ReadFile("../kube/testdata/steps/events.json")
	testenv.Check(t, err)
	var events struct{ Items []json.RawMessage }
	testenv.Check(t, json.Unmarshal(b, &events))
	for _, c := range []struct {
		name, want string
		answer     http.HandlerFunc
	}{
		{"events", `1 of 3 pods: volume keys cannot be mounted on node node: secret "none" not found; create it`, func(w http.ResponseWriter, r *http.Request) {
			for _, e := range events.Items {
				fmt.Fprintf(w, `{"result":%s}`+"\n", e)
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done() // silent until the client has enough
		}},
		{"none", "1 of 3 pods: ImagePullBackOff: ", say(429, `{"error":{"grpc_code":8,"http_code":429,"message":"EOF"}}`)},
		{"forbidden", "1 of 3 pods: ImagePullBackOff: ", say(403, `{"code":7,"message":"events is forbidden"}`)},
		{"foreign", "1 of 3 pods: ImagePullBackOff: ", say(200, "<html>")},
	} {
		var asked []string
		here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Path)
			if strings.HasSuffix(r.URL.Path, "/why-2mjmp") {
				_, _ = w.Write(workflow)
				return
			}
			c.answer(w, r)
		}))
		ctx := invoke.Within(t.Context(), map[string]string{ServerVariable: here.URL, kube.NamespaceVariable: "ns"})
		known, err := New().Query(ctx, []string{"why-2mjmp"})
		if got := known["why-2mjmp"]; err != nil || !strings.HasPrefix(got.Reason, c.want) || got.Waiting != 3 {
			t.Errorf("%s: %+v, %v; want %s", c.name, got, err, c.want)
		}
		if want := []string{"/api/v1/workflows/ns/why-2mjmp", "/api/v1/stream/events/ns"}; !reflect.DeepEqual(asked, want) {
			t.Errorf("%s: requests %q; want %q", c.name, asked, want)
		}
		here.Close()
	}
}

// TestUnnoticed explains a workflow that no controller handles, or that it holds.
func TestUnnoticed(t *testing.T) {
	for _, c := range []struct {
		age            time.Duration
		message, phase string
		want           string
	}{
		{5 * time.Second, "", "", ""},
		{3 * time.Minute, "", "", "Argo's controller has not noticed the workflow for 3m0s; ask the cluster's administrators"},
		{3 * time.Minute, "Workflow processing has been postponed because too many workflows are already running", "Pending", "Workflow processing has been postponed"},
		{3 * time.Minute, "", "Running", ""},
	} {
		w := &Workflow{}
		w.Metadata.CreationTimestamp, w.Status.Phase, w.Status.Message = time.Now().Add(-c.age), c.phase, c.message
		if got := w.QueueState(t.Context(), &kube.StepReader{}).Reason; !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
			t.Errorf("%v, %s, %s: %q; want %q", c.age, c.phase, c.message, got, c.want)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestLostFields(t *testing.T) {
	list, err := readManifests("w.yaml", []byte(threeSteps))
	testenv.Check(t, err)
	stored := `{"metadata":{"generateName":"train-","name":"train-x"},"spec":{"entrypoint":"main","arguments":{"parameters":[{"name":"batch_size","value":"4"},{"name":"model","value":"small"}]},
		"templates":[{"name":"main"},{"name":"step","container":{"image":"busybox","args":["x"]},"inputs":{"parameters":[{"name":"x"}]},"outputs":{"parameters":[{"name":"acc","valueFrom":{"path":"/tmp/acc"}}]}}]}}`
	lost, err := lostFields(list[0].root, []byte(stored))
	want := []string{"spec.arguments.parameters[1].enum", "spec.arguments.parameters[2]", "spec.arguments.parameters[3]", "spec.templates[0].dag"}
	if err != nil || !reflect.DeepEqual(lost, want) {
		t.Errorf("lostFields: %q, %v; want %q", lost, err, want)
	}
}

// TestWorkflowPod compares with names that a controller gave.
func TestWorkflowPod(t *testing.T) {
	wf := &Workflow{}
	wf.Metadata.Name = "hello"
	for _, tt := range []struct {
		node workflowNode
		want string
	}{
		{workflowNode{Name: "hello"}, "hello"},
		{workflowNode{Name: "hello.train(0)", TemplateName: "step"}, "hello-step-2830580314"},
	} {
		if got := wf.pod(&tt.node); got != tt.want {
			t.Errorf("pod(%s) = %s; want %s", tt.node.Name, got, tt.want)
		}
	}
}
