package job

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// An ImageVersion identifies what an image contained when the job was submitted or a task started.
// It is zero for a directory, and if hpcc does not know it.
type ImageVersion struct {
	ImageDigest string `json:"image_digest,omitempty"` // of the manifest or index, as sha256:HEX
	ImageFile   string `json:"image_file,omitempty"`   // size and modification time of a SquashFS or SIF file
}

// ReadFile sets the version of an image file. It rounds the time to seconds, because not all file
// systems keep more on all nodes.
func (v *ImageVersion) ReadFile(file string) error {
	fi, err := os.Stat(file)
	if err == nil {
		v.ImageFile = fmt.Sprintf("size=%d,modified=%s", fi.Size(), fi.ModTime().UTC().Format(time.RFC3339))
	}
	return err
}

// Changed returns an error if an image file is not this version any more. A file that cannot be read has
// not changed: the command that starts the image reports it.
func (v ImageVersion) Changed(file string) error {
	now := v
	if v.ImageFile == "" || now.ReadFile(file) != nil || now == v {
		return nil
	}
	return fmt.Errorf("image %s has changed since the job was submitted: it was %s, and is %s", file, v.ImageFile, now.ImageFile)
}

// CheckStart is [ImageVersion.Changed] for a task that starts, with what to do. Nothing keeps an image file
// from changing after the job was submitted.
func (v ImageVersion) CheckStart(file string) error {
	if err := v.Changed(file); err != nil {
		return fmt.Errorf("%w; submit the job again, or run the tasks in the new file with \"hpcc rerun --image %s\"", err, file)
	}
	return nil
}

// ReadName sets the version of an image with a digest in its name, and returns the name without it.
// Paths have no digest.
func (v *ImageVersion) ReadName(image string) (name string) {
	name, hex, ok := strings.Cut(image, "@sha256:")
	switch {
	case strings.HasPrefix(image, "sha256:"):
		v.ImageDigest = image
	case ok && !strings.ContainsAny(image[:1], "/."):
		v.ImageDigest = "sha256:" + hex
	default:
		return image
	}
	return name
}

// ExactImage returns the job's image for "hpcc run": with its digest, if that is known.
func (j *Job) ExactImage() string {
	if j.ImageDigest == "" || j.Image == j.ImageDigest {
		return j.Image
	}
	name, _, _ := strings.Cut(j.Image, "@")
	return name + "@" + j.ImageDigest
}
