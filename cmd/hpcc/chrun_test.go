package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// chLook is a script that prints what a container shows of itself: variables, directory, IDs,
// mounts and rights. It leaves out:
//   - HOME, which is /root or / since Charliecloud 0.32, and that of the host before;
//   - mounts below /tmp, in which ch-run shows the image and its mounts once more;
//   - the maps of IDs, because ch-run nests two user namespaces.
const chLook = `/bin/env | /bin/grep -v ^HOME= | /bin/sort; pwd; id -u; id -g; cut -d' ' -f5 /proc/self/mountinfo | grep -v ^/tmp/ | sort | uniq
	grep -E '^(NoNewPrivs|CapEff|Seccomp):' /proc/self/status; ls -A / /mnt/0 /mnt/1; echo x >/x && echo writable`

// A chCase is a command line of ch-run, which both programs execute in the same directory.
type chCase struct {
	name   string
	args   string // between ch-run and the image, as the shell reads them
	image  string // "" for ./root
	argv   string // "" for chLook
	env    []string
	differ string // why the results differ; "" if they must be equal
	fast   bool   // hpcc does not need the Go runtime
}

// The reasons of differences from Charliecloud 0.31, which Debian has.
const (
	newStatus = "0.39 exits with 31 if it fails and with 49 if it cannot execute the command, as its manual says; 0.31 with 1"
	newPoint  = "hpcc adds a missing mount point, ch-run reports an error"
	ownNames  = "hpcc keeps the image's accounts and adds the user, ch-run replaces them"
)

var chCases = []chCase{
	{name: "plain", fast: true},
	{name: "absolute path", image: "$PWD/root", fast: true},
	{name: "-c", args: "-c /etc", fast: true},
	{name: "-c, relative", args: "--cd=etc", fast: true},
	{name: "-b", args: "-b data:/mnt/0 -b $PWD/data:/mnt/1", fast: true},
	{name: "both spellings of --bind", args: "-b data:/mnt/0 --bind=other:/mnt/1", fast: true},
	{name: "-b, twice at one path", args: "-b data:/mnt/0 -b other:/mnt/0", fast: true},
	{name: "-b of the same path", args: "-b /mnt", fast: true},
	{name: "-t", args: "-t", fast: true},
	{name: "-u and -g", args: "-u 0 -g 0"},
	{name: "--no-passwd", args: "--no-passwd", argv: "cat /etc/passwd", fast: true},
	{name: "--no-home", args: "--no-home", fast: true},
	{name: "--home", args: "--home", argv: "sh -c 'echo $HOME; ls $HOME'"},
	{name: "--join", args: "--join --join-ct=1 --join-tag=hpcc-test", argv: "echo x"},
	{name: "-v", args: "-v", argv: "echo x"},
	{name: "options after the image", argv: "-c /etc -- pwd"},
	{name: "a variable", args: "--set-env=A=b", fast: true},
	{name: "expansion", args: "--set-env=A='x:$B:$NO' --set-env=PATH='/o:$PATH'", env: []string{"B=b"}, fast: true},
	{name: "no expansion", args: "--env-no-expand --set-env=A='$B'", env: []string{"B=b"}, fast: true},
	{name: "a file", args: "--set-env=vars", fast: true},
	{name: "the image's file", args: "--set-env"},
	{name: "the image's file and another", args: "--set-env --set-env=A=mine --set-env=vars"},
	{name: "nothing of the caller", args: "--unset-env='*'", fast: true},
	{name: "no PATH", args: "--unset-env='*' -b data:/mnt/0", argv: "ls /mnt/0", fast: true},
	{name: "no PATH of the caller", args: "--unset-env=PATH", argv: "pwd", fast: true},
	{name: "a variable set and unset", args: "--set-env=A=1 --unset-env=A --unset-env=B --set-env=B=2", env: []string{"A=x", "B=y"}, fast: true},
	{name: "patterns", args: "--unset-env='A*' --unset-env='[BC]?'", env: []string{"A1=x", "B1=y", "C1=z", "D1=w"}},
	{name: "patterns of shells", args: "--unset-env='!(PATH|A*)'", env: []string{"A1=x", "B1=y"}, argv: "echo"},
	{name: "Nextflow's", args: `--unset-env="*" -c "$PWD/data" --set-env -b "$PWD" -b data:/mnt/0 --set-env=X=1`, argv: "/bin/pwd"},
	{name: "TMPDIR", env: []string{"TMPDIR=$PWD/data"}, argv: "ls /tmp", fast: true},
	{name: "PATH without /bin", env: []string{"PATH=/opt/x:/opt/y"}, argv: `/bin/sh -c "echo \$PATH"`, fast: true},
	{name: "PATH with /binary", env: []string{"PATH=/binary"}, argv: `/bin/sh -c "echo \$PATH"`, fast: true},
	{name: "variables of the host's libraries", env: []string{"LD_LIBRARY_PATH=/x", "HPCC_STAGE=0", "CH_RUNNING=no"}},
	{name: "status", argv: "sh -c 'exit 7'", fast: true},
	{name: "signal", argv: "sh -c 'kill -9 $$'", fast: true},
	{name: "standard input", argv: "cat", fast: true},
	{name: "an ENTRYPOINT", image: "./built", argv: "echo x", fast: true},
	{name: "-w", args: "-w", argv: "sh -c 'echo new >/new; cat /new'"},
	{name: "no such command", argv: "nosuch", differ: newStatus},
	{name: "not a program", argv: "/etc/hosts", differ: newStatus},
	{name: "no such image", image: "./nosuch", argv: "true", differ: newStatus},
	{name: "no such directory", args: "-c /nosuch", argv: "true", differ: newStatus},
	{name: "no such variables", args: "--set-env=nosuch", argv: "true", differ: newStatus},
	{name: "no command", argv: " ", differ: newStatus},
	{name: "-b to a path that the image lacks", args: "-b data:/fresh", argv: "ls /fresh", differ: newPoint, fast: true},
	{name: "accounts", argv: "cat /etc/passwd", differ: ownNames, fast: true},
}

