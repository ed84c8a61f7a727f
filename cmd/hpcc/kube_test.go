package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// kubeNode returns an error unless HPCC_TEST_KUBE, which testdata/clusters/kube/up.sh prints, names a cluster
// that runs pods. Tests never use the cluster of the user's KUBECONFIG.
func kubeNode() error {
	cluster := os.Getenv("HPCC_TEST_KUBE")
	if cluster == "" {
		return errors.New("HPCC_TEST_KUBE is not set")
	}
	if _, err := os.Stat(filepath.Join(cluster, "environment")); err != nil {
		return fmt.Errorf("the cluster of HPCC_TEST_KUBE runs no pods: %w", err)
	}
	out, err := exec.Command(filepath.Join(cluster, "bin/kubectl"), "--kubeconfig", filepath.Join(cluster, "kubeconfig"), "--request-timeout=10s", "get", "--raw", "/readyz").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// kubeAPI returns an error unless HPCC_TEST_KUBE_API names an API server without a node whose
// administrator is this user: scripts set the states of pods that a real node reaches rarely.
func kubeAPI() error {
	cluster := os.Getenv("HPCC_TEST_KUBE_API")
	if cluster == "" {
		return errors.New("HPCC_TEST_KUBE_API is not set (testdata/clusters/kube/up.sh api starts one)")
	}
	out, err := exec.Command(filepath.Join(cluster, "bin/kubectl"), "--kubeconfig", filepath.Join(cluster, "admin.kubeconfig"), "--request-timeout=10s", "get", "--raw", "/readyz").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// kubeEnvironment prepares the environment of the scripts kube_* for the cluster of HPCC_TEST_KUBE, and
// of kubeapi_* for that of HPCC_TEST_KUBE_API: kubectl and argo with the rights of a researcher, and the
// addresses of companion services (testdata/clusters/kube/node.sh).
func kubeEnvironment(e *testscript.Env) error {
	name := map[string]string{"script-kube": "HPCC_TEST_KUBE", "script-kubeapi": "HPCC_TEST_KUBE_API"}[strings.Split(filepath.Base(e.WorkDir), "_")[0]]
	cluster := os.Getenv(name)
	if cluster == "" {
		return nil
	}
	e.Setenv(name, cluster)
	e.Setenv("PATH", e.Getenv("PATH")+string(os.PathListSeparator)+filepath.Join(cluster, "bin"))
	list, err := kubeVariables(cluster)
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		e.Setenv(name, value)
	}
	return err
}

// kubeVariables returns the variables of a cluster's users besides PATH, as NAME=VALUE.
func kubeVariables(cluster string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(cluster, "environment"))
	if errors.Is(err, os.ErrNotExist) { // an API server without a node
		err = nil
	}
	return append(strings.Fields(string(data)), "KUBECONFIG="+filepath.Join(cluster, "kubeconfig")), err
}
