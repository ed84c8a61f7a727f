package job

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hpcc/text"
)

// A Pod holds the additional settings of targets that run the image in pods (Kubernetes,
// OpenShift, Argo). A zero field means the default of the image or the cluster.
type Pod struct {
	Image          string   `json:"image,omitempty"`         // reference that the nodes pull, by digest if known; "": the job's Image
	Pull           string   `json:"pull,omitempty"`          // imagePullPolicy: Always, IfNotPresent, Never
	PullSecret     string   `json:"pull_secret,omitempty"`   // name of a secret of type kubernetes.io/dockerconfigjson
	Entrypoint     []string `json:"entrypoint,omitempty"`    // entrypoint of the image, if known; precedes the arguments
	Command        bool     `json:"command,omitempty"`       // the arguments replace the image's entrypoint
	Measurer       Measurer `json:"measurer,omitzero"`       // set for a measured job
	UID            int64    `json:"uid,omitempty"`           // user ID of the program; 0: the image's, or an ordinary user instead of root
	AnyUID         bool     `json:"any_uid,omitempty"`       // omit the user ID: the cluster assigns one, as OpenShift does
	Env            []string `json:"env,omitempty"`           // NAME=VALUE: the result of --set-env and similar flags
	CleanEnv       bool     `json:"clean_env,omitempty"`     // without variables for the services of the namespace
	Hostname       string   `json:"hostname,omitempty"`      // "": the name of the pod
	Dir            string   `json:"dir,omitempty"`           // absolute working directory in the image
	Scratch        int64    `json:"scratch_bytes,omitempty"` // bytes of ephemeral storage on the node
	Volumes        []Volume `json:"volumes,omitempty"`
	Ports          []Port   `json:"ports,omitempty"`
	Secrets        []Secret `json:"secrets,omitempty"`
	ServiceAccount string   `json:"service_account,omitempty"` // "": the namespace's default, without its token
	NodeLabels     []string `json:"node_labels,omitempty"`     // KEY=VALUE that the nodes must have

	CodeFile  string           `json:"code_file,omitempty"`  // tar archive on this machine for a config map, whose files the pods have in Dir
	CodeFiles map[string]int64 `json:"code_files,omitempty"` // paths of these files below Dir, and their modes
	CodeEmpty bool             `json:"code_empty,omitempty"` // Dir is not in the image: an empty directory of the pod
}

// A Measurer describes the measuring program in an image, and the known properties of the image.
type Measurer struct {
	Argv         []string `json:"words"`            // argv prefix that replaces Entrypoint, and ends with it
	Digest       string   `json:"digest,omitempty"` // digest of the local image with the same name
	Config       string   `json:"config,omitempty"` // digest of the image's configuration, for Architecture
	Architecture string   `json:"architecture,omitempty"`
}

// A Volume is a persistent volume claim, or an empty directory, in the pod.
type Volume struct {
	Claim    string `json:"claim,omitempty"` // "": an empty directory for each pod
	Path     string `json:"path"`            // absolute
	ReadOnly bool   `json:"read_only,omitempty"`
}

// A Port is a named port on which the program listens.
type Port struct {
	Name   string `json:"name"`
	Number int    `json:"number"`
}

// A Secret is a secret of the namespace whose keys become variables, or files in a directory.
type Secret struct {
	Name string `json:"name"`
	Path string `json:"path,omitempty"` // absolute; "": variables
}

var (
	// dnsLabel matches a DNS label (RFC 1123). DnsName matches a DNS subdomain, such as the name of
	// a claim or a secret (core/v1).
	dnsLabel = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })
	DnsName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`) })
	// portName matches a port name (RFC 6335). ParsePort also requires a letter, and rejects two
	// hyphens in a row.
	portName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$`) })
	// labelKey matches the key of a label, LabelValue its value.
	labelKey = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	})
	LabelValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`) })
)

// ParseVolume parses CLAIM:PATH[:ro], or scratch:PATH for an empty directory.
func ParseVolume(s string) (Volume, error) {
	claim, at, ok := strings.Cut(s, ":")
	at, ro := strings.CutSuffix(at, ":ro")
	switch {
	case !ok:
		return Volume{}, fmt.Errorf("%q: not of the form CLAIM:PATH", text.Short(s))
	case strings.HasPrefix(claim, "/"):
		return Volume{}, fmt.Errorf("%q: pods do not see directories of the host; name a persistent volume claim (\"kubectl get pvc\" lists them)", text.Short(s))
	case !DnsName().MatchString(claim):
		return Volume{}, fmt.Errorf("%q is not a claim name: use lower-case letters, digits, hyphens and dots", text.Short(claim))
	case !inPod(at) || path.Clean(at) == "/":
		return Volume{}, fmt.Errorf("%q: %q is not an absolute path in the pod below /", text.Short(s), text.Short(at))
	}
	if claim == "scratch" {
		claim = ""
	}
	return Volume{claim, path.Clean(at), ro}, nil
}

// inPod reports whether a path is valid in a pod. A mount path cannot contain a colon.
func inPod(p string) bool {
	return path.IsAbs(p) && len(p) < 4096 && !strings.ContainsAny(p, ":\x00\n") && !slices.Contains(strings.Split(p, "/"), "..")
}

// ParsePort parses NAME=NUMBER.
func ParsePort(s string) (Port, error) {
	name, number, _ := strings.Cut(s, "=")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil || n < 1 || n > 65535:
		return Port{}, fmt.Errorf("%q: not of the form NAME=NUMBER with a number from 1 to 65535", text.Short(s))
	case !portName().MatchString(name) || strings.Contains(name, "--") || strings.Trim(name, "0123456789-") == "":
		return Port{}, fmt.Errorf("%q is not a port name: use at most 15 lower-case letters, digits and single hyphens, with at least one letter", text.Short(name))
	}
	return Port{name, n}, nil
}

// ParseSecret parses NAME or NAME:PATH.
func ParseSecret(s string) (Secret, error) {
	name, at, files := strings.Cut(s, ":")
	if !DnsName().MatchString(name) {
		return Secret{}, fmt.Errorf("%q is not a secret name: use lower-case letters, digits, hyphens and dots", text.Short(name))
	}
	if files && (!inPod(at) || path.Clean(at) == "/") {
		return Secret{}, fmt.Errorf("%q: %q is not an absolute path in the pod below /", text.Short(s), text.Short(at))
	}
	if files {
		at = path.Clean(at)
	}
	return Secret{name, at}, nil
}

// podVariable matches the names of variables that Kubernetes accepts.
var podVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_.-][A-Za-z0-9_.-]*$`) })

