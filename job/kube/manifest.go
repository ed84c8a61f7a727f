package kube

import (
	"bytes"
	"fmt"
)

// The types below are the part of the Kubernetes API (1.29 and later) that hpcc writes. They have the
// names of the API reference (core/v1, batch/v1).

// An Object holds the fields that all objects of the API share.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   Meta   `json:"metadata"`
}

// Meta is the metadata of an object.
type Meta struct {
	Name        string            `json:"name,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type podTemplate struct {
	Metadata Meta    `json:"metadata,omitzero"`
	Spec     PodSpec `json:"spec"`
}

// A PodSpec is the part of a pod's specification that hpcc writes (core/v1).
type PodSpec struct {
	ActiveDeadlineSeconds         int64             `json:"activeDeadlineSeconds,omitempty"`
	RestartPolicy                 string            `json:"restartPolicy,omitempty"`
	TerminationGracePeriodSeconds int64             `json:"terminationGracePeriodSeconds,omitempty"`
	ServiceAccountName            string            `json:"serviceAccountName,omitempty"`
	AutomountServiceAccountToken  *bool             `json:"automountServiceAccountToken,omitempty"`
	ShareProcessNamespace         bool              `json:"shareProcessNamespace,omitempty"`
	ImagePullSecrets              []Named           `json:"imagePullSecrets,omitempty"`
	Subdomain                     string            `json:"subdomain,omitempty"`
	NodeSelector                  map[string]string `json:"nodeSelector,omitempty"`
	Affinity                      *Affinity         `json:"affinity,omitempty"`
	Tolerations                   []Toleration      `json:"tolerations,omitempty"`
	SecurityContext               PodSecurity       `json:"securityContext,omitzero"`
	InitContainers                []Container       `json:"initContainers,omitempty"`
	Containers                    []Container       `json:"containers"`
	Volumes                       []Volume          `json:"volumes,omitempty"`
	native                        native            // of --native
}

// A Named refers to an object by its name.
type Named struct {
	Name string `json:"name"`
}

// A Container is a program in a pod.
type Container struct {
	Name            string            `json:"name"`
	Image           string            `json:"image"`
	ImagePullPolicy string            `json:"imagePullPolicy,omitempty"`
	RestartPolicy   string            `json:"restartPolicy,omitempty"` // Always: a sidecar (KEP-753)
	Command         []string          `json:"command,omitempty"`
	Args            []string          `json:"args,omitempty"`
	WorkingDir      string            `json:"workingDir,omitempty"`
	Ports           []containerPort   `json:"ports,omitempty"`
	EnvFrom         []envSource       `json:"envFrom,omitempty"`
	Env             []EnvVar          `json:"env,omitempty"`
	Resources       resources         `json:"resources,omitzero"`
	VolumeMounts    []volumeMount     `json:"volumeMounts,omitempty"`
	SecurityContext containerSecurity `json:"securityContext"`
	Stdin           bool              `json:"stdin,omitempty"`
	StdinOnce       bool              `json:"stdinOnce,omitempty"`
	TTY             bool              `json:"tty,omitempty"`
}

type containerPort struct {
	Name          string `json:"name,omitempty"`
	ContainerPort int    `json:"containerPort"`
}

type envSource struct {
	SecretRef Named `json:"secretRef"`
}

// An EnvVar is a variable of a container.
type EnvVar struct {
	Name      string   `json:"name"`
	Value     string   `json:"value,omitempty"`
	ValueFrom *envFrom `json:"valueFrom,omitempty"`
}

type envFrom struct {
	FieldRef fieldRef `json:"fieldRef"`
}

type fieldRef struct {
	FieldPath string `json:"fieldPath"`
}

// resources maps the names of resources to quantities.
type resources struct {
	Requests map[string]string `json:"requests,omitempty"`
	Limits   map[string]string `json:"limits,omitempty"`
}

type volumeMount struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	SubPath   string `json:"subPath,omitempty"`
}

// A Volume is storage that containers of a pod can mount.
type Volume struct {
	Name                  string           `json:"name"`
	PersistentVolumeClaim *claimSource     `json:"persistentVolumeClaim,omitempty"`
	Secret                *secretSource    `json:"secret,omitempty"`
	EmptyDir              *emptyDir        `json:"emptyDir,omitempty"`
	ConfigMap             *configMapSource `json:"configMap,omitempty"`
}

type claimSource struct {
	ClaimName string `json:"claimName"`
}

type secretSource struct {
	SecretName string `json:"secretName"`
}

type emptyDir struct {
	Medium    string `json:"medium,omitempty"`
	SizeLimit string `json:"sizeLimit,omitempty"`
}

// PodSecurity is the security context of a pod.
type PodSecurity struct {
	RunAsNonRoot   bool            `json:"runAsNonRoot,omitempty"`
	RunAsUser      int64           `json:"runAsUser,omitempty"`
	RunAsGroup     *int64          `json:"runAsGroup,omitempty"`
	FSGroup        int64           `json:"fsGroup,omitempty"`
	SeccompProfile *seccompProfile `json:"seccompProfile,omitempty"`
	Sysctls        []EnvVar        `json:"sysctls,omitempty"`
}

type seccompProfile struct {
	Type string `json:"type"`
}

type containerSecurity struct {
	AllowPrivilegeEscalation bool         `json:"allowPrivilegeEscalation"`
	Capabilities             capabilities `json:"capabilities"`
}

type capabilities struct {
	Drop []string `json:"drop"`
}

// Affinity selects the nodes of a pod.
type Affinity struct {
	NodeAffinity    *nodeAffinity `json:"nodeAffinity,omitempty"`
	PodAntiAffinity *podAffinity  `json:"podAntiAffinity,omitempty"`
}

type nodeAffinity struct {
	Required nodeTerms `json:"requiredDuringSchedulingIgnoredDuringExecution"`
}

type nodeTerms struct {
	NodeSelectorTerms []nodeTerm `json:"nodeSelectorTerms"`
}

type nodeTerm struct {
	MatchExpressions []Requirement `json:"matchExpressions"`
}

// A Requirement is a condition on labels.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

type podAffinity struct {
	Required []podTerm `json:"requiredDuringSchedulingIgnoredDuringExecution"`
}

type podTerm struct {
	LabelSelector     labelSelector `json:"labelSelector"`
	NamespaceSelector *struct{}     `json:"namespaceSelector,omitempty"` // {}: all namespaces
	TopologyKey       string        `json:"topologyKey"`
}

type labelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []Requirement     `json:"matchExpressions,omitempty"`
}

// A Toleration lets a pod run on nodes with a taint.
type Toleration struct {
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Effect   string `json:"effect,omitempty"`
}

type jobObject struct {
	Object
	Spec jobSpec `json:"spec"`
}

type jobSpec struct {
	Suspend                 bool           `json:"suspend,omitempty"`
	CompletionMode          string         `json:"completionMode,omitempty"`
	Completions             int            `json:"completions"`
	Parallelism             int            `json:"parallelism"`
	BackoffLimit            *int           `json:"backoffLimit,omitempty"`
	BackoffLimitPerIndex    *int           `json:"backoffLimitPerIndex,omitempty"`
	PodFailurePolicy        *failurePolicy `json:"podFailurePolicy,omitempty"`
	TTLSecondsAfterFinished int            `json:"ttlSecondsAfterFinished"`
	Template                podTemplate    `json:"template"`
}

type failurePolicy struct {
	Rules []failureRule `json:"rules"`
}

type failureRule struct {
	Action          string         `json:"action"`
	OnExitCodes     *exitCodes     `json:"onExitCodes,omitempty"`
	OnPodConditions []podCondition `json:"onPodConditions,omitempty"`
}

type exitCodes struct {
	ContainerName string `json:"containerName"`
	Operator      string `json:"operator"`
	Values        []int  `json:"values"`
}

type podCondition struct {
	Type string `json:"type"`
}

type serviceObject struct {
	Object
	Spec serviceSpec `json:"spec"`
}

type serviceSpec struct {
	ClusterIP                string            `json:"clusterIP"`
	PublishNotReadyAddresses bool              `json:"publishNotReadyAddresses"`
	Selector                 map[string]string `json:"selector"`
}

// Documents returns objects as one stream of YAML documents, after a comment.
func Documents(comment string, objects ...any) (string, error) {
	var b bytes.Buffer
	for i, o := range objects {
		text, err := toYAML(o)
		if err != nil {
			return "", fmt.Errorf("writing the manifest: %w", err)
		}
		if i == 0 {
			b.WriteString(comment)
		} else {
			b.WriteString("---\n")
		}
		b.Write(text)
	}
	return b.String(), nil
}
