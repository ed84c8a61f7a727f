package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/text"
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
	Git        string   // URL[#REF[:DIR]]; "": an upload
	ContextDir string   // directory in the repository
	Dockerfile string   // "": Dockerfile
	Base       string   // replaces the last FROM: a reference, or istag/[PROJECT/]NAME:TAG; "": keeps it
	NoCache    bool     // execute every step of the Dockerfile again
	Args       []string // NAME=VALUE of ARG
	Env        []string // NAME=VALUE, during the build and in the image
	Webhooks   []string // KIND=SECRET: a push to the repository starts a build
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
			return a, fmt.Errorf("%q: not a comma-separated list of build and deploy", text.Short(w))
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
	From           *imageRef `json:"from,omitempty"`
	PullSecret     *Named    `json:"pullSecret,omitempty"`
	NoCache        bool      `json:"noCache,omitempty"`
	Env            []EnvVar  `json:"env,omitempty"`
	DockerfilePath string    `json:"dockerfilePath,omitempty"`
	BuildArgs      []EnvVar  `json:"buildArgs,omitempty"`
}

type buildOutput struct {
	To imageRef `json:"to"`
}

type imageRef struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

type buildTrigger struct {
	Type        string    `json:"type"`
	GitHub      *webhook  `json:"github,omitempty"`
	GitLab      *webhook  `json:"gitlab,omitempty"`
	Bitbucket   *webhook  `json:"bitbucket,omitempty"`
	Generic     *webhook  `json:"generic,omitempty"`
	ImageChange *struct{} `json:"imageChange,omitempty"`
}

type webhook struct {
	SecretReference Named `json:"secretReference"`
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
	case j.Interactive || j.Nodes > 1:
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
		notes = append(notes, a.Build.notes(stream)...)
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
		return "", fmt.Errorf("image %q: not an image stream NAME or NAME:TAG of lower-case letters, digits and -", text.Short(image))
	}
	return name + ":" + tag, nil
}

// objects returns the image stream and the build configuration.
func (b *Build) objects(j *job.Job, stream, tag string) ([]any, error) {
	labels := map[string]string{labelName: job.Label(stream), labelBy: "hpcc"}
	s := &imageStream{Object: Object{"image.openshift.io/v1", "ImageStream", Meta{Name: stream, Labels: labels}}}
	s.Spec.LookupPolicy.Local = true
	c := &buildConfig{Object: Object{"build.openshift.io/v1", "BuildConfig", Meta{Name: stream, Labels: labels}}}
	c.Spec = buildSpec{Output: buildOutput{imageRef{Kind: "ImageStreamTag", Name: tag}}, RunPolicy: "Serial",
		Strategy: buildStrategy{Type: "Docker"}}
	var err error
	if c.Spec.Source, err = b.source(); err != nil {
		return nil, err
	}
	if c.Spec.Strategy.Docker, err = b.strategy(j); err != nil {
		return nil, err
	}
	if b.Git != "" && c.Spec.Strategy.Docker.From != nil && *c.Spec.Strategy.Docker.From == c.Spec.Output.To {
		return nil, fmt.Errorf("the base image and the result are both %s, so each build would start the next one; choose "+
			"another tag for the result", tag)
	}
	if c.Spec.Triggers, err = b.triggers(); err != nil {
		return nil, err
	}
	if b.Arch != "" {
		if !slices.Contains([]string{"amd64", "arm64", "ppc64le", "s390x"}, b.Arch) {
			return nil, fmt.Errorf("architecture %q: OpenShift supports amd64, arm64, ppc64le and s390x", text.Short(b.Arch))
		}
		c.Spec.NodeSelector = map[string]string{archLabel: b.Arch}
	}
	return []any{s, c}, nil
}

// source returns the repository, or the upload. Git has the form of Docker's build contexts.
func (b *Build) source() (buildSource, error) {
	if b.Git == "" {
		return buildSource{Type: "Binary", Binary: &struct{}{}}, nil
	}
	uri, fragment, _ := strings.Cut(b.Git, "#")
	u, err := url.Parse(uri)
	if err != nil || (u.User != nil && u.Scheme != "ssh") {
		return buildSource{}, fmt.Errorf("repository %q: not an address for a manifest; use https://HOST/PATH without a "+
			"password, and a secret of the project", text.Short(uri[strings.LastIndexByte(uri, '@')+1:]))
	}
	if u.RawQuery != "" {
		return buildSource{}, fmt.Errorf("repository %[1]q: OpenShift would pass the text after ? to git; write %[1]s#REF:DIR",
			text.Short(strings.TrimSuffix(uri, "?"+u.RawQuery)))
	}
	ref, dir, _ := strings.Cut(fragment, ":")
	if dir != "" && b.ContextDir != "" {
		return buildSource{}, fmt.Errorf("repository %q names directory %s, and --context-dir names %s; remove one of them",
			text.Short(b.Git), text.Short(dir), text.Short(b.ContextDir))
	}
	if dir += b.ContextDir; slices.Contains(strings.Split(dir, "/"), "..") {
		return buildSource{}, fmt.Errorf("directory %q: outside the repository", text.Short(dir))
	}
	return buildSource{Type: "Git", Git: &gitSource{uri, ref}, ContextDir: strings.Trim(dir, "/")}, nil
}

