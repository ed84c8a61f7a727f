package main

// An effect is an option, with its meaning in terms of what the program in the container sees.
type effect struct {
	option string // as docs/options.md shows it
	means  string // one sentence
	flags  string // of hpcc run, submit and script; D is the directory of the files, C that of the cell
	want   string // facts, separated by "; "; see trial.missing
	also   string // fields that may change besides those of want
	jobs   bool   // only jobs have the option
	same   bool   // the facts hold without the option as well
	before string // shell commands of the caller
	image  string // instead of img
	args   string // instead of the probe with two arguments
	ways   map[string]string
}

type at = map[string]string

const noPods = "| refused: applies only to kubernetes"

var onlyPods = at{"local": noPods, "script": noPods, "slurm": noPods, "gridengine": noPods}

// movingImage is a name that is that of img at first, and then that of an image with another
// ENTRYPOINT.
const movingImage = "movingNTH"

// effectFiles are the files of the caller and of the image.
var effectFiles = map[string]string{
	"Dockerfile":       "FROM scratch\nCOPY root /\nENV PATH=/bin A=image B=image\nWORKDIR /opt\nENTRYPOINT [\"/bin/probe\", \"entry\"]\n",
	"other.Dockerfile": "FROM img\nENTRYPOINT [\"/bin/probe\", \"other\"]\n",
	"root/etc/known":   "known\n", "data/f": "file of the host\n", "passwd": "mine:x:UID:GID::/own:/bin/sh\n", "vars.env": "A=file\nC=$B\n", "zero.env": "A=zero\nline\x00",
	"root/bin/mpirun":            "#!/bin/sh\n# mpirun -np N PROGRAM [ARG...], for pods\nn=$2; shift 2\nwhile [ $n -gt 0 ]; do n=$((n - 1)); PMIX_RANK=$n \"$@\" & done\nwait\n",
	"home/.config/hpcc/run.conf": "--set-env CONF=mine\n",
	"accel.conf":                 "accelerator\n",
	"rows.csv":                   "lr\n0.3\n0.4\n",
	"cdi/gpu.yaml":               "cdiVersion: \"0.7.0\"\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    env: [GPUS=all]\n",
	"cdi/acme.yaml":              "cdiVersion: \"0.7.0\"\nkind: acme.com/accel\ndevices:\n- name: a0\n  containerEdits:\n    env: [ACCEL=a0]\ncontainerEdits:\n  mounts:\n  - {hostPath: D/accel.conf, containerPath: /etc/accel.conf, options: [ro, bind]}\n",
}

