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

	"hpcc/web"
)

// keychain finds docker's credentials and kills a credential helper that hangs.
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
		auth authn.Authenticator
		err  error
	}
	found := make(chan answer, 1)
	go func() {
		auth, err := authn.Resolve(ctx, authn.DefaultKeychain, r)
		found <- answer{auth, err}
	}()
	limit := web.LimitsOf(ctx).Header
	deadline, notice := time.NewTimer(limit), time.NewTimer(helperNotice)
	defer deadline.Stop()
	defer notice.Stop()
	for {
		select {
		case a := <-found:
			return a.auth, a.err
		case <-notice.C:
			web.Notice(ctx, "waiting for the credential helper of %s (credHelpers or credsStore in docker's config.json)", r.RegistryStr())
		case <-ctx.Done():
			killHelpers()
			return nil, context.Cause(ctx)
		case <-deadline.C:
			killHelpers()
			return nil, fmt.Errorf("the credential helper of %s (credHelpers or credsStore in docker's config.json) did not answer within %v; run the helper yourself to see what it waits for, or remove its entry and run \"hpcc login %[1]s\"", r.RegistryStr(), limit)
		}
	}
}

// killHelpers kills this process's credential helpers, because the library that starts them
// cannot kill them.
func killHelpers() {
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
