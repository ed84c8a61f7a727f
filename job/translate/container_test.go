package translate_test

import (
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/translate"
	"hpcc/testdata/helpers/testenv"
)

// containerLines are options that start a program in an image, in the forms of public job scripts, with the image and
// the flags of hpcc run. A wrong line has the reason instead.
var containerLines = []struct{ line, image, run, why string }{
	{"--container-image=/store/project/image.sqsh", "/store/project/image.sqsh", "", ""},
	{"--container-image ubuntu", "ubuntu", "", ""},
	{"--container-image=ubuntu:22.04", "ubuntu:22.04", "", ""},
	{"--container-image=./ubuntu+latest.sqsh", "/home/u/job/ubuntu+latest.sqsh", "", ""},
	{"--container-image ghcr.io\\#lab/cuda-python3", "ghcr.io/lab/cuda-python3", "", ""},
	{`--container-image="registry.example.org#rob/train_monai:v1.3"`, "registry.example.org/rob/train_monai:v1.3", "", ""},
	{`--container-image="registry.example.org:5005#rob/slide2vec:v1.3.0"`, "registry.example.org:5005/rob/slide2vec:v1.3.0", "", ""},
	{"--container-image=nvcr.io/nvidia/pytorch:26.05-py3", "nvcr.io/nvidia/pytorch:26.05-py3", "", ""},
	{"--container-image=docker://nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3", "", ""},
	{"--container-image='docker://$oauthtoken@nvcr.io#nvidia/tensorflow:23.04-tf2-py3'", "nvcr.io/nvidia/tensorflow:23.04-tf2-py3", "", ""},
	{"--container-image=dockerd://mine:1", "", "", "in the store of a daemon"},
	{"--container-image=oras://host/x", "", "", "not the name of an image"},
	{"--container-image=${IMAGE}", "", "", "does not expand variables"},
	{"--container-image=ubuntu --container-mounts=/storage/contact-matrices/", "ubuntu", "--bind=/storage/contact-matrices/:/storage/contact-matrices/", ""},
	{"--container-image=ubuntu --container-mounts=/mnt/home/me:/mnt/home/me,/mnt/data:/mnt/data,/tmp:/tmp", "ubuntu",
		"--bind=/mnt/home/me:/mnt/home/me --bind=/mnt/data:/mnt/data --bind=/tmp:/tmp", ""},
	{"--container-image=ubuntu --container-mounts=/data/archive:/data/archive:ro,/data/projects:/data/temporary:rw", "ubuntu",
		"--bind=/data/archive:/data/archive:ro --bind=/data/projects:/data/temporary", ""},
	{"--container-image=ubuntu --container-mounts=/etc/slurm/task_prolog:/etc/slurm/task_prolog,./HIG/:/HIG,./graph/examples:/examples", "ubuntu",
		"--bind=/etc/slurm/task_prolog:/etc/slurm/task_prolog --bind=/home/u/job/HIG:/HIG --bind=/home/u/job/graph/examples:/examples", ""},
	{"--container-image ubuntu --container-mounts /scratch/dataset:/datasets --container-writable", "ubuntu", "--bind=/scratch/dataset:/datasets --write-fake", ""},
	{"--container-image=ubuntu --container-mounts=/d:/d:ro+rprivate", "ubuntu", "--bind=/d:/d:ro", ""},
	{"--container-image=ubuntu --container-mounts=/d:/d:noexec", "ubuntu", "", "mount flag noexec"},
	{"--container-image=ubuntu --container-mounts=graph/examples:/examples", "ubuntu", "", "begins with a slash or a dot"},
	{"--container-image=ubuntu --container-mounts=./examples", "ubuntu", "", "not absolute"},
	{"--container-image=ubuntu --container-mounts=umount:/etc/hosts", "ubuntu", "", "removes a mount point"},
	{"--container-image=ubuntu --container-mounts=tmpfs:/scratch", "ubuntu", "--mount=type=tmpfs,target=/scratch", ""},
	{"--container-image=ubuntu --container-workdir=/mnt/home/me --no-container-mount-home", "ubuntu", "--cd=/mnt/home/me --no-home", ""},
	{"--container-image=ubuntu --container-env=HOME=/mnt/home/me", "ubuntu", "", "without values"},
	{"--container-image=ubuntu --container-env=NVIDIA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES", "ubuntu", "--env=NVIDIA_VISIBLE_DEVICES --env=NVIDIA_DRIVER_CAPABILITIES", ""},
	{"--container-image=/i.sqsh --container-mount-home --container-writable", "/i.sqsh", "--write-fake", ""},
	{"--container-image=ubuntu --container-remap-root --no-container-entrypoint", "ubuntu", "--uid=0 --gid=0", ""},
	{"--container=/bundles/sci", "/bundles/sci/rootfs", "", ""},
}

// TestContainerDirectives reads each form as a directive.
func TestContainerDirectives(t *testing.T) {
	for _, c := range containerLines {
		src := translate.Source{Name: "job.sh", Dir: "/home/u/job", Home: "/home/u", User: "u", Text: []byte("#!/bin/bash\n#SBATCH " + c.line + "\nhostname\n")}
		for _, to := range []job.Target{"slurm", "pbs", job.Local} {
			tr, err := dispatch.Translator().Translate(src, to)
			testenv.Check(t, err)
			tr.Fit()
			run := strings.TrimSpace(strings.TrimSuffix(strings.Join(tr.Job.Run, " "), "--entrypoint="))
			if tr.Job.Image != c.image || run != c.run || !strings.Contains(rows(tr), c.why) || (tr.Lost() > 0) != (c.why != "") {
				t.Errorf("%s for %s: image %q, run %q; want %q, %q, %q; rows:\n%s", c.line, to, tr.Job.Image, run, c.image, c.run, c.why, rows(tr))
			}
		}
	}
}

// TestContainerSteps reads the image of a script's lines for pods, which take it as theirs.
func TestContainerSteps(t *testing.T) {
	for line, want := range map[string]string{
		"srun --container-image=nvcr.io#nvidia/pytorch:22.02-py3 -N1 -c 30 --mem=100G --pty bash":                            "nvcr.io/nvidia/pytorch:22.02-py3",
		"srun --ntasks-per-node=8 --container-image=\"$CONTAINER\" --container-mounts=\"$MNT\" python train.py":              "nvcr.io/nvidia/nemo:24.05",
		"srun --jobid=$JOB_ID --container-image=$(realpath $SQUASH_FILE) --container-mount-home bash run.sh":                 "",
		"srun --container-image=/scratch/me/occ.sqsh --container-mounts=/scratch/me/Occ:/home/Occ ./dist_train.sh conf.py 4": "",
		"time srun -n1 --container-image almalinux:9 grep PRETTY /etc/os-release":                                            "docker.io/library/almalinux:9",
	} {
		src := translate.Source{Name: "job.sh", Dir: "/home/u/job", Text: []byte("#!/bin/bash\n#SBATCH -N1\nCONTAINER=nvcr.io#nvidia/nemo:24.05\n" + line + "\n")}
		tr, err := dispatch.Translator().Translate(src, job.Kubernetes)
		testenv.Check(t, err)
		if tr.Fit(); tr.Job.Image != want {
			t.Errorf("%s: image %q, want %q", line, tr.Job.Image, want)
		}
	}
}
