package job

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/job/message"
)

// A Pod is what targets that run the image themselves (Kubernetes, OpenShift,
// Argo) want to know of a job beside what every scheduler does. The zero value of a
// field leaves the matter to the image or the cluster.
type Pod struct {
	Image          string   `json:"image,omitempty"`           // reference that the nodes pull, by digest where that is known; "": the job's Image
	Pull           string   `json:"pull,omitempty"`            // imagePullPolicy: Always, IfNotPresent, Never
	PullSecret     string   `json:"pull_secret,omitempty"`     // of type kubernetes.io/dockerconfigjson
	Entrypoint     []string `json:"entrypoint,omitempty"`      // of the image, where it is known; it stands before the words
	Measurer       Measurer `json:"measurer,omitzero"`         // of a job that is measured
	UID            int64    `json:"uid,omitempty"`             // runs as; 0: the image's, or one that is not root
	AnyUID         bool     `json:"any_uid,omitempty"`         // no user id is written: the cluster gives one, as OpenShift does
	Env            []string `json:"env,omitempty"`             // NAME=VALUE: what --set-env and its like come to
	Dir            string   `json:"dir,omitempty"`             // absolute, in the image
	Scratch        int64    `json:"scratch_bytes,omitempty"`   // ephemeral storage of the node
	Volumes        []Volume `json:"volumes,omitempty"`         //
	Ports          []Port   `json:"ports,omitempty"`           //
	Secrets        []Secret `json:"secrets,omitempty"`         //
	ServiceAccount string   `json:"service_account,omitempty"` // "": the namespace's default, without its token
	NodeLabels     []string `json:"node_labels,omitempty"`     // KEY=VALUE that nodes must have
}

// A Measurer is the program of an image that measures another, and what is known of the image here.
type Measurer struct {
	Words        []string `json:"words"`            // they stand in the place of Entrypoint, and end with it
	Digest       string   `json:"digest,omitempty"` // of what the store here has under the image's name
	Config       string   `json:"config,omitempty"` // of the image's configuration, for Architecture
	Architecture string   `json:"architecture,omitempty"`
}

// A Volume is a persistent volume claim, or an empty directory, in the pod.
type Volume struct {
	Claim    string `json:"claim,omitempty"` // "": an empty directory for each pod
	Path     string `json:"path"`            // absolute
	ReadOnly bool   `json:"read_only,omitempty"`
}

// A Port is one that the program listens on, with a name.
type Port struct {
	Name   string `json:"name"`
	Number int    `json:"number"`
}

// A Secret is one of the namespace: its keys are variables, or files in a directory.
type Secret struct {
	Name string `json:"name"`
	Path string `json:"path,omitempty"` // absolute; "": variables
}

