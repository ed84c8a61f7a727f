package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"hpcc/runtime/probe"
	"hpcc/testdata/helpers/testenv"
)

// examined runs hpcc doctor in new namespaces after a script has prepared them. $S is the empty
// directory of the store.
func examined(t *testing.T, script string, env ...string) (features map[string]probe.Feature, status int) {
	t.Helper()
	needs(t, "userns")
	store := filepath.Join(t.TempDir(), "store")
	testenv.Check(t, os.Mkdir(store, 0o755))
	cmd := exec.Command("unshare", "-Urm", "sh", "-ec", script+"\nexec hpcc doctor --json")
	cmd.Env = append(os.Environ(), "S="+store, "HPCC_STORE="+store, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	err := cmd.Run()
	var exit *exec.ExitError
	if (err != nil && !errors.As(err, &exit)) || words.Len() > 0 {
		t.Fatalf("doctor: %v: %s", err, &words)
	}
	features = map[string]probe.Feature{}
	for dec := json.NewDecoder(&out); dec.More(); {
		var f struct {
			Type string
			probe.Feature
		}
		testenv.Check(t, dec.Decode(&f))
		if f.Type != "feature" || f.Name == "" || f.Why == "" || (f.State != probe.OK && f.State != probe.Limited && f.State != probe.No) {
			t.Errorf("doctor reports %+v", f)
		}
		features[f.Name] = f.Feature
	}
	return features, cmd.ProcessState.ExitCode()
}

// TestDoctor removes abilities from the namespaces of hpcc doctor. It must report each of them and
// leave nothing in the store.
func TestDoctor(t *testing.T) {
	t.Parallel()
	const off = "echo 0 >/proc/sys/user/max_%_namespaces"
	needs(t, "strace")
	refuse := func(call, err string) string { // every such system call fails with err
		return `mkdir $S/../kernel; PATH=$S/../kernel:$PATH; printf '#!/bin/sh\nexec strace -f -qq -o /dev/null -e trace=` + call + ` -e inject=` + call + `:error=` + err + ` %s "$@"\n' "$(command -v hpcc)" >$S/../kernel/hpcc; chmod 755 $S/../kernel/hpcc`
	}
	for _, c := range []struct {
		name, script string
		feature      string
		state        probe.State
		why, help    string // substrings of Why, and of Do or Ask
		status       int
	}{
		{"nothing lacks", "", "overlay", probe.OK, "store's file system", "", 0},
		{"no user namespaces", strings.Replace(off, "%", "user", 1), "user namespaces", probe.No, "no space", "sysctl -w user.max_user_namespaces=15000", 1},
		{"no user namespaces for overlay", strings.Replace(off, "%", "user", 1), "overlay", probe.Limited, "needs user namespaces", "", 1},
		{"no mount namespaces", strings.Replace(off, "%", "mnt", 1), "mount namespaces", probe.No, "no image can run", "user.max_mnt_namespaces=15000", 1},
		{"no pid namespaces", strings.Replace(off, "%", "pid", 1), "pid namespaces", probe.No, "process ids", "user.max_pid_namespaces=15000", 0},
		{"no network namespaces", strings.Replace(off, "%", "net", 1), "network namespaces", probe.No, "--network=none", "user.max_net_namespaces=15000", 0},
		{"a file system that cannot be an upper directory", "mkdir $S/l $S/u $S/w; mount -t overlay o -o lowerdir=$S/l,upperdir=$S/u,workdir=$S/w,userxattr $S", "overlay", probe.OK, "on this node", "", 0},
		{"no overlay in the kernel", refuse("mount", "ENODEV"), "overlay", probe.Limited, "the kernel does not support overlays", "modprobe overlay", 0},
		{"no overlay for users", refuse("mount", "EPERM"), "overlay", probe.Limited, "users may not mount overlays", "Linux 5.11", 0},
		{"full disk", "mount -t tmpfs -o size=64k,mode=755 t $S; cat /dev/zero >$S/fill 2>&- || true", "store", probe.No, "full", "hpcc gc", 0},
		{"no more files for overlay", "mount -t tmpfs -o nr_inodes=6,mode=755 t $S; touch $S/a $S/b", "overlay", probe.Limited, "full", "free space", 0},
		{"little space", "mount -t tmpfs -o size=100m,mode=755 t $S", "store", probe.Limited, "nearly full", "hpcc gc", 0},
		{"no more files", "mount -t tmpfs -o nr_inodes=3,mode=755 t $S; touch $S/a $S/b", "store", probe.No, "full", "hpcc gc", 0},
		{"few files", "mount -t tmpfs -o nr_inodes=3000,mode=755 t $S", "store", probe.Limited, "nearly full", "", 0},
		{"read-only", "mount -t tmpfs -o ro,mode=755 t $S", "store", probe.No, "not writable (read-only file system)", "HPCC_STORE", 0},
		{"noexec", "mount -t tmpfs -o noexec,size=4g,mode=755 t $S", "store", probe.No, "noexec", "HPCC_STORE", 0},
		{"no attributes", "mount -t ramfs t $S", "store", probe.Limited, "no user attributes", "HPCC_STORE", 0},
		{"no hard links", refuse("linkat", "EPERM"), "store", probe.Limited, "no hard links (operation not permitted)", "HPCC_STORE", 0},
		{"no local storage", "mount --rbind /tmp /tmp; mount -o remount,bind,ro /tmp; mount -t tmpfs -o noexec t /dev/shm; unset TMPDIR XDG_RUNTIME_DIR", "node-local storage", probe.No, "no writable, executable, node-local directory", "TMPDIR", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			features, status := examined(t, c.script)
			f, ok := features[c.feature]
			if !ok || f.State != c.state || !strings.Contains(f.Why, c.why) || !strings.Contains(f.Do+f.Ask, c.help) {
				t.Errorf("doctor reports %+v; want %s with %q and %q", f, c.state, c.why, c.help)
			}
			if status != c.status {
				t.Errorf("exit status %d; want %d", status, c.status)
			}
		})
	}
}

