// Command large measures hpcc with a large job on the API server that up.sh api has started. Nothing
// runs there: large creates the pods of the job and sets their state.
//
//	large serve PORT      counts the requests to the API server on 127.0.0.1:PORT, and serves the pods'
//	                      logs as the node "large" on the next port; prints the kubeconfig for hpcc
//	large fill JOB        creates the pods of the array job: of 20 tasks one has failed, one runs, and
//	                      the others have succeeded
//	large count PORT      prints the number of requests since the last count
//
// It reads $HPCC_TEST_KUBE, and $HPCC_KUBE_NAMESPACE (default: restricted).
package main

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type object = map[string]any

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "large:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: large serve PORT | fill JOB | count PORT")
	}
	s := &server{base: os.Getenv("HPCC_TEST_KUBE"), namespace: cmp.Or(os.Getenv("HPCC_KUBE_NAMESPACE"), "restricted")}
	switch args[0] {
	case "serve":
		return s.serve(args[1])
	case "fill":
		return s.fill(args[1])
	case "count":
		res, err := http.Get("http://127.0.0.1:" + args[1] + countPath)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(os.Stdout, res.Body)
		return err
	}
	return fmt.Errorf("unknown command %q", args[0])
}

const countPath = "/-/count"

// A server is the API server of up.sh.
type server struct {
	base, namespace string
	client          *http.Client
	url             *url.URL
}

// connect reads the address and the certificate of a user.
func (s *server) connect(user string) error {
	b, err := os.ReadFile(filepath.Join(s.base, "admin.kubeconfig"))
	if err != nil {
		return fmt.Errorf("finding the API server of $HPCC_TEST_KUBE: %w", err)
	}
	_, address, _ := strings.Cut(string(b), `server: "`)
	address, _, _ = strings.Cut(address, `"`)
	if s.url, err = url.Parse(address); err != nil {
		return err
	}
	pki := filepath.Join(s.base, "pki")
	cert, err := tls.LoadX509KeyPair(filepath.Join(pki, user+".crt"), filepath.Join(pki, user+".key"))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}, MaxIdleConnsPerHost: 64}}
	return nil
}

// do sends an object and returns the server's answer.
func (s *server) do(method, path string, in any) (object, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(method, s.url.String()+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	out := object{}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %v", method, path, out["message"])
	}
	return out, nil
}

// serve runs the counting proxy, as the researcher, and the node.
func (s *server) serve(text string) error {
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if err := s.connect("admin"); err != nil {
		return err
	}
	_, err = s.do(http.MethodPost, "/api/v1/nodes", object{"metadata": object{"name": "large"}})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	status := object{"addresses": []object{{"type": "InternalIP", "address": "127.0.0.1"}}, "daemonEndpoints": object{"kubeletEndpoint": object{"Port": port + 1}}}
	if _, err := s.do(http.MethodPatch, "/api/v1/nodes/large/status", object{"status": status}); err != nil {
		return err
	}
	if err := s.connect("researcher"); err != nil {
		return err
	}
	var requests atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(s.url)
	proxy.Transport = s.client.Transport
	count := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == countPath {
			fmt.Fprintln(w, requests.Swap(0))
			return
		}
		requests.Add(1)
		proxy.ServeHTTP(w, r)
	}
	fmt.Printf(`apiVersion: v1
kind: Config
clusters: [{name: large, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: large, user: {}}]
contexts: [{name: large, context: {cluster: large, user: large, namespace: %s}}]
current-context: large
`, port, s.namespace)
	go func() {
		fmt.Fprintln(os.Stderr, "large:", serveNode(port+1))
		os.Exit(1)
	}()
	return http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", port), http.HandlerFunc(count))
}

// serveNode answers requests for the logs of pods as a kubelet does.
func serveNode(port int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.AddDate(0, 1, 0), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return err
	}
	node := &http.Server{
		Addr:      fmt.Sprintf("127.0.0.1:%d", port),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "output of %s\n", r.URL.Path) }),
	}
	return node.ListenAndServeTLS("", "")
}

