package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// A usual is a common situation of a run.
type usual struct {
	name  string
	flags []string // before the image; D is replaced by the directory of the test
	make  string   // shell script that prepares the directory of the test
	image string   // "" for ./root
	cwd   string   // relative to the directory of the test
	env   []string // D is replaced as in flags
	argv  []string // nil for the script look
	// streams are redirections of the standard streams for a shell.
	streams string
	fast    bool // the run does not need the Go runtime
}

// look is a script that prints all properties of its process.
const look = `env; echo cwd: $(pwd -P); id; umask; cat /etc/passwd /etc/group
	for d in / /etc "$HOME"; do ls -ln $d; done | sed 's/^\([^ ]*\) *[0-9]* *\([0-9]*\) *\([0-9]*\) .* \([^ ]*\)$/\1 \2 \3 \4/'
	cut -d' ' -f 4- /proc/self/mountinfo | sed 's/ - \([^ ]*\) .*/ \1/; s/ \(shared\|master\|propagate_from\):[0-9]*//g' | sort
	cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups
	ls -l /proc/self/fd | sed 's/.* \([0-9]*\)\( -> .*\)*$/\1\2/' | grep -v 'pipe:\|proc'; ulimit -a; grep -E '^(Groups|NoNewPrivs|Cap...|Seccomp|Sig...|Threads):' /proc/self/status; ls /proc/self/fd; ulimit -n; cat /proc/self/oom_score_adj
	touch /x /etc/x /bin/x`

// The image, arguments and variables of runs with --only. The script prints all properties of its
// process that differ from those of a process without a container.
const only = `mkdir -p root/opt/tool/bin; cp root/bin/busybox root/opt/tool/bin; for n in sh env id ls grep cut sed touch which readlink sort; do ln -s busybox root/opt/tool/bin/$n; done
	config '"Env":["PATH=/opt/tool/bin:/opt/toolbox:/opt/tool/b:/bin","A=image","HOME=/x"],"Entrypoint":["/bin/false"],"WorkingDir":"/etc"'`

var (
	onlyArgv = []string{"sh", "-c", `env; pwd; id; which ls; ls / /opt /opt/tool; touch /opt/tool/x /opt/x; readlink /proc/self/exe
		cut -d' ' -f 5- /proc/self/mountinfo | grep '^/opt\|^/mnt' | sed 's/ - \([^ ]*\) .*/ \1/' | sort
		ls -l /proc/self/fd | sed 's/.* \([0-9]*\)\( -> .*\)*$/\1\2/' | grep -v 'pipe:\|proc'; grep -E '^(Groups|NoNewPrivs|Cap...|Seccomp|Sig...|Threads):' /proc/self/status`}
	onlyEnv = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=/l", "MODULEPATH=/m", "PYTHONPATH=/x", "R_LIBS_USER=/x", "TMPDIR=/nowhere", "HPCC_RUNNING=1", "A=1"}
)

// mayHaveGPU reports whether this machine has signs of a GPU.
func mayHaveGPU() bool {
	for _, sign := range []string{"/etc/cdi", "/var/run/cdi", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/dri"} {
		if _, err := os.Stat(sign); err == nil {
			return true
		}
	}
	return false
}

