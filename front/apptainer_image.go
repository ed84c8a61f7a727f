package front

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/store/ready"
)

// An imageSource is an image of a command line of apptainer.
type imageSource struct {
	argument string    // for commands of hpcc
	name     string    // APPTAINER_CONTAINER
	commands []Command // that bring the image into the store
	isDir    bool      // a sandbox
	isFile   bool      // a SIF or SquashFS file
}

// refusedSources holds the reason and the advice for each kind of source that is not supported.
var refusedSources = map[string][2]string{
	"library": {"hpcc does not use Sylabs' library", "name the image in a registry: docker://NAME"},
	"shub":    {"Singularity Hub no longer serves images", "name the image in a registry: docker://NAME"},
	"oras": {"hpcc does not pull SIF files from registries",
		"name an OCI image, docker://NAME, or download the SIF file with oras pull"},
	"http":               {"hpcc does not download SIF files", "curl -O URL, and the file"},
	"https":              {"hpcc does not download SIF files", "curl -O URL, and the file"},
	"ipfs":               {"hpcc does not download SIF files", "name the image in a registry: docker://NAME"},
	"docker-daemon":      {"hpcc does not use a Docker daemon", "docker save NAME > FILE, and docker-archive:FILE"},
	"instance":           {"hpcc has no services: each program runs as long as its command", "hpcc attach reaches the programs of a job"},
	"containers-storage": {"hpcc does not read Podman's storage", "podman save --format oci-archive NAME > FILE, and oci-archive:FILE"},
}

// flags returns the flags of "hpcc run" for the image.
func (i *imageSource) flags() []string {
	if i.isFile && !ready.IsImageFile(i.argument) {
		return []string{"--staged-file"}
	}
	return nil
}

// image finds the image that an argument names. Only registries and archives need commands.
func (a *apptainer) image(text string) (*imageSource, error) {
	kind, rest, hasKind := strings.Cut(text, ":")
	ref := strings.TrimPrefix(rest, "//")
	why, refused := refusedSources[kind]
	switch _, err := os.Stat(text); {
	case err == nil:
		abs := a.absolute(text)
		return &imageSource{argument: abs, name: abs, isDir: isDirectory(abs), isFile: isRegular(abs)}, nil
	case hasKind && refused:
		return nil, refusal(a.program, text, why[0], why[1])
	case kind == "docker" && strings.HasPrefix(rest, "//"):
		return &imageSource{argument: ref, name: text, commands: []Command{a.fetch(ref)}}, nil
	case slices.Contains([]string{"oci", "oci-archive", "docker-archive"}, kind) && hasKind:
		return a.archive(text, ref)
	case strings.Contains(text, "://"):
		return nil, refusal(a.program, text, fmt.Sprintf("unknown kind of image %q", kind),
			"name a file, a directory, docker://NAME, oci:DIR, oci-archive:FILE or docker-archive:FILE")
	case filepath.IsAbs(text) || strings.HasPrefix(text, ".") || ready.IsImageFile(text) ||
		slices.Contains([]string{".img", ".simg"}, filepath.Ext(text)):
		return nil, refusal(a.program, text, "the file does not exist", "apptainer pull FILE docker://NAME creates one")
	}
	return &imageSource{argument: text, name: text}, nil // a name in the store
}

// archive returns the image of an archive or of an OCI layout. Its name in the store depends on
// the time and the size of the file, so that a changed file is loaded again.
func (a *apptainer) archive(text, file string) (*imageSource, error) {
	name, tag := file, ""
	if _, err := os.Stat(name); err != nil {
		if i := strings.LastIndexByte(file, ':'); i > 0 {
			name, tag = file[:i], file[i:]
		}
	}
	about := name
	if isDirectory(name) {
		about = filepath.Join(name, "index.json")
	}
	fi, err := os.Stat(about)
	if err != nil {
		return nil, refusal(a.program, text, "the file does not exist", "write oci:DIR[:TAG], oci-archive:FILE or docker-archive:FILE")
	}
	stored := storeName("apptainer", a.absolute(name), tag, fi.Size(), fi.ModTime().UnixNano())
	return &imageSource{argument: stored, name: text,
		commands: []Command{{Args: []string{"load", a.absolute(name) + tag, stored}, Missing: stored}}}, nil
}

