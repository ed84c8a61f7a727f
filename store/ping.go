package store

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"hpcc/store/wait"
)

// Ping checks that a registry answers. A request for credentials is an answer.
func Ping(ctx context.Context, host string) error {
	r, err := name.NewRegistry(host)
	if err != nil {
		return fmt.Errorf("reading registry %q: %w", host, err)
	}
	if _, err := transport.Ping(ctx, r, wait.Transport{}); err != nil {
		return fmt.Errorf("asking %s: %w", host, err)
	}
	return nil
}