var usuals = []usual{
	{name: "plain", fast: true},
	{name: "by name", image: "bb", fast: true},
	{name: "by the absolute path", image: "D/root", fast: true},
	{name: "a directory without dot", image: "root", fast: true},
	{name: "a directory, and no store", image: "root", env: []string{"HPCC_STORE=D/nostore"}, fast: true},
	{name: "a directory that has an image's name", make: "mkdir bb", image: "bb", fast: true},
	{name: "few names in /etc", make: "rm root/etc/e*", fast: true},
	{name: "few names, links and directories among them", make: "rm root/etc/e*; ln -s e9 root/etc/link; mkdir -m 750 root/etc/dir; touch root/etc/dir/f", fast: true},
	{name: "all mount points", make: "touch root/etc/hosts root/etc/resolv.conf root/etc/passwd root/etc/group", fast: true},
	{name: "no /etc", make: "rm -r root/etc", fast: true},
	{name: "/etc is a link", make: "mv root/etc root/e; ln -s e root/etc"},
	{name: "a link among mount points", make: "touch root/etc/h; ln -s h root/etc/hosts"},
	{name: "a directory for a file", make: "mkdir root/etc/hosts"},
	{name: "no /proc", make: "rmdir root/proc", fast: true},
	{name: "own lines in passwd", make: `echo "me:x:$(id -u):$(id -g):Me:/h:/bin/x" >root/etc/passwd; echo "us:x:$(id -g):" >root/etc/group`, fast: true},
	{name: "passwd without end", make: `printf 'root:x:0:0::/:/bin/sh\r\nx:x' >root/etc/passwd; printf 'g:x:0:' >root/etc/group`, fast: true},
	{name: "passwd is a link to outside", make: "ln -s /etc/passwd root/etc/passwd"},
	{name: "home by an odd path", make: "mkdir a", env: []string{"HOME=D/a/../home"}, fast: true},
	{name: "home is missing in the image", make: "mkdir root/home", env: []string{"HOME=/home/HOST"}, fast: true},
	{name: "homes are missing in the image", env: []string{"HOME=/home/HOST"}, fast: true},
	{name: "no home", env: []string{"HOME="}, fast: true},
	{name: "home does not exist", env: []string{"HOME=/nohome/me"}, fast: true},
	{name: "home is a link", make: "mkdir there; ln -s there link", env: []string{"HOME=D/link"}, fast: true},
	{name: "below home", cwd: "home/a/b", make: "mkdir -p home/a/b", fast: true},
	{name: "by another path", cwd: "link/sub", make: "mkdir -p there/sub; ln -s there link", env: []string{"PWD=D/link/sub"}, fast: true},
	{name: "PWD of elsewhere", env: []string{"PWD=/etc"}, fast: true},
	{name: "in a directory of the host that the image lacks", cwd: "/var/lib", fast: true},
	{name: "in an empty directory of the image", cwd: "/var/lib", make: "mkdir -p root/var/lib", fast: true},
	{name: "in a directory of the image with files", cwd: "/var/lib", make: "mkdir -p root/var/lib/x", fast: true},
	{name: "in the root", cwd: "/", fast: true},
	{name: "in /usr", cwd: "/usr"},
	{name: "below /usr", cwd: "/usr/share", make: "mkdir -p root/usr/share", fast: true},
	{name: "variables", env: []string{"PATH=/x", "LD_LIBRARY_PATH=/l", "LD_PRELOAD=", "TMPDIR=/var/tmp", "HPCC_RUNNING=0", "A=1", "A=2", "odd", "B==x"}, fast: true},
	{name: "variables of the host's software", env: []string{"PYTHONPATH=/x", "PYTHONNOUSERSITE=", "R_LIBS_USER=/x", "CONDA_PREFIX=/x", "_CE_M=", "PERL5LIB=/x", "JULIA_PROJECT=x", "MODULEPATH=/x", "BASH_FUNC_module%%=() { :; }", "LD_AUDIT=x", "JAVA_HOME=/x", "LANG=C", "LUA=1"}, fast: true},
	{name: "the host's software, with the image's variables", make: `config '"Env":["PYTHONPATH=/i","PYTHONNOUSERSITE=","R_LIBS_USER=/i","LD_PRELOAD="]'`, env: []string{"PYTHONPATH=/x", "R_LIBS=/x"}, flags: []string{"--set-env", "R_LIBS=$R_LIBS:/f", "--set-env", "PERL5LIB=/f"}, fast: true},
	{name: "the host's software, without a home", env: []string{"PYTHONPATH=/x", "PYTHONNOUSERSITE=", "R_LIBS_USER=/x"}, flags: []string{"--no-home"}, fast: true},
	{name: "the host's software, with a clean environment", env: []string{"PYTHONPATH=/x"}, flags: []string{"--clean-env"}, fast: true},
	{name: "TMPDIR that is bound", env: []string{"TMPDIR=/tmp"}, fast: true},
	{name: "TMPDIR with a slash", env: []string{"TMPDIR=/tmp/"}, fast: true},
	{name: "the image's variables", make: `config '"Env":["PATH=/sbin:/bin","A=image","HPCC_RUNNING=7","odd","=x","E="],"User":"me","WorkingDir":"/etc"'`, env: []string{"A=1"}, fast: true},
	{name: "the image's directory", cwd: "/var/lib", make: `mkdir -p root/var/lib/x; config '"WorkingDir":"/etc"'`, fast: true},
	{name: "the image's directory, relative", cwd: "/var/lib", make: `mkdir -p root/var/lib/x; config '"WorkingDir":"etc"'`, fast: true},
	{name: "the image's directory is missing", cwd: "/var/lib", make: `mkdir -p root/var/lib/x; config '"WorkingDir":"/nowhere"'`},
	{name: "entry point", make: `config '"Entrypoint":["/bin/sh","-c","echo \"$0\" \"$@\"","first"],"Cmd":["a","b c"]'`, argv: []string{}, fast: true},
	{name: "entry point, and arguments", make: `config '"Entrypoint":["/bin/echo","first"],"Cmd":["a"]'`, argv: []string{"--", "--", "x"}, fast: true},
	{name: "command", make: `config '"Cmd":["/bin/echo","b c"]'`, argv: []string{}, fast: true},
	{name: "no command", argv: []string{}},
	{name: "another machine's", make: `mkdir root/.hpcc; echo '{"architecture":"s390x"}' >root/.hpcc/image.json`},
	{name: "a broken configuration", make: `mkdir root/.hpcc; echo '{"architecture":' >root/.hpcc/image.json`},
	{name: "a configuration that is a directory", make: `mkdir -p root/.hpcc/image.json`},
	{name: "not there", argv: []string{"nosuch", "x"}},
	{name: "not there, by path", argv: []string{"/nosuch"}},
	{name: "not executable", argv: []string{"/etc/e9"}},
	{name: "not a program", make: "echo nothing >root/bin/text; chmod 755 root/bin/text", argv: []string{"text"}},
	{name: "found after a file that is not executable", make: `mkdir -p root/a/sh root/b; echo x >root/b/sh; config '"Env":["PATH=/none:/a:/b:/bin"]'`, fast: true},
	{name: "status", argv: []string{"sh", "-c", "exit 7"}, fast: true},
	{name: "no standard input", streams: "<&-", fast: true},
	{name: "defaults", make: `mkdir -p home/.config/hpcc; echo "--set-env A=conf" >home/.config/hpcc/run.conf`, fast: true},
	{name: "defaults elsewhere", make: `mkdir -p x/hpcc; echo "--set-env A=conf" >x/hpcc/run.conf`, env: []string{"XDG_CONFIG_HOME=D/x"}, fast: true},
	{name: "defaults with quotes and variables", make: `mkdir -p home/.config/hpcc m; printf '# site\n-b "$HOME/../m:/mnt/m:ro" --set-env "A=$USER x"\r\n' >home/.config/hpcc/run.conf`, flags: []string{"--set-env", "B=$A"}, fast: true},
	{name: "no standard streams", streams: "<&- >&-", fast: true},
	{name: "descriptors", streams: "3</dev/null 7>/dev/null 9<.", fast: true},
	{name: "PWD of a missing directory", env: []string{"PWD=/nowhere"}, fast: true},
	{name: "a name with a host and a tag", image: "host.example:5000/lab/bb:latest", fast: true},
	{name: "below a directory that the image lacks", cwd: "/var/lib", make: "mkdir root/var; touch root/var/f", fast: true},
	{name: "nothing of the host is in the root", make: "rmdir root/proc root/sys root/dev root/tmp; rm -r root/etc", cwd: "/var/lib", fast: true},
	{name: "many names in the root", cwd: "/var/lib", make: "for i in $(seq 30); do mkdir root/r$i; done; ln -s r1 root/rl", fast: true},
	{name: "the image's PATH", make: `config '"Env":["PATH=/sbin:/bin"]'`, env: []string{"PATH=/x:/y"}, fast: true},
	{name: "the caller's PATH", env: []string{"PATH=/x:/bin:/y"}, fast: true},
	{name: "a configuration with escapes", make: `config '"Env":["A=\\u003e\\u0026 \\"ä\\"\\t"],"Cmd":["/bin/sh"]'`, fast: true},
	{name: "a user with another name in HOME", make: `config '"Env":["HOME=/h","USER=image"]'`, fast: true},
	{name: "the directory of a task", make: "mkdir -p task/t; mkdir root/var", env: []string{"HPCC_TASK_DIR=/var/lib/"}, fast: true},
	{name: "--cd", flags: []string{"--cd", "/etc/"}, fast: true},
	{name: "--cd, relative", flags: []string{"-c=home/../home/"}, fast: true},
	{name: "-b", make: "mkdir data; touch data/f root/there", flags: []string{"-b", "data:/mnt/x", "-b=D/data/:/a/b/../c", "-b", "data/f:/there:ro"}},
	{name: "-b to paths that the image lacks", make: "mkdir data; touch data/f", flags: []string{"-b", "data:/mnt/x/y", "-b=D/data/:/a/b:ro", "-b", "data/f:/etc/new/f:ro", "-b", "data/f:/f:rw"}, fast: true},
	{name: "-b over the image", make: "mkdir data; touch data/f root/there", flags: []string{"-b", "data:/etc", "-b", "data/f:/there", "-b", "./data:/etc/data"}},
	{name: "-b of a path", make: "mkdir data", flags: []string{"-b", "data", "-b", "/var/lib/"}, fast: true},
	{name: "-b of a link", make: "mkdir data; ln -s data link", flags: []string{"-b", "D/link"}},
	{name: "-b of a path above", cwd: "a/b", make: "mkdir -p a/b data", flags: []string{"-b", "../../data:/mnt"}, fast: true},
	{name: "-b of /usr", flags: []string{"-b", "/usr:/mnt"}},
	{name: "-b below the home", make: "mkdir data", flags: []string{"-b", "data:D/home/new"}},
	{name: "-b in /tmp of its own", make: "mkdir data; touch data/f", flags: []string{"-t", "-b", "data:/tmp/x", "-b", "data/f:/tmp/d/f"}, fast: true},
	{name: "-b over the current directory", cwd: "home/sub", make: `mkdir -p home/sub data; config '"WorkingDir":"/etc"'`, flags: []string{"-b", "D/data:D/home", "--cd=../bin"}, fast: true},
	{name: "-b over TMPDIR", make: "mkdir data", env: []string{"TMPDIR=/tmp"}, flags: []string{"-b", "D/data:/tmp"}, fast: true},
	{name: "-b over passwd and group", make: "echo me:x:1:1::/:/x >mine; touch root/etc/passwd root/etc/group", flags: []string{"-b", "D/mine:/etc/passwd:ro", "-b", "D/mine:/etc/group"}, fast: true},
	{name: "--set-env", make: `printf '# x\nA=1\r\nB=$A:${A}b:$NO\nPATH=/opt/bin:$PATH\nHPCC_RUNNING=7\n' >a.env; printf 'N=a\nb\0' >zero.env`, flags: []string{"--set-env", "a.env", "--set-env=C=$B", "--set-env0", "zero.env", "--unset-env", "?"}, fast: true},
	{name: "--set-env, no expansion", make: `echo 'A=$HOME' >a.env`, flags: []string{"--env-no-expand", "--set-env=a.env", "--set-env", "HOME=/elsewhere"}, fast: true},
	{name: "--set-env of a pipe", flags: []string{"--set-env", "/dev/stdin"}, streams: "<<E\nA=piped\nE\n"},
	{name: "-W", flags: []string{"-W"}, fast: true},
	{name: "-W and binds", make: "mkdir data", flags: []string{"-W=5m", "-b", "D/data:/a/b", "-t"}, cwd: "/var/lib", fast: true},
	{name: "--no-home", make: "mkdir home/sub; mkdir root/root", flags: []string{"--no-home"}, cwd: "home/sub", fast: true},
	{name: "--no-home with an image's user", make: `config '"User":"me:1"'; echo 'me:x:7:7::/there:/bin/sh' >root/etc/passwd`, flags: []string{"--no-home", "-t"}, fast: true},
	{name: "--clean-env", env: []string{"A=1", "TERM=t", "PATH=/x"}, flags: []string{"--clean-env"}, fast: true},
	{name: "--no-passwd", flags: []string{"--no-passwd"}, fast: true},
	{name: "--entrypoint", make: `config '"Entrypoint":["/bin/false"],"Cmd":["b"]'`, flags: []string{"--entrypoint", "/bin/echo"}, fast: true},
	{name: "--only", flags: []string{"--only", "/opt/tool"}, make: only, image: "D/root", argv: onlyArgv, env: onlyEnv, cwd: "/var/lib", fast: true},
	{name: "--only, by name, with other flags", flags: []string{"--only=/opt/tool/", "--cd", "D/home", "-b", "D/home:/mnt:ro", "--set-env", "PATH=/first:$PATH", "--gpu"}, make: only, argv: onlyArgv, env: onlyEnv, fast: true},
	{name: "--only with --clean-env", flags: []string{"--only", "/opt/tool", "--clean-env"}, make: only, argv: onlyArgv, env: onlyEnv, fast: true},
	{name: "--only of a deep path", flags: []string{"--only", "/opt/nowhere/a/b"}, make: "mkdir -p root/opt/nowhere/a/b; touch root/opt/nowhere/a/b/f", argv: []string{"--", "/bin/sh", "-c", "find /opt/nowhere; touch /opt/nowhere/x /opt/nowhere/a/b/x; env"}, fast: true},
	{name: "--only of a name in the root", flags: []string{"--only", "/nowhere"}, make: "mkdir root/nowhere"},
	{name: "--only of a path that the image lacks", flags: []string{"--only", "/opt/tool"}},
	{name: "--only of a link", flags: []string{"--only", "/opt/tool"}, make: "mkdir -p root/opt; ln -s /etc root/opt/tool"},
	{name: "--only without a program", flags: []string{"--only", "/opt/tool"}, make: only, argv: []string{}},
	{name: "--only, program not found", flags: []string{"--only", "/opt/tool"}, make: only, argv: []string{"nosuch"}},
	{name: "--only with an own bind that the host lacks", flags: []string{"--only", "/opt/tool", "-b", "D/home:D/new"}, make: only},
	{name: "--only and -W", flags: []string{"--only", "/opt/tool", "-W"}, make: only},
	{name: "--gpu", flags: []string{"--gpu"}, fast: !mayHaveGPU()},
	{name: "all that a job has", image: "bb", make: "mkdir dir data; echo A=1 >config.env", flags: []string{"--set-env", "D/config.env", "--set-env=B=2", "--cd", "D/dir", "-b", "D/data:/mnt", "-W"}, cwd: "/var/lib", fast: true},
	{name: "no such image", image: "nothere"},
	{name: "no such directory", image: "./nothere"},
	{name: "a file", image: "./file", make: "echo >file"},
	{name: "odd names", image: "./odd dir", make: "cp -a root 'odd dir'", fast: true},
	{name: "a locked directory", make: "mkdir -p closed/in; cp -a root closed/in; chmod 311 closed", image: "D/closed/in/root", fast: true},
}