// storeName returns the name in the store for something of a program with these properties.
func storeName(program string, properties ...any) string {
	return fmt.Sprintf("%s/%x", program, sha256.Sum256(fmt.Append(nil, properties...)))[:len(program)+1+16]
}

// fetch returns the command that pulls an image if it is missing, or in any case without a cache.
func (a *apptainer) fetch(ref string) Command {
	c := Command{Args: a.pullArgs(ref, nil), Missing: ref}
	if a.on["--disable-cache"] != "" {
		c.Missing = ""
	}
	return c
}

// pullArgs returns the arguments of "hpcc pull".
func (a *apptainer) pullArgs(ref string, more []string) []string {
	args := append([]string{"pull"}, more...)
	if a.on["--no-https"] != "" {
		args = append(args, "--plain-http")
	}
	return append(args, ref)
}

// saves reports whether the name of a file makes "hpcc save" write an image that runs.
func saves(file string) bool {
	return slices.Contains([]string{".sif", ".sqfs"}, filepath.Ext(file))
}

// save returns the commands that write an image of the store to a file or, for a sandbox, to a
// directory.
func (a *apptainer) save(name, target string) ([]Command, error) {
	target = a.absolute(target)
	_, err := os.Lstat(target)
	exists, force := err == nil, a.on["--force"] != ""
	switch {
	case exists && !force:
		return nil, refusal(a.program, target, "the file exists", "--force replaces it")
	case exists && isDirectory(target):
		return nil, refusal(a.program, target, "hpcc does not replace a directory", "remove it: rm -r "+target)
	case a.on["--sandbox"] != "" && exists:
		return nil, refusal(a.program, target, "the file exists, and a sandbox is a directory", "remove it: rm "+target)
	case a.on["--sandbox"] != "":
		return []Command{{Args: []string{"unpack", name, target}}}, nil
	case saves(target):
		return []Command{{Args: []string{"save", name, target}}}, nil
	}
	sibling := filepath.Join(filepath.Dir(target), fmt.Sprintf(".%s.%d.sif", filepath.Base(target), os.Getpid()))
	return []Command{{Args: []string{"save", name, sibling}, Wrote: sibling, Final: target}}, nil
}

// pullOptions are the options of pull.
var pullOptions = optionTable(map[Role]string{
	Value: "--arch --arch-variant --library --name --dir --docker-username --docker-password --docker-host --authfile",
	Flag:  "-F --force --sandbox --docker-login --no-https --nohttps -h --help",
}, idleApptainer["pull"])

// refusedPullOptions holds the reason and the advice for each option of pull that is not supported.
var refusedPullOptions = map[string][2]string{
	"--library": refusedSources["library"],
	"--arch-variant": {"hpcc selects images by operating system and architecture only",
		"name the image of the variant by its digest: docker://NAME@sha256:..."},
	"--docker-login": noLogin, "--docker-username": noLogin, "--docker-password": noLogin, "--authfile": noLogin,
	"--docker-host": refusedRunOptions["--docker-host"],
}

// pull reads the options and arguments of pull.
func (a *apptainer) pull(args []Word) (*Request, error) {
	rest, err := a.all(pullOptions, args)
	if err != nil {
		return nil, err
	}
	a.variables(pullOptions, map[string]string{"--arch": "PULL_ARCH", "--arch-variant": "PULL_ARCH_VARIANT", "--name": "PULL_NAME",
		"--dir": "PULLDIR PULLFOLDER", "--force": "FORCE", "--sandbox": "SANDBOX",
		"--no-https": "NOHTTPS NO_HTTPS", "--docker-username": "DOCKER_USERNAME",
		"--docker-password": "DOCKER_PASSWORD", "--docker-login": "DOCKER_LOGIN", "--docker-host": "DOCKER_HOST",
		"--authfile": "AUTH_FILE"})
	if err := a.refuse(refusedPullOptions); err != nil {
		return nil, err
	}
	if len(rest) == 0 || len(rest) > 2 {
		return nil, refusal(a.program, strings.Join(rest, " "), "it needs a source, and at most one file before it",
			"apptainer pull [FILE.sif] docker://NAME")
	}
	source := rest[len(rest)-1]
	image, err := a.source(source)
	if err != nil {
		return nil, err
	}
	target := a.last("--name")
	switch {
	case len(rest) == 2:
		target = rest[0]
	case target == "":
		target = defaultFile(source, a.on["--sandbox"] != "")
	}
	if dir := a.last("--dir"); dir != "" {
		target = filepath.Join(a.absolute(dir), target)
	}
	save, err := a.save(image.argument, target)
	if err != nil {
		return nil, err
	}
	return &Request{Commands: append(image.commands, save...)}, nil
}

