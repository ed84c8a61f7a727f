package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/message"
)

// Around selects the objects of OpenShift around a job: a build of the image in the cluster, and a
// deployment that keeps the program running.
type Around struct {
	Build  *Build
	Deploy bool // a Deployment instead of the Job
}

// A Build describes how the cluster builds the image: with the strategy Docker, from a Git repository or
// from an upload with "oc start-build --from-dir".
type Build struct {
	Git        string   // URL[#REF]; "": an upload
	ContextDir string   // directory in the repository
	Dockerfile string   // "": Dockerfile
	Args       []string // NAME=VALUE
	Arch       string   // of the build and run nodes: ppc64le, amd64; "": any
}

// ParseAround parses a list of build and deploy.
func ParseAround(list string) (Around, error) {
	var a Around
	for _, w := range strings.Split(list, ",") {
		switch w {
		case "build":
			a.Build = &Build{}
		case "deploy":
			a.Deploy = true
		default:
			return a, fmt.Errorf("%q: not a comma-separated list of build and deploy", message.Short(w))
		}
	}
	return a, nil
}

// The types below are the part of build.openshift.io/v1, image.openshift.io/v1 and apps.openshift.io/v1
// that hpcc writes.

type imageStream struct {
	Object
	Spec imageStreamSpec `json:"spec"`
}

type imageStreamSpec struct {
	LookupPolicy struct {
		Local bool `json:"local"`
	} `json:"lookupPolicy"`
}

type buildConfig struct {
	Object
	Spec buildSpec `json:"spec"`
}