// TestChRunIsTheSame compares hpcc under the name ch-run with the real ch-run on the same image.
func TestChRunIsTheSame(t *testing.T) {
	needs(t, "busybox", "userns", "ch-run")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	theirs, err := exec.LookPath("ch-run")
	testenv.Check(t, err)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	testenv.Check(t, err)
	shell(t, dir, `mkdir -p names names/full data other root/home root/bin root/etc root/proc root/sys root/dev root/tmp root/usr root/mnt/0 root/mnt/1 root/ch && ln -s "$1" names/ch-run && ln -s "$2" names/full/ch-run && cp "$0" root/bin/busybox &&
		for n in sh env id ls cat grep cut sort uniq echo pwd true; do ln -s busybox root/bin/$n; done && for f in hosts resolv.conf passwd group; do echo >root/etc/$f; done &&
		echo me:x:1:1::/:/bin/x >root/etc/passwd; mkdir -p "root/$PWD"; printf 'A=image\nB=of\n' >root/ch/environment; printf 'A=file\nC=$A:x\n' >vars; touch data/d other/o
		cp -a root built; mkdir built/.hpcc; echo '{"config":{"Entrypoint":["/bin/false"],"WorkingDir":"/mnt"}}' >built/.hpcc/image.json`, busy, filepath.Join(bin, "hpcc"), filepath.Join(full, "hpcc"))
	for _, c := range chCases {
		t.Run(c.name, func(t *testing.T) {
			status, out, _ := c.run(t, dir, theirs)
			got, text, began := c.run(t, dir, filepath.Join(dir, "names/ch-run"))
			if same := status == got && out == text; same != (c.differ == "") {
				t.Errorf("status %d, with ch-run %d; equal: %v; want a difference: %q\n%s", got, status, same, c.differ, differ(text, out))
			}
			if fullStatus, fullText, _ := c.run(t, dir, filepath.Join(dir, "names/full/ch-run")); fullStatus != got || fullText != text {
				t.Errorf("status %d; the full program: %d; %s", got, fullStatus, differ(text, fullText))
			}
			if began == c.fast {
				t.Errorf("started the Go runtime: %v; want %v", began, !c.fast)
			}
		})
	}
}

// run executes a case with one program, and returns the exit status, the output, and whether the
// Go runtime started.
func (c *chCase) run(t *testing.T, dir, program string) (status int, out string, began bool) {
	image, argv := c.image, c.argv
	if image == "" {
		image = "./root"
	}
	switch {
	case argv == "":
		argv = `-- /bin/sh -c "$1"`
	case !strings.HasPrefix(argv, "-"):
		argv = "-- " + argv
	}
	script := `exec "$0" ` + c.args + " " + image + " " + argv
	cmd := exec.Command("/bin/sh", "-c", script, program, chLook)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader("input\n")
	cmd.Env = []string{"GODEBUG=inittrace=1", "USER=me", "HOME=" + dir, "PWD=" + dir}
	if !slices.ContainsFunc(c.env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	}
	for _, e := range c.env {
		cmd.Env = append(cmd.Env, strings.ReplaceAll(e, "$PWD", dir))
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	_, began = withoutTrace(stderr.String())
	t.Logf("%s: %s", program, stderr.String())
	return cmd.ProcessState.ExitCode(), string(b), began
}
