package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A usual is a situation in which a run with no flags starts.
type usual struct {
	name  string
	make  string   // a shell script that prepares it, in the directory of the test
	image string   // "" is ./root
	cwd   string   // below the directory of the test
	env   []string // D stands for that directory
	words []string // nil is a script that looks around
	// streams is what a shell makes of the standard streams.
	streams string
	goes    bool // without the Go runtime
}

// look tells all that a program can see of how it was started.
const look = `env; echo cwd: $(pwd -P); id; umask; cat /etc/passwd /etc/group
	for d in / /etc "$HOME"; do ls -ln $d; done | sed 's/^\([^ ]*\) *[0-9]* *\([0-9]*\) *\([0-9]*\) .* \([^ ]*\)$/\1 \2 \3 \4/'
	cut -d' ' -f 4- /proc/self/mountinfo | sed 's/ - \([^ ]*\) .*/ \1/; s/ \(shared\|master\|propagate_from\):[0-9]*//g' | sort
	cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups
	grep -E '^(Groups|NoNewPrivs|Cap...|Seccomp|Sig...|Threads):' /proc/self/status; ls /proc/self/fd; ulimit -n; cat /proc/self/oom_score_adj
	touch /x /etc/x /bin/x`

var usuals = []usual{
	{name: "plain", goes: true},
	{name: "by name", image: "bb", goes: true},
	{name: "by the absolute path", image: "D/root", goes: true},
	{name: "a directory without dot", image: "root", goes: true},
	{name: "a directory, and no store", image: "root", env: []string{"HPCC_STORE=D/nostore"}, goes: true},
	{name: "a directory that has an image's name", make: "mkdir bb", image: "bb", goes: true},
	{name: "few names in /etc", make: "rm root/etc/e*", goes: true},
	{name: "few names, links and directories among them", make: "rm root/etc/e*; ln -s e9 root/etc/link; mkdir -m 750 root/etc/dir; touch root/etc/dir/f", goes: true},
	{name: "all mount points", make: "touch root/etc/hosts root/etc/resolv.conf root/etc/passwd root/etc/group", goes: true},
	{name: "no /etc", make: "rm -r root/etc"},
	{name: "/etc is a link", make: "mv root/etc root/e; ln -s e root/etc"},
	{name: "a link among mount points", make: "touch root/etc/h; ln -s h root/etc/hosts"},
	{name: "a directory for a file", make: "mkdir root/etc/hosts"},
	{name: "no /proc", make: "rmdir root/proc"},
	{name: "own lines in passwd", make: `echo "me:x:$(id -u):$(id -g):Me:/h:/bin/x" >root/etc/passwd; echo "us:x:$(id -g):" >root/etc/group`},
	{name: "passwd without end", make: `printf 'root:x:0:0::/:/bin/sh\r\nx:x' >root/etc/passwd; printf 'g:x:0:' >root/etc/group`, goes: true},
	{name: "passwd is a link to outside", make: "ln -s /etc/passwd root/etc/passwd"},
	{name: "home by an odd path", make: "mkdir a", env: []string{"HOME=D/a/../home"}},
	{name: "home is missing in the image", make: "mkdir root/home", env: []string{"HOME=/home/HOST"}, goes: true},
	{name: "homes are missing in the image", env: []string{"HOME=/home/HOST"}},
	{name: "no home", env: []string{"HOME="}},
	{name: "home is not there", env: []string{"HOME=/nohome/me"}},
	{name: "home is a link", make: "mkdir there; ln -s there link", env: []string{"HOME=D/link"}, goes: true},
	{name: "below home", cwd: "home/a/b", make: "mkdir -p home/a/b", goes: true},
	{name: "by another path", cwd: "link/sub", make: "mkdir -p there/sub; ln -s there link", env: []string{"PWD=D/link/sub"}, goes: true},
	{name: "PWD of elsewhere", env: []string{"PWD=/etc"}},
	{name: "in a directory of the host that the image lacks", cwd: "/var/lib"},
	{name: "in one that the image has, empty", cwd: "/var/lib", make: "mkdir -p root/var/lib", goes: true},
	{name: "in one that the image has, with files", cwd: "/var/lib", make: "mkdir -p root/var/lib/x", goes: true},
	{name: "in the root", cwd: "/", goes: true},
	{name: "in /usr", cwd: "/usr"},
	{name: "below /usr", cwd: "/usr/share", make: "mkdir -p root/usr/share", goes: true},
	{name: "variables", env: []string{"PATH=/x", "LD_LIBRARY_PATH=/l", "LD_PRELOAD=", "TMPDIR=/var/tmp", "HPCC_RUNNING=0", "A=1", "A=2", "odd", "B==x"}, goes: true},
	{name: "TMPDIR that is shown", env: []string{"TMPDIR=/tmp"}, goes: true},
	{name: "TMPDIR with a slash", env: []string{"TMPDIR=/tmp/"}},
	{name: "the image's variables", make: `config '"Env":["PATH=/sbin:/bin","A=image","HPCC_RUNNING=7","odd","=x","E="],"User":"me","WorkingDir":"/etc"'`, env: []string{"A=1"}, goes: true},
	{name: "the image's directory", cwd: "/var/lib", make: `mkdir -p root/var/lib/x; config '"WorkingDir":"/etc"'`, goes: true},
	{name: "the image's directory, relative", cwd: "/var/lib", make: `mkdir -p root/var/lib/x; config '"WorkingDir":"etc"'`},
	{name: "the image's directory is missing", cwd: "/var/lib", make: `mkdir -p root/var/lib/x; config '"WorkingDir":"/nowhere"'`},
	{name: "entry point", make: `config '"Entrypoint":["/bin/sh","-c","echo \"$0\" \"$@\"","first"],"Cmd":["a","b c"]'`, words: []string{}},
	{name: "entry point, and words", make: `config '"Entrypoint":["/bin/echo","first"],"Cmd":["a"]'`, words: []string{"--", "--", "x"}, goes: true},
	{name: "command", make: `config '"Cmd":["/bin/echo","b c"]'`, words: []string{}, goes: true},
	{name: "no command", words: []string{}},
	{name: "another machine's", make: `mkdir root/.hpcc; echo '{"architecture":"s390x"}' >root/.hpcc/image.json`},
	{name: "a broken configuration", make: `mkdir root/.hpcc; echo '{"architecture":' >root/.hpcc/image.json`},
	{name: "a configuration that is a directory", make: `mkdir -p root/.hpcc/image.json`},
	{name: "not there", words: []string{"nosuch", "x"}},
	{name: "not there, by path", words: []string{"/nosuch"}},
	{name: "not executable", words: []string{"/etc/e9"}},
	{name: "no program", make: "echo nothing >root/bin/text; chmod 755 root/bin/text", words: []string{"text"}},
	{name: "found behind one that is none", make: `mkdir -p root/a/sh root/b; echo x >root/b/sh; config '"Env":["PATH=/none:/a:/b:/bin"]'`, goes: true},
	{name: "status", words: []string{"sh", "-c", "exit 7"}, goes: true},
	{name: "no standard input", streams: "<&-"},
	{name: "defaults", make: `mkdir -p home/.config/hpcc; echo "--set-env A=conf" >home/.config/hpcc/run.conf`},
	{name: "defaults elsewhere", make: `mkdir -p x/hpcc; echo "--set-env A=conf" >x/hpcc/run.conf`, env: []string{"XDG_CONFIG_HOME=D/x"}},
	{name: "no such image", image: "nothere"},
	{name: "no such directory", image: "./nothere"},
	{name: "a file", image: "./file", make: "echo >file"},
	{name: "odd names", image: "./odd dir", make: "cp -a root 'odd dir'", goes: true},
	{name: "a locked directory", make: "mkdir -p closed/in; cp -a root closed/in; chmod 311 closed", image: "D/closed/in/root", goes: true},
}