// TestDoctorWaitsForNobody checks that a command that never ends delays the doctor by at most its
// time limit. The doctor must contact only registries that are named.
func TestDoctorWaitsForNobody(t *testing.T) {
	commands := t.TempDir()
	for name, text := range map[string]string{
		"sbatch":   "#!/bin/sh\necho slurm 24.05.1\n",
		"scontrol": "#!/bin/sh\nsleep 60\n",
		"srun":     "#!/bin/sh\nprintf 'MPI plugin types are...\\n\\tpmix\\n\\tnone\\nspecific pmix plugin versions available: pmix_v4\\n' >&2\n",
		"git":      "#!/bin/sh\n",
	} {
		testenv.Check(t, os.WriteFile(filepath.Join(commands, name), []byte(text), 0o755))
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	store := t.TempDir()
	begun := time.Now()
	cmd := exec.Command(filepath.Join(bin, "hpcc"), "doctor", "--store", store, "--registry", host, "--registry", "127.0.0.1:1")
	cmd.Env = []string{"PATH=" + commands + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "HTTPS_PROXY=http://me:secret@proxy:3128"}
	out, _ := cmd.Output()
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("the doctor took %v", d)
	}
	text := string(out)
	for _, want := range []string{
		"limited  schedulers", "Slurm (slurm 24.05.1) does not answer: scontrol ping", "pmix none pmix_v4",
		"ok       registry " + host, "no       registry 127.0.0.1:1", "HTTPS_PROXY=http://me:xxxxx@proxy:3128",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the doctor does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the doctor shows a password:\n%s", text)
	}
	if left, err := os.ReadDir(store); err != nil || len(left) > 0 {
		t.Errorf("the doctor leaves %v (%v)", left, err)
	}
}