// source finds the image that pull and build read. It pulls an image of a registry again, because
// its tag may have moved.
func (a *apptainer) source(text string) (*imageSource, error) {
	image, err := a.image(text)
	if err != nil {
		return nil, err
	}
	ref, isRegistry := strings.CutPrefix(text, "docker://")
	arch := a.last("--arch")
	if isRegistry {
		var more []string
		if arch != "" {
			more = []string{"--platform=linux/" + arch}
		}
		image.commands = []Command{{Args: a.pullArgs(ref, more)}}
		if arch != "" { // another platform does not replace the image of this machine
			image.argument = storeName("apptainer", ref, arch)
			image.commands[0].Args = append(image.commands[0].Args, image.argument)
		}
	} else if arch != "" {
		return nil, refusal(a.program, a.text["--arch"], "only images of registries have several architectures", "leave it out")
	}
	return image, nil
}

// defaultFile returns the name of the file that pull writes.
func defaultFile(source string, sandbox bool) string {
	base := path.Base(source)
	if i := strings.LastIndexByte(base, ':'); i > 0 && !strings.Contains(source, "archive:") {
		base = base[:i] + "_" + base[i+1:]
	} else {
		base += "_latest"
	}
	if base = strings.ReplaceAll(base, "@", "_"); sandbox {
		return base
	}
	return base + ".sif"
}

// buildOptions are the options of build.
var buildOptions = optionTable(map[Role]string{
	Value: "--section --arch --arch-variant --library --mksquashfs-args -B --bind --mount --build-arg --build-arg-file --passphrase --pem-path " +
		"--docker-username --docker-password --docker-host --authfile --builder",
	Flag: "-s --sandbox -F --force -T --notest -u --update --json -e --encrypt --nv --nvccli --rocm --remote -r --warn-unused-build-args " +
		"--writable-tmpfs --ignore-userns --reproducible --no-https --nohttps --docker-login -d --detached --data -h --help",
}, idleApptainer["build"])

// refusedBuildOptions holds the reason and the advice for each option of build that is not supported.
var refusedBuildOptions = map[string][2]string{
	"--section":                {"hpcc builds all sections of a definition file", "leave it out"},
	"--arch-variant":           refusedPullOptions["--arch-variant"],
	"--library":                refusedSources["library"],
	"--mksquashfs-args":        {"hpcc writes SquashFS itself", "leave it out"},
	"--bind":                   {"hpcc binds no directories of the host in builds, because their files would not be part of the build's inputs", "copy the files with %files"},
	"--mount":                  {"hpcc binds no directories of the host in builds, because their files would not be part of the build's inputs", "copy the files with %files"},
	"--update":                 {"hpcc does not build in an existing directory", "name the directory as the base: Bootstrap: localimage"},
	"--json":                   {"hpcc prints the progress of builds in its own format", "hpcc build --progress json -f FILE.def -t NAME"},
	"--encrypt":                {"hpcc does not encrypt images", "leave it out"},
	"--remote":                 {"hpcc builds on this machine", "leave it out: hpcc needs no root"},
	"-r":                       {"hpcc builds on this machine", "leave it out: hpcc needs no root"},
	"--builder":                {"hpcc builds on this machine", "leave it out: hpcc needs no root"},
	"--detached":               {"hpcc builds on this machine", "leave it out: hpcc needs no root"},
	"--ignore-userns":          refusedRunOptions["--ignore-userns"],
	"--writable-tmpfs":         {"%test can write in any case, and its changes stay in the image", "leave it out"},
	"--warn-unused-build-args": {"hpcc refuses arguments that the definition file does not use", "leave the argument out"},
	"--data":                   {"hpcc does not package data containers", "mksquashfs DIR FILE"},
	"--nv":                     {"hpcc binds no GPU driver in builds, because its files would not be part of the build's inputs", "use an image with the CUDA toolkit as the base"},
	"--nvccli":                 {"hpcc binds no GPU driver in builds, because its files would not be part of the build's inputs", "use an image with the CUDA toolkit as the base"},
	"--rocm":                   {"hpcc binds no GPU driver in builds, because its files would not be part of the build's inputs", "use an image with ROCm as the base"},
	"--passphrase":             noKeys, "--pem-path": noKeys, "--docker-login": noLogin,
	"--docker-username": noLogin, "--docker-password": noLogin, "--authfile": noLogin,
	"--docker-host": refusedRunOptions["--docker-host"],
}

