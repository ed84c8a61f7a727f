package kube

import (
	"cmp"
	"regexp"
	"strings"
	"sync"

	"hpcc/text"
)

// A fact is one statement of the cluster about an object of a job. Its texts are foreign.
type fact struct {
	from            source
	reason, message string
	about           subject
}

// A subject names the objects that an explanation may name.
type subject struct {
	name     string // of the pod or Job
	node     string
	claim    string // with its kind: volume claim data
	queue    string // of Kueue
	requests string // resources that the pod requests: cpu=2,memory=4Gi
	several  bool   // the Job has several pods, which Kueue admits together
}

// A source is the field of the API that a fact comes from. A rule may combine several.
type source uint8

const (
	ended    source = 1 << iota // reason of a pod that failed, or of a container that terminated
	lost                        // condition DisruptionTarget of a pod, or a node that does not respond
	starting                    // condition PodScheduled of a pod, or the waiting state of a container
	event                       // warning about a pod, or any event of a claim
	queued                      // condition of a Workload of Kueue
	answer                      // of the API server to a request of the user or of the Job controller
)

// Limits of foreign text in bytes: what a rule matches, and what a user sees of it.
const (
	maxMatched = 4 << 10
	maxShown   = 600
)

// A rule explains the facts that match its pattern.
type rule struct {
	from    source
	pattern string // matches "reason: message", or the message of a fact without a reason
	text    string // $1 is a group of the pattern, $M the full message; {node}, {name}, {claim} and {queue} are the subject's
	advice  string // what the user can do; like text
	read    func(f *fact, groups []string) (text, advice string)
}

// Advice that several rules give.
const (
	pushAdvice    = `"hpcc deploy" pushes the image to a registry, --pull-secret names the secret with its password`
	loginAdvice   = "log in again (oc login, or your site's login for kubectl)"
	retryAdvice   = "--retry N starts the task again"
	storageAdvice = "ask the cluster's administrators about the storage"
	hiddenText    = "-" // of a fact that needs no explanation
)

// The beginnings of facts about volumes and images.
const (
	mounting = `^Failed(?:Mount|AttachVolume|MapVolume): `
	pulling  = `^(?:ImagePullBackOff|ErrImagePull|Failed): `
)

