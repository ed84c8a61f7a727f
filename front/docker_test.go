package front

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// optionsInCode returns the names of options that the functions of the files mention, and the
// variables with these names.
func optionsInCode(t *testing.T, files string, variables ...string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	note := func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			testenv.Check(t, err)
			for _, name := range strings.Fields(text) {
				found[name] = true
			}
		}
		return true
	}
	names, err := filepath.Glob(files)
	testenv.Check(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		testenv.Check(t, err)
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				ast.Inspect(d, note)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && slices.Contains(variables, v.Names[0].Name) {
						ast.Inspect(v, note)
					}
				}
			}
		}
	}
	return found
}

// checkIdle checks that a page of docs has the table of the options without effect, with the reasons.
// Each option is the command and the option.
func checkIdle(t *testing.T, page string, idle map[[2]string]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	testenv.Check(t, err)
	var rows []string
	for o, why := range idle {
		names := strings.ReplaceAll(strings.TrimSuffix(o[1], "="), ",", "`, `")
		rows = append(rows, "| `"+o[0]+"` | `"+names+"` | "+why+" |")
		if why == "" {
			t.Errorf("%s %s has no effect, and no reason", o[0], o[1])
		}
	}
	slices.Sort(rows)
	if table := "| command | option | reason |\n| --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n"; !strings.Contains(string(text), table) {
		t.Errorf("docs/%s does not have this table:\n%s", page, table)
	}
}

// TestDockerOptions checks that each option of docker is read, needs no effect, or is refused with a
// reason, and that the lists of reasons name no others.
func TestDockerOptions(t *testing.T) {
	read := optionsInCode(t, "docker*.go", "passedBuildOptions", "runChoices", "buildChoices")
	read["--help"], read["--cap-add"], read["--cap-drop"], read["--privileged"] = true, true, true, true // of all subcommands, and capabilities.go
	for name := range refusedOff {
		read[name] = true
	}
	idle := map[[2]string]string{}
	verbs := maps.Clone(dockerVerbs())
	verbs["docker"] = dockerGlobal
	for _, verb := range slices.Sorted(maps.Keys(verbs)) {
		v := verbs[verb]
		table, long := v.options()
		for _, name := range long {
			_, refused := v.refused[name]
			isIdle := table[name] == idleFlag || table[name] == idleValue
			isPassed := strings.Contains("images inspect rmi version kill stop", verb) && !isIdle // hpcc docker refuses options that it lacks
			if !refused && !isIdle && !isPassed && !read[name] {
				t.Errorf("docker %s %s is neither read nor refused", verb, name)
			}
		}
		for names, why := range v.idle {
			idle[[2]string{verb, names}] = why
		}
		for name, why := range v.refused {
			if long[name] != name || why[0] == "" {
				t.Errorf("docker %s: the reason for %s is empty, or the option does not exist", verb, name)
			}
		}
		if v.read == nil && verb != "docker" {
			t.Errorf("docker %s has no reader", verb)
		}
	}
	for long, short := range dockerAliases {
		if _, refused := refusedDockerVerbs[short]; verbs[short] == nil && !refused {
			t.Errorf("docker %s is %s, which does not exist", long, short)
		}
	}
	checkIdle(t, "docker.md", idle)
}

