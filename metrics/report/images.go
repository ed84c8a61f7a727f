package report

import (
	"cmp"
	"fmt"
	"strings"

	"hpcc/metrics"
)

// maxImages bounds the distinct images that runs are compared with.
const maxImages = 64

// A ran is an image that a run told, and the run's system.
type ran struct {
	h      *metrics.Header
	system string
}

// images looks whether all runs are of one image: each is held against all that were
// seen before it, for one may tell its digest alone and the next its configuration.
func (r *Report) images(allowed bool) error {
	var seen []ran
	for _, s := range r.Systems {
		none := 0
		for _, t := range s.Tasks {
			h := &t.Header
			if h.Digest+h.Config == "" {
				none++
				continue
			}
			other, fresh, unknown := against(seen, h)
			switch {
			case other != nil && !allowed:
				return &DigestError{[2]string{other.system, s.Name}, digests(other.h, h)}
			case other != nil:
				r.Different = true
			case unknown:
				none++
			}
			if fresh && len(seen) < maxImages {
				seen = append(seen, ran{h, s.Name})
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

// against is the first of the images seen that a run's certainly is not, where it is none
// of them; whether the run tells something new; and whether it can be compared with none.
func against(seen []ran, h *metrics.Header) (other *ran, fresh, unknown bool) {
	one := false
	fresh, unknown = true, len(seen) > 0
	for i := range seen {
		same, known := sameImage(seen[i].h, h)
		if known && !same && other == nil {
			other = &seen[i]
		}
		one = one || same
		unknown = unknown && !known
		fresh = fresh && (seen[i].h.Digest != h.Digest || seen[i].h.Config != h.Config)
	}
	if one {
		other = nil
	}
	return other, fresh, unknown
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
