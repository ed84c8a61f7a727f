package prepare

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/build/code"
	"hpcc/job"
	"hpcc/store"
	"hpcc/text"
)

// codeDir is the directory of --with-code in images without a working directory.
const codeDir = "/code"

// A codeImage is the image with the files of CodeDir as its last layer, which a submission pushes.
type codeImage struct {
	dir   string
	image v1.Image
	ref   string // of image, by digest
	tag   string // of image
}

// fillCode adds the files of --with-code to the job, or an image that has them to the destination. cfg is the configuration of
// the image, or nil if this machine does not have it.
func (r *Request) fillCode(ctx context.Context, j *job.Job, to *Destination, cfg *v1.ConfigFile) error {
	if r.CodeDir == "" {
		return nil
	}
	if to.Remote != nil || r.BuiltImage {
		return text.Usagef("--with-code: only for jobs that this machine submits, with an image of a registry")
	}
	secret, warnings := store.SecretFiles("")
	for _, w := range warnings {
		r.Logf("warning: %s", w)
	}
	d, err := code.Read(r.CodeDir, secret...)
	if err != nil {
		return text.Usagef("--with-code %w", err)
	}
	defer d.Close()
	at, own := j.Pod.Dir, false // own: hpcc chose the directory
	if at == "" && cfg != nil && cfg.Config.WorkingDir != "/" {
		at = path.Clean("/" + cfg.Config.WorkingDir)
	}
	if at == "" || at == "/" {
		at, own = codeDir, true
	}
	for _, m := range append([]job.Volume{{Path: "/tmp"}}, j.Pod.Volumes...) {
		if at == m.Path || strings.HasPrefix(at, m.Path+"/") {
			return text.Usagef("--with-code: the directory %s is on a volume, which would hide the files", at).
				Hint("name another one with --cd DIR")
		}
	}
	j.Pod.Dir = at
	inMap, size := d.FitsMap() && to.Target != job.Argo && !j.Interactive, text.Size(d.Bytes)
	switch {
	case inMap:
	case cfg == nil:
		err := fmt.Errorf("--with-code %s: image %s is not in the store, and the files (%s) are too many or too large "+
			"for a config map", d.Dir, j.Image, size)
		return text.Hint(err, "fetch the image with \"hpcc pull %s\", and submit again", j.Image)
	case r.Verb != "submit":
		return text.Usagef("--with-code %s: these files (%s) need an image layer, which only \"hpcc submit\" pushes",
			d.Dir, size)
	case j.Pod.Pull == "Never":
		return text.Usagef("--with-code %s: these files (%s) need an image layer, and --pull never forbids pulling it",
			d.Dir, size)
	}
	s, err := store.Open(r.Store)
	if err != nil {
		return err
	}
	if inMap {
		j.Pod.CodeEmpty = own
		return keepCode(s, j, d)
	}
	to.code, err = addCode(ctx, s, j, d, own || r.Set["cd"])
	return err
}

// keepCode stores the files for a config map next to the records of jobs: reruns need them too.
func keepCode(s *store.Store, j *job.Job, d *code.Directory) error {
	var b bytes.Buffer
	err := d.Write(&b, "", false)
	if err != nil {
		return err
	}
	j.Pod.CodeFiles = d.Modes()
	j.Pod.CodeFile, err = job.KeepFile(s.Jobs(), "code.tar", b.Bytes())
	return err
}

// addCode adds the files to the job's image as its last layer, at the working directory of the pods.
func addCode(ctx context.Context, s *store.Store, j *job.Job, d *code.Directory, withDir bool) (*codeImage, error) {
	base, err := s.Get(j.Image, nil)
	if err != nil {
		return nil, err
	}
	img, err := d.Layer(ctx, s, base, j.Pod.Dir, withDir)
	if err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	repository, _, _ := strings.Cut(cmp.Or(j.Pod.Image, j.Image), "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	j.Pod.Image = store.ByDigest(repository, digest)
	if config, err := img.ConfigName(); err == nil && j.Measure {
		j.Pod.Measurer.Config, j.Pod.Measurer.Digest = config.String(), digest.String()
	}
	return &codeImage{d.Dir, img, j.Pod.Image, repository + ":code-" + digest.Hex[:12]}, nil
}