// check returns an error for settings that the cluster would reject.
func (p *Pod) check() error {
	at := map[string]bool{}
	for _, v := range p.Volumes {
		if at[v.Path] {
			return fmt.Errorf("two volumes have the same path, %s", v.Path)
		}
		at[v.Path] = true
	}
	for _, s := range p.Secrets {
		if s.Path != "" && at[s.Path] {
			return fmt.Errorf("a secret and another mount have the same path, %s", s.Path)
		}
		at[s.Path] = true
	}
	names := map[string]bool{}
	for _, o := range p.Ports {
		if names[o.Name] {
			return fmt.Errorf("two ports have the same name, %s", o.Name)
		}
		names[o.Name] = true
	}
	for _, l := range p.NodeLabels {
		if k, v, ok := strings.Cut(l, "="); !ok || !labelKey().MatchString(k) || !LabelValue().MatchString(v) {
			return fmt.Errorf("node label %q: not of the form KEY=VALUE", text.Short(l))
		}
	}
	for _, e := range p.Env {
		if name, _, _ := strings.Cut(e, "="); !podVariable().MatchString(name) {
			return fmt.Errorf("variable %q: pods allow only letters, digits and ._- in the name", text.Short(name))
		}
	}
	for _, name := range [][2]string{{"pull secret", p.PullSecret}, {"service account", p.ServiceAccount}} {
		if name[1] != "" && !DnsName().MatchString(name[1]) {
			return fmt.Errorf("%s %q: not a name; use lower-case letters, digits, hyphens and dots", name[0], text.Short(name[1]))
		}
	}
	if !slices.Contains([]string{"", "Always", "IfNotPresent", "Never"}, p.Pull) {
		return fmt.Errorf("pull policy %q: not one of always, missing and never", p.Pull)
	}
	if p.Dir != "" && !inPod(p.Dir) {
		return fmt.Errorf("directory %q: not an absolute path in the image", text.Short(p.Dir))
	}
	if p.Hostname != "" && !dnsLabel().MatchString(p.Hostname) {
		return fmt.Errorf("host name %q: use at most 63 lower-case letters, digits and hyphens in a pod", text.Short(p.Hostname))
	}
	if p.UID < 0 || p.UID > 1<<31-1 {
		return fmt.Errorf("user ID %d: not a number from 1 to 2147483647", p.UID)
	}
	return nil
}

// Inherit adds the settings of a manifest that the pod does not have itself, except its user and its image.
func (p *Pod) Inherit(m *Pod) {
	for _, v := range m.Volumes {
		if !slices.ContainsFunc(p.Volumes, func(o Volume) bool { return o.Path == v.Path }) {
			p.Volumes = append(p.Volumes, v)
		}
	}
	for _, v := range m.Ports {
		if !slices.ContainsFunc(p.Ports, func(o Port) bool { return o.Name == v.Name }) {
			p.Ports = append(p.Ports, v)
		}
	}
	p.Secrets = slices.Concat(m.Secrets, p.Secrets)
	p.NodeLabels = slices.Concat(m.NodeLabels, p.NodeLabels)
	p.Dir = cmp.Or(p.Dir, m.Dir)
	p.Pull = cmp.Or(p.Pull, m.Pull)
	p.PullSecret = cmp.Or(p.PullSecret, m.PullSecret)
	p.ServiceAccount = cmp.Or(p.ServiceAccount, m.ServiceAccount)
	p.Scratch = cmp.Or(p.Scratch, m.Scratch)
	p.Command = p.Command || m.Command
}

// Label converts a name to a DNS label that Kubernetes accepts for a Job, with room for the
// suffixes of pod names. It keeps the end of a long name, which distinguishes IDs.
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

// AcrossPods reports whether the pods of a job are its nodes and communicate with each other.
func (j *Job) AcrossPods() bool { return j.Nodes > 1 }

// PortOf returns the number of a named port, or 0 if the job does not have it.
func (j *Job) PortOf(name string) int {
	for _, p := range j.Pod.Ports {
		if p.Name == name {
			return p.Number
		}
	}
	return 0
}

// OrdinaryUser is the user ID of programs that would otherwise run as root.
const OrdinaryUser = 1000

// Pods reports whether a target runs the image in pods.
func (t Target) Pods() bool { return t == Kubernetes || t == OpenShift || t == Argo }

// Measured reports whether the program of a pod is measured. That of an interactive pod is not,
// because the pod is gone before its record could be read.
func (j *Job) Measured() bool { return j.Measure && !j.Interactive }

// Entrypoint returns the argv prefix of the program.
func (j *Job) Entrypoint() []string {
	if j.Measured() {
		return j.Pod.Measurer.Argv
	}
	return j.Pod.Entrypoint
}