// fill creates the pods of a job, and sets their states and that of the job.
func (s *server) fill(name string) error {
	if err := s.connect("admin"); err != nil {
		return err
	}
	path := "/apis/batch/v1/namespaces/" + s.namespace + "/jobs/" + name
	job, err := s.do(http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	spec := job["spec"].(object)
	n := int(spec["completions"].(float64))
	indexes := make(chan int)
	var g sync.WaitGroup
	var failed atomic.Pointer[error]
	for range 16 {
		g.Go(func() {
			for k := range indexes {
				if err := s.pod(name, job, k); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	for k := 0; k < n && failed.Load() == nil; k++ {
		indexes <- k
	}
	close(indexes)
	if g.Wait(); failed.Load() != nil {
		return *failed.Load()
	}
	var done, bad []string
	for k := range n {
		switch outcome(k) {
		case "Succeeded":
			done = append(done, strconv.Itoa(k))
		case "Failed":
			bad = append(bad, strconv.Itoa(k))
		}
	}
	active := n - len(done) - len(bad)
	status := object{"startTime": time.Now().UTC().Format(time.RFC3339), "active": active, "ready": active, "succeeded": len(done), "failed": len(bad),
		"completedIndexes": strings.Join(done, ","), "failedIndexes": strings.Join(bad, ","), "uncountedTerminatedPods": object{}}
	_, err = s.do(http.MethodPatch, path+"/status", object{"status": status})
	return err
}

// outcome returns the phase of the pod of a task.
func outcome(k int) string {
	switch k % 20 {
	case 7:
		return "Failed"
	case 9:
		return "Running"
	}
	return "Succeeded"
}

// pod creates the pod of task k of a job and sets its state.
func (s *server) pod(name string, job object, k int) error {
	index := strconv.Itoa(k)
	template := job["spec"].(object)["template"].(object)
	labels := object{"batch.kubernetes.io/job-completion-index": index, "batch.kubernetes.io/job-name": name}
	for l, v := range template["metadata"].(object)["labels"].(object) {
		labels[l] = v
	}
	spec := object{"nodeName": "large"}
	for f, v := range template["spec"].(object) {
		spec[f] = v
	}
	meta := object{"name": fmt.Sprintf("%s-%s-%05x", name, index, k*7919%(1<<20)), "labels": labels,
		"annotations":     object{"batch.kubernetes.io/job-completion-index": index, "batch.kubernetes.io/job-index-failure-count": "0"},
		"ownerReferences": []object{{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"].(object)["uid"], "controller": true}}}
	path := "/api/v1/namespaces/" + s.namespace + "/pods"
	made, err := s.do(http.MethodPost, path, object{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
	if err != nil {
		return err
	}
	end := time.Now().UTC()
	at, begun := end.Format(time.RFC3339), end.Add(-time.Minute).Format(time.RFC3339)
	state := object{"terminated": object{"exitCode": 0, "reason": "Completed", "startedAt": begun, "finishedAt": at, "containerID": "large://" + index}}
	switch outcome(k) {
	case "Failed":
		state = object{"terminated": object{"exitCode": 3, "reason": "Error", "startedAt": begun, "finishedAt": at, "containerID": "large://" + index}}
	case "Running":
		state = object{"running": object{"startedAt": begun}}
	}
	container := object{"name": "main", "image": spec["containers"].([]any)[0].(object)["image"], "imageID": "", "restartCount": 0, "ready": false, "state": state, "containerID": "large://" + index}
	status := object{"phase": outcome(k), "startTime": begun, "containerStatuses": []object{container}}
	_, err = s.do(http.MethodPatch, path+"/"+made["metadata"].(object)["name"].(string)+"/status", object{"status": status})
	return err
}
