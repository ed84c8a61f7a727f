package main

import (
	"bufio"
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// held starts a kernel and prints its ports, its connection file and key, and its directory on the node,
// until its standard input ends.
const held = `
import glob, json, os, sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="job")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=120)
own = [d for d in glob.glob("/tmp/hpcc-kernel-*") if os.stat(d).st_uid == os.getuid()]
print(manager.shell_port, manager.iopub_port, manager.connection_file, json.load(open(manager.connection_file))["key"], max(own, key=os.path.getmtime), flush=True)
sys.stdin.read()
manager.shutdown_kernel()
os._exit(0)
`

// TestNeighbourKernel checks that another user of the machine cannot connect to a kernel in a job, and
// does not learn its key.
func TestNeighbourKernel(t *testing.T) {
	victim, attacker := neighbours(t)
	needs(t, "jupyter")
	dir := victim.ownDir(t)
	env := []string{"HPCC_STORE=" + filepath.Join(dir, "store"), "JUPYTER_DATA_DIR=" + filepath.Join(dir, "data"), "JUPYTER_RUNTIME_DIR=" + filepath.Join(dir, "run")}
	if _, errs, status := victim.run(t, dir, env, "hpcc", "kernel", "--name", "job", "--to", "local", "/"); status != 0 {
		t.Fatalf("hpcc kernel: %s", errs)
	}
	cmd := victim.command(dir, env, nil, "/usr/bin/python3", "-c", held)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	testenv.Check(t, err)
	out, err := cmd.StdoutPipe()
	testenv.Check(t, err)
	testenv.Check(t, cmd.Start())
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	var shell, iopub int
	var file, key, node string
	if _, err := fmt.Fscan(bufio.NewReader(out), &shell, &iopub, &file, &key, &node); err != nil {
		t.Fatalf("starting the kernel: %v: %s", err, errs.String())
	}
	for _, port := range []int{shell, iopub} {
		// A server of ZeroMQ sends a greeting to every client.
		greet := []string{"timeout", "10", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && head -c 10 <&3 | od -An -tx1", port)}
		if got, _, _ := victim.run(t, "/", nil, greet...); !strings.HasPrefix(got, " ff ") {
			t.Errorf("the owner received %q from port %d", got, port)
		}
		if got, _, _ := attacker.run(t, "/", nil, greet...); got != "" {
			t.Errorf("another user received %q from port %d", got, port)
		}
	}
	const search = `ls "$2" || cat "$1" "$2/connection.json" || grep -l -- "$3" /proc/[0-9]*/environ || for f in /proc/[0-9]*/cmdline; do [ $f = /proc/$$/cmdline ] || tr '\0' '\n' <$f | while read -r l; do case $l in *"$3"*) echo $f; exit 9; esac; done || exit 0; done; exit 1`
	if got, _, status := attacker.run(t, "/", nil, "bash", "-c", search, "bash", file, node, key); status == 0 {
		t.Errorf("another user found %s", got)
	}
	in.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(errs.String(), "refused a connection") {
		t.Errorf("the end of the kernel: %v: %s", err, errs.String())
	}
}
