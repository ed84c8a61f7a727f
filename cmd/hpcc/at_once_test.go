package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// atOnce is the minimum number of parallel tests. Many scripts mostly wait for a cluster. Parallel tests
// start in the order of the files, and their parallel subtests after all of them. TestScripts is in the
// first file, so that the short subtests of other files run while the last scripts wait.
const atOnce = 6

// TestScripts runs the scripts of testdata/script.
func TestScripts(t *testing.T) {
	t.Parallel()
	misbehaving := &servers{}
	testscript.Run(t, testscript.Params{
		Dir: "../../testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("SYSTEM_PATH", e.Getenv("PATH"))
			e.Setenv("PATH", bin+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("HPCC_STORE", filepath.Join(e.WorkDir, "store"))
			for _, name := range []string{"HPCC_TEST_REGISTRY", "HPCC_TEST_DEBIAN", "HPCC_TEST_NODE", "HPCC_TEST_POWER", "HPCC_TEST_MPI", "HPCC_TEST_CHANNEL", "HPCC_TEST_OPENPBS", "USER", "LOGNAME", "SSL_CERT_FILE", "npm_config_registry"} {
				e.Setenv(name, os.Getenv(name))
			}
			if err := kubeEnvironment(e); err != nil {
				return err
			}
			index, err := filepath.Abs("../../conda/solve/testdata/main2021")
			if err != nil {
				return err
			}
			e.Setenv("MAIN2021", index)
			recorded, err := filepath.Abs("../../job")
			if err != nil {
				return err
			}
			e.Setenv("RECORDED", recorded)
			testdata, err := filepath.Abs("../../testdata")
			if err != nil {
				return err
			}
			e.Setenv("TESTDATA", testdata)
			e.Setenv("LACKS", filepath.Join(filepath.Dir(bin), "lacks")) // testdata/helpers/lacks
			e.Setenv("HPCC_SITE", filepath.Join(e.WorkDir, "site.toml")) // instead of the machine's
			return os.MkdirAll(filepath.Join(e.WorkDir, "home"), 0o755)
		},
		Condition: condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"busyroot": busyroot, "capture": capture, "serve": serve, "pty": pty, "later": later, "echoes": echoes, "exchange": exchange, "freeports": freePortsCommand, "cured": cured,
			"scheduler": scheduler, "hostile": misbehaving.serve, "fault": misbehaving.fault, "interrupt": interrupt,
		},
	})
}
