package report

import (
	"cmp"
	"fmt"
	"strings"

	"hpcc/metrics"
)

// maxImages bounds the distinct images that are held against each other.
const maxImages = 1024

// ran is an image that a run told, and the system of the first such run.
type ran struct {
	h      *metrics.Header
	system string
	class  int // of images that are the same, also by others between them
}

// images looks whether all runs are of one image: one may tell its digest alone, the next its
// configuration, and a third that both are the same. Two of other classes may not be known to differ.
func (r *Report) images(allowed bool) error {
	seen, at := imagesOf(r.Systems)
	sure := map[int]bool{0: true} // classes of which it is known whether they are the first
	for i, b := range seen {
		for _, a := range seen[:i] {
			same, known := sameImage(a.h, b.h)
			if same || !known || a.class == b.class {
				continue
			}
			if !allowed {
				return &DigestError{[2]string{a.system, b.system}, digests(a.h, b.h)}
			}
			r.Different = true
			if a.class == 0 || b.class == 0 {
				sure[a.class], sure[b.class] = true, true
			}
		}
	}
	for _, s := range r.Systems {
		none := 0
		for _, t := range s.Tasks {
			if i, ok := at[imageKey(&t.Header)]; !ok || !sure[seen[i].class] {
				none++
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

func imageKey(h *metrics.Header) [2]string { return [2]string{h.Digest, h.Config} }

// imagesOf are the distinct images that runs tell, with their classes, and where each is in the list.
func imagesOf(systems []*System) (seen []ran, at map[[2]string]int) {
	at = map[[2]string]int{}
	for _, s := range systems {
		for _, t := range s.Tasks {
			h := &t.Header
			if _, ok := at[imageKey(h)]; ok || h.Digest+h.Config == "" || len(seen) == maxImages {
				continue
			}
			at[imageKey(h)] = len(seen)
			seen = append(seen, ran{h, s.Name, len(seen)})
			for _, x := range seen {
				if same, _ := sameImage(x.h, h); same {
					join(seen, x.class, seen[len(seen)-1].class)
				}
			}
		}
	}
	return seen, at
}

// join makes one class of two.
func join(seen []ran, a, b int) {
	for i := range seen {
		if seen[i].class == max(a, b) {
			seen[i].class = min(a, b)
		}
	}
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
