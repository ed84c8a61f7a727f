package check

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/testdata/helpers/testenv"
)

// newImage builds an image from lines "MODE UID:GID PATH [TEXT]". A path that ends with a
// slash is a directory. A TEXT "->TARGET" makes a link, and "+" adds file capabilities.
func newImage(t testing.TB, cfg v1.Config, lines ...string) v1.Image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, l := range lines {
		f := append(strings.SplitN(l, " ", 4), "")
		h := &tar.Header{Name: f[2], Typeflag: tar.TypeReg, Size: int64(len(f[3]))}
		if _, err := fmt.Sscanf(f[0]+" "+f[1], "%o %d:%d", &h.Mode, &h.Uid, &h.Gid); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		text := f[3]
		switch {
		case strings.HasSuffix(f[2], "/"):
			h.Typeflag = tar.TypeDir
		case strings.HasPrefix(text, "->"):
			h.Typeflag, h.Linkname, h.Size, text = tar.TypeSymlink, text[2:], 0, ""
		case strings.HasPrefix(text, "+"):
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02"}
		}
		testenv.Check(t, w.WriteHeader(h))
		_, err := w.Write([]byte(text))
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(b.Bytes(), types.OCIUncompressedLayer))
	if err == nil {
		img, err = mutate.Config(img, cfg)
	}
	testenv.Check(t, err)
	return img
}

// userland holds the files that most images have.
var userland = []string{
	"755 0:0 bin/", "755 0:0 bin/sh", "755 0:0 bin/true", "755 0:0 bin/cat", "755 0:0 bin/gosu", "1777 0:0 tmp/", "700 0:0 root/", "755 0:0 etc/", "755 0:0 var/", "755 0:0 run/",
	"644 0:0 etc/passwd root:x:0:0::/root:/bin/sh\nme:x:1000:100::/home/me:/bin/sh\n", "755 0:0 home/", "755 1000:100 home/me/", "775 0:0 home/open/",
}

