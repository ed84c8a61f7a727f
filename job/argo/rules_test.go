package argo

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

// TestRules changes testdata/lint/train.yaml and checks the messages.
func TestRules(t *testing.T) {
	const file = "testdata/lint/train.yaml"
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	text := string(b)
	line := func(part string) int {
		before, _, ok := strings.Cut(text, part)
		if !ok {
			t.Fatalf("%s lacks %q", file, part)
		}
		return strings.Count(before, "\n") + 1
	}
	for _, tt := range []struct{ old, new, want string }{
		{"retryPolicy: OnFailure", "retryPolicy: OnFailures", `spec.templates[1].retryStrategy.retryPolicy: "OnFailures" is not one of Always, OnFailure, OnError, OnTransientError`},
		{"strategy: OnPodSuccess", "strategy: OnSuccess", `spec.podGC.strategy: "OnSuccess" is not one of OnPodCompletion,`},
		{"value: small, enum", "value: tiny, enum", `spec.arguments.parameters[1].value: "tiny" is not one of small, large`},
		{"- name: count\n    inputs", "- name: step\n    inputs", `spec.templates[2].name: name "step" is not unique; it is also in line 53`},
		{"- name: count\n    inputs", "- name: co_unt\n    inputs", `spec.templates[2].name: invalid name "co_unt"; use letters, digits and -`},
		{"script: {image: busybox, command", "suspend: {}\n    script: {image: busybox, command", `spec.templates[2]: has script and suspend; only one of them is possible`},
		{"script: {image: busybox, command", "metadata: {annotations: {image: busybox}}\n    #", `spec.templates[2]: lacks one of container, script,`},
		{"container: {image: busybox, command: [echo", "container: {command: [echo", `spec.templates[3].container: lacks image`},
		{"depends: train.Succeeded", "depends: test", `spec.templates[0].dag.tasks[1]: waits for itself: prune → test → prune`},
		{"depends: train.Succeeded", "depends: train.Suceeded", `.depends: unknown result "Suceeded" of task train (did you mean Succeeded?)`},
		{"depends: train.Succeeded", "depends: train.AllFailed", `.depends: task train runs once; AllFailed is the result of tasks with withItems,`},
		{"depends: train.Succeeded", "depends: train &&", `.depends: "train &&" is not a condition: && lacks its right side`},
		{"!= ''\"", "= ''\"", `.when: "'{{tasks.prune.outputs.parameters.loss}}' = ''" is not a condition: operator = is not known; use ==`},
		{"!prune.Failed", "!each.Failed", `waits for itself: test → each → test`},
		{"depends: (train.Succeeded || train.Daemoned) && !prune.Failed", "depends: train", `{{tasks.prune.outputs.parameters.loss}}: task test does not wait for prune; add it to dependencies or depends`},
		{"parameters: [{name: words, value: \"train", "parameters: [{name: word, value: \"train", `spec.templates[0].dag.tasks[0]: lacks parameter "words", an input of template step`},
		{"artifacts: [{name: model, raw", "artifacts: [{name: models, raw", `spec.templates[0].dag.tasks[0]: lacks artifact "model", an input of template step`},
		{"{{item.by}}", "{{item.bye}}", `{{item.bye}}: unknown key "bye" of the items (did you mean by?)`},
		{"{{workflow.priority}}", "{{workflow.prio}}", `{{workflow.prio}}: unknown variable of the workflow "prio"`},
		{"mountPath: /data", "mountPath: /out/model", `spec.templates[1].inputs.artifacts[0].path: another volume or artifact is mounted at /out/model`},
		{"valueFrom: {path: /out/loss}", "valueFrom: {expression: x}", `outputs.parameters[0].valueFrom: has expression, but a template with container needs path`},
		{"duration: 10s", "duration: 10x", `backoff.duration: "10x" is not a duration such as 30s, 5m or 2h`},
		{"target: test each", "target: test eech", `spec.templates[0].dag.target: unknown task "eech" (did you mean each?)`},
		{"running: {expression: 'workflow.status == \"Running\"', ", "running: {", `spec.hooks.running: lacks expression; only the hook exit needs none`},
	} {
		_, err := Read(file, []byte(strings.Replace(text, tt.old, tt.new, 1)))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), file+":") {
			t.Errorf("%s: %v; want %q", tt.new, err, tt.want)
		} else if first := fmt.Sprintf("%s:%d: ", file, line(tt.old)); strings.HasPrefix(tt.want, "spec.arguments") && !strings.HasPrefix(err.Error(), first) {
			t.Errorf("%s: %v; want line %s", tt.new, err, first)
		}
	}
}

