package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/results"
	"hpcc/job/tunnel"
)

// The files of a pod's containers are gone when it has ended. Those on a persistent volume claim
// are read through another pod, the reader, which mounts the claims of the job read-only. While a
// task runs, its own container reads its files. In both, tar writes to "kubectl exec".

// Limits of a reader.
const (
	readerLife  = 6 * time.Hour   // after that the cluster ends a reader that a killed hpcc left behind
	readerStart = 5 * time.Minute // for scheduling, mounting and pulling
	readerLabel = "hpcc/fetch"    // the ID of the job; jobLabel would make the reader one of its pods
)

// Fetch reads a path of the job's pods, by default its only volume; see [batch.Keeper].
func (k System) Fetch(ctx context.Context, f *batch.Fetch, each func(name string, tar io.ReadCloser) error) error {
	j, p, err := resultPath(f)
	if err != nil {
		return err
	}
	pod, end := "", func() {}
	if f.Running != nil && f.Image == "" {
		pod = f.Running.Native
	} else if pod, end, err = k.startReader(ctx, f, j); err != nil {
		return fmt.Errorf("starting a pod that reads the volumes of job %s: %w", f.ID, err)
	}
	defer end()
	tar, err := k.Tar(ctx, pod, p)
	if err != nil {
		return err
	}
	return each("", tar)
}

// resultPath returns the absolute path in the pods that a fetch names, and the job or step whose
// pods have it.
func resultPath(f *batch.Fetch) (*job.Job, string, error) {
	jobs := append(slices.Clone(f.Job.Steps), f.Job)
	var claims []string
	for _, j := range jobs {
		p := absolute(f.Path, j)
		for _, v := range j.Pod.Volumes {
			if v.Claim == "" {
				continue
			}
			if below(p, v.Path) {
				return j, p, nil
			}
			if !slices.Contains(claims, v.Path) {
				claims = append(claims, v.Path)
			}
		}
		if f.Running != nil && f.Image == "" && p != "" && p != "/" && j == f.Job {
			return j, p, nil
		}
	}
	switch {
	case f.Path == "" && len(claims) == 0:
		return nil, "", fmt.Errorf("job %s has no volume with results; name a PATH while a task runs, or submit with "+
			"--volume CLAIM:DIR and write results to DIR", f.ID)
	case f.Path == "":
		return nil, "", fmt.Errorf("job %s has several volumes; name a path below one of them: %s", f.ID, strings.Join(claims, ", "))
	case len(claims) == 0:
		return nil, "", fmt.Errorf("%q: no task of job %s runs, and the job has no persistent volume, so its files are "+
			"gone; submit with --volume CLAIM:DIR and write results to DIR", f.Path, f.ID)
	}
	return nil, "", fmt.Errorf("%q: no task of job %s runs, and the path is not on a persistent volume, so it is gone; "+
		"the volumes are at %s", f.Path, f.ID, strings.Join(claims, ", "))
}

// absolute returns a path in the pods of j. A relative one is below the working directory of
// --cd, or else below the only volume. It returns "" if that is unknown.
func absolute(p string, j *job.Job) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	var claims []string
	for _, v := range j.Pod.Volumes {
		if v.Claim != "" {
			claims = append(claims, v.Path)
		}
	}
	switch {
	case j.Pod.Dir != "" && p != "":
		return path.Join(j.Pod.Dir, p)
	case len(claims) == 1:
		return path.Join(claims[0], p)
	}
	return ""
}

// below reports whether p is dir or a path below it.
func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// A podObject is a pod (core/v1).
type podObject struct {
	Object
	Spec PodSpec `json:"spec"`
}

// readerPod returns the pod that reads the claims of a job: with the user, image and node labels
// of the job's pods, which may all decide about access to the volume.
func (k System) readerPod(f *batch.Fetch, j *job.Job, name string) *podObject {
	r := &job.Job{Name: f.Job.Name, Image: cmp.Or(f.Image, imageOf(j))}
	r.Features, r.Pod = j.Features, j.Pod
	r.Pod.Image, r.Pod.Dir, r.Pod.Env, r.Pod.Ports, r.Pod.Secrets, r.Pod.Volumes, r.Pod.Scratch = "", "", nil, nil, nil, nil, 0
	if f.Image != "" {
		r.Pod.Pull = ""
	}
	for _, v := range j.Pod.Volumes {
		if v.Claim != "" {
			v.ReadOnly = true
			r.Pod.Volumes = append(r.Pod.Volumes, v)
		}
	}
	spec := NewPod(r, k.Target, completionIndex)
	spec.ActiveDeadlineSeconds, spec.TerminationGracePeriodSeconds = k.Idle(&spec.Containers[0]), 1
	return &podObject{Object{"v1", "Pod", Meta{Name: name,
		Labels: map[string]string{labelBy: "hpcc-fetch", readerLabel: job.Label(f.ID)}}}, spec}
}