// findings returns the findings of Image, one line each: level rule subject.
func findings(t testing.TB, openshift bool, img v1.Image) string {
	t.Helper()
	found, err := Image(context.Background(), img, openshift)
	testenv.Check(t, err)
	var out []string
	for _, f := range found {
		out = append(out, strings.Join([]string{f.Level, f.Rule, f.Subject}, " "))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestImage(t *testing.T) {
	home := []string{"HOME=/home/open", "PATH=/bin"}
	for _, c := range []struct {
		name                  string
		cfg                   v1.Config
		files                 []string
		openshift, restricted string // findings, one per line
	}{
		{"no problems", v1.Config{User: "1001", Env: home}, nil, "", ""},
		{"root", v1.Config{Env: home}, nil, "warning user root", "error user root"},
		{"uid 0", v1.Config{User: "0:0", Env: home}, nil, "warning user 0", "error user 0"},
		{"user name", v1.Config{User: "me", Env: home}, nil, "", "error user me\nerror home /home/open"},
		{"home from passwd", v1.Config{User: "1000"}, nil, "warning home /", ""},
		{"home from HOME", v1.Config{User: "1000", Env: []string{"HOME=/home/me"}}, nil, "error home /home/me", ""},
		{"home is root's", v1.Config{User: "1000", Env: []string{"HOME=/root"}}, nil, "error home /root", "error home /root"},
		{"ports", v1.Config{User: "1001", Env: home, ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}, "8080/tcp": {}, "1024/tcp": {}}}, nil, "error port 53/udp\nerror port 80/tcp", "warning port 53/udp\nwarning port 80/tcp"},
		{"a port in a variable", v1.Config{User: "1001", Env: append(home, "HTTP_PORT=80"), ExposedPorts: map[string]struct{}{"80/tcp": {}}}, nil, "error port 80/tcp\nerror port HTTP_PORT=80", "warning port 80/tcp\nwarning port HTTP_PORT=80"},
		{"missing workdir", v1.Config{User: "1001", Env: home, WorkingDir: "/a/b"}, nil, "error workdir /a/b", "error workdir /a/b"},
		{"workdir that can be created", v1.Config{User: "1001", Env: home, WorkingDir: "/home/open/b"}, nil, "", ""},
		{"workdir of the user", v1.Config{User: "1000", Env: []string{"HOME=/home/me"}, WorkingDir: "/home/me"}, nil, "error home /home/me\nerror workdir /home/me", ""},
		{"workdir is /", v1.Config{User: "1001", Env: home, WorkingDir: "/"}, nil, "", ""},
		{"workdir writable for all but group 0", v1.Config{User: "1001", Env: home, WorkingDir: "/w"}, []string{"757 0:0 w/"}, "error workdir /w", "error workdir /w"},
		{"root's workdir with the program", v1.Config{User: "1001", Env: home, WorkingDir: "/app"}, []string{"755 0:0 app/", "644 0:0 app/main.py"}, "note workdir /app", "note workdir /app"},
		{"an empty workdir", v1.Config{User: "1001", Env: home, WorkingDir: "/app"}, []string{"755 0:0 app/"}, "error workdir /app", "error workdir /app"},
		{"workdir with files that nobody may enter", v1.Config{User: "1001", Env: home, WorkingDir: "/app"}, []string{"600 0:0 app/", "644 0:0 app/main.py"}, "error workdir /app", "error workdir /app"},
		{"workdir is a link to a writable directory", v1.Config{User: "1001", Env: home, WorkingDir: "/w"}, []string{"777 0:0 w ->home/open"}, "", ""},
		{"workdir below an inaccessible directory", v1.Config{User: "1001", Env: home, WorkingDir: "/root/w"}, []string{"777 0:0 root/w/"}, "error workdir /root/w", "error workdir /root/w"},
		{"no program", v1.Config{User: "1001", Env: home, Cmd: []string{"nosuch"}}, nil, "error program nosuch", "error program nosuch"},
		{"wrapped program", v1.Config{User: "1001", Env: home, Entrypoint: []string{"tini", "-v", "x", "--", "env", "A=1", "timeout", "5", "prog"}}, []string{"755 0:0 bin/tini", "755 0:0 bin/env", "755 0:0 bin/timeout", "700 0:0 bin/prog"}, "error program /bin/prog", "error program /bin/prog"},
		{"inaccessible directory on PATH", v1.Config{User: "1001", Env: []string{"HOME=/home/open", "PATH=/root/bin:/bin"}, Cmd: []string{"true"}}, []string{"755 0:0 root/bin/", "755 0:0 root/bin/true"}, "warning unreadable /root/bin", "warning unreadable /root/bin"},
		{"capabilities", v1.Config{User: "1001", Env: home, Cmd: []string{"cap"}}, []string{"755 0:0 bin/cap +"}, "error capability /bin/cap", "error capability /bin/cap"},
		{"set-user-id", v1.Config{User: "1001", Env: home, Cmd: []string{"suid"}}, []string{"4755 0:0 bin/suid"}, "warning setuid /bin/suid", "warning setuid /bin/suid"},
		{"unreadable argument", v1.Config{User: "1001", Env: home, WorkingDir: "/home/open", Cmd: []string{"cat", "x", "y", "$z"}}, []string{"600 0:0 home/open/x", "644 0:0 home/open/y"}, "error unreadable /home/open/x", "error unreadable /home/open/x"},
		{"interpreter", v1.Config{User: "1001", Env: home, Cmd: []string{"run"}}, []string{"755 0:0 bin/run #!/root/py -u\n", "755 0:0 root/py"}, "error program /root/py", "error program /root/py"},
		{"interpreter by env", v1.Config{User: "1001", Env: home, Cmd: []string{"run"}}, []string{"755 0:0 bin/run #!/usr/bin/env -S py -u\n", "755 0:0 bin/py"}, "", ""},
		{"an empty first line", v1.Config{User: "1001", Env: home, Cmd: []string{"run"}}, []string{"755 0:0 bin/run #!\n", "755 0:0 bin/env"}, "", ""},
		{"env without a program", v1.Config{User: "1001", Env: home, Cmd: []string{"run"}}, []string{"755 0:0 bin/run #!/bin/env\n", "755 0:0 bin/env"}, "", ""},
		{"unreadable script", v1.Config{User: "1001", Env: home, Cmd: []string{"run"}}, []string{"711 0:0 bin/run #!/bin/sh\n"}, "error program /bin/run\nnote script /bin/run", "error program /bin/run\nnote script /bin/run"},
		{"library path", v1.Config{User: "1001", Env: append(home, "LD_LIBRARY_PATH=/opt/l:/bin")}, []string{"700 0:0 opt/l/"}, "error unreadable /opt/l", "error unreadable /opt/l"},
		{"unreadable installation", v1.Config{User: "1001", Env: home, Cmd: []string{"/opt/t/bin/x"}}, []string{"755 0:0 opt/t/bin/x", "600 0:0 opt/t/lib/a", "600 0:0 opt/t/lib/b"}, "error unreadable /opt/t/lib/a", "error unreadable /opt/t/lib/a"},
		{"caches", v1.Config{User: "1001", Env: append(home, "X_CACHE_DIR=/c", "HF_HOME=/hf", "JAVA_HOME=/c", "TMPDIR=/tmp")}, []string{"755 0:0 c/", "755 0:0 hf/", "644 0:0 hf/model"}, "error variable X_CACHE_DIR=/c\nwarning variable HF_HOME=/hf", "error variable X_CACHE_DIR=/c\nwarning variable HF_HOME=/hf"},
		{"tmp", v1.Config{User: "1001", Env: home}, []string{"755 0:0 tmp/"}, "error tmp /tmp", "error tmp /tmp"},
		{"a service", v1.Config{User: "1001", Env: home, Cmd: []string{"nginx", "-g", "daemon off;"}}, []string{"755 0:0 bin/nginx", "755 101:0 var/cache/nginx/"}, "error service /run\nerror service /var/cache/nginx", "error service /run\nerror service /var/cache/nginx"},
		{"sshd", v1.Config{User: "1001", Env: home, Cmd: []string{"sshd", "-D"}}, []string{"755 0:0 bin/sshd"}, "error service sshd", "error service sshd"},
		{"uid without a name", v1.Config{User: "1001", Env: home}, []string{"755 0:0 bin/ssh"}, "warning name ssh", "warning name ssh"},
		{"uid with a name", v1.Config{User: "1000", Env: []string{"PATH=/bin", "HOME=/home/me"}}, []string{"755 0:0 bin/ssh"}, "error home /home/me\nwarning name ssh", ""},
		{"hpcc entry", v1.Config{User: "1001", Env: []string{"PATH=/bin", "HOME=/root", "HF_HOME=/hf"}, Entrypoint: []string{"/bin/hpcc-entry", "entry", "--", "prog"}}, []string{"755 0:0 bin/hpcc-entry", "700 0:0 bin/prog", "755 0:0 bin/ssh", "755 0:0 lib/x86_64-linux-gnu/libnss_wrapper.so"}, "error program /bin/prog", "error program /bin/prog"},
		{"group of USER", v1.Config{User: "1000:5", Env: []string{"PATH=/bin", "HOME=/home/me"}, WorkingDir: "/g"}, []string{"770 0:5 g/"}, "error home /home/me\nerror workdir /g", ""},
	} {
		img := newImage(t, c.cfg, slices.Concat(userland, c.files)...)
		sorted := func(s string) string {
			l := strings.Split(s, "\n")
			slices.Sort(l)
			return strings.Join(l, "\n")
		}
		if got := findings(t, true, img); got != sorted(c.openshift) {
			t.Errorf("%s, on OpenShift:\n%s\nwant\n%s", c.name, got, c.openshift)
		}
		if got := findings(t, false, img); got != sorted(c.restricted) {
			t.Errorf("%s, restricted:\n%s\nwant\n%s", c.name, got, c.restricted)
		}
	}
}