type buildSpec struct {
	Source       buildSource       `json:"source"`
	Strategy     buildStrategy     `json:"strategy"`
	Output       buildOutput       `json:"output"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	RunPolicy    string            `json:"runPolicy"`
	Triggers     []buildTrigger    `json:"triggers"`
}

type buildSource struct {
	Type       string     `json:"type"`
	Git        *gitSource `json:"git,omitempty"`
	ContextDir string     `json:"contextDir,omitempty"`
	Binary     *struct{}  `json:"binary,omitempty"`
}

type gitSource struct {
	URI string `json:"uri"`
	Ref string `json:"ref,omitempty"`
}

type buildStrategy struct {
	Type   string         `json:"type"`
	Docker dockerStrategy `json:"dockerStrategy"`
}

type dockerStrategy struct {
	DockerfilePath string   `json:"dockerfilePath,omitempty"`
	BuildArgs      []EnvVar `json:"buildArgs,omitempty"`
}

type buildOutput struct {
	To imageRef `json:"to"`
}

type imageRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

type buildTrigger struct {
	Type string `json:"type"`
}

type deployment struct {
	Object
	Spec deploymentSpec `json:"spec"`
}

type deploymentSpec struct {
	Replicas int           `json:"replicas"`
	Selector labelSelector `json:"selector"`
	Template podTemplate   `json:"template"`
}

// RenderAround writes an OpenShift job with the objects around it. The image stream comes first: a build
// whose stream is created later never starts.
func RenderAround(j *job.Job, a Around) (string, []string, error) {
	k := System{Target: job.OpenShift}
	if err := j.Check(); err != nil {
		return "", nil, err
	}
	if err := Check(j, job.OpenShift); err != nil {
		return "", nil, err
	}
	switch {
	case j.Interactive || j.Nodes > 1 || j.Ray:
		return "", nil, errors.New("--with build and deploy are for programs of one pod")
	case a.Deploy && !j.Array.IsZero():
		return "", nil, errors.New("a deployment cannot run an array; leave deploy or --array out")
	}
	tag, err := streamTag(j.Image)
	if err != nil {
		return "", nil, err
	}
	stream, _, _ := strings.Cut(tag, ":")
	own := *j
	notes := Notes(j, job.OpenShift)
	var objects []any
	if a.Build != nil {
		b, err := a.Build.objects(&own, stream, tag)
		if err != nil {
			return "", nil, err
		}
		objects = append(objects, b...)
		if a.Build.Arch != "" {
			own.Pod.NodeLabels = append(slices.Clone(j.Pod.NodeLabels), archLabel+"="+a.Build.Arch)
		}
		own.Pod.Image = tag // the stream resolves it
		if a.Build.Git == "" {
			notes = append(notes, fmt.Sprintf("\"oc start-build %s --from-dir=. --follow\" sends this directory, and builds", stream))
		}
	}
	if a.Deploy {
		objects = append(objects, newDeployment(&own, tag))
	} else {
		objects = append(objects, k.job(&own, job.Label(j.Name)))
	}
	text, err := Documents(k.comment(j), objects...)
	return text, notes, err
}

// archLabel is the node label with the architecture.
const archLabel = "kubernetes.io/arch"

// streamTag returns the image as NAME:TAG of an image stream of the project.
func streamTag(image string) (string, error) {
	name, tag, ok := strings.Cut(image, ":")
	if !ok {
		tag = "latest"
	}
	if !job.DnsName().MatchString(name) || !job.LabelValue().MatchString(tag) || tag == "" {
		return "", fmt.Errorf("image %q: not an image stream NAME or NAME:TAG of lower-case letters, digits and -", message.Short(image))
	}
	return name + ":" + tag, nil
}

// objects returns the image stream and the build configuration.
func (b *Build) objects(j *job.Job, stream, tag string) ([]any, error) {
	labels := map[string]string{labelName: job.Label(stream), labelBy: "hpcc"}
	s := &imageStream{Object: Object{"image.openshift.io/v1", "ImageStream", Meta{Name: stream, Labels: labels}}}
	s.Spec.LookupPolicy.Local = true
	c := &buildConfig{Object: Object{"build.openshift.io/v1", "BuildConfig", Meta{Name: stream, Labels: labels}}}
	c.Spec = buildSpec{
		Source: buildSource{Type: "Binary", Binary: &struct{}{}}, Strategy: buildStrategy{"Docker", dockerStrategy{DockerfilePath: b.Dockerfile}},
		Output: buildOutput{imageRef{"ImageStreamTag", tag}}, RunPolicy: "Serial", Triggers: []buildTrigger{},
	}
	if b.Git != "" {
		uri, ref, _ := strings.Cut(b.Git, "#")
		u, err := url.Parse(uri)
		if err != nil || (u.User != nil && u.Scheme != "ssh") {
			return nil, fmt.Errorf("repository %q: not an address for a manifest; use https://HOST/PATH without a password, and a secret of the project", message.Short(uri[strings.LastIndexByte(uri, '@')+1:]))
		}
		c.Spec.Source = buildSource{Type: "Git", Git: &gitSource{uri, ref}, ContextDir: b.ContextDir}
		c.Spec.Triggers = []buildTrigger{{"ConfigChange"}}
	}
	for _, a := range b.Args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || !job.EnvName().MatchString(k) {
			return nil, fmt.Errorf("build argument %q: not of the form NAME=VALUE", message.Short(a))
		}
		c.Spec.Strategy.Docker.BuildArgs = append(c.Spec.Strategy.Docker.BuildArgs, EnvVar{Name: k, Value: v})
	}
	if b.Arch != "" {
		if !slices.Contains([]string{"amd64", "arm64", "ppc64le", "s390x"}, b.Arch) {
			return nil, fmt.Errorf("architecture %q: OpenShift supports amd64, arm64, ppc64le and s390x", message.Short(b.Arch))
		}
		c.Spec.NodeSelector = map[string]string{archLabel: b.Arch}
	}
	return []any{s, c}, nil
}

// newDeployment returns a deployment that keeps the program running, and restarts it after each build.
func newDeployment(j *job.Job, tag string) *deployment {
	name := job.Label(j.Name)
	labels := Labels(j, name)
	pod := NewPod(j, job.OpenShift, completionIndex)
	pod.RestartPolicy, pod.ActiveDeadlineSeconds = "", 0 // restart always, without a time limit
	template := podTemplate{Meta{Labels: labels}, pod}
	main := &template.Spec.Containers[0]
	main.Image = " " // set by the trigger
	from := imageRef{"ImageStreamTag", tag}
	trigger := fmt.Sprintf(`[{"from":{"kind":%q,"name":%q},"fieldPath":"spec.template.spec.containers[?(@.name==\"%s\")].image"}]`, from.Kind, from.Name, MainContainer)
	return &deployment{
		Object{"apps/v1", "Deployment", Meta{Name: name, Labels: labels, Annotations: map[string]string{"image.openshift.io/triggers": trigger}}},
		deploymentSpec{1, labelSelector{MatchLabels: selectorOf(labels)}, template},
	}
}

// selectorOf returns the labels that select a deployment's pods.
func selectorOf(labels map[string]string) map[string]string {
	s := maps.Clone(labels)
	delete(s, labelBy)
	return s
}