func TestConditions(t *testing.T) {
	for _, text := range []string{"a == b", "'{{x}}' == \"b c\"", "{{x}} > 3 && !({{y}} =~ '^a') || true", "{{x}}", "{{x}} {{y}} 3", "{{x}} in (1, 2, 'c')", "[a b] != c", "!{{x}}", "-1 < {{x}}", "'it\\'s' == a",
		"( {{steps.a.outputs.result}} == heads )", "{{=1 + 1}} == 2", "a.b == c ? true : false"} {
		c := &checker{}
		if c.condition(&item{scalar: text}, false); len(c.problems) > 0 {
			t.Errorf("condition(%q): %v", text, c.err())
		}
	}
	for text, want := range map[string]string{"a": "neither true nor false", "a ==": "== lacks its right side", "== a": "== lacks its left side", "(a == b": "( is not closed", "a == b)": ") has no (",
		"a b == c": "an operator is missing before b", "'a == b": "quote ' is not closed", "a = b": "use ==", "a == #b": `unexpected "#"`, "a && && b": "&& lacks its left side", "[a == b": "[ is not closed"} {
		c := &checker{}
		if c.condition(&item{scalar: text}, false); len(c.problems) == 0 || !strings.Contains(c.err().Error(), want) {
			t.Errorf("condition(%q): %v; want %q", text, c.err(), want)
		}
	}
}

func TestIsSchedule(t *testing.T) {
	for text, want := range map[string]bool{"* * * * *": true, "*/5 0-6,22 1 jan-Mar mon": true, "@daily": true, "@every 1h30m": true, "TZ=UTC 0 0 * * ?": true, "CRON_TZ=UTC @hourly": true,
		"": false, "* * * *": false, "* * * * * *": false, "60 * * * *": false, "* 24 * * *": false, "* * 0 * *": false, "* * * 13 *": false, "* * * * 7": false, "*/0 * * * *": false, "5-1 * * * *": false,
		"1- * * * *": false, ", * * * *": false, "@nightly": false, "@every x": false, "a * * * *": false} {
		if got := isSchedule(text); got != want {
			t.Errorf("isSchedule(%q) = %v", text, got)
		}
	}
}

// TestRulesAreBounded reads large workflows, whose tasks depend on each other, or lack many
// arguments.
func TestRulesAreBounded(t *testing.T) {
	var chain, wide strings.Builder
	chain.WriteString(wfHead + "  entrypoint: a\n  templates:\n  - {name: s, container: {image: x}}\n  - name: a\n    dag:\n      tasks:\n      - {name: t0, template: s}\n")
	for i := 1; i < 10_000; i++ {
		fmt.Fprintf(&chain, "      - {name: t%d, template: s, depends: t%d, when: '{{tasks.t0.id}} == 1'}\n", i, i-1)
	}
	wide.WriteString(wfHead + "  entrypoint: a\n  templates:\n  - name: a\n    steps:\n")
	for i := range 4000 {
		fmt.Fprintf(&wide, "    - [{name: t%d, template: s}]\n", i)
	}
	wide.WriteString("  - name: s\n    container: {image: x}\n    inputs:\n      parameters:\n")
	for i := range 4000 {
		fmt.Fprintf(&wide, "      - {name: p%d}\n", i)
	}
	if _, err := Read("w.yaml", []byte(chain.String())); err != nil {
		t.Error(err)
	}
	if _, err := Read("w.yaml", []byte(wide.String())); err == nil || strings.Count(err.Error(), "\n") != maxProblems-1 {
		t.Errorf("Read: %v; want %d problems", err, maxProblems)
	}
}
