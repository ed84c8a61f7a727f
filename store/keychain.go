package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sys/unix"

	"hpcc/store/wait"
)

// keychain finds docker's credentials and ends a credential helper that hangs.
type keychain struct{}

// helperNotice is the delay before the user is informed about a slow credential helper.
const helperNotice = 10 * time.Second

// Resolve implements [authn.Keychain].
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return k.ResolveContext(context.Background(), r)
}

// ResolveContext implements [authn.ContextKeychain].
func (keychain) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	type answer struct {
		who authn.Authenticator
		err error
	}
	found := make(chan answer, 1)
	go func() {
		who, err := authn.Resolve(ctx, authn.DefaultKeychain, r)
		found <- answer{who, err}
	}()
	limit := wait.Limits(ctx).Header
	late, notice := time.NewTimer(limit), time.NewTimer(helperNotice)
	defer late.Stop()
	defer notice.Stop()
	for {
		select {
		case a := <-found:
			return a.who, a.err
		case <-notice.C:
			wait.Notice(ctx, "waiting for the credential helper of %s (credHelpers or credsStore in docker's config.json)", r.RegistryStr())
		case <-ctx.Done():
			endHelpers()
			return nil, context.Cause(ctx)
		case <-late.C:
			endHelpers()
			return nil, fmt.Errorf("the credential helper of %s (credHelpers or credsStore in docker's config.json) did not answer within %v; run it by hand to see what it waits for, or take its entry out and use \"hpcc login %[1]s\"", r.RegistryStr(), limit)
		}
	}
}

// endHelpers kills this process's credential helpers, because the library that starts them
// cannot end them.
func endHelpers() {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, f := range strings.Fields(string(b)) {
			argv, _ := os.ReadFile("/proc/" + f + "/cmdline")
			if pid, err := strconv.Atoi(f); err == nil && strings.Contains(string(argv), "docker-credential-") {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
