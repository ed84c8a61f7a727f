package front

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// chVariables is the environment of the tests.
var chVariables = []string{"USER=me", "HOME=/home/me"}

// chRunPrefix begins each command of hpcc for ch-run.
const chRunPrefix = "run --ch-run --no-config --no-home --entrypoint= "

// charliecloudLines are command lines with the commands of hpcc that they become, separated by
// "; ". RUN stands for chRunPrefix, and "!" begins a part of a refusal. Those with "nxf" are
// commands that Nextflow's Charliecloud engine writes (CharliecloudBuilder, CharliecloudCache).
var charliecloudLines = []struct{ line, want string }{
	// images
	{"ch-run img -- true", "RUN img -- true"},
	{"ch-run quay.io%lab%img+1 -- true", "RUN quay.io%lab%img+1 -- true"},
	{"ch-run ./a+b -- true", "RUN ./a+b -- true"},
	{"ch-run -s /st img -- true", "RUN --store /st/hpcc img -- true"},
	{"ch-run --storage=/st /st/img/i -- true", "RUN /st/img/i -- true"},
	{"ch-run img true", "RUN img -- true"},
	{"ch-run -- img true -x", "RUN img -- true -x"},
	{"ch-run img -- prog -- -b x", "RUN img -- prog -- -b x"},
	{"ch-run img --cd / -- true", "RUN --cd=/ img -- true"}, // options may follow the image
	{"ch-run img", "!image and a command"},
	{"ch-run", "!image and a command"},
	// options
	{"ch-run -b /a:/b --bind=/c -c /d -u 0 -g 0 -j -t img -- true", "RUN --bind=/a:/b --bind=/c --cd=/d --uid=0 --gid=0 --join --private-tmp img -- true"},
	{"ch-run --join-ct=2 --join-tag x --join-pid 3 --no-passwd --seccomp img -- true", "RUN --join-ct=2 --join-tag=x --join-pid=3 --no-passwd --seccomp img -- true"},
	{"ch-run --set-env --unset-env=A* --set-env=B=c --set-env0=f --env-no-expand img -- true", "RUN --image-env --unset-env=A* --set-env=B=c --set-env0=f --env-no-expand img -- true"},
	{"ch-run --set-env file img -- true", "RUN --set-env=file img -- true"}, // Charliecloud before 0.26
	{"ch-run --set-env img -- true", "RUN --image-env img -- true"},
	{"ch-run --set-env= img -- true", "RUN --set-env= img -- true"},
	{"ch-run --unset *  img -- true", "RUN --unset-env=* img -- true"}, // a unique prefix
	{"ch-run --join- 3 img -- true", "!ambiguous: --join-ct, --join-pid, --join-tag"},
	{"ch-run -v -vv --unsafe --no-home -m /mnt img -- true", "RUN img -- true"},
	{"ch-run -W img -- true", "RUN --write-fake img -- true"},
	{"ch-run -W5m img -- true", "RUN --write-fake=5m img -- true"},
	{"ch-run --write-fake=5m -w img -- true", "RUN --write-fake=5m img -- true"},
	{"ch-run -w ./img -- true", "RUN --write ./img -- true"},
	{"ch-run -w ./img.sqfs -- true", "RUN ./img.sqfs -- true"},
	{"ch-run -w img -- true", "!all runs share its files"},
	{"ch-run --home img -- true", "RUN --write-fake --bind=/home/me:/home/me --env=HOME=/home/me img -- true"},
	{"ch-run -q img -- true", "!/dev/null"},
	{"ch-run --test=x img -- true", "!tests of ch-run itself"},
	{"ch-run --nosuch img -- true", "!does not know its option --nosuch"},
	{"ch-run -b", "!value of -b is missing"},
	{"ch-run --version", "=0.39"},
	{"ch-run --help", "=Usage: ch-run"},
	{"ch-run --feature squash", "="},
	{"ch-run --feature nosuch", "!does not have this feature"},
	// nxf
	{"ch-image pull -s /cache quay.io/lab/img:1", "pull --store /cache/hpcc quay.io/lab/img:1; charliecloud --store /cache/hpcc link /cache quay.io/lab/img:1"},
	{"ch-convert -i ch-image --storage /cache quay.io%lab%img+1 /task/container_quay.io%lab%img+1", "charliecloud --store /cache/hpcc convert /cache ch-image quay.io%lab%img+1 dir /task/container_quay.io%lab%img+1"},
	{"ch-convert -i ch-image --storage /cache img+1 /task/container_img+1.squashfs", "charliecloud --store /cache/hpcc convert /cache ch-image img+1 squash /task/container_img+1.squashfs"},
	{"ch-run --unset-env=* -c /task --set-env -w -b /foo:/tmp -b /task /task/container_img+1 -- /bin/sh -c x", "RUN --write --unset-env=* --cd=/task --image-env --bind=/foo:/tmp --bind=/task /task/container_img+1 -- /bin/sh -c x"},
	{"ch-run --unset-env=* -c /task --set-env --write-fake -w --set-env=X=1 --set-env=A=aaa -b /task -j --no-home img+1 -- x", "RUN --write-fake --unset-env=* --cd=/task --image-env --set-env=X=1 --set-env=A=aaa --bind=/task --join img+1 -- x"},
	// ch-image
	{"ch-image build -t foo -f D --build-arg A=b --build-arg C ctx", "build --file=D --build-arg=A=b --build-arg=C --tag=foo ctx; charliecloud link /var/tmp/me.ch foo"},
	{"ch-image build --force --no-cache -a arm64 -t foo .", "build --platform=linux/arm64 --no-cache --tag=foo .; charliecloud link /var/tmp/me.ch foo"},
	{"ch-image --rebuild build --force=fakeroot -f a/Dockerfile.debian_12 .", "build --no-cache --file=a/Dockerfile.debian_12 --tag=debian_12 .; charliecloud link /var/tmp/me.ch debian_12"},
	{"ch-image build -f hello.df .", "build --file=hello.df --tag=hello .; charliecloud link /var/tmp/me.ch hello"},
	{"ch-image build /a/My+Dir", "build --tag=mydir /a/My+Dir; charliecloud link /var/tmp/me.ch mydir"},
	{"ch-image build /", "build --tag=root /; charliecloud link /var/tmp/me.ch root"},
	{"ch-image build --parse-only -t x .", "build --check ."},
	{"ch-image build -b /a:/b -t x .", "!RUN --mount"},
	{"ch-image build --force-cmd=apt,-x -t x .", "!no arguments to commands"},
	{"ch-image build -t x", "!wrong number of arguments"},
	{"ch-image pull alpine:3.17 mine", "pull alpine:3.17 mine; charliecloud link /var/tmp/me.ch mine"},
	{"ch-image pull --arch yolo alpine", "!at random"},
	{"ch-image pull --tls-no-verify alpine", "!verifies certificates"},
	{"ch-image --auth push -s /st a host/b:1", "push --store /st/hpcc a host/b:1"},
	{"ch-image push --image /d a", "!images of its store"},
	{"ch-image list", "images --quiet"},
	{"ch-image list -s /st a:1", "charliecloud --store /st/hpcc show /st a:1"},
	{"ch-image list --long", "!other details"},
	{"ch-image list --undeletable", "="},
	{"ch-image delete a* b", "charliecloud delete /var/tmp/me.ch a* b"},
	{"ch-image import ./x.tar a:1", "charliecloud import /var/tmp/me.ch ./x.tar a:1"},
	{"ch-image reset", "charliecloud reset /var/tmp/me.ch"},
	{"ch-image gestalt storage-path", "=/var/tmp/me.ch"},
	{"ch-image -s /st storage-path", "=/st"},
	{"ch-image gestalt bucache", "="},
	{"ch-image gestalt python-path", "!storage-path or bucache"},
	{"ch-image build-cache --gc", "gc"},
	{"ch-image build-cache --reset", "gc --age=0"},
	{"ch-image build-cache", "!no statistics"},
	{"ch-image undelete a", "!does not have this subcommand"},
	{"ch-image pul a", `!did you mean "pull"?`},
	{"ch-run --no-hme a true", `!did you mean "--no-home"?`},
	{"ch-image modify a b", "!does not have this subcommand"},
	{"ch-image", "=Usage: ch-image"},
	{"ch-image --version", "=0.39"},
	// ch-convert
	{"ch-convert a ./dir", "charliecloud convert /var/tmp/me.ch ch-image a dir ./dir"},
	{"ch-convert a a.tar.gz", "charliecloud convert /var/tmp/me.ch ch-image a tar a.tar.gz"},
	{"ch-convert --no-clobber --tmp /t --xattrs a a.sqfs", "charliecloud convert-new /var/tmp/me.ch ch-image a squash a.sqfs"},
	{"ch-convert -i tar -o ch-image x y", "charliecloud convert /var/tmp/me.ch tar x ch-image y"},
	{"ch-convert -n ./d x.tgz", "=input:   dir  ./d"},
	{"ch-convert --no-xattrs ./d x.sqfs", "!keeps extended attributes"},
	{"ch-image --profile build -t x .", "!no profiles"},
	{"ch-image build --force=none -t x .", "!always root of a container"},
	{"ch-convert ./d /e", "!both have the format dir"},
	{"ch-convert -i docker x ./y", "!other builders"},
	{"ch-convert -i oci x ./y", "!is not a format"},
	{"ch-convert x", "!needs IN and OUT"},
}