// The usual run, which begins before the Go runtime does, is what the full
// program makes of the same words; and what is usual does not wait for Go.
func TestUsualIsTheSame(t *testing.T) {
	needs(t, "busybox", "userns")
	busy, err := busybox()
	if err != nil {
		t.Fatal(err)
	}
	all := t.TempDir()
	shell(t, all, `mkdir -p home root/bin root/etc root/proc root/sys root/dev root/tmp && cp "$0" root/bin/busybox &&
		for n in sh env id ls cat grep cut sed sort touch echo; do ln -s busybox root/bin/$n; done && for i in $(seq 40); do echo $i >root/etc/e$i; done &&
		tar cf image.tar -C root . && HPCC_STORE=$PWD/store "$1" load image.tar bb >/dev/null && rm image.tar`, busy, filepath.Join(bin, "hpcc"))
	for _, u := range usuals {
		t.Run(u.name, func(t *testing.T) {
			if slices.Contains(u.env, "HOME=/home/HOST") {
				needs(t, "home")
			}
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			here := func(s string) string {
				return strings.NewReplacer("D/", dir+"/", "HOST", filepath.Base(os.Getenv("HOME"))).Replace(s)
			}
			shell(t, dir, `cp -a "$0/." .`, all)
			shell(t, dir, `config() { mkdir -p root/.hpcc && echo "{\"config\":{$1}}" >root/.hpcc/image.json; }; `+u.make)
			t.Cleanup(func() { shell(t, dir, "chmod -R u+rwX .") })
			image, words := here(u.image), u.words
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
				cmd := exec.Command(filepath.Join(program, "hpcc"), append([]string{"run", image}, words...)...)
				if u.streams != "" {
					cmd = exec.Command("sh", append([]string{"-c", `exec "$0" "$@" ` + u.streams}, cmd.Args...)...)
				}
				// inittrace: the Go runtime tells of each package that it begins.
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
				var lines []string
				for line := range strings.Lines(string(b)) {
					if strings.HasPrefix(line, "init ") {
						began = true
						continue
					}
					lines = append(lines, line)
				}
				return cmd.ProcessState.ExitCode(), strings.Join(lines, ""), began
			}
			status, out, began := run(bin)
			want, text, _ := run(full)
			if status != want || out != text {
				t.Errorf("status %d; the full program: %d; %s", status, want, differ(out, text))
			}
			if began == u.goes {
				t.Errorf("began with the Go runtime: %v; want %v", began, !u.goes)
			}
		})
	}
}

// shell runs a script with $0 and so on.
func shell(t *testing.T, dir, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// differ lists lines that stand in one text only.
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