// TestWorkdirReason checks the reason for a working directory that is not writable.
func TestWorkdirReason(t *testing.T) {
	found, err := Image(context.Background(), newImage(t, v1.Config{User: "1001", WorkingDir: "/a"}, userland...), true)
	testenv.Check(t, err)
	const want = "it is the working directory, and the pod's user may not write to it"
	if !slices.ContainsFunc(found, func(f Finding) bool { return f.Rule == "workdir" && f.Reason == want }) {
		t.Errorf("Image returns %+v; want the reason %q", found, want)
	}
}

// TestScript checks that scripts are not read, and that a single note reports it.
func TestScript(t *testing.T) {
	for _, c := range []struct {
		entrypoint, cmd []string
		want            string
	}{
		{[]string{"/e"}, nil, "note script /e"},
		{[]string{"/e"}, []string{"nosuch"}, "note script /e"},
		{[]string{"/bin/sh", "/e"}, nil, "note script /e"},
		{[]string{"/bin/sh", "-ec", "sudo true"}, nil, "note script the command line"},
		{[]string{"/bin/sh"}, nil, ""},
		{[]string{"/bin/sh", "/e", "/x"}, nil, "error unreadable /x\nnote script /e"},
		{[]string{"/c"}, nil, ""},
	} {
		cfg := v1.Config{User: "1001", Env: []string{"HOME=/home/open", "PATH=/bin"}, Entrypoint: c.entrypoint, Cmd: c.cmd}
		img := newImage(t, cfg, slices.Concat(userland, []string{"755 0:0 e #!/bin/sh -e\nchown a /data\nexec gosu a \"$@\"\n", "755 0:0 c #!/bin/cat\nchown a b\n", "600 0:0 x"})...)
		if got := findings(t, true, img); got != c.want {
			t.Errorf("%q %q:\n%s\nwant\n%s", c.entrypoint, c.cmd, got, c.want)
		}
	}
}

// FuzzImage checks images with any script and command line.
func FuzzImage(f *testing.F) {
	f.Add("set -e\nchown -R a /d\nexec gosu a \"$@\"\n", "sh", "-c x")
	f.Add("if [ $(id -u) != 7 ]; then exit; fi >/etc/x", "tini --", "/e")
	f.Add("su - x -c \"a\nb\"\nsudo", "/bin/sh", "e")
	f.Fuzz(func(t *testing.T, script, entry, cmd string) {
		img := newImage(t, v1.Config{User: "1001", Entrypoint: strings.Split(entry, " "), Cmd: []string{cmd}}, slices.Concat(userland, []string{"755 0:0 e #!/bin/sh\n" + script})...)
		found, err := Image(context.Background(), img, true)
		if err != nil {
			return
		}
		for _, f := range found {
			for _, l := range f.Cure {
				if strings.Contains(l, "\n") && !strings.Contains(entry+cmd, "\n") {
					t.Fatalf("%q: a line of the cure contains a line break: %q", script, l)
				}
			}
		}
	})
}
