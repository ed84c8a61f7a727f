package dispatch

import (
	"os"
	"testing"

	"hpcc/job/invoke"
	"hpcc/testdata/helpers/testenv"
)

// TestRelativeKubeconfig: kubectl does not run in the user's directory.
func TestRelativeKubeconfig(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	testenv.Check(t, err)
	t.Setenv("KUBECONFIG", "a:/b/c::./d")
	env := invoke.Environ(t.Context())
	if got, want := env[len(env)-1], "KUBECONFIG="+here+"/a:/b/c::"+here+"/d"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