// rules is the table of explanations. The first rule that matches a fact explains it. From several facts,
// users see that of the first rule: errors come before tasks that wait for resources.
var rules = []rule{
	// Nodes that are lost, and pods that are removed from them.
	{from: lost, pattern: `^NodeLost: (.*)`,
		text: "node {node} does not respond: $1",
		advice: `the cluster removes the pod when the node is back or deleted; "kubectl delete pod {name} --force" does so ` +
			`if the node is lost for good, and --retry then starts the task again`},
	{from: ended, pattern: `^NodeLost`, text: "ended because node {node} does not respond", advice: retryAdvice},
	{from: lost, pattern: `^(?:PreemptionByScheduler|Preempted): .*`,
		text: "preempted by a pod of higher priority ($0)", advice: retryAdvice},
	{from: lost, pattern: `^(?:DeletionByTaintManager|TaintManagerEviction): .*`,
		text: "ended because node {node} failed or was drained ($0)", advice: retryAdvice},
	{from: lost, pattern: `^DeletionByPodGC: (.*)`,
		text: "ended because its node was removed (DeletionByPodGC: $1)", advice: retryAdvice},
	{from: lost, pattern: `^EvictionByEvictionAPI: (.*)`,
		text: "evicted, as when administrators drain node {node} (EvictionByEvictionAPI: $1)", advice: retryAdvice},
	{from: lost | ended, pattern: `^(?:TerminationByKubelet: |Evicted: )?(.*\bephemeral.*)`,
		text: "evicted: $1", advice: "request space with --scratch SIZE, or persistent space with --volume CLAIM:DIR"},
	{from: lost | ended, pattern: `^(?:TerminationByKubelet: |Evicted: )?(.*low on resource: memory.*)`,
		text: "evicted: $1", advice: "request the memory that the program uses with --mem"},
	{from: lost | ended, pattern: `^Evicted: (.*)`, text: "evicted: $1", advice: retryAdvice},
	{from: lost, pattern: `^(.*)`, text: "ended because its node was preempted or removed ($1)", advice: retryAdvice},

	// Programs and pods that ended.
	{from: ended, pattern: `^DeadlineExceeded|longer than the specified deadline|exceeded its deadline`,
		text: "ended after its time limit", advice: "raise it with --time"},
	{from: ended, pattern: `^OOMKilled`,
		text: "killed because it used more than its memory (OOMKilled)", advice: "raise the limit with --mem"},
	{from: ended, pattern: `^(?:StartError|ContainerCannotRun): (.*exec format error.*)`,
		text:   "the program could not be started: $1",
		advice: `the image is for another CPU than the node's; "hpcc build --platform" builds it for both`},
	{from: ended, pattern: `^(?:StartError|ContainerCannotRun): (.*)`, text: "the program could not be started: $1"},
	{from: ended, pattern: `number of devices unavailable for (\S+?)\. Requested: (\d+), Available: (\d+)`,
		text:   "node {node} has only $3 of the $2 $1 that it promised",
		advice: retryAdvice + "; report the node to the cluster's administrators"},
	{from: ended, pattern: `cannot allocate unhealthy devices ([^\s,]+)`,
		text:   "all $1 of node {node} are unhealthy",
		advice: retryAdvice + "; report the node to the cluster's administrators"},
	{from: ended, pattern: `^OutOf(\S+): (.*)`,
		text: "node {node} had too little $1 left when the pod arrived: $2", advice: retryAdvice},
	{from: ended, pattern: `^(?:Completed|Error): |^$`, text: hiddenText},

	// Volumes.
	{from: event, pattern: `(?s)^Failed(?:AttachVolume|Mount): .*(Multi-Attach error.*)`,
		text:   "{claim} is in use on another node: $1",
		advice: "run one task at a time (--array 1-8%1), or use a claim with the access mode ReadWriteMany"},
	{from: event, pattern: `^FailedMount: .*?((?:secret|configmap) "?\S+"? not found)`,
		text: "{claim} cannot be mounted on node {node}: $1", advice: "create it; the pod then starts"},
	{from: event, pattern: mounting + `.*?\b((?:[\w./-]+: )?[\w ]*(?i:no route to host|network is unreachable|` +
		`connection refused|timed? ?out|deadline ?exceeded|no such host|failed to resolve)[\w.: -]*)`,
		text:   "{claim} cannot be mounted on node {node}: $1",
		advice: "the node does not reach the storage server; " + storageAdvice},
	{from: event, pattern: mounting + `.*?((?i:access denied|permission denied).*)`,
		text:   "{claim} cannot be mounted on node {node}: $1",
		advice: "the storage server refuses the node; " + storageAdvice},
	{from: event, pattern: mounting + `(?:.*Output: )?(.*)`,
		text: "{claim} cannot be mounted on node {node}: $1", advice: storageAdvice},
	{from: event, pattern: `^ClaimLost: (.*)`, text: "{claim} has lost its volume $1", advice: storageAdvice},
	{from: event, pattern: `^ClaimPending: (.*no storage class is set.*)`,
		text:   "{claim} has no volume: $1",
		advice: "create the claim with a storage class; \"kubectl get storageclass\" lists them"},
	{from: event, pattern: `^ClaimPending: (.*)`,
		text: "{claim} has no volume yet: $1", advice: `"kubectl describe pvc" shows its events`},
	{from: event, pattern: `^FailedCreatePodSandBox: (.*)`,
		text: "node {node} cannot create the pod: $1", advice: "report the node to the cluster's administrators"},
	{from: event, pattern: `^NodeNotReady: `,
		text:   "node {node} does not respond",
		advice: "the cluster removes the pod after some minutes; --retry N then starts the task again"},
	{from: event, pattern: `^NotAccepted: (.*)`,
		text: "node {node} has not accepted the pod $1", advice: "report the node to the cluster's administrators"},

	// Images.
	{from: starting | event, pattern: pulling + `(.*(?i:toomanyrequests|too many requests|rate limit).*)`,
		text:   "ImagePullBackOff: $1",
		advice: "the registry limits anonymous pulls; --pull-secret names the secret with a password"},
	{from: starting | event, pattern: pulling + `(.*(?i:unauthorized|authentication required|access denied|` +
		`authorization failed|insufficient_scope|403 Forbidden).*)`,
		text: "ImagePullBackOff: $1",
		advice: "the registry refuses the node; --pull-secret names the secret with its password, and \"hpcc deploy\" " +
			"pushes an image that is missing"},
	{from: starting | event, pattern: pulling + `(.*(?i:no match for platform|no matching manifest).*)`,
		text: "ImagePullBackOff: $1", advice: `"hpcc build --platform" builds the image for the node's CPU`},
	{from: starting | event, pattern: pulling + `(.*(?i:no such host|i/o timeout|no route to host|connection refused|` +
		`tls: |x509: |HTTP response to HTTPS).*)`,
		text: "ImagePullBackOff: $1", advice: "the node does not reach the registry; " + pushAdvice},
	{from: starting | event, pattern: `^(ImagePullBackOff|ErrImagePull|InvalidImageName)(.*)`,
		text: "$1$2", advice: pushAdvice},
	{from: event, pattern: `^Failed: (Failed to pull image .*)`, text: "$1", advice: pushAdvice},
	{from: starting, pattern: `^ErrImageNeverPull(.*)`,
		text: "ErrImageNeverPull$1", advice: "the image is not on the node, and --pull never forbids pulling it"},
	{from: starting, pattern: `^CreateContainerConfigError: .*(?:runAsNonRoot|non-numeric)`,
		text: "$0", advice: "use --uid NUMBER to run it as another user"},
	{from: starting, pattern: `^CreateContainerConfigError: (.*not found.*)`,
		text: "$0", advice: "create it; the pod then starts"},
	{from: starting, pattern: `^(?:ContainerCreating|PodInitializing|)(?:: )?$`, text: hiddenText},

	// Answers of the API server.
	{from: answer, pattern: `unable to validate against any security context constraint`,
		text: "$M",
		advice: "the project does not allow the pod's settings; leave out --uid and host directories; \"hpcc check " +
			"--openshift IMAGE\" shows what the image needs"},
	{from: answer, pattern: `violates PodSecurity`,
		text: "$M", advice: "\"hpcc check --restricted IMAGE\" shows what the image needs"},
	{from: answer, pattern: `exceeded quota: (\S+), requested: (.*), used: (.*), limited: (.*)`, read: overQuota},
	{from: answer, pattern: `exceeded quota`,
		text: "$M", advice: "request less with --cpus, --mem and --gpus, or run fewer tasks at once (--array 1-100%10)"},
	{from: answer, pattern: `failed quota: (\S+): must specify (.*)`, read: unspecified},
	{from: answer, pattern: `(?:maximum|minimum) (\S+) (?:usage|limit|to request)`, read: outOfRange},
	{from: answer, pattern: `provide credentials|must be logged in to the server|Unauthorized|(?i:token (?:has|` +
		`is) expired|token is not active|invalid_grant|certificate has expired or is not yet valid: current time \S+ is after)`,
		text: "the login at the cluster has expired, or the cluster does not know it ($M)", advice: loginAdvice},
	{from: answer, pattern: `getting credentials: `, text: "$M", advice: loginAdvice},
	{from: answer, pattern: `forbidden`,
		text:   "$M",
		advice: "\"kubectl auth can-i --list\" shows what you may do; --namespace NAME chooses another namespace"},
	{from: answer, pattern: `cannot locate context`, text: "$M", advice: "\"kubectl config get-contexts\" lists them"},
	{from: answer, pattern: `current-context must exist`,
		text:   "$M",
		advice: "kubectl does not know a cluster; log in (oc login, or your site's login), or set KUBECONFIG"},
	{from: answer, pattern: `connection refused|no such host|no route to host|i/o timeout|network is unreachable|` +
		`TLS handshake timeout`,
		text:   "$M",
		advice: "check the context's cluster and your network or VPN; \"kubectl config get-contexts\" lists them"},
	{from: answer, pattern: `already exists`,
		text: "$M", advice: "another job of the namespace has this name; submit again, or choose another --name"},
	{from: answer, pattern: `unknown flag`, text: "$M", advice: "this kubectl is too old; use 1.25 or later"},

	// Tasks that wait for resources.
	{from: starting, pattern: `^(?:Unschedulable: )?(0/\d+ nodes are (?:un)?available): (.*)`, read: unschedulable},
	// Volcano
	{from: starting, pattern: `pod group is not ready, .*?(\d+) minAvailable`,
		text:   "waits until all $1 pods of the job fit at once",
		advice: "request less with --nodes, --cpus, --mem or --gpus to start earlier"},
	// Volcano
	{from: starting, pattern: `can possibly be assigned to (\S+), once (?:resource is released and )?minAvailable is satisfied`,
		text: "fits on node $1, and waits until all pods of the job fit at once"},
	{from: starting, pattern: `^SchedulingGated`,
		text: "held by a scheduling gate of the cluster, which an admission controller removes"},
	{from: queued, pattern: `^Suspended`,
		text: "suspended", advice: `"kubectl patch job {name} --patch '{"spec":{"suspend":false}}'" starts it`},
	{from: queued, pattern: `^Deactivated: (?:The workload is deactivated)?(?: due to )?(.*)`,
		text: "queue {queue}: Kueue has deactivated the job: $1", advice: "submit it again"},
	{from: queued, pattern: `^FailedToStart: (.*)`, text: "queue {queue}: Kueue cannot start the job: $1"},
	{from: queued, pattern: `^(?:ClusterQueue|LocalQueue)Stopped: (.*)`,
		text:   "queue {queue}: suspended, because the queue and its running jobs were stopped ($1)",
		advice: "Kueue starts the job again when the queue is active"},
	{from: queued, pattern: `^PreemptedBefore: .*?(due to [^;]*)`, text: "preempted by another job $1"},
	{from: queued, pattern: `^PreemptedBefore: `, text: "preempted by another job"},
	{from: queued, pattern: `insufficient unused quota for \S+ in flavor \S+, \S+ more needed`, read: belowRequest},
	{from: queued, pattern: `insufficient quota for (\S+) in flavor (\S+), (.*?> maximum capacity \(.*?\))`,
		read: aboveQueue},
	{from: queued, pattern: `resource (\S+) unavailable in ClusterQueue`, read: uncovered},
	{from: queued, pattern: `Preempted to accommodate .*?(due to [^;]*)`,
		text: "queue {queue}: preempted by another job $1", advice: "Kueue starts the job again when quota is free"},
	{from: queued, pattern: `(?:Preempted to accommodate|^Preempted: ).*`,
		text: "queue {queue}: $M", advice: "Kueue starts the job again when quota is free"},
	{from: queued, pattern: `(?i)(?:is inactive|is stopped|doesn't exist|not found|terminating or missing)`,
		text: "queue {queue}: $M", advice: "ask the cluster's administrators, or choose another --queue"},
	{from: queued, pattern: `.`, text: "queue {queue}: $M"},
}

