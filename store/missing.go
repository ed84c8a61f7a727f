package store

import (
	"fmt"

	"hpcc/text"
)

// NotFoundError reports that the store does not contain a name.
type NotFoundError struct {
	Name  string
	store *Store // nil if Name is not the name of an image
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("no image %q in the store", e.Name) }

// Advice names an image of the store that was probably meant, or says how to get the image.
func (e *NotFoundError) Advice() string {
	if e.store != nil {
		names, _ := e.store.Names()
		if near := text.Nearest(e.Name, names); near != "" {
			return fmt.Sprintf("did you mean %q?", near)
		}
	}
	return fmt.Sprintf("%q lists the images; %q fetches one from a registry", "hpcc images", "hpcc pull "+e.Name)
}

// NoTreeError reports that an image exists but has not been unpacked.
type NoTreeError struct{ Name string }

func (e *NoTreeError) Error() string { return fmt.Sprintf("image %q has not been unpacked", e.Name) }
