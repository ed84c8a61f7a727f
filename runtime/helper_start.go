//go:build start

package runtime

func helper([]string) (child bool, err error) { return false, nil }
