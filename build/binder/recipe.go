package binder

import (
	"fmt"
	"path"
	"strings"
)

// home is the directory of the repository in the image: the home directory of the user jovyan,
// as in repo2docker. HOME is not set, because hpcc run uses the caller's home.
const home = "/home/jovyan"

// A Recipe is a generated Dockerfile.
type Recipe struct {
	Text []byte

	origins map[int]Origin // by line
}

// An Origin is the part of a configuration file from which an instruction was generated.
type Origin struct {
	File      string // "" for the directory in general
	Line, End int    // first and last line; 0 if the instruction runs all of the file
	Source    []byte // content of the file, if Line is not 0
}

// Origin returns the origin of the instruction on a line.
func (r *Recipe) Origin(line int) Origin { return r.origins[line] }

// add appends an instruction, which is one line.
func (r *Recipe) add(from Origin, format string, a ...any) {
	r.Text = fmt.Appendf(r.Text, format+"\n", a...)
	if from.File != "" {
		r.origins[strings.Count(string(r.Text), "\n")] = from
	}
}

// System returns the recipe of the image below the environment, which has the packages of
// apt.txt, or nil without apt.txt.
func (r *Repository) System(base string) *Recipe {
	if len(r.apt) == 0 {
		return nil
	}
	x := &Recipe{origins: map[int]Origin{}}
	at := Origin{File: r.path(r.config + "apt.txt"), Line: r.aptLines[0], End: r.aptLines[1], Source: r.aptText}
	x.add(Origin{}, "FROM %s", base)
	x.add(Origin{}, "USER root")
	x.add(at, "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends %s && rm -rf /var/lib/apt/lists/*", strings.Join(r.apt, " "))
	return x
}

// Recipe returns the recipe of the image. Its base is the stage "conda".
//
// The files belong to the user jovyan with uid 1000, who is the image's user. The variables are
// those that scripts for repo2docker use.
func (r *Repository) Recipe() *Recipe {
	x := &Recipe{origins: map[int]Origin{}}
	none := Origin{}
	x.add(none, "FROM conda")
	x.add(none, "USER root")
	x.add(none, "ARG NB_USER=jovyan NB_UID=1000 PIP_INDEX_URL PIP_EXTRA_INDEX_URL")
	x.add(none, `RUN touch /etc/passwd /etc/group`+
		` && sed -i -e "/^$NB_USER:/d" -e "/^[^:]*:[^:]*:$NB_UID:/d" /etc/passwd /etc/group`+
		` && echo "$NB_USER:x:$NB_UID:$NB_UID::%s:/bin/sh" >>/etc/passwd && echo "$NB_USER:x:$NB_UID:" >>/etc/group`+
		` && mkdir -p %s && chown $NB_UID:$NB_UID %s`, home, home, home)
	x.add(none, "ENV REPO_DIR=%s CONDA_DIR=$CONDA_PREFIX NB_PYTHON_PREFIX=$CONDA_PREFIX KERNEL_PYTHON_PREFIX=$CONDA_PREFIX PYTHONUNBUFFERED=1 PATH=%s/.local/bin:$PATH", home, home)
	x.add(none, "COPY --chown=$NB_UID:$NB_UID . %s/", home)
	x.add(none, "WORKDIR %s", home)
	x.add(none, "USER $NB_UID")
	if r.project != "" {
		x.add(Origin{File: r.path(r.project)}, "RUN python -m pip install --no-cache-dir .")
	}
	if r.postBuild != "" {
		x.add(Origin{File: r.path(r.postBuild)}, "RUN chmod +x %s && ./%s", r.postBuild, r.postBuild)
	}
	if r.start != "" {
		x.add(Origin{File: r.path(r.start)}, "RUN chmod +x %s", r.start)
		x.add(none, "ENTRYPOINT [%q]", path.Join(home, r.start))
	}
	return x
}
