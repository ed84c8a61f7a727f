//go:build !start

package runtime

import "sigs.k8s.io/yaml"

// unmarshalYAML reads YAML strictly. The parser compiles regular expressions
// before main begins, so that cmd/start, which leaves devices to the rest of
// hpcc, is built without it (tag start).
func unmarshalYAML(b []byte, to any) error { return yaml.UnmarshalStrict(b, to) }