// dockerLines are command lines with the commands of hpcc that they become, separated by "; ".
// "RUN " stands for the flags that every run has, "!" begins a part of a refusal, and "=" the output.
var dockerLines = []struct{ line, want string }{
	// run
	{"docker run --rm -it img", "RUN --pid --ipc --write-fake SHM --env=TERM=xterm img --"},
	{"docker run img sh -c x", "RUN --pid --ipc --write-fake SHM img -- sh -c x"},
	{"docker run --read-only=true --ipc=host --pid=host img -- x", "RUN img -- -- x"},
	{"docker run --read-only=false --network none --rm=false -- img -x", "RUN --pid --ipc --network=none --write-fake SHM img -- -x"},
	{"docker run --pull=never img", "-RUN --pid --ipc --write-fake SHM img --"},
	{"docker run --pull always -q img", "pull img; -RUN --pid --ipc --write-fake SHM img --"},
	{"docker run --platform linux/arm64 img", "pull --platform=linux/arm64 img; RUN --docker-platform=linux/arm64 --pid --ipc --write-fake SHM img --"},
	{"docker run -u 1:2 --name n -h h -w /w --entrypoint= img x", "RUN --docker-name=n --docker-user=1:2 --hostname=h --entrypoint= --cd=/w --pid --ipc --write-fake SHM img -- x"},
	{"docker run -v /etc:/b:ro -v DIR:/a/c -e A=b -eC --shm-size 64m img", "RUN --pid --ipc --write-fake --bind=/etc:/b:ro SHM=67108864 --bind=DIR:/a/c --env=A=b --unset-env=C img --"},
	{"docker run -v ./x:/x img", "RUN --pid --ipc --write-fake --bind=DIR/x:/x SHM img --"},
	{"docker run --mount type=bind,source=DIR,target=/a,readonly --tmpfs /t:size=1m,mode=700 img", "RUN --pid --ipc --write-fake --mount=type=tmpfs,target=/t,tmpfs-mode=700,tmpfs-size=1048576,noexec --bind=DIR:/a:ro SHM img --"},
	{"docker run --mount type=tmpfs,target=/a,tmpfs-size=1g,ro img", "RUN --pid --ipc --write-fake --mount=type=tmpfs,target=/a,tmpfs-mode=1777,tmpfs-size=1073741824,noexec,readonly SHM img --"},
	{"docker run --storage-opt size=2g --security-opt no-new-privileges --init --net=host img", "RUN --pid --ipc --write-fake=2147483648 SHM img --"},
	{"docker run --cap-drop CAP_KILL --cap-drop all --cap-add net_raw --pid host --ipc host img", "RUN --write-fake --capabilities=" + dockerCapabilities + ",-KILL,-ALL,NET_RAW img --"},
	{"docker run --cap-add ALL --cap-drop ALL --cap-drop chown --pid host --ipc host img", "RUN --write-fake --capabilities=ALL,-CHOWN img --"},
	{"docker run --privileged --cap-drop ALL --pid host --ipc host img", "RUN --write-fake --capabilities=ALL img --"},
	{"docker run -p 8888:8888 -p 0.0.0.0:99:99/tcp img", "RUN --pid --ipc --write-fake SHM img --"},
	{"docker run --gpus all img", "RUN --pid --ipc --write-fake SHM --gpu --env=CUDA_VISIBLE_DEVICES=3,5 img --"},
	{"docker run --gpus=2 img", "RUN --pid --ipc --write-fake SHM --gpu --env=CUDA_VISIBLE_DEVICES=3,5 img --"},
	{`docker run --gpus "device=0,1" img`, "RUN --pid --ipc --write-fake SHM --gpu --env=CUDA_VISIBLE_DEVICES=0,1 img --"},
	{"docker run --device /dev/null --device nvidia.com/gpu=all img", "RUN --pid --ipc --write-fake SHM --device=nvidia.com/gpu=all img --"},
	{"docker run --device /dev/null:/dev/other:rwm img", "RUN --pid --ipc --write-fake SHM --mount=type=bind,source=/dev/null,target=/dev/other img --"},
	{"docker run --ulimit nofile=10:20 --ulimit core=-1 img", "RUN --pid --ipc --write-fake SHM --docker-ulimit=nofile=10:20 --docker-ulimit=core=18446744073709551615:18446744073709551615 img --"},
	{"docker container run img", "RUN --pid --ipc --write-fake SHM img --"},
	// the command line of cwltool
	{"docker run -i --mount=type=bind,source=DIR,target=/out --mount=type=bind,source=DIR/file,target=/in/f,readonly --workdir=/out --read-only=true --net=none --log-driver=none --user=1:1 --rm --cidfile=DIR/c --env=HOME=/out img cat",
		"RUN --docker-cidfile=DIR/c --docker-user=1:1 --cd=/out --pid --ipc --network=none --bind=DIR:/out SHM --bind=DIR/file:/in/f:ro --env=HOME=/out img -- cat"},
	{"docker run -d img", "!hpcc submit --to local"},
	{"docker run -p 80:8080 img", "!under their own numbers"},
	{"docker run -v data:/data img", "!no volumes with names"},
	{"docker run -v /data img", "!hpcc has no volumes"},
	{"docker run -v /a:b img", "!not an absolute path"},
	{"docker run -v /a:/b:shared img", "!mounts later below"},
	{"docker run --mount source=x,target=/x img", "!no volumes with names"},
	{"docker run --mount type=bind,source=/nosuch,target=/x img", "!-v creates missing"},
	{"docker run --memory 1g img", "!no cgroups"},
	{"docker run --network lab img", "!creates no networks"},
	{"docker run --gpus 3 img", "!has only 2"},
	{"docker run --gpus x img", "!not a number of GPUs"},
	{"docker run --device /dev/nosuch img", "!does not have the device"},
	{"docker run --ulimit nofile=2:1 img", "!not a limit"},
	{"docker run --shm-size 1x img", "!not a size"},
	{"docker run --shm-size 4000000000t img", "!not a size"},
	{"docker run --cidfile DIR/file img", "!the file exists"},
	{"docker run --env-file DIR/bad img", "!line 2: \"B C\""},
	{"docker run -w sub img", "!not an absolute path"},
	{"docker run ./tree", "!hpcc run ./tree"},
	{"docker run --restart always img", "!could restart"},
	{"docker run --sig-proxy=false img", "!all signals"},
	{"docker run --disable-content-trust=false img", "!verifies no signatures"},
	{"docker run --uts host -h x img", "!cannot be used with --uts"},
	{"docker run --ipc none img", "!at /dev/shm"},
	{"docker run -v DIR:/a -v /etc:/a img", "!duplicate mount point: /a"},
	{"docker run -v DIR:/a --tmpfs /a/ img", "!duplicate mount point: /a"},
	{"docker run -v DIR:/a --mount type=bind,source=/etc,target=/a/../a img", "!duplicate mount point: /a"},
	{"docker run -v DIR:/a:rw,z,rslave -v DIR:/a:rw,z,rslave --ipc host --pid host img", "RUN --write-fake --bind=DIR:/a --bind=DIR:/a img --"},
	{"docker run -v DIR:/a:rprivate img", "!mounts later below"}, {"docker run -v DIR:/a:rslave,ro img", "!mounts later below a read-only"},
	{"docker run -v DIR:/a:ro,private --mount type=bind,source=DIR,target=/b,bind-propagation=rprivate,ro --ipc host --pid host img", "RUN --write-fake --bind=DIR:/a:ro --bind=DIR:/b:ro img --"},
	{"docker run --mount type=bind,source=DIR,target=/b,bind-propagation=rshared,ro img", "!mounts later below a read-only"},
	{"docker run --mount type=bind,source=DIR,target=/b,tmpfs-size=1m img", "!type=bind does not have the option \"tmpfs-size\""}, {"docker run --mount type=tmpfs,target=/b,bind-propagation=rslave img", "!type=tmpfs does not have the option \"bind-propagation\""},
	{"docker run --tmpfs /a:ro=x img", "!option \"ro=x\""}, {"docker run --tmpfs /a:noexec=5 img", "!option \"noexec=5\""},
	{"docker run --tmpfs /a --tmpfs /a:rw,exec,noatime --ipc host --pid host img", "RUN --write-fake --mount=type=tmpfs,target=/a,tmpfs-mode=1777,noatime img --"},
	{"docker run --tmpfs /a:uid=5 img", "!option \"uid=5\""},
	{"docker run --device /dev/null:r img", "!what the user may do"},
	{"docker run --device /dev/null:/dev/x:rm img", "!what the user may do"},
	{"docker run --gpus driver=other,count=1 img", "!finds the driver itself"},
	{"docker run -e CUDA_VISIBLE_DEVICES -e A* -e A= --ipc host --pid host img", "RUN --write-fake --env=CUDA_VISIBLE_DEVICES --unset-env=A\\* --env=A= img --"},
	{"docker run --nosuch img", "!does not know its option --nosuch"},
	{"docker run --userns keep-id img", "!the caller in any case"},
	{"docker run", "!wrong number of arguments"},
	// build
	{"docker build -t a -t b:1 -f D --build-arg X=1 --target s --no-cache --pull .", "build --tag=a --tag=b:1 --file=D --build-arg=X=1 --target=s --no-cache --pull ."},
	{"docker buildx build --load --push -t r/a --platform linux/amd64,linux/arm64 --secret id=x .", "build --tag=r/a --secret=id=x --platform=linux/amd64,linux/arm64 .; push r/a"},
	{"docker build -q --iidfile f .", "build --iidfile=f --tag=docker/HASH ."},
	{"docker build -t a --provenance=false --sbom=false .", "build --tag=a --provenance=false ."},
	{"docker build -t a --sbom=true .", "!does not list packages"},
	{"docker build --check .", "build --check ."},
	{"docker build --push .", "!no name in a registry"},
	{"docker build --network none .", "!the host's network"},
	{"docker build --squash .", "!a layer for each step"},
	{"docker build --progress rawjson .", "!own formats"},
	{"docker build -t x", "!wrong number of arguments"},
	{"docker buildx create", "!needs no builder"},
	// images
	{"docker pull --platform linux/arm64 img", "pull --platform=linux/arm64 img"},
	{"docker image pull -q img", "pull img"},
	{"docker push a/b:1", "push a/b:1"},
	{"docker tag a b", "tag a b"},
	{"docker images --no-trunc --all", "docker --no-trunc images"},
	{"docker image ls -q -f dangling=true a", "docker --filter=dangling=true --quiet images a"},
	{"docker inspect --type image -f {{.Id}} a b", "docker --format={{.Id}} inspect a b"},
	{"docker inspect --type container a", "!inspects images"},
	{"docker rmi -f a", "docker --force rmi a"},
	{"docker save -o f a", "!hpcc save IMAGE FILE"},
	{"docker load -i f", "!hpcc load FILE"},
	{"docker import f a:1", "!hpcc load FILE NAME"},
	{"docker image history a", "!hpcc history IMAGE"},
	{"docker login -u me -p secret host", "login --username=me host"},
	{"docker login host", "!docker login -u NAME"},
	{"docker system prune -f --volumes", "!hpcc gc"},
	{"docker builder prune", "!hpcc gc"},
	{"docker info", "!hpcc doctor"},
	// containers
	{"docker container ls -a", "!hpcc status"},
	{"docker stats --no-stream", "!hpcc top JOB"},
	{"docker container rm -f id", "!docker stop NAME"},
	{"docker kill -s INT id", "docker --signal=INT kill id"},
	{"docker stop -t 3 id", "docker --time=3 stop id"},
	{"docker exec a b", "!hpcc attach"},
	{"docker compose up", "!no detached containers"},
	{"docker volume create x", "!no volumes with names"},
	{"docker container logs x", "!hpcc status, attach, logs and cancel"},
	{"docker nosuch", "!does not have this command"},
	{"docker imgaes", `!did you mean "images"?`},
	{"docker run --memry=1g a", `!did you mean "--memory"?`},
	// others
	{"docker --version", "=Docker version 27."},
	{"docker", "=Usage: docker"},
	{"docker run --help", "=Usage: docker run"},
	{"docker image", "=Usage: docker"},
	{"docker buildx version", "=github.com/docker/buildx v0."},
	{"docker -H tcp://x images", "!no Docker daemon"},
	{"docker --context default images", "docker images"},
	{"docker --context other images", "!no Docker daemon"},
}