var (
	// A label of the DNS (RFC 1123), and a name of several (core/v1: names of claims and secrets).
	dnsLabel = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })
	DnsName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`) })
	// A name of a port (RFC 6335): a letter somewhere, no two hyphens together.
	portName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`) })
	// A key or value of a label.
	labelKey = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	})
	LabelValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`) })
)

// ParseVolume reads CLAIM:PATH[:ro], or scratch:PATH for an empty directory.
func ParseVolume(s string) (Volume, error) {
	claim, at, ok := strings.Cut(s, ":")
	at, ro := strings.CutSuffix(at, ":ro")
	switch {
	case !ok:
		return Volume{}, fmt.Errorf("%q: not of the form CLAIM:PATH", message.Short(s))
	case strings.HasPrefix(claim, "/"):
		return Volume{}, fmt.Errorf("%q: pods do not see directories of the host; name a persistent volume claim (\"kubectl get pvc\" lists them)", message.Short(s))
	case !DnsName().MatchString(claim):
		return Volume{}, fmt.Errorf("%q is no name of a persistent volume claim: small letters, digits, hyphens and dots make one", message.Short(claim))
	case !inPod(at) || path.Clean(at) == "/":
		return Volume{}, fmt.Errorf("%q: %q is no absolute path in the pod, or is all of it", message.Short(s), message.Short(at))
	}
	if claim == "scratch" {
		claim = ""
	}
	return Volume{claim, path.Clean(at), ro}, nil
}

// inPod says whether a path can be one of a pod: a mount's has no colon.
func inPod(p string) bool {
	return path.IsAbs(p) && len(p) < 4096 && !strings.ContainsAny(p, ":\x00\n") && !slices.Contains(strings.Split(p, "/"), "..")
}

// ParsePort reads NAME=NUMBER.
func ParsePort(s string) (Port, error) {
	name, number, _ := strings.Cut(s, "=")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil || n < 1 || n > 65535:
		return Port{}, fmt.Errorf("%q: not of the form NAME=NUMBER with a number from 1 to 65535", message.Short(s))
	case !portName().MatchString(name) || strings.Contains(name, "--") || strings.Trim(name, "0123456789-") == "":
		return Port{}, fmt.Errorf("%q is no name of a port: at most 15 small letters, digits and single hyphens, one of them a letter", message.Short(name))
	}
	return Port{name, n}, nil
}

// ParseSecret reads NAME or NAME:PATH.
func ParseSecret(s string) (Secret, error) {
	name, at, files := strings.Cut(s, ":")
	if !DnsName().MatchString(name) {
		return Secret{}, fmt.Errorf("%q is no name of a secret: small letters, digits, hyphens and dots make one", message.Short(name))
	}
	if files && (!inPod(at) || path.Clean(at) == "/") {
		return Secret{}, fmt.Errorf("%q: %q is no absolute path in the pod", message.Short(s), message.Short(at))
	}
	return Secret{name, at}, nil
}

// check refuses what the cluster would.
func (p *Pod) check() error {
	at := map[string]bool{}
	for _, v := range p.Volumes {
		if at[v.Path] {
			return fmt.Errorf("two volumes are to be at %s", v.Path)
		}
		at[v.Path] = true
	}
	for _, s := range p.Secrets {
		if s.Path != "" && at[s.Path] {
			return fmt.Errorf("a secret and a volume are to be at %s", s.Path)
		}
		at[s.Path] = true
	}
	names := map[string]bool{}
	for _, o := range p.Ports {
		if names[o.Name] {
			return fmt.Errorf("two ports have the name %s", o.Name)
		}
		names[o.Name] = true
	}
	for _, l := range p.NodeLabels {
		if k, v, ok := strings.Cut(l, "="); !ok || !labelKey().MatchString(k) || !LabelValue().MatchString(v) {
			return fmt.Errorf("label %q of nodes: not of the form KEY=VALUE", message.Short(l))
		}
	}
	for what, s := range map[string]string{"pull secret": p.PullSecret, "service account": p.ServiceAccount} {
		if s != "" && !DnsName().MatchString(s) {
			return fmt.Errorf("%s %q: small letters, digits, hyphens and dots make a name", what, message.Short(s))
		}
	}
	if !slices.Contains([]string{"", "Always", "IfNotPresent", "Never"}, p.Pull) {
		return fmt.Errorf("%q is none of always, missing and never", p.Pull)
	}
	if p.Dir != "" && !inPod(p.Dir) {
		return fmt.Errorf("directory %q: not an absolute path in the image", message.Short(p.Dir))
	}
	if p.UID < 0 || p.UID > 1<<31-1 {
		return errors.New("a user id is from 1 to 2147483647")
	}
	return nil
}

// Label makes a label of the DNS of a name: what Kubernetes takes as a Job's, with room for
// what it appends to the names of pods. Of a long one the end stays, which tells ids apart.
func Label(name string) string {
	const most = 45
	s := strings.Map(func(c rune) rune {
		switch {
		case (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'):
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}, name)
	if s = strings.Trim(s, "-"); len(s) > most {
		const tail = len("-060102-150405-2-r10")
		s = strings.TrimRight(s[:most-tail], "-") + s[len(s)-tail:]
	}
	if s == "" || (s[0] >= '0' && s[0] <= '9') {
		s = "j" + s
	}
	return s
}

// AcrossPods says whether the pods of a job are its nodes, which know of each other.
func (j *Job) AcrossPods() bool { return j.Nodes > 1 || j.Ray }

// PortOf is the number of a port that the job has a name for; 0 where it has none.
func (j *Job) PortOf(name string) int {
	for _, p := range j.Pod.Ports {
		if p.Name == name {
			return p.Number
		}
	}
	return 0
}

// OrdinaryUser runs what would run as root, where nothing else is said.
const OrdinaryUser = 1000

// Pods says whether a target runs the image itself, in pods.
func (t Target) Pods() bool { return t == Kubernetes || t == OpenShift || t == Argo }

// Measured says whether the program of a pod is measured: what a person runs at a terminal
// leaves no pod that could tell.
func (j *Job) Measured() bool { return j.Measure && !j.Interactive }

// Entrypoint stands before the words of the program.
func (j *Job) Entrypoint() []string {
	if j.Measured() {
		return j.Pod.Measurer.Words
	}
	return j.Pod.Entrypoint
}
