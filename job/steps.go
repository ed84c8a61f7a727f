package job

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"hpcc/text"
)

// An Artifact is a file or directory that a step of a workflow leaves, and that later steps find
// at the same path. The server stores it, usually in S3.
type Artifact struct {
	Step string `json:"step,omitempty"` // "": the job itself
	Name string `json:"name"`
	Path string `json:"path"` // absolute, in the pods
}

// A Workflow is a user's Argo workflow, or one that a template on the server creates.
type Workflow struct {
	File     string   `json:"file,omitempty"`     // path as the user gave it
	Template string   `json:"template,omitempty"` // instead of File
	Manifest string   `json:"-"`                  // to submit; "" for a job read from its record
	Notes    []string `json:"-"`
}

// ParseArtifact parses NAME:PATH, or STEP/NAME:PATH.
func ParseArtifact(s string) (Artifact, error) {
	name, at, ok := strings.Cut(s, ":")
	step, rest, steps := strings.Cut(name, "/")
	if !steps {
		step, rest = "", name
	}
	switch {
	case !ok || (steps && !NameText().MatchString(step)):
		return Artifact{}, fmt.Errorf("%q: not of the form NAME:PATH or STEP/NAME:PATH", text.Short(s))
	case !dnsLabel().MatchString(rest):
		return Artifact{}, fmt.Errorf("%q is not an artifact name: use lower-case letters, digits and -", text.Short(rest))
	case !inPod(at) || path.Clean(at) == "/":
		return Artifact{}, fmt.Errorf("%q: %q is not an absolute path in the pod", text.Short(s), text.Short(at))
	}
	return Artifact{step, rest, path.Clean(at)}, nil
}

// NewSteps combines several jobs into one. Each waits for the others that it names (After,
// AfterAny, AfterFailed). Unknown names and cycles are errors. Tasks are numbered across all
// steps, from 1, in the order of the list.
func NewSteps(name string, list []*Job, artifacts []Artifact) (*Job, error) {
	if len(list) < 2 {
		return nil, errors.New("a workflow needs several jobs")
	}
	first := list[0]
	j := &Job{Name: name, Dir: first.Dir, Program: first.Program, Store: first.Store, Image: first.Image, Steps: list,
		Queue: first.Queue, Pod: Pod{UID: first.Pod.UID, PullSecret: first.Pod.PullSecret, ServiceAccount: first.Pod.ServiceAccount}}
	j.Hold, j.Measure = first.Hold, first.Measure
	byName, total, size := map[string]*Job{}, 0, 0
	for _, s := range list {
		if byName[Label(s.Name)] != nil {
			return nil, fmt.Errorf("two steps of the workflow have the name %q in Argo; rename one of them", Label(s.Name))
		}
		byName[Label(s.Name)] = s
		if s.Hold != first.Hold || s.Queue != first.Queue {
			return nil, fmt.Errorf("steps %s and %s: --queue and hold apply to the full workflow; give all jobs the same", first.Name, s.Name)
		}
		if s.Measure != first.Measure {
			return nil, fmt.Errorf("steps %s and %s: --measure applies to the full workflow; give it to all jobs or to none", first.Name, s.Name)
		}
		total += s.Count()
		if s.Script != nil {
			size += len(s.Script.Body)
		}
		for _, p := range s.Pod.Ports { // "hpcc forward" finds ports by name
			if j.PortOf(p.Name) == 0 {
				j.Pod.Ports = append(j.Pod.Ports, p)
			}
		}
	}
	if size > MaxScript {
		return nil, fmt.Errorf("the scripts of all steps have %d bytes; the limit is %d", size, MaxScript)
	}
	for _, s := range list {
		if len(s.AfterEach) > 0 {
			return nil, fmt.Errorf("step %s waits for each task of %s, but a workflow can only wait for full arrays",
				s.Name, strings.Join(s.AfterEach, ", "))
		}
		for _, n := range s.waitsFor() {
			if byName[Label(n)] == nil {
				return nil, fmt.Errorf("step %s waits for %q, which is not among the submitted jobs (%s)",
					s.Name, text.Short(n), strings.Join(stepNames(list), ", "))
			}
		}
		s.Artifacts = nil
	}
	if circle := j.circle(); circle != "" {
		return nil, fmt.Errorf("the steps depend on each other: %s", circle)
	}
	for _, a := range artifacts {
		s := byName[Label(a.Step)]
		if a.Step == "" || s == nil {
			return nil, fmt.Errorf("artifact %s: name the step that leaves it: STEP/%s:%s, with one of %s",
				a.Name, a.Name, a.Path, strings.Join(stepNames(list), ", "))
		}
		if k := slices.IndexFunc(s.Artifacts, func(b Artifact) bool { return a.Name == b.Name }); k >= 0 {
			return nil, fmt.Errorf("artifact %s/%s is both %s and %s; give them two names", a.Step, a.Name, s.Artifacts[k].Path, a.Path)
		}
		s.Artifacts = append(s.Artifacts, a)
	}
	if err := j.checkArtifacts(); err != nil {
		return nil, err
	}
	var err error
	j.Array, err = ParseArray(fmt.Sprintf("1-%d", total))
	return j, err
}