// Idle makes a container wait for "kubectl exec", and returns for how many seconds.
func (System) Idle(c *Container) (seconds int64) {
	seconds = fullSeconds(readerLife)
	c.Command, c.Args = []string{"sleep", strconv.FormatInt(seconds, 10)}, nil
	c.Resources = resources{Requests: map[string]string{"cpu": "100m", "memory": "64Mi"},
		Limits: map[string]string{"cpu": "1", "memory": "256Mi"}}
	return seconds
}

// startReader creates a reader and returns its name when it runs. end deletes it.
func (k System) startReader(ctx context.Context, f *batch.Fetch, j *job.Job) (name string, end func(), err error) {
	name = f.NewName()
	text, err := Documents("", k.readerPod(f, j, name))
	if err != nil {
		return "", nil, err
	}
	if err := k.namedThere(ctx, j); err != nil {
		return "", nil, err
	}
	w := Argv(ctx, k.Target, "create", "--filename=-", "--output=name")
	if out, err := invoke.Feed(ctx, "/", strings.NewReader(text), nil, w[0], w[1:]...); err != nil {
		return "", nil, readError(out, err)
	}
	end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), invoke.LongTimeout)
		defer cancel()
		if out, err := k.kube(ctx, "delete", "pod", name, "--ignore-not-found", "--wait=false"); err != nil {
			f.Report(fmt.Sprintf("warning: the pod %s remains until its time limit: %v", name, readError(out, err)))
		}
	}
	f.Report("reading the volume through the pod " + name)
	if err := k.AwaitPod(ctx, name); err != nil {
		end()
		return "", nil, err
	}
	return name, end, nil
}

// AwaitPod returns when the program of a pod runs.
func (k System) AwaitPod(ctx context.Context, name string) error {
	api, err := k.Open(ctx)
	if err != nil {
		return err
	}
	defer api.Close()
	why := func(p *podState) string {
		return cmp.Or(newReader(ctx, api, nil).pod(p).text, "the cluster gives no reason")
	}
	late := time.After(readerStart)
	for {
		var p podState
		err := api.get(ctx, "/api/v1/"+api.Path("pods")+"/"+url.PathEscape(name), &p)
		if refused := new(Error); errors.As(err, &refused) && refused.Code == 404 {
			p.Metadata.Name = name // an Argo workflow creates its pod late
		} else if err != nil {
			return err
		}
		t, started := p.task()
		switch {
		case started && t.Ended():
			return fmt.Errorf("pod %s ended: %s", name, cmp.Or(t.Problem, fmt.Sprintf("status %d", t.Exit)))
		case started:
			return nil
		case p.hopeless():
			return fmt.Errorf("pod %s does not start: %s", name, why(&p))
		}
		select {
		case <-late:
			return fmt.Errorf("pod %s does not start within %v: %s", name, readerStart, why(&p))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(batch.Poll / 2):
		}
	}
}

// hopeless reports whether the program will not start without a change of the pod.
func (p *podState) hopeless() bool {
	w := p.main().State.Waiting
	return w != nil && slices.Contains([]string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
		"CreateContainerConfigError"}, w.Reason)
}

// Tar opens a tar stream of a file or directory in the main container of a pod.
func (k System) Tar(ctx context.Context, pod, p string) (io.ReadCloser, error) {
	if p == "/" {
		return nil, errors.New("fetching /: name a directory below it")
	}
	w := Argv(ctx, k.Target, "exec", pod, "--container="+MainContainer, "--", "tar", "-C", path.Dir(p), "-cf", "-", "--", path.Base(p))
	cmd := invoke.Command(ctx, "/", w[0], w[1:]...)
	stderr := &tunnel.Tail{}
	cmd.Stderr = stderr
	r, err := results.Run(cmd, func(err error) error {
		doing := fmt.Sprintf("reading %s in pod %s", p, pod)
		reason, _, _ := strings.Cut(stderr.String(), "command terminated with exit code")
		if strings.Contains(reason, "executable file not found") || strings.Contains(reason, `exec: "tar"`) {
			return fmt.Errorf("%s: the image has no tar; while no task runs, --image NAME reads the volume with another image", doing)
		}
		return fmt.Errorf("%s: %w", doing, readError([]byte(reason), err))
	})
	if errors.Is(err, exec.ErrNotFound) {
		err = missing(w[0])
	}
	return r, err
}
