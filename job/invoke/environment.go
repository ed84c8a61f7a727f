package invoke

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// envKey is the context key of the variables that select the cluster for commands.
type envKey struct{}

// Within returns a context in which commands have the variables env.
func Within(ctx context.Context, env map[string]string) context.Context {
	if len(env) == 0 {
		return ctx
	}
	return context.WithValue(ctx, envKey{}, env)
}

// Environ returns this process's environment with the cluster's variables, for commands that run in other directories.
func Environ(ctx context.Context) []string {
	env := os.Environ()
	if v := os.Getenv(KubeConfig); v != "" {
		env = append(env, KubeConfig+"="+Absolute(v))
	}
	cluster, _ := ctx.Value(envKey{}).(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(cluster)) {
		env = append(env, name+"="+cluster[name])
	}
	return env
}

// Absolute makes the file names in a list, such as PATH, absolute.
func Absolute(list string) string {
	files := filepath.SplitList(list)
	for i, f := range files {
		if abs, err := filepath.Abs(f); err == nil && f != "" {
			files[i] = abs
		}
	}
	return strings.Join(files, string(filepath.ListSeparator))
}

// Getenv returns a variable of [Environ].
func Getenv(ctx context.Context, name string) string {
	if cluster, ok := ctx.Value(envKey{}).(map[string]string); ok {
		if v, ok := cluster[name]; ok {
			return v
		}
	}
	return os.Getenv(name)
}

// KubeConfig is a variable with a list of files, which may be relative.
const KubeConfig = "KUBECONFIG"