// strategy returns the settings of the build with the Dockerfile. The pull secret of the job is also that of the base
// image.
func (b *Build) strategy(j *job.Job) (s dockerStrategy, err error) {
	s = dockerStrategy{DockerfilePath: b.Dockerfile, NoCache: b.NoCache}
	if s.BuildArgs, err = pairs("build argument", b.Args); err != nil {
		return s, err
	}
	if s.Env, err = pairs("build variable", b.Env); err != nil {
		return s, err
	}
	if j.Pod.PullSecret != "" {
		s.PullSecret = &Named{j.Pod.PullSecret}
	}
	name, isTag := strings.CutPrefix(b.Base, tagResource)
	switch {
	case b.Base == "":
	case isTag:
		project, tag, ok := strings.Cut(name, "/")
		if !ok {
			project, tag = "", name
		}
		if tag, err = streamTag(tag); err != nil || (ok && !job.DnsName().MatchString(project)) {
			return s, fmt.Errorf("base image %q: not of the form %s[PROJECT/]NAME:TAG", text.Short(b.Base), tagResource)
		}
		s.From = &imageRef{"ImageStreamTag", project, tag}
	case strings.ContainsAny(b.Base, " \t\r\n"):
		return s, fmt.Errorf("base image %q: not an image reference", text.Short(b.Base))
	default:
		s.From = &imageRef{Kind: "DockerImage", Name: b.Base}
	}
	return s, nil
}

// tagResource is the prefix of an image stream tag in arguments, as for oc.
const tagResource = "istag/"

// pairs parses a list of NAME=VALUE. Errors call an element by the noun.
func pairs(noun string, list []string) (env []EnvVar, err error) {
	for _, a := range list {
		k, v, ok := strings.Cut(a, "=")
		if !ok || !job.EnvName().MatchString(k) {
			return nil, fmt.Errorf("%s %q: not of the form NAME=VALUE", noun, text.Short(a))
		}
		env = append(env, EnvVar{Name: k, Value: v})
	}
	return env, nil
}

// triggers returns the events that start a build. An upload starts its build itself.
func (b *Build) triggers() ([]buildTrigger, error) {
	list := []buildTrigger{}
	if b.Git == "" {
		if len(b.Webhooks) > 0 {
			return nil, errors.New("a webhook is called after a push to a repository; name it with --git")
		}
		return list, nil
	}
	list = append(list, buildTrigger{Type: "ConfigChange"})
	if strings.HasPrefix(b.Base, tagResource) {
		list = append(list, buildTrigger{Type: "ImageChange", ImageChange: &struct{}{}})
	}
	for _, w := range b.Webhooks {
		kind, secret, _ := strings.Cut(w, "=")
		if !job.DnsName().MatchString(secret) {
			return nil, fmt.Errorf("webhook %q: not of the form KIND=SECRET with the name of a secret", text.Short(w))
		}
		hook := &webhook{Named{secret}}
		t, ok := map[string]buildTrigger{
			"github": {Type: "GitHub", GitHub: hook}, "gitlab": {Type: "GitLab", GitLab: hook},
			"bitbucket": {Type: "Bitbucket", Bitbucket: hook}, "generic": {Type: "Generic", Generic: hook},
		}[kind]
		if !ok {
			return nil, fmt.Errorf("webhook %q: the kind is github, gitlab, bitbucket or generic", text.Short(w))
		}
		list = append(list, t)
	}
	return list, nil
}

// notes returns the commands that the user has to run next.
func (b *Build) notes(stream string) (notes []string) {
	if b.Git == "" {
		notes = append(notes, fmt.Sprintf("\"oc start-build %s --from-dir=. --follow\" sends this directory, and builds", stream))
	}
	secrets := map[string]bool{}
	for _, w := range b.Webhooks {
		if _, secret, _ := strings.Cut(w, "="); !secrets[secret] {
			secrets[secret] = true
			notes = append(notes, fmt.Sprintf("webhook: \"oc create secret generic %s --from-file=WebHookSecretKey=FILE\" "+
				"keeps its password; register the URL that \"oc describe bc/%s\" shows, with the password instead of <secret>",
				secret, stream))
		}
	}
	return notes
}

// newDeployment returns a deployment that keeps the program running, and restarts it after each build.
func newDeployment(j *job.Job, tag string) *deployment {
	name := job.Label(j.Name)
	labels := Labels(j, name)
	pod := NewPod(j, job.OpenShift, completionIndex)
	pod.RestartPolicy, pod.ActiveDeadlineSeconds = "", 0 // restart always, without a time limit
	template := newTemplate(labels, pod)
	main := &template.Spec.Containers[0]
	main.Image = " " // set by the trigger
	from := imageRef{Kind: "ImageStreamTag", Name: tag}
	trigger := fmt.Sprintf(`[{"from":{"kind":%q,"name":%q},`+
		`"fieldPath":"spec.template.spec.containers[?(@.name==\"%s\")].image"}]`, from.Kind, from.Name, MainContainer)
	return &deployment{
		Object{"apps/v1", "Deployment", Meta{Name: name, Labels: labels,
			Annotations: map[string]string{"image.openshift.io/triggers": trigger}}},
		deploymentSpec{1, labelSelector{MatchLabels: selectorOf(labels)}, template},
	}
}

// selectorOf returns the labels that select a deployment's pods.
func selectorOf(labels map[string]string) map[string]string {
	s := maps.Clone(labels)
	delete(s, labelBy)
	return s
}
