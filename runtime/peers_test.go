package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// Launchers' variables on the tasks of a node.
func TestPeers(t *testing.T) {
	for _, c := range []struct {
		name, env string // NAME=VALUE, separated by blanks
		tag       string // its beginning
		count     int
		refused   bool
	}{
		{"nothing", "", "parent-", 0, false},
		{"Open MPI", "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=12@1", "pmix-12@1", 4, false},
		{"Open MPI on a virtual node", "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=12@1 PMIX_SERVER_TMPDIR=/tmp/ompi.n1", "pmix-12@1-/tmp/ompi.n1", 4, false},
		{"Open MPI below a step of Slurm", "OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=1", "parent-", 4, false},
		{"Hydra", "MPI_LOCALNRANKS=2", "parent-", 2, false},
		{"Slurm", "SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 SLURMD_NODENAME=n1", "slurm-7.3-n1", 4, false},
		{"Slurm's second node", "SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_NODEID=1", "slurm-7.3", 1, false},
		{"Slurm's many nodes", "SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURM_STEP_TASKS_PER_NODE=2(x3),5,1(x2) SLURM_NODEID=3", "slurm-7.3", 5, false},
		{"Slurm with PMIx", "SLURM_JOB_ID=7 SLURM_STEP_ID=3 PMIX_NAMESPACE=slurm.pmix.7.3 SLURM_STEP_TASKS_PER_NODE=2", "pmix-slurm.pmix.7.3", 2, false},
		{"in an allocation, outside its steps", "SLURM_JOB_ID=7", "parent-", 0, false},
		{"no number", "OMPI_COMM_WORLD_LOCAL_SIZE=1foo", "", 0, true},
		{"none", "MPI_LOCALNRANKS=0", "", 0, true},
		{"no list", "SLURM_STEP_ID=3 SLURM_STEP_TASKS_PER_NODE=2(x", "", 0, true},
		{"a list too short", "SLURM_STEP_ID=3 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=1", "", 0, true},
	} {
		env := map[string]string{}
		for _, kv := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		tag, count, err := Peers(func(name string) string { return env[name] })
		if (err != nil) != c.refused || (err == nil && (count != c.count || !strings.HasPrefix(tag, c.tag))) {
			t.Errorf("%s: Peers = %q, %d, %v; want %q…, %d", c.name, tag, count, err, c.tag, c.count)
		}
	}
}

// The file of a group: its content, and which of it is trusted.
func TestGroup(t *testing.T) {
	dir := t.TempDir()
	g, err := openGroup(dir, "a/b: ü")
	testenv.Check(t, err)
	if name := filepath.Base(g.file); strings.ContainsAny(name, "/ :ü") || g.file == groupFile(dir, "a_b__ü") {
		t.Errorf("file %q", g.file)
	}
	testenv.Check(t, g.begin([]byte("what")))
	if g.alive() {
		t.Error("a group without members lives")
	}
	user, mnt, err := openNamespaces(os.Getpid())
	testenv.Check(t, err)
	if err := g.add(inode(user)+1, inode(mnt)); err != nil { // another process had this number
		t.Fatal(err)
	}
	if g.alive() {
		t.Error("a process in other namespaces is taken for a member")
	}
	if err := g.enter(); err != nil { // it has members
		t.Fatal(err)
	}
	testenv.Check(t, g.add(inode(user), inode(mnt)))
	what, members, err := g.read()
	if err != nil || string(what) != "what" || len(members) != 2 || members[1].pid != os.Getpid() || !g.alive() {
		t.Errorf("read = %q, %v, %v", what, members, err)
	}
	testenv.Check(t, g.begin(nil))
	if err := g.enter(); err != nil || !g.alive() {
		t.Errorf("the creator of the namespaces is not a member: %v", err)
	}
	// Files of dead groups are removed; living groups and other files stay.
	for _, name := range []string{groupFile(dir, "dead"), filepath.Join(dir, "else")} {
		testenv.Check(t, os.WriteFile(name, []byte("w\n999999999 1 1 1\n"), 0o600))
	}
	sweep(groupFile(dir, "me"))
	left, _ := filepath.Glob(dir + "/*")
	if want := 2; len(left) != want {
		t.Errorf("left are %q", left)
	}
	// Conflicting files are refused.
	testenv.Check(t, os.Symlink("else", groupFile(dir, "link")))
	if _, err := openGroup(dir, "link"); err == nil {
		t.Error("a link is followed")
	}
	testenv.Check(t, os.Mkdir(groupFile(dir, "dir"), 0o700))
	if _, err := openGroup(dir, "dir"); err == nil {
		t.Error("a directory is taken")
	}
}

func TestParseMount(t *testing.T) {
	data := t.TempDir()
	for _, c := range []struct{ in, want string }{ // want: destination and options, or "" when refused
		{"type=bind,source=" + data + ",target=/d", "/d rbind"},
		{"type=bind,src=" + data + ",dst=/d/,ro", "/d rbind ro"},
		{"type=bind,src=" + data + ",destination=/d,readonly=false", "/d rbind"},
		{"type=tmpfs,target=/t", "/t nosuid nodev mode=1777"},
		{"type=tmpfs,target=/t,tmpfs-size=1m,tmpfs-mode=700,ro", "/t nosuid nodev mode=700 size=1m ro"},
		{"type=bind,source=" + data, ""}, {"type=bind,target=/d", ""}, {"source=" + data + ",target=/d", ""},
		{"type=bind,source=" + data + "/no,target=/d", ""}, {"type=bind,source=" + data + ",target=d", ""},
		{"type=bind,source=" + data + ",target=/../d", ""}, {"type=bind,source=" + data + ",target=//", ""},
		{"type=tmpfs,target=/t,tmpfs-size=1,uid=0", ""}, {"type=tmpfs,target=/t,tmpfs-size=1m;x", ""}, {"type=tmpfs,target=/t,mode=8", ""},
		{"type=bind,source=" + data + ",target=/d,readonly=perhaps", ""}, {"", ""},
		{"type=tmpfs,target=/t,noexec,noatime", "/t nosuid nodev mode=1777 noexec noatime"}, {"type=tmpfs,target=/t,noexec=false", ""}, {"type=tmpfs,source=" + data + ",target=/t", ""},
		{"type=bind,source=" + data + ",target=/d,tmpfs-size=1m", ""}, {"type=bind,source=" + data + ",target=/d,mode=700", ""}, {"type=bind,source=" + data + ",target=/d,noexec", ""},
	} {
		m, err := parseMount(c.in, bindOf)
		got := ""
		if err == nil {
			got = m.Destination + " " + strings.Join(m.Options, " ")
		}
		if got != c.want {
			t.Errorf("parseMount(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func TestIsSize(t *testing.T) {
	for s, want := range map[string]bool{"1": true, "12%": true, "100%": true, "10m": true, "2G": true, "64k": true,
		"": false, "m": false, "0": false, "101%": false, "1mm": false, "-1m": false, "1t": false, "1m,uid=0": false, "1.5g": false} {
		if isSize(s) != want {
			t.Errorf("isSize(%q) = %v", s, !want)
		}
	}
}
