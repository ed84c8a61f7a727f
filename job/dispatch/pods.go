package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"hpcc/job"
	"hpcc/job/invoke"
	"hpcc/job/kube"
	"hpcc/job/tunnel"
)

// PinKube finds out which context and namespace kubectl uses now, where the cluster
// does not say, so that a job that was handed in is asked for there later, too.
func (c *Cluster) PinKube(ctx context.Context) error {
	var config struct {
		Current  string `json:"current-context"`
		Contexts []struct {
			Name    string
			Context struct{ Namespace string }
		}
	}
	ctx = c.Within(ctx)
	w := []string{"config", "view", "--minify", "-o", "json"}
	if v := invoke.Getenv(ctx, kube.ContextVariable); v != "" {
		w = append(w, "--context="+v)
	}
	out, err := invoke.Call(ctx, "/", kube.Command(c.Target), w...)
	if err == nil {
		err = json.Unmarshal(out, &config)
	}
	if err != nil {
		return fmt.Errorf("finding the cluster of %s: %w", kube.Command(c.Target), kube.ReadError(out, err))
	}
	env := map[string]string{kube.NamespaceVariable: "default"}
	for _, x := range config.Contexts {
		env[kube.ContextVariable] = x.Name
		if x.Context.Namespace != "" {
			env[kube.NamespaceVariable] = x.Context.Namespace
		}
	}
	if v := invoke.Getenv(ctx, invoke.KubeConfig); v != "" {
		env[invoke.KubeConfig] = invoke.Absolute(v)
	}
	for name := range env {
		if v := invoke.Getenv(ctx, name); v != "" {
			env[name] = v
		}
	}
	for name, v := range c.Env {
		env[name] = v
	}
	c.Env = env
	return nil
}

// EnterPod are the words of a command that runs words in the container of a task that runs, nil
// where the target has no pods; without words a shell.
func (s *Submission) EnterPod(ctx context.Context, t *job.Task, words []string, terminal bool) []string {
	if !s.Target.Pods() {
		return nil
	}
	w := []string{"exec", "--stdin"}
	if terminal {
		w = append(w, "--tty")
	}
	if len(words) == 0 {
		words = []string{"sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"}
	}
	w = append(w, t.Native, "--container="+kube.MainContainer, "--")
	return kube.Argv(s.Within(ctx), s.Target, append(w, words...)...)
}

// InPod runs words in the container of a task that runs, and returns what they write, at most so
// many bytes of it.
func (s *Submission) InPod(ctx context.Context, t *job.Task, most int64, words ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.Within(ctx), invoke.Glance)
	defer cancel()
	w := kube.Argv(ctx, s.Target, append([]string{"exec", t.Native, "--container=" + kube.MainContainer, "--"}, words...)...)
	cmd, said := invoke.Command(ctx, "/", w[0], w[1:]...), &tunnel.Tail{}
	cmd.Stderr = said
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(pipe, most+1))
	if int64(len(out)) > most {
		cancel()
		_ = cmd.Wait()
		return nil, fmt.Errorf("pod %s says more than %d bytes", t.Native, most)
	}
	if werr := cmd.Wait(); werr != nil {
		err = fmt.Errorf("pod %s: %w", t.Native, kube.ReadError([]byte(said.String()), werr))
	}
	return out, err
}