// TestCharliecloudOptions checks that each option is read, refused, or in the table of options without
// effect, which docs/charliecloud.md repeats.
func TestCharliecloudOptions(t *testing.T) {
	read := optionsInCode(t, "charliecloud*.go")
	idle := map[[2]string]string{}
	for program, table := range map[string]map[string]Role{"ch-run": chRunTable(), "ch-image": chImageTable, "ch-convert": chConvertTable} {
		for names, why := range idleCharliecloud[program] {
			idle[[2]string{program, names}] = why
		}
		for name, role := range table {
			isRefused, isIdle := role == Refused || role == RefusedValue, role == idleFlag || role == idleValue
			if (isRefused && refusedByCharliecloud[name][0] == "") || (!isRefused && !isIdle && !read[name]) {
				t.Errorf("%s %s is neither read nor refused with a reason", program, name)
			}
		}
	}
	checkIdle(t, "charliecloud.md", idle)
}

func TestCharliecloud(t *testing.T) {
	for _, c := range charliecloudLines {
		argv := strings.Fields(c.line)
		r, err := Read(argv[0], argv[1:], chVariables)
		if refused, ok := strings.CutPrefix(c.want, "!"); ok {
			var no *Refusal
			if !errors.As(err, &no) || !strings.Contains(err.Error()+no.Advice, refused) {
				t.Errorf("%s: error %v; want a refusal with %q", c.line, err, refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if output, ok := strings.CutPrefix(c.want, "="); ok {
			if len(r.Commands) > 0 || !strings.HasPrefix(r.Output, output) || (output == "") != (r.Output == "") {
				t.Errorf("%s: output %q, commands %v; want output %q", c.line, r.Output, r.Commands, output)
			}
			continue
		}
		var got []string
		for _, command := range r.Commands {
			got = append(got, strings.Replace(strings.Join(command.Args, " ")+" ", chRunPrefix, "RUN ", 1))
		}
		if text := strings.TrimSpace(strings.Join(got, ";@")); strings.ReplaceAll(text, " ;@", "; ") != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.line, text, c.want)
		}
	}
}

func FuzzCharliecloud(f *testing.F) {
	for _, c := range charliecloudLines {
		f.Add(strings.ReplaceAll(c.line, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		argv := strings.Split(line, "\n")
		program := argv[0]
		if !slices.Contains([]string{"ch-run", "ch-image", "ch-convert"}, program) {
			program = "ch-run"
		}
		r, err := Read(program, argv[1:], chVariables)
		if err == nil && program == "ch-run" && len(r.Commands) > 0 {
			if i := slices.Index(r.Commands[0].Args, "--"); i < 2 || i == len(r.Commands[0].Args)-1 {
				t.Errorf("%q becomes %q", argv, r.Commands[0].Args)
			}
		}
	})
}
