package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"hpcc/job"
	"hpcc/job/invoke"
	"hpcc/job/tunnel"
)

// Pin returns the variables for kubectl's current context and namespace; see [batch.Keeper].
func (k System) Pin(ctx context.Context) (map[string]string, error) {
	var config struct {
		Current  string `json:"current-context"`
		Contexts []struct {
			Name    string
			Context struct{ Namespace string }
		}
	}
	w := []string{"config", "view", "--minify", "-o", "json"}
	if v := invoke.Getenv(ctx, ContextVariable); v != "" {
		w = append(w, "--context="+v)
	}
	out, err := invoke.Call(ctx, "/", commandName(k.Target), w...)
	if err == nil {
		err = json.Unmarshal(out, &config)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the cluster of %s: %w", commandName(k.Target), readError(out, err))
	}
	env := map[string]string{NamespaceVariable: "default"}
	for _, x := range config.Contexts {
		env[ContextVariable] = x.Name
		if x.Context.Namespace != "" {
			env[NamespaceVariable] = x.Context.Namespace
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
	return env, nil
}

// Enter returns the argv that runs argv in the container of a task; see [batch.Keeper].
func (k System) Enter(ctx context.Context, t *job.Task, argv []string, terminal bool) []string {
	w := []string{"exec", "--stdin"}
	if terminal {
		w = append(w, "--tty")
	}
	if len(argv) == 0 {
		argv = []string{"sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"}
	}
	return Argv(ctx, k.Target, slices.Concat(w, []string{t.Native, "--container=" + MainContainer, "--"}, argv)...)
}

// Read runs argv in the container of a task; see [batch.Keeper].
func (k System) Read(ctx context.Context, t *job.Task, most int64, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, invoke.ShortTimeout)
	defer cancel()
	w := Argv(ctx, k.Target, append([]string{"exec", t.Native, "--container=" + MainContainer, "--"}, argv...)...)
	cmd, stderr := invoke.Command(ctx, "/", w[0], w[1:]...), &tunnel.Tail{}
	cmd.Stderr = stderr
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
		return nil, fmt.Errorf("pod %s: output has more than %d bytes", t.Native, most)
	}
	if werr := cmd.Wait(); werr != nil {
		err = fmt.Errorf("pod %s: %w", t.Native, readError([]byte(stderr.String()), werr))
	}
	return out, err
}
