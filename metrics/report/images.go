package report

import (
	"cmp"
	"fmt"
	"strings"

	"hpcc/metrics"
)

// images looks whether all runs are of one image: the one of the first run that
// tells.
func (r *Report) images(allowed bool) error {
	var first *metrics.Header
	var system string
	for _, s := range r.Systems {
		none := 0
		for _, t := range s.Tasks {
			h := &t.Header
			if first == nil && h.Digest+h.Config != "" {
				first, system = h, s.Name
			}
			switch same, known := sameImage(first, h); {
			case !known:
				none++
			case !same && !allowed:
				return &DigestError{[2]string{system, s.Name}, digests(first, h)}
			case !same:
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

// sameImage compares by what both tell. One image may have several manifests, as for two
// architectures or after it was packed again; its configuration says then that it is the same.
func sameImage(a, b *metrics.Header) (same, known bool) {
	both := func(x, y string) bool { return x != "" && y != "" }
	switch {
	case a == nil:
		return false, false
	case both(a.Digest, b.Digest) && a.Digest == b.Digest, both(a.Config, b.Config) && a.Config == b.Config:
		return true, true
	}
	return false, both(a.Digest, b.Digest) || both(a.Config, b.Config)
}

// digests are those by which two images differ.
func digests(a, b *metrics.Header) [2]string {
	if a.Digest != "" && b.Digest != "" {
		return [2]string{a.Digest, b.Digest}
	}
	return [2]string{a.Config, b.Config}
}

// image names the system's image shortly.
func (s *System) image() string {
	h := &s.Tasks[0].Header
	digest := strings.TrimPrefix(cmp.Or(h.Digest, h.Config), "sha256:")
	switch {
	case h.Image == "" && digest == "":
		return ""
	case digest == "":
		return plain(h.Image)
	}
	return strings.TrimPrefix(plain(h.Image)+"@"+plain(digest[:min(len(digest), 12)]), "@")
}