// dockerCommands returns the commands of a request in the notation of dockerLines.
func dockerCommands(r *Request, dir string) string {
	var out []string
	for i, c := range r.Commands {
		line := strings.Join(c.Args, " ")
		line = regexp.MustCompile(`--docker-id=[0-9a-f]{64}`).ReplaceAllString(line, "ID")
		line = regexp.MustCompile(`docker/[0-9a-f]{16}`).ReplaceAllString(line, "docker/HASH")
		line = strings.ReplaceAll(line, " --capabilities="+dockerCapabilities+" ", " ")
		line = regexp.MustCompile(`--mount=type=tmpfs,target=/dev/shm,tmpfs-mode=1777(?:,tmpfs-size(=[0-9]+))?,noexec`).ReplaceAllString(line, "SHM$1")
		if rest, ok := strings.CutPrefix(line, "run --no-config --no-home ID "); ok {
			line = "-RUN " + rest
			if i > 0 && r.Commands[i-1].Missing != "" { // it follows the usual pull of a missing image
				line = line[1:]
				if p := strings.Join(r.Commands[i-1].Args, " "); p == "pull "+r.Commands[i-1].Missing {
					out = out[:len(out)-1]
				}
			}
		}
		out = append(out, line)
	}
	return strings.ReplaceAll(strings.Join(out, "; "), dir, "DIR")
}