// build reads the options and arguments of build.
func (a *apptainer) build(args []Word) (*Request, error) {
	rest, err := a.all(buildOptions, args)
	if err != nil {
		return nil, err
	}
	a.variables(buildOptions, map[string]string{"--arch": "BUILD_ARCH", "--bind": "BIND BINDPATH",
		"--sandbox": "SANDBOX", "--notest": "NOTEST", "--force": "FORCE",
		"--no-https": "NOHTTPS NO_HTTPS", "--nv": "NV", "--nvccli": "NVCCLI", "--rocm": "ROCM",
		"--mksquashfs-args": "MKSQUASHFS_ARGS", "--docker-username": "DOCKER_USERNAME",
		"--docker-password": "DOCKER_PASSWORD", "--docker-login": "DOCKER_LOGIN", "--docker-host": "DOCKER_HOST",
		"--authfile": "AUTH_FILE"})
	if err := a.refuse(refusedBuildOptions); err != nil {
		return nil, err
	}
	if len(rest) != 2 {
		return nil, refusal(a.program, strings.Join(rest, " "), "it needs a file or directory to write, and a source",
			"apptainer build FILE.sif FILE.def")
	}
	target, source := rest[0], rest[1]
	if fi, err := os.Stat(source); err == nil && fi.Mode().IsRegular() && !isImageFile(source) {
		return a.buildDefinition(target, source)
	}
	image, err := a.source(source)
	if err != nil {
		return nil, err
	}
	local := image.isDir || image.isFile
	if local {
		name := storeName("apptainer", a.absolute(target), image.argument)
		load := Command{Args: []string{"load", image.argument, name}}
		if image.isDir {
			load = Command{Args: []string{"build", "--file=-", "--build-context=sandbox=" + image.argument,
				"--tag=" + name}, Stdin: "FROM sandbox\n"}
		}
		image.commands, image.argument = []Command{load}, name
	}
	save, err := a.save(image.argument, target)
	if err != nil {
		return nil, err
	}
	commands := append(image.commands, save...)
	if local {
		commands = append(commands, Command{Args: []string{"rm", image.argument}})
	}
	return &Request{Commands: commands}, nil
}

// isRegular reports whether a path is a regular file.
func isRegular(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular()
}

// isImageFile reports whether a file is a SIF or a SquashFS file.
func isImageFile(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 64)
	n, _ := f.Read(head)
	return strings.HasPrefix(string(head[:n]), "hsqs") || strings.Contains(string(head[:n]), "SIF_MAGIC")
}

