package job

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Cluster is where jobs are handed in: a kind of scheduler, and which one of
// its kind. The zero Env is the one that this machine's commands speak to.
type Cluster struct {
	Target Target            `json:"target"`
	Site   string            `json:"site,omitempty"` // its name in the site files
	Env    map[string]string `json:"scheduler_env,omitempty"`
}

// key is the same for clusters that one call asks.
func (c Cluster) key() string {
	k := string(c.Target)
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		k += "\x00" + name + "=" + c.Env[name]
	}
	return k
}

// String names a cluster for people.
func (c Cluster) String() string {
	if c.Site != "" {
		return c.Site + " (" + string(c.Target) + ")"
	}
	return string(c.Target)
}

// Environ is the environment of the cluster's commands.
func (c Cluster) Environ() []string { return environ(c.Within(context.Background())) }

// envKey is that of the variables by which commands find their cluster. They go
// with the context, as the time limit does, through everything that is asked of it.
type envKey struct{}

// Within is a context in which commands of schedulers speak to the cluster.
func (c Cluster) Within(ctx context.Context) context.Context { return within(ctx, c.Env) }

// within returns a context in which commands have the variables env.
func within(ctx context.Context, env map[string]string) context.Context {
	if len(env) == 0 {
		return ctx
	}
	return context.WithValue(ctx, envKey{}, env)
}

// environ is this process's environment with the cluster's variables, for commands that
// are called in other directories than this.
func environ(ctx context.Context) []string {
	env := os.Environ()
	if v := os.Getenv(kubeConfig); v != "" {
		env = append(env, kubeConfig+"="+absolute(v))
	}
	own, _ := ctx.Value(envKey{}).(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		env = append(env, name+"="+own[name])
	}
	return env
}

// absolute is a list of files, as PATH is one, with absolute names.
func absolute(list string) string {
	files := filepath.SplitList(list)
	for i, f := range files {
		if abs, err := filepath.Abs(f); err == nil && f != "" {
			files[i] = abs
		}
	}
	return strings.Join(files, string(filepath.ListSeparator))
}

// getenv is a variable of [environ].
func getenv(ctx context.Context, name string) string {
	if own, ok := ctx.Value(envKey{}).(map[string]string); ok {
		if v, ok := own[name]; ok {
			return v
		}
	}
	return os.Getenv(name)
}

// How long a scheduler may take to list its jobs. Slurm's own commands give up
// after 10 s and more (slurm.conf(5), MessageTimeout).
const (
	glance   = 5 * time.Second  // where the records tell the most
	patience = 30 * time.Second // where something depends on the answer
)

// ask asks the cluster how jobs stand, by native id.
func (c Cluster) ask(ctx context.Context, ids []string, limit time.Duration) (map[string]standing, error) {
	to, err := c.scheduler()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.Within(ctx), limit)
	defer cancel()
	known, err := to.ask(ctx, ids)
	switch {
	case err != nil && ctx.Err() == context.DeadlineExceeded: // its command was killed and has no words
		return nil, fmt.Errorf("%s does not answer within %v", c, limit)
	case err != nil && c.Site != "":
		return nil, fmt.Errorf("site %s: %w", c.Site, err)
	}
	return known, err
}