func stepNames(list []*Job) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// waitsFor returns the names of all dependencies.
func (j *Job) waitsFor() []string { return slices.Concat(j.After, j.AfterAny, j.AfterFailed) }

// step returns the step with a name that another step refers to.
func (j *Job) step(name string) *Job {
	i := slices.IndexFunc(j.Steps, func(s *Job) bool { return Label(s.Name) == Label(name) })
	if i < 0 {
		return nil
	}
	return j.Steps[i]
}

// OfTask returns the job whose program a task runs: a step, or the job itself.
func (j *Job) OfTask(t *Task) *Job {
	if s := j.step(t.Step); s != nil {
		return s
	}
	return j
}

// circle returns a dependency cycle as text, or "" if there is none.
func (j *Job) circle() string {
	done := map[*Job]int{} // 1: in progress, 2: no cycle
	var way []string
	var look func(s *Job) bool
	look = func(s *Job) bool {
		way = append(way, s.Name)
		if done[s] == 1 {
			return true
		}
		if done[s] == 0 {
			done[s] = 1
			for _, n := range s.waitsFor() {
				if look(j.step(n)) {
					return true
				}
			}
			done[s] = 2
		}
		way = way[:len(way)-1]
		return false
	}
	for _, s := range j.Steps {
		if look(s) {
			return strings.Join(way[slices.Index(way, way[len(way)-1]):], " → ")
		}
	}
	return ""
}

// Before returns the artifacts of all steps that have succeeded when s starts. The artifact of a
// later step replaces that of an earlier one with the same name or path.
func (j *Job) Before(s *Job) (out []Artifact) {
	ended := j.reached(s, func(s *Job) []string { return s.After })
	for _, b := range ended {
		for _, a := range b.Artifacts {
			replaced := slices.ContainsFunc(ended, func(later *Job) bool {
				return slices.ContainsFunc(later.Artifacts, a.collides) && slices.Contains(j.reached(later, (*Job).waitsFor), b)
			})
			if !replaced {
				out = append(out, a)
			}
		}
	}
	return out
}

// collides reports whether a step cannot have both artifacts as its input.
func (a Artifact) collides(b Artifact) bool { return a.Name == b.Name || a.Path == b.Path }

// reached returns the steps that s waits for by some kinds of dependency, also through others.
func (j *Job) reached(s *Job, by func(*Job) []string) (out []*Job) {
	var gather func(s *Job)
	gather = func(s *Job) {
		for _, n := range by(s) {
			if b := j.step(n); b != nil && !slices.Contains(out, b) {
				out = append(out, b)
				gather(b)
			}
		}
	}
	gather(s)
	return out
}

// checkArtifacts returns an error for artifacts of which a step would get two with one name or path.
func (j *Job) checkArtifacts() error {
	for _, s := range j.Steps {
		in := j.Before(s)
		for i, a := range in {
			if k := slices.IndexFunc(in[:i], a.collides); k >= 0 {
				return fmt.Errorf("step %s would get artifact %s/%s:%s and artifact %s/%s:%s, and neither replaces the other; let %s wait for %s (--after), or change the names and paths",
					s.Name, in[k].Step, in[k].Name, in[k].Path, a.Step, a.Name, a.Path, a.Step, in[k].Step)
			}
		}
	}
	return nil
}

// Place returns the position of the first task of a step among all tasks, from 0. The name is the
// one in the workflow.
func (j *Job) Place(step string) (first int, s *Job) {
	for _, s := range j.Steps {
		if Label(s.Name) == step {
			return first, s
		}
		first += s.Count()
	}
	return 0, nil
}

// OutputOf returns the output file of a task; its step may name one.
func (j *Job) OutputOf(t *Task, id string) string {
	if s := j.step(t.Step); s != nil && s.Output != "" {
		return t.File(s.Output, s.Name, id)
	}
	pattern := j.OutputPattern()
	if j.Workflow != nil && !strings.Contains(pattern, Placeholder) && pattern != os.DevNull { // the number of its steps is unknown
		base := strings.TrimSuffix(pattern, ".out")
		pattern = base + "_" + Placeholder + strings.TrimPrefix(pattern, base)
	}
	return t.File(pattern, j.Name, id)
}

// checkSteps returns an error for a step that no target could run.
func (j *Job) checkSteps() error {
	for _, s := range j.Steps {
		if err := s.Check(); err != nil {
			return fmt.Errorf("step %s: %w", s.Name, err)
		}
	}
	return nil
}