var effects = []effect{
	{
		option: "no option", means: "the image's ENV is above the variables of the caller, except host's software (below)", same: true, want: "Env.A=image; Env.B=image; Env.CALLER=caller",
		ways: at{"docker": "| differs: Env.B=image; !Env.CALLER", "apptainer": "", "ch-run": "| differs: !Env.A; Env.B=caller; Env.CALLER=caller", "wrap": "", "oci": "| differs: Env.B=image; !Env.CALLER", "pod": "| differs: Env.B=image; !Env.CALLER; Env.HOME=/tmp; Env.USER=hpcc"},
	},
	{
		option: "software of the host", means: "stays out: LD_*, PYTHON*, R_LIBS*, CONDA_* and others", before: "export LD_LIBRARY_PATH=/l PYTHONPATH=/p PYTHONHOME=/p R_LIBS=/r PERL5LIB=/5 CONDA_PREFIX=/c VIRTUAL_ENV=/v", same: true,
		want: "!Env.LD_LIBRARY_PATH; !Env.PYTHONPATH; !Env.PYTHONHOME; !Env.R_LIBS; !Env.PERL5LIB; !Env.CONDA_PREFIX; !Env.VIRTUAL_ENV; Env.PYTHONNOUSERSITE=1",
		ways: at{"docker": "| differs: !Env.LD_LIBRARY_PATH; !Env.PYTHONPATH", "wrap": "", "ch-run": "| differs: Env.PYTHONPATH=/p; Env.R_LIBS=/r", "apptainer": "| differs: Env.PYTHONPATH=/p; Env.R_LIBS=/r", "oci": "| differs: !Env.LD_LIBRARY_PATH; !Env.PYTHONPATH", "pod": "| differs: !Env.LD_LIBRARY_PATH; !Env.PYTHONPATH; !Env.R_LIBS; !Env.PERL5LIB; !Env.CONDA_PREFIX; !Env.VIRTUAL_ENV"},
	},
	{
		option: "-e NAME of the host's software", means: "passes the variable on purpose", before: "export PYTHONPATH=/p LD_LIBRARY_PATH=/l", flags: "-e PYTHONPATH -e LD_LIBRARY_PATH", want: "Env.PYTHONPATH=/p; Env.LD_LIBRARY_PATH=/l",
		ways: at{"docker": "-e PYTHONPATH -e LD_LIBRARY_PATH", "apptainer": "--env PYTHONPATH | refused: is not NAME=VALUE", "wrap": "-e PYTHONPATH -e LD_LIBRARY_PATH"},
	},
	{
		option: "-e NAME=VALUE", means: "sets a variable, over the image's ENV and the caller's", flags: "-e A=flag", want: "Env.A=flag",
		ways: at{"docker": "-e A=flag", "apptainer": "--env A=flag", "ch-run": "--set-env=A=flag", "wrap": "--set-env A=flag", "oci": `{"process":{"env=":["PATH=/bin","A=flag"]}}`},
	},
	{
		option: "-e NAME", means: "copies a variable of the caller", flags: "-e B", want: "Env.B=caller",
		ways: at{"docker": "-e B", "apptainer": "--env B | refused: is not NAME=VALUE", "wrap": "-e B"},
	},
	{
		option: "--set-env NAME=VALUE", means: "sets a variable; $NAME at the start of an item expands", flags: "--set-env P=/x:$PATH", want: "Env.P~^/x:.*/bin$",
		ways: at{"ch-run": "--set-env=P=/x:$CALLER | differs: Env.P=/x:caller", "wrap": "--set-env P=/x:$PATH"},
	},
	{
		option: "--set-env FILE", means: "sets the variables of a file", flags: "--set-env D/vars.env", want: "Env.A=file; Env.C=image",
		ways: at{"docker": "--env-file D/vars.env | differs: Env.A=file; Env.C=$B", "apptainer": "--env-file D/vars.env | differs: Env.A=file", "ch-run": "--set-env=D/vars.env | differs: Env.A=file; Env.C=caller", "wrap": "--set-env D/vars.env"},
	},
	{
		option: "--set-env0 FILE", means: "the same, with NUL after each", flags: "--set-env0 D/zero.env", want: "Env.A=zero\nline",
		ways: at{"ch-run": "--set-env0=D/zero.env", "wrap": "--set-env0 D/zero.env"},
	},
	{
		option: "--unset-env GLOB", means: "removes variables", flags: "--unset-env CALL* --unset-env A", want: "!Env.CALLER; !Env.A",
		ways: at{"ch-run": "--unset-env=CALL* | differs: !Env.CALLER", "wrap": "--unset-env CALL* --unset-env A", "pod": "| refused: the image or Kubernetes sets A, and pods cannot unset it"},
	},
	{
		option: "-e, --set-env, --unset-env", means: "apply in the order of the command line", flags: "--unset-env A -e A=1 --set-env A=2 -e X=1 --unset-env X", want: "Env.A=2; !Env.X",
		ways: at{"wrap": "--unset-env A --set-env A=2 --set-env X=1 --unset-env X"},
	},
	{
		option: "-e 'NAME= VALUE '", means: "keeps blanks and dollars", flags: `-e 'A= b $B '`, want: "Env.A= b $B ",
		ways: at{"docker": `-e 'A= b $B '`, "apptainer": `--no-eval --env 'A= b $B '`, "wrap": "-e 'A= b $B '"},
	},
	{
		option: "--env-no-expand", means: "keeps $NAME in values", flags: "--env-no-expand --set-env A=$B", want: "Env.A=$B",
		ways: at{"ch-run": "--env-no-expand --set-env=A=$B"},
	},
	{
		option: "--clean-env", means: "starts from the image's environment", flags: "--clean-env", want: "!Env.CALLER; Env.A=image",
		ways: at{"apptainer": "--cleanenv", "pod": "| differs: !Env.CALLER; !Env.EFFECTS_SERVICE_HOST; Env.A=image"},
	},
	{
		option: "--no-config", means: "ignores the run.conf files", flags: "--no-config", want: "!Env.CONF",
		ways: at{"pod": "| always: !Env.CONF"},
	},
	{
		option: "--cd DIR", means: "sets the working directory", flags: "--cd /etc", want: "Dir=/etc", also: "Env Writable",
		ways: at{"docker": "-w /etc", "apptainer": "--cwd /etc", "ch-run": "--cd /etc", "oci": "--cd /etc"},
	},
	{
		option: "--entrypoint PROG", means: "replaces ENTRYPOINT and CMD", flags: "--entrypoint /bin/probe", want: "Argv=/bin/probe /bin/probe x /etc/known", also: "Argvs",
		ways: at{"docker": "--entrypoint /bin/probe", "oci": `{"process":{"args=":["/bin/probe","/bin/probe","x","/etc/known"]}}`, "pod": "| refused: --entrypoint cannot be used for pods"},
	},
	{
		option: "--entrypoint=", means: "leaves out ENTRYPOINT", flags: "--entrypoint=", want: "Argv=/bin/probe x /etc/known", also: "Argvs Files",
		ways: at{"docker": "--entrypoint="},
	},
	{
		option: "-b SRC:DST", means: "binds a directory or file", flags: "-b D/data:/mnt", want: "Mounts./mnt; Writable./mnt=true",
		ways: at{"docker": "-v D/data:/mnt", "apptainer": "--bind D/data:/mnt", "ch-run": "-b D/data:/mnt", "wrap": "-b D/data:/mnt", "oci": "--bind D/data:/mnt", "pod": "| refused: --bind cannot be used for pods"},
	},
	{
		option: "-b SRC:DST:ro", means: "binds it read-only", flags: "-b D/data:/mnt:ro", want: "Mounts./mnt~ ro,; Writable./mnt=false",
		ways: at{"docker": "-v D/data:/mnt:ro", "apptainer": "--bind D/data:/mnt:ro", "wrap": "-b D/data:/mnt:ro", "oci": "--bind D/data:/mnt:ro", "ch-run": "-b D/data:/mnt:ro", "pod": "| refused: --bind cannot be used for pods"},
	},
	{
		option: "-b SRC:DST:ro, file systems below SRC", means: "are read-only too", flags: "-b /dev:/mnt/dev:ro", want: "Mounts./mnt/dev/shm~ ro,; Writable./mnt/dev/shm=false", also: "Root",
		ways: at{"docker": "-v /dev:/mnt/dev:ro", "apptainer": "--bind /dev:/mnt/dev:ro", "wrap": "-b /dev:/mnt/dev:ro", "oci": "--bind /dev:/mnt/dev:ro", "ch-run": "-b /dev:/mnt/dev:ro", "pod": "| refused: --bind cannot be used for pods"},
	},
	{
		option: "-b FILE:/etc/passwd", means: "hides hpcc's own file", flags: "-b D/passwd:/etc/passwd", want: "User~^mine:.*/own; Mounts./etc/passwd", also: "Writable",
		ways: at{"docker": "-v D/passwd:/etc/passwd | differs: Mounts./etc/passwd; Writable./etc/passwd=true", "apptainer": "--bind D/passwd:/etc/passwd", "ch-run": "-b D/passwd:/etc/passwd", "oci": "--bind D/passwd:/etc/passwd | differs: Mounts./etc/passwd; Writable./etc/passwd=true", "wrap": "-b D/passwd:/etc/passwd", "pod": "| refused: --bind cannot be used for pods"},
	},
	{
		option: "--mount type=bind,...,readonly", means: "as -b with ro", flags: "--mount type=bind,source=D/data,target=/mnt,readonly", want: "Mounts./mnt~ ro,; Writable./mnt=false",
		ways: at{"docker": "--mount type=bind,source=D/data,target=/mnt,readonly", "apptainer": "--mount type=bind,source=D/data,destination=/mnt,ro", "ch-run": "| untested: ch-run mounts SquashFS images at this option's directory", "pod": "| refused: --mount cannot be used for pods"},
	},
	{
		option: "--mount type=tmpfs,...", means: "mounts an empty directory in memory", flags: "--mount type=tmpfs,target=/mnt,tmpfs-size=1m", want: "Mounts./mnt~^tmpfs .*super:size=1024k; Writable./mnt=true",
		ways: at{"docker": "--mount type=tmpfs,target=/mnt,tmpfs-size=1m", "apptainer": "--scratch /mnt | differs: Mounts./mnt~^tmpfs; Writable./mnt=true", "oci": `{"mounts":[{"destination":"/mnt","type":"tmpfs","source":"tmpfs","options":["size=1m"]}]}`, "ch-run": "| untested: ch-run mounts SquashFS images at this option's directory", "pod": "| refused: --mount cannot be used for pods"},
	},
	{
		option: "-w", means: "lets the program change the image directory", flags: "-w", image: "C/tree", want: "Writable./etc=true; Mounts./~ rw,", also: "Program",
		ways: at{"apptainer": "--writable", "ch-run": "-w", "oci": "--write | differs: Writable./etc=true; Mounts./~ rw,", "pod": "| refused: --write cannot be used for pods"},
	},
	{
		option: "-W", means: "keeps changes of the image until the program ends", flags: "-W", want: "Writable./etc=true; Mounts./~^overlay ", also: "Program",
		ways: at{"apptainer": "--writable-tmpfs", "ch-run": "-W", "pod": "| refused: --write-fake cannot be used for pods"},
	},
	{
		option: "--private-tmp", means: "mounts an empty /tmp", flags: "--private-tmp", want: "Mounts./tmp~^tmpfs ", also: "Env.TMPDIR Writable",
		ways: at{"ch-run": "-t", "pod": "| always: Mounts./tmp; Writable./tmp=true"},
	},
	{
		option: "--no-home", means: "does not bind the home directory", flags: "--no-home", want: "!Mounts.D/home; !Writable.D/home; Dir=/opt", also: "Env User",
		ways: at{"apptainer": "--no-home --no-mount cwd | differs: !Mounts.D/home", "ch-run": "--no-home | always: !Mounts.D/home", "pod": "| always: !Mounts.D/home; Dir=/opt"},
	},
	{
		option: "--no-passwd", means: "keeps the image's /etc/passwd and /etc/group", flags: "--no-passwd", want: "User=; !Mounts./etc/passwd", also: "Writable",
		ways: at{"ch-run": "--no-passwd", "pod": "| always: !Mounts./etc/passwd"},
	},
	{
		option: "--uid N", means: "the program sees itself as user N", flags: "--uid 5", want: "IDs.Uid=5 5 5 5", also: "User Rights Chown",
		ways: at{"docker": "-u 5", "ch-run": "-u 5", "oci": `{"process":{"user":{"uid":5}}}`},
	},
	{
		option: "--gid N", means: "the same for the group", flags: "--gid 6", want: "IDs.Gid=6 6 6 6", also: "User",
		ways: at{"docker": "-u 0:6", "ch-run": "-g 6", "oci": `{"process":{"user":{"gid":6}}}`, "pod": "| refused: --gid cannot be used for pods"},
	},
	{
		option: "--seccomp", means: "root, for whom changes of owners succeed", flags: "--seccomp", want: "IDs.Uid=0 0 0 0; Chown=succeeds", also: "Rights User",
		ways: at{"ch-run": "-u 0 -g 0 --seccomp", "pod": "| refused: --seccomp cannot be used for pods"},
	},
	{
		option: "--network none", means: "a loopback interface only", flags: "--network none", want: "Network=lo; NetworkSys=lo; Namespaces.net=own", also: "Mounts Cgroup",
		ways: at{"docker": "--network none", "apptainer": "--net --network none", "oci": `{"mounts":[{"destination":"/sys","type":"sysfs","source":"sysfs"}],"linux":{"namespaces":[{"type":"network"}]}}`, "pod": "| refused: --network cannot be used for pods"},
	},
	{
		option: "--hostname NAME", means: "sets the host name", flags: "--hostname other", want: "Host=other; Namespaces.uts=own", also: "Env Mounts./etc/hostname Mounts./etc/hosts Writable./etc/hostname Writable./etc/hosts",
		ways: at{"docker": "-h other", "apptainer": "--hostname other", "oci": `{"hostname":"other","linux":{"namespaces":[{"type":"uts"}]}}`},
	},
	{
		option: "--pid", means: "the program sees only its own processes", flags: "--pid", want: "Namespaces.pid=own; Process.pid=2", also: "Mounts",
		ways: at{"apptainer": "--pid", "oci": `{"linux":{"namespaces":[{"type":"pid"}]}} | differs: Namespaces.pid=own; Process.pid=1`, "docker": "--rm | always: Namespaces.pid=own", "pod": "| always: Namespaces.pid=own; Process.parent=0"},
	},
	{
		option: "--ipc", means: "shared memory segments and queues of its own", flags: "--ipc", want: "Namespaces.ipc=own", also: "Mounts",
		ways: at{"apptainer": "--ipc", "oci": `{"linux":{"namespaces":[{"type":"ipc"}]}}`, "docker": "--ipc private | always: Namespaces.ipc=own", "pod": "| always: Namespaces.ipc=own"},
	},
	{
		option: "--device VENDOR/CLASS=NAME", means: "adds a CDI device", flags: "--device acme.com/accel=a0", want: "Env.ACCEL=a0; Mounts./etc/accel.conf~ ro,", also: "Writable",
		ways: at{"docker": "--device acme.com/accel=a0", "apptainer": "| refused: hpcc takes CDI devices from its own option", "pod": "| refused: --device cannot be used for pods"},
	},
	{
		option: "--gpu", means: "adds the GPUs; here, those of a CDI spec", flags: "--gpu", want: "Env.GPUS=all",
		ways: at{"docker": "--gpus all", "apptainer": "| untested: Apptainer's --nv looks for device nodes", "wrap": "--gpu", "pod": "| refused: --gpu cannot be used for pods"},
	},
	{
		option: "--join", means: "shares namespaces with the job's other tasks on this node", flags: "--join --join-ct 2 --join-tag NTH", before: "case NTH in ch-run*) run=ch-run ;; *) run='hpcc run' ;; esac; $run --join --join-ct 2 --join-tag NTH img -- /bin/probe sleep=1s >C/first & sleep 0.2", want: "Tasks=2; UserNamespaces=1", also: "*",
		ways: at{"local": "| untested: --tasks sets it", "script": "| untested: --tasks sets it", "slurm": "| untested: --tasks sets it", "gridengine": "| untested: --tasks sets it", "ch-run": "", "pod": "| refused: --join cannot be used for pods"},
	},
	{
		option: "--only DIR", means: "mounts only a directory of the image, over the host's files",
		args: "/opt/probe/probe x /etc/known", ways: at{"bare": "--only /opt/probe | differs: Mounts./opt/probe~ ro,; Argv=/opt/probe/probe x /etc/known; !Files./etc/known"},
	},
	{
		option: "--measure FILE", means: "writes a record of what the program used",
		ways: at{"bare": "--measure=C/m.jsonl | differs: Written~m.jsonl"},
	},
	{
		option: "--stage", means: "copies the image to the node's local storage", flags: "--stage", want: "*Program", also: "Mounts",
		ways: at{"wrap": "--stage", "pod": "| always: Mounts./~^overlay "},
	},
	{
		option: "umask of the caller", means: "is that of the program", before: "umask 027", want: "Umask=0027",
		ways: at{"bare": "", "docker": "| differs: Umask=0022", "apptainer": "", "ch-run": "", "wrap": "", "oci": "", "pod": "| differs: Umask=0022"},
	},
	{
		option: "limits of the caller", means: "are those of the program", before: "ulimit -Sn 500; ulimit -Sc 0; ulimit -Ss 4096", want: "Limits.nofile~^500:; Limits.stack~^4194304:",
		ways: at{"docker": "", "apptainer": "", "ch-run": "", "wrap": "", "oci": "", "pod": "| differs: !Limits.nofile~^500:; !Limits.stack~^4194304:"},
	},
	{
		option: "signals that the caller ignores", means: "are ignored by the program", before: "trap '' PIPE USR1 XFSZ TERM QUIT", want: "Signals.ignored~^SIGQUIT SIGUSR1 SIGPIPE SIGTERM SIGXFSZ( 32)?$",
		ways: at{"docker": "", "apptainer": "", "ch-run": "", "wrap": "", "oci": "", "slurm": "| untested: the scheduler starts the task", "gridengine": "| untested: the scheduler starts the task", "pod": "| differs: Signals.ignored~^(32)?$"},
	},
	{
		option: "descriptors of the caller", means: "are those of the program", before: "exec 7</dev/null 9</etc/passwd", want: "Descriptors.7=/dev/null; Descriptors.9",
		ways: at{"docker": "", "apptainer": "", "ch-run": "", "wrap": "", "oci": "| differs: !Descriptors.7; !Descriptors.9", "local": "| differs: !Descriptors.7; !Descriptors.9", "slurm": "| differs: !Descriptors.7; !Descriptors.9", "gridengine": "| differs: !Descriptors.7; !Descriptors.9", "pod": "| differs: !Descriptors.7; !Descriptors.9"},
	},
	// Options of the fronts that hpcc run does not have.
	{
		option: "docker -e UNSET", means: "an unset variable stays unset", same: true, ways: at{"docker": "-e UNSET | differs: !Env.UNSET"},
	},
	{
		option: "docker --read-only", means: "the image is read-only", ways: at{"docker": "--read-only | differs: Writable./etc=false; Mounts./~ ro,"},
	},
	{
		option: "docker --tmpfs", means: "mounts an empty directory in memory", ways: at{"docker": "--tmpfs /mnt:size=1m,noexec | differs: Mounts./mnt~^tmpfs .*noexec.*super:size=1024k; Writable./mnt=true"},
	},
	{
		option: "docker --shm-size", means: "limits /dev/shm", ways: at{"docker": "--shm-size 1m | differs: Mounts./dev/shm~size=1024k"},
	},
	{
		option: "docker --ulimit", means: "sets limits", ways: at{"docker": "--ulimit nofile=100:200 --ulimit core=0 | differs: Limits.nofile=100:200"},
	},
	{
		option: "docker --cap-drop", means: "drops capabilities", ways: at{"docker": "--cap-drop ALL | differs: Rights.CapEff=0000000000000000; Rights.CapPrm=0000000000000000; Rights.CapBnd=0000000000000000"},
	},
	{
		option: "docker --privileged", means: "gives all capabilities, in the user namespace of the container", ways: at{"docker": "--privileged | differs: Rights.CapEff~^0+[137]?f+$"},
	},
	{
		option: "docker --cap-add", means: "adds capabilities, in the same way", ways: at{"docker": "--cap-add SYS_ADMIN | differs: Rights.CapEff=00000000a82425fb"},
	},
	{
		option: "docker --memory, --cpus, --pids-limit", means: "limit resources", ways: at{"docker": "--memory 1g | refused: hpcc creates no cgroups"},
	},
	{
		option: "docker, two -v at one path", means: "a mistake", ways: at{"docker": "-v D/data:/mnt -v D/home:/mnt | refused: /mnt"},
	},
	{
		option: "docker --pid host, --ipc host", means: "use the host's namespaces", ways: at{"docker": "--pid host --ipc host | differs: Namespaces.pid=host; Namespaces.ipc=host"},
	},
	{
		option: "apptainer --contain", means: "an empty /tmp and home", ways: at{"apptainer": "--contain | differs: Mounts./tmp~^tmpfs ; Mounts.D/home~^tmpfs "},
	},
	{
		option: "apptainer --containall", means: "the same, with --pid, --ipc and --cleanenv", ways: at{"apptainer": "--containall | differs: Mounts./tmp~^tmpfs ; Namespaces.pid=own; Namespaces.ipc=own; !Env.CALLER"},
	},
	{
		option: "apptainer --home SRC:DST", means: "binds another home directory", ways: at{"apptainer": "--home D/data:/mnt/h | differs: Mounts./mnt/h; Env.HOME=/mnt/h"},
	},
	{
		option: "apptainer --fakeroot", means: "root, for whom changes of owners succeed", ways: at{"apptainer": "--fakeroot | differs: IDs.Uid=0 0 0 0; Chown=succeeds; Env.HOME=/root"},
	},
	{
		option: "apptainer --fakeroot --drop-caps", means: "drops capabilities", ways: at{"apptainer": "--fakeroot --drop-caps all | differs: Rights.CapEff=0000000000000000; Rights.CapPrm=0000000000000000"},
	},
	{
		option: "apptainer --fakeroot --no-privs", means: "drops all capabilities", ways: at{"apptainer": "--fakeroot --no-privs | differs: Rights.CapEff=0000000000000000; Rights.CapPrm=0000000000000000"},
	},
	{
		option: "apptainer --no-umask", means: "the umask is 022", before: "umask 077", ways: at{"apptainer": "--no-umask | differs: Umask=0022"},
	},
	{
		option: "apptainer --add-caps", means: "adds capabilities, in the user namespace of the container", ways: at{"apptainer": "--add-caps CAP_NET_RAW | differs: Rights.CapEff=0000000000002000"},
	},
	{
		option: "apptainer --keep-privs", means: "keeps those of root", ways: at{"apptainer": "--keep-privs | refused: only root has privileges to keep"},
	},
	{
		option: "ch-run --home", means: "binds the home directory at /home/$USER", ways: at{"ch-run": "--home | differs: Mounts./home/me; Env.HOME=/home/me; Writable./etc=true"},
	},
	{
		option: "ch-run --set-env", means: "sets the variables of the image", ways: at{"ch-run": "--set-env | differs: Env.A=image; Env.B=image"},
	},
	{
		option: "ch-run --unset-env=*", means: "removes all variables", ways: at{"ch-run": "--unset-env=* | differs: !Env.CALLER; !Env.PATH"},
	},
	{
		option: "--chdir DIR", means: "starts in a directory of the host", jobs: true, flags: "--chdir D/home/other", want: "Dir=D/home/other", also: "Env Mounts Writable",
		ways: at{"pod": "| note: --chdir: pods start in the image's directory"},
	},
	{
		option: "--array RANGE", means: "runs a task for each index", jobs: true, flags: "--array 2-4", args: "/bin/probe {task}", want: "Tasks=3; Env.HPCC_TASK_ID=2; Env.HPCC_TASK_COUNT=3; Argvs~(?s)2].*3].*4]", also: "*",
	},
	{
		option: "IMAGE", means: "a job runs the image that its name had at submission", jobs: true, image: movingImage, flags: "--array 1-2%1", args: "/bin/probe sleep=1s",
		before: "hpcc tag img movingNTH; (for i in $(seq 600); do [ ! -s C/script ] && ! grep -qs C/out. D/store/jobs/*/job.json || break; sleep 0.1; done; hpcc tag other movingNTH) >/dev/null 2>&1 &", want: "Tasks=2; Argvs~(?s)entry.*entry", also: "*",
	},
	{
		option: "--sweep NAME=VALUES", means: "runs a task for each value", jobs: true, flags: "--sweep lr=0.1,0.2", args: "/bin/probe {lr}", want: "Tasks=2; Argvs~(?s)0.1].*0.2]", also: "*",
	},
	{
		option: "--params FILE", means: "runs a task for each row of a file", jobs: true, flags: "--params D/rows.csv", args: "/bin/probe {lr}", want: "Tasks=2; Argvs~(?s)0.3].*0.4]", also: "*",
	},
	{
		option: "--pack", means: "runs all tasks in one allocation", jobs: true, flags: "--array 2-4 --pack", args: "/bin/probe {task}", want: "Tasks=3; Env.HPCC_TASK_ID=2; Argvs~(?s)2].*3].*4]", also: "*",
		ways: at{"gridengine": "--array 2-4 --pack --tasks-per-node 1", "pod": "| refused: does not support --pack"},
	},
	{
		option: "--output FILE", means: "writes the output to a file", jobs: true, flags: "--output C/my.{task}.log", want: "Written~my.0.log; Tasks=1", also: "Descriptors Env",
	},
	{
		option: "--error FILE", means: "writes standard error to another file", jobs: true, flags: "--error C/my.err", want: "Written~my.err", also: "Descriptors Env",
		ways: at{"pod": "| note: a pod has one output stream"},
	},
	{
		option: "--name NAME", means: "names the job and its files", jobs: true, flags: "--name mine --output C/{name}.log", want: "Written~mine.log", also: "Descriptors Env",
	},
	{
		option: "--cpus N", means: "requests CPUs for each process; on this machine, fewer tasks run simultaneously", jobs: true, flags: "--array 1-2 --cpus 64", args: "/bin/probe sleep=300ms", want: "AtOnce=1; Tasks=2", also: "*",
		ways: at{"slurm": "--cpus 2 | differs: Env.SLURM_CPUS_PER_TASK=2", "gridengine": "--cpus 2 | differs: Env.NSLOTS=2", "pod": "--cpus 1 | differs: Cgroup.cpu=100000 100000"},
	},
	{
		option: "--mem SIZE", means: "requests memory on each node", jobs: true, flags: "--mem 512M", want: "Env.SLURM_MEM_PER_NODE=512", also: "Env Limits.rss",
		ways: at{"local": "| note: --mem has no effect on this machine", "script": "| note: --mem has no effect on this machine", "gridengine": "| note: --mem requests hosts with that much free memory (mem_free) and sets no limit", "pod": "--mem 64M | differs: Cgroup.memory=67108864"},
	},
	{
		option: "--gpus N", means: "requests GPUs on each node", jobs: true, flags: "--gpus 1",
		ways: at{"local": "| note: --gpus has no effect on this machine", "script": "| note: --gpus has no effect on this machine", "slurm": "| untested: the Slurm of the tests has no GPUs", "gridengine": "| untested: the Grid Engine of the tests has no GPUs", "pod": "| differs: Env.NVIDIA_DRIVER_CAPABILITIES=compute,utility; Mounts./dev/shm~^tmpfs "},
	},
	{
		option: "--nodes N", means: "starts a process on each of N nodes", jobs: true, flags: "--nodes 2", args: "/bin/probe staggered", want: "Tasks=2", also: "*",
	},
	{
		option: "--tasks N", means: "starts N processes, which share memory on a node", jobs: true, flags: "--nodes 1 --tasks 2", args: "/bin/probe staggered sleep=3s", want: "Tasks=2; UserNamespaces=1", also: "*",
		ways: at{"pod": "--entrypoint= --nodes 1 --tasks 2 | differs: Tasks=2; Mounts./dev/shm~^tmpfs ; !Mounts./dev/shm~size=65536k"},
	},
	{
		option: "--time TIME", means: "ends a task that runs longer", jobs: true, flags: "--time 5s", args: "/bin/probe sleep=60s", want: "Tasks=1; Status~[^0]", also: "Argv Argvs Files Sleep",
		ways: at{"pod": "--time 25s"},
	},
	{
		option: "--queue QUEUE", means: "selects a queue or partition", jobs: true, flags: "--queue spare", want: "Env.SLURM_JOB_PARTITION=spare",
		ways: at{"local": "| note: --queue has no effect on this machine", "script": "| note: --queue has no effect on this machine", "gridengine": "| refused: job requests unknown queue", "pod": "| refused: localqueues.kueue.x-k8s.io \"spare\" not found"},
	},
	{
		option: "--account ACCOUNT", means: "charges an account", jobs: true, flags: "--account nowhere",
		ways: at{"local": "| note: --account has no effect on this machine", "script": "| note: --account has no effect on this machine", "slurm": "| untested: the Slurm of the tests has one account", "gridengine": "| refused: the requested project", "pod": "| note: charges namespaces, not accounts"},
	},
	{
		option: "--exclusive", means: "shares the nodes with no other job", jobs: true, flags: "--exclusive",
		ways: at{"local": "| note: --exclusive has no effect on this machine", "script": "| note: --exclusive has no effect on this machine", "slurm": "| differs: *Env.SLURM_CPUS_ON_NODE", "gridengine": "| refused: unknown resource \"exclusive\"", "pod": "| untested: it keeps other jobs off the node, also those of tests"},
	},
	{
		option: "--mail ADDRESS", means: "sends mail when the job ends", jobs: true, flags: "--mail me@example.org",
		ways: at{"local": "| refused: target local does not send mail", "script": "| refused: target local does not send mail", "slurm": "| untested: no program of the job sees it", "gridengine": "| untested: no program of the job sees it", "pod": "| refused: does not send mail"},
	},
	{
		option: "--after JOB", means: "starts when a job has succeeded", jobs: true, flags: "--after 1",
		ways: at{"local": "| refused: target local has no queue", "script": "| refused: target local has no queue", "slurm": "| untested: testdata/script/job_same.txtar tests it", "gridengine": "| untested: testdata/script/job_same.txtar tests it", "pod": "| refused: cannot order Jobs"},
	},
	{
		option: "--native OPTIONS", means: "passes options to the scheduler", jobs: true,
		ways: at{"local": "--native -x | refused: target local does not take native options", "script": "--native -x | refused: target local does not take native options", "slurm": "--native --export=ALL,NATIVE=1 | differs: Env.NATIVE=1", "gridengine": "--native '-v NATIVE=1' | differs: Env.NATIVE=1", "pod": "--native 'enableServiceLinks: false' | differs: !Env.EFFECTS_SERVICE_HOST"},
	},
	{
		option: "--volume scratch:DIR", means: "mounts an empty directory of the pod", jobs: true, flags: "--volume scratch:/mnt", want: "Mounts./mnt; Writable./mnt=true", also: "IDs.Groups",
		ways: onlyPods,
	},
	{
		option: "--volume CLAIM:DIR:ro", means: "mounts a persistent volume claim", jobs: true, flags: "--volume data:/mnt:ro", want: "Mounts./mnt~ ro,; Writable./mnt=false", also: "IDs.Groups",
		ways: onlyPods,
	},
	{
		option: "--secret NAME", means: "sets the variables of a secret", jobs: true, flags: "--secret effects", want: "Env.SECRET=mine", also: "Writable",
		ways: onlyPods,
	},
	{
		option: "--secret NAME:DIR", means: "mounts the files of a secret", jobs: true, flags: "--secret effects:/mnt", want: "Mounts./mnt~ ro,", also: "Writable",
		ways: onlyPods,
	},
	{
		option: "--with-code DIR", means: "puts files into the program's directory", jobs: true, flags: "--with-code D/data", want: "Mounts./opt/f; Writable./opt/f=false",
		ways: onlyPods,
	},
	{
		option: "--service-account NAME", means: "gives the program the rights of a service account", jobs: true, flags: "--service-account researcher", want: "Mounts./var/run/secrets/kubernetes.io/serviceaccount", also: "Writable",
		ways: onlyPods,
	},
	{
		option: "--any-uid, --namespace NAME", means: "let the cluster assign the user ID; select a namespace", jobs: true, flags: "--any-uid --namespace ocp", want: "IDs.Uid~^10006[0-9]+ ", also: "Writable Mounts User Rights Env IDs",
		ways: onlyPods,
	},
}