func TestDocker(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"file": "", "bad": "A=1\nB C=2\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range dockerLines {
		args := strings.Fields(strings.ReplaceAll(tt.line, "DIR", dir))
		r, err := Read(args[0], args[1:], []string{"CUDA_VISIBLE_DEVICES=3,5"})
		var no *Refusal
		switch why, refused := strings.CutPrefix(tt.want, "!"); {
		case refused:
			if !errors.As(err, &no) || !strings.Contains(no.Error()+"; "+no.Advice, why) {
				t.Errorf("Read(%q): error %v; want %q", tt.line, err, why)
			}
		case err != nil:
			t.Errorf("Read(%q): %v", tt.line, err)
		case strings.HasPrefix(tt.want, "="):
			if !strings.HasPrefix(r.Output, tt.want[1:]) {
				t.Errorf("Read(%q) prints %q; want %q", tt.line, r.Output, tt.want[1:])
			}
		default:
			if got := dockerCommands(r, dir); got != tt.want {
				t.Errorf("Read(%q) =\n%s; want\n%s", tt.line, got, tt.want)
			}
		}
	}
	r, err := Read("docker", strings.Fields("run --gpus all img"), nil)
	if err != nil || strings.Contains(dockerCommands(r, dir), "CUDA_VISIBLE_DEVICES") {
		t.Errorf("docker run --gpus all without CUDA_VISIBLE_DEVICES: %v, %v; hpcc run refuses --env of an unset variable", r, err)
	}
}

