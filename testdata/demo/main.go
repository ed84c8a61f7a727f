// Command demo shows the examples of README's first screen. It needs only Go and hpcc: a
// conda export becomes an image, a Dockerfile builds on it, the image runs with an env file
// and as an array, a failed task runs again, a script for LSF is translated for Slurm and
// Kubernetes, and two measured runs are compared.
//
//	go run ./testdata/demo bin/hpcc
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// files are the user's files: an export, a Dockerfile, an env file.
var files = map[string]string{
	"requirements.txt": `# This file may be used to create an environment using:
# $ conda create --name <env> --file <this file>
simulate=1.0=demo_0
simulate-data=2.1=0
`,
	"Dockerfile": `FROM env
ENV MODE=demo
WORKDIR /app
COPY notes.txt /app/
RUN ["simulate", "--id", "1"]
CMD ["simulate"]
`,
	"notes.txt":        "copied into the image\n",
	"config.env":       "# variables of the run\nPYTHONPATH=.:/opt/x\n",
	"dir/README":       "the program starts here\n",
	".dockerignore":    "channel\nstore\n",
	"share/units.json": `{"length": "m"}` + "\n",
	"job.lsf": `#!/bin/bash
#BSUB -J pi[1-8]
#BSUB -n 4
#BSUB -R "span[hosts=1] rusage[mem=2000]"
#BSUB -W 2:00
#BSUB -o pi-%J-%I.out
simulate --id=$LSB_JOBINDEX
`,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./testdata/demo HPCC")
		os.Exit(2)
	}
	if err := demo(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(hpcc string) error {
	begun := time.Now()
	hpcc, err := filepath.Abs(hpcc)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hpcc-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	fmt.Println("# A conda channel with two packages: a program compiled here, and its data.")
	if err := makeChannel(dir); err != nil {
		return fmt.Errorf("making the channel: %w", err)
	}
	s := &session{dir: dir, env: append(os.Environ(), "HPCC_STORE="+filepath.Join(dir, "store"), "PATH="+filepath.Dir(hpcc)+string(os.PathListSeparator)+os.Getenv("PATH"))}
	s.show("The output of conda list -e, and an image of it.", "cat requirements.txt")
	s.show("", "hpcc build --conda requirements.txt --channel ./channel --from scratch -t env")
	s.show("A Dockerfile on top of it.", "cat Dockerfile")
	s.show("", "hpcc build -f Dockerfile -t base .")
	s.show("Once more: every step is cached, the digest is the same.", "hpcc build -f Dockerfile -t base .")
	s.show("Run it with an env file, in a directory.", "hpcc run --set-env config.env --cd dir base -- simulate --id 3")
	s.show("The same as an array of eight tasks, on this machine.", "hpcc submit --to local --wait --array 1-8 --set-env config.env base -- simulate --id={task}")
	s.show("", "cat simulate-*.out")
	s.show("", "hpcc status")
	s.show("A task that fails, its output, and another attempt after the cause is gone.",
		"hpcc submit --to local --wait --array 1-3 --name need base -- simulate --id={task} --need=input.{task} || true")
	s.show("", "touch input.1 input.2 input.3; hpcc logs --failed --tail 1 need; hpcc rerun --wait need; hpcc status need")
	s.show("The job as a script for Slurm.", "hpcc script --to slurm --array 1-8 --time 2h --mem 4G --set-env config.env base -- simulate --id={task}")
	s.show("A script for LSF, and what becomes of each of its lines on Slurm and in Kubernetes.", "cat job.lsf")
	s.show("", "hpcc script --from job.lsf --to slurm base >job.slurm; head -n 9 job.slurm")
	s.show("", "hpcc script --from job.lsf --to kubernetes base >job.yaml; head -n 12 job.yaml")
	s.show("Two measured runs, and why one takes longer.", "hpcc submit --to local --wait --measure --array 1-8%1 --name small base -- simulate --id={task} --points=20000000 >/dev/null")
	s.show("", "hpcc submit --to local --wait --measure --array 1-8%1 --name large base -- simulate --id={task} --points=60000000 >/dev/null")
	s.show("", "hpcc report small=small large=large")
	s.show("", "hpcc images")
	if s.err == nil {
		fmt.Printf("\n# Done in %.0f s.\n", time.Since(begun).Seconds())
	}
	exec.Command("chmod", "-R", "u+rwX", dir).Run() // trees have directories with the modes of the image
	return s.err
}

// A session runs commands and shows them with their output. After a failure it runs no more.
type session struct {
	dir string
	env []string
	err error
}

func (s *session) show(why, command string) {
	if s.err != nil {
		return
	}
	if why != "" {
		fmt.Printf("\n# %s\n", why)
	}
	fmt.Printf("$ %s\n", command)
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.dir, s.env, os.Stdout, os.Stdout
	if err := cmd.Run(); err != nil {
		s.err = fmt.Errorf("%s: %w", command, err)
	}
}