// buildDefinition returns the commands that build a definition file.
func (a *apptainer) buildDefinition(target, file string) (*Request, error) {
	name := storeName("apptainer", a.absolute(target), a.absolute(file))
	save, err := a.save(name, target)
	if err != nil {
		return nil, err
	}
	line := []string{"build", "--file=" + a.absolute(file), "--tag=" + name}
	for _, kv := range a.values["--build-arg"] {
		line = append(line, "--build-arg="+kv)
	}
	for _, f := range a.values["--build-arg-file"] {
		list, err := readEnvFile(f, a.environ)
		if err != nil {
			return nil, refusal(a.program, a.text["--build-arg-file"], err.Error(), "write one NAME=VALUE on each line")
		}
		for _, kv := range list {
			line = append(line, "--build-arg="+kv)
		}
	}
	for _, f := range []struct {
		is   bool
		flag string
	}{{a.on["--notest"] != "", "--no-test"}, {a.on["--reproducible"] != "", "--reproducible"},
		{a.on["--no-https"] != "", "--plain-http"}, {a.last("--arch") != "", "--platform=linux/" + a.last("--arch")}} {
		if f.is {
			line = append(line, f.flag)
		}
	}
	commands := append([]Command{{Args: append(line, a.dir)}}, save...)
	return &Request{Commands: append(commands, Command{Args: []string{"rm", name}})}, nil
}

// inspectOptions are the options of inspect.
var inspectOptions = optionTable(map[Role]string{
	Value: "--app",
	Flag:  "-l --labels -d --deffile -j --json -r --runscript -s --startscript -t --test -e --environment -H --helpfile --list-apps --all -h --help",
})

// inspect reads the options and arguments of inspect.
func (a *apptainer) inspect(args []Word) (*Request, error) {
	rest, err := a.all(inspectOptions, args)
	if err != nil {
		return nil, err
	}
	if err := a.refuse(map[string][2]string{"--app": refusedRunOptions["--app"]}); err != nil {
		return nil, err
	}
	if len(rest) != 1 {
		return nil, refusal(a.program, strings.Join(rest, " "), "it needs one image", "apptainer inspect IMAGE")
	}
	var parts []string
	for _, name := range []string{"labels", "deffile", "runscript", "startscript", "test", "environment", "helpfile", "list-apps"} {
		if a.on["--"+name] != "" || a.on["--all"] != "" {
			parts = append(parts, name)
		}
	}
	if len(parts) == 0 {
		parts = []string{"labels"}
	}
	if a.on["--json"] != "" || a.on["--all"] != "" {
		parts = append(parts, "json")
	}
	return a.show(rest[0], parts)
}

// show returns the commands that print parts of an image's description.
func (a *apptainer) show(text string, parts []string) (*Request, error) {
	image, err := a.image(text)
	if err != nil {
		return nil, err
	}
	line := append([]string{"run", "--no-config", "--action=inspect:" + strings.Join(parts, ",")}, image.flags()...)
	return &Request{Commands: append(image.commands, Command{Args: append(line, image.argument)})}, nil
}

// runHelp reads the arguments of run-help.
func (a *apptainer) runHelp(args []Word) (*Request, error) {
	rest, err := a.all(optionTable(map[Role]string{Value: "--app"}), args)
	if err != nil {
		return nil, err
	}
	if err := a.refuse(map[string][2]string{"--app": refusedRunOptions["--app"]}); err != nil {
		return nil, err
	}
	if len(rest) != 1 {
		return nil, refusal(a.program, strings.Join(rest, " "), "it needs one image", "apptainer run-help IMAGE")
	}
	return a.show(rest[0], []string{"helpfile"})
}

// cache reads the arguments of cache.
func (a *apptainer) cache(args []Word) (*Request, error) {
	rest, err := a.all(optionTable(map[Role]string{Value: "-T --type -D --days", Flag: "-n --dry-run -h --help"},
		idleApptainer["cache"]), args)
	if err != nil {
		return nil, err
	}
	if err := a.refuse(map[string][2]string{"--type": {"hpcc's store has no types of images", "leave it out"}}); err != nil {
		return nil, err
	}
	switch strings.Join(rest, " ") {
	case "list":
		return &Request{Commands: []Command{{Args: []string{"images"}}}}, nil
	case "clean":
		line := []string{"gc"}
		if d := a.last("--days"); d != "" {
			line = append(line, "--age="+d+"d")
		}
		if a.on["--dry-run"] != "" {
			line = append(line, "--dry-run")
		}
		return &Request{Commands: []Command{{Args: line}}}, nil
	}
	return nil, refusal(a.program, strings.Join(rest, " "), "it needs list or clean", "apptainer cache list")
}
