//go:build start

package runtime

import specs "github.com/opencontainers/runtime-spec/specs-go"

func helper([]string) (child bool, err error) { return false, nil }

func otherwise(*specs.Spec, bool) (done bool, err error) { return false, nil }
