package report

import (
	"cmp"
	"fmt"
	"strings"

	"hpcc/metrics"
	"hpcc/text"
)

// maxImages is the maximum number of distinct images that are compared.
const maxImages = 1024

// A usedImage is an image, and the system of the first run that used it.
type usedImage struct {
	h      *metrics.Header
	system string
	class  int // equal for images that are known to be equal, directly or through other images
}

// images checks that all runs used the same image. If not, it returns a DigestError, or adds a
// note if different images are allowed. A record may have only a digest, only a configuration, or
// both, which connects the two. Images of different classes may still be equal.
func (r *Report) images(allowed bool) error {
	seen, at := imagesOf(r.Systems)
	certain := map[int]bool{0: true} // classes known to be equal to the first or different from it
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
				certain[a.class], certain[b.class] = true, true
			}
		}
	}
	for _, s := range r.Systems {
		unidentified := 0
		for _, t := range s.Tasks {
			if i, ok := at[imageKey(&t.Header)]; !ok || !certain[seen[i].class] {
				unidentified++
			}
		}
		if unidentified > 0 && len(r.Systems) > 1 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: the image digest is unknown for %d of %s, which may have used another image", s.Name, unidentified, text.Count(len(s.Tasks), "run", "runs")))
		}
	}
	if r.Different {
		r.Notes = append([]string{"the systems ran DIFFERENT IMAGES, so the programs may differ"}, r.Notes...)
	}
	return nil
}

func imageKey(h *metrics.Header) [2]string { return [2]string{h.Digest, h.Config} }

// imagesOf returns the distinct images of the runs with their classes, and maps the imageKey of
// each to its index.
func imagesOf(systems []*System) (seen []usedImage, at map[[2]string]int) {
	at = map[[2]string]int{}
	for _, s := range systems {
		for _, t := range s.Tasks {
			h := &t.Header
			if _, ok := at[imageKey(h)]; ok || h.Digest+h.Config == "" || len(seen) == maxImages {
				continue
			}
			at[imageKey(h)] = len(seen)
			seen = append(seen, usedImage{h, s.Name, len(seen)})
			for _, x := range seen {
				if same, _ := sameImage(x.h, h); same {
					join(seen, x.class, seen[len(seen)-1].class)
				}
			}
		}
	}
	return seen, at
}

// join merges two classes.
func join(seen []usedImage, a, b int) {
	for i := range seen {
		if seen[i].class == max(a, b) {
			seen[i].class = min(a, b)
		}
	}
}

// sameImage compares images by the digests that both have. One image may have several
// manifests, for example for two architectures or after recompression; its configuration
// then identifies it.
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

// digests returns the digests that distinguish two images.
func digests(a, b *metrics.Header) [2]string {
	if a.Digest != "" && b.Digest != "" {
		return [2]string{a.Digest, b.Digest}
	}
	return [2]string{a.Config, b.Config}
}

// image returns a short name of the system's image.
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