// TestDockerProcess checks what a run changes in the process of hpcc.
func TestDockerProcess(t *testing.T) {
	t.Chdir(t.TempDir())
	r, err := Read("docker", strings.Fields("run -v ./new:/new img"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.NoStdin || len(r.Make) != 1 || !strings.HasSuffix(r.Make[0], "/new/") {
		t.Errorf("NoStdin %v, Make %q", r.NoStdin, r.Make)
	}
	if r, err = Read("docker", strings.Fields("run -i -v /:/host img"), nil); err != nil || r.NoStdin || len(r.Make) != 0 {
		t.Errorf("with -i: %+v, %v", r, err)
	}
	r, err = Read("docker", strings.Fields("--config c pull img"), []string{"DOCKER_DEFAULT_PLATFORM=linux/arm64"})
	if err != nil || len(r.Env) != 1 || !strings.HasSuffix(r.Env[0], "/c") || r.Commands[0].Args[1] != "--platform=linux/arm64" {
		t.Errorf("with DOCKER_DEFAULT_PLATFORM: %+v, %v", r, err)
	}
}

// FuzzDocker checks that no command line makes the reader panic, and that each result does something.
func FuzzDocker(f *testing.F) {
	f.Add("run\x00-itv\x00a:/b\x00--mount\x00type=bind,source=/,target=/x\x00img\x00sh")
	f.Add("run\x00--gpus\x00\"device=0,1\",capabilities=x\x00--ulimit=a=1\x00--tmpfs=/x:size=1\x00-p1:1\x00x")
	f.Add("buildx\x00build\x00-t\x00a\x00.")
	f.Add("image\x00ls\x00-q")
	f.Fuzz(func(t *testing.T, in string) {
		r, err := Read("docker", strings.Split(in, "\x00"), nil)
		if err == nil && r.Output == "" && len(r.Commands) == 0 {
			t.Errorf("%q does nothing", in)
		}
	})
}
