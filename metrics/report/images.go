package report

import (
	"fmt"
	"strings"
)

// images looks whether all runs are of one image.
func (r *Report) images(allowed bool) error {
	var first struct{ system, digest string }
	for _, s := range r.Systems {
		none := 0
		for _, t := range s.Tasks {
			d := t.Header.Digest
			switch {
			case d == "":
				none++
			case first.digest == "":
				first.system, first.digest = s.Name, d
			case d != first.digest && !allowed:
				return &DigestError{[2]string{first.system, s.Name}, [2]string{first.digest, d}}
			case d != first.digest:
				r.Different = true
			}
		}
		if none > 0 && len(r.Systems) > 1 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: the image of %d of %s is not known by its digest, and may be another one", s.Name, none, counted(len(s.Tasks), "run", "runs")))
		}
	}
	if r.Different {
		r.Notes = append([]string{"the systems ran DIFFERENT IMAGES: what differs may be the program"}, r.Notes...)
	}
	return nil
}

// image names the system's image shortly.
func (s *System) image() string {
	h := &s.Tasks[0].Header
	digest := strings.TrimPrefix(h.Digest, "sha256:")
	switch {
	case h.Image == "" && digest == "":
		return ""
	case digest == "":
		return plain(h.Image)
	}
	return strings.TrimPrefix(plain(h.Image)+"@"+plain(digest[:min(len(digest), 12)]), "@")
}