// TestUsualIsTheSame compares runs before the Go runtime with the full program for the same command
// line. It also checks which situations do not need the Go runtime.
func TestUsualIsTheSame(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	needs(t, "busybox", "userns")
	busy, err := testenv.Busybox()
	testenv.Check(t, err)
	me, err := user.Current()
	testenv.Check(t, err)
	all := t.TempDir()
	shell(t, all, `mkdir -p home root/bin root/etc root/proc root/sys root/dev root/tmp && cp "$0" root/bin/busybox &&
		for n in sh env id ls cat grep cut sed sort touch echo; do ln -s busybox root/bin/$n; done && for i in $(seq 40); do echo $i >root/etc/e$i; done &&
		tar cf image.tar -C root . && export HPCC_STORE=$PWD/store && "$1" load image.tar bb >/dev/null && "$1" load image.tar host.example:5000/lab/bb >/dev/null && rm image.tar`, busy, filepath.Join(bin, "hpcc"))
	for _, u := range usuals {
		t.Run(u.name, func(t *testing.T) {
			if slices.Contains(u.env, "HOME=/home/HOST") {
				needs(t, "home")
			}
			dir, err := filepath.EvalSymlinks(t.TempDir())
			testenv.Check(t, err)
			here := func(s string) string {
				return strings.NewReplacer("D/", dir+"/", "HOST", filepath.Base(me.HomeDir)).Replace(s)
			}
			shell(t, dir, `cp -a "$0/." .`, all)
			shell(t, dir, `config() { mkdir -p root/.hpcc && echo "{\"config\":{$1}}" >root/.hpcc/image.json; }; `+u.make)
			t.Cleanup(func() { shell(t, dir, "chmod -R u+rwX .") })
			image, words := here(u.image), u.argv
			var flags []string
			for _, f := range u.flags {
				flags = append(flags, here(f))
			}
			if image == "" {
				image = "./root"
			}
			cwd := filepath.Join(dir, u.cwd)
			if strings.HasPrefix(u.cwd, "/") {
				cwd = u.cwd
			}
			if u.cwd != "" {
				image = strings.Replace(image, "./", dir+"/", 1)
			}
			if words == nil {
				words = []string{"--", "/bin/sh", "-c", look}
			}
			run := func(program string) (status int, out string, began bool) {
				cmd := exec.Command(filepath.Join(program, "hpcc"), slices.Concat([]string{"run"}, flags, []string{image}, words)...)
				if u.streams != "" {
					cmd = exec.Command("sh", append([]string{"-c", `exec "$0" "$@" ` + u.streams}, cmd.Args...)...)
				}
				// inittrace: the Go runtime reports each package that it initialises.
				cmd.Dir, cmd.Env = cwd, []string{"GODEBUG=inittrace=1"}
				home := "HOME=" + filepath.Join(dir, "home")
				for _, e := range append([]string{"HPCC_STORE=D/store", "USER=me"}, u.env...) {
					if strings.HasPrefix(e, "HOME=") {
						home = here(e)
						continue
					}
					cmd.Env = append([]string{here(e)}, cmd.Env...)
				}
				cmd.Env = append(cmd.Env, home)
				b, err := cmd.CombinedOutput()
				if err != nil && cmd.ProcessState == nil {
					t.Fatal(err)
				}
				out, began = withoutTrace(string(b))
				return cmd.ProcessState.ExitCode(), out, began
			}
			status, out, began := run(bin)
			want, text, _ := run(full)
			if status != want || out != text {
				t.Errorf("status %d; the full program: %d; %s", status, want, differ(out, text))
			}
			t.Logf("started the Go runtime: %v", began)
			if began == u.fast {
				t.Errorf("started the Go runtime: %v; want %v", began, !u.fast)
			}
		})
	}
}

// withoutTrace removes the lines of GODEBUG=inittrace=1. began reports whether there were any, which
// means that the Go runtime started.
func withoutTrace(output string) (rest string, began bool) {
	var out strings.Builder
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "init ") {
			began = true
		} else {
			out.WriteString(line)
		}
	}
	return out.String(), began
}

// shell runs a script with arguments, beginning with $0.
func shell(t *testing.T, dir, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// differ lists lines that are in only one of two texts.
func differ(a, b string) string {
	var out strings.Builder
	for i, pair := range [][2]string{{a, b}, {b, a}} {
		for line := range strings.Lines(pair[0]) {
			if !strings.Contains(pair[1], line) {
				fmt.Fprintf(&out, "\n%c %q", "<>"[i], line)
			}
		}
	}
	if out.Len() == 0 {
		return "the lines come in another order or number"
	}
	return out.String()
}