// patterns returns the compiled patterns of the rules.
var patterns = sync.OnceValue(func() []*regexp.Regexp {
	list := make([]*regexp.Regexp, len(rules))
	for i := range rules {
		list[i] = regexp.MustCompile(rules[i].pattern)
	}
	return list
})

// explain returns a fact in words, with advice, and the number of its rule: smaller numbers matter more.
// The words are "" if the fact needs no explanation, and those of the cluster if no rule matches.
func explain(f fact) (explained string, rank int) {
	f.reason, f.message = text.Cut(text.OneLine(f.reason), maxShown), text.Cut(text.OneLine(f.message), maxMatched)
	f.message = wrapping().ReplaceAllString(f.message, "")
	stated := f.message
	if f.reason != "" {
		stated = f.reason + ": " + f.message
	}
	for i, p := range patterns() {
		r := &rules[i]
		if r.from&f.from == 0 {
			continue
		}
		at := p.FindStringSubmatchIndex(stated)
		if at == nil {
			continue
		}
		if r.text == hiddenText {
			return "", i
		}
		if r.read != nil {
			return withAdvice(r.read(&f, p.FindStringSubmatch(stated))), i
		}
		const full = "\x00" // OneLine has removed it from foreign text
		text := p.ExpandString(nil, strings.ReplaceAll(f.about.fill(r.text), "$M", full), stated, at)
		return withAdvice(strings.ReplaceAll(string(text), full, f.message), f.about.fill(r.advice)), i
	}
	return text.Cut(strings.Trim(stated, ": "), maxShown), len(rules)
}

// wrapping matches what the kubelet puts before a cause: that it waits before the next pull, and that
// the cause came from its container runtime.
var wrapping = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^Back-off pulling image "[^"]*": ErrImagePull: |rpc error: code = \w+ desc = `)
})

// withAdvice joins foreign words and advice.
func withAdvice(words, advice string) string {
	words = strings.TrimRight(text.Cut(words, maxShown), " .:;")
	if advice == "" {
		return words
	}
	return words + "; " + advice
}

// fill inserts the names of the subject into a text.
func (s *subject) fill(text string) string {
	return strings.NewReplacer("{name}", s.name, "{claim}", cmp.Or(s.claim, "a volume"), "{queue}", s.queue,
		" on node {node}", onNode(s.node), "node {node}",
		cmp.Or(strings.TrimPrefix(onNode(s.node), " on "), "its node")).Replace(text)
}

func onNode(name string) string {
	if name == "" {
		return ""
	}
	return " on node " + name
}
