package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/files"
)

// A pushedTo records the last push of a name: the image and its location. It does not apply
// to another image that gets the name later.
type pushedTo struct {
	Digest    v1.Hash `json:"digest"`    // of the manifest or index
	Reference string  `json:"reference"` // with that digest
}

// NotPushedError reports that the store knows no registry with an image. Last is the
// location of another image pushed under the same name, or "".
type NotPushedError struct{ Name, Last string }

func (e *NotPushedError) Error() string {
	if e.Last != "" {
		return fmt.Sprintf("%q has changed since it was pushed to %s", e.Name, e.Last)
	}
	return fmt.Sprintf("%q was not pushed to a registry from this store", e.Name)
}

// Advice says how to push the image.
func (e *NotPushedError) Advice() string {
	return fmt.Sprintf("%q or %q pushes it", "hpcc deploy -r NAME "+e.Name, "hpcc push "+e.Name+" REF")
}

// Pushed returns the reference by digest under which an image, with all platforms, was
// pushed: "registry.example/team/base@sha256:…". It uses the last push of this name, else
// any other name's push of the same image. It returns a [NotFoundError], or a
// [NotPushedError], also if the name now refers to another image.
func (s *Store) Pushed(n string) (ref string, err error) {
	d, err := s.ref(n)
	if err != nil {
		return "", err
	}
	own, err := s.readPushed(s.pushedFile(n))
	if err != nil {
		return "", err
	}
	if own.Digest == d.Digest {
		return own.Reference, nil
	}
	entries, err := os.ReadDir(s.path("pushed"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("listing what was pushed: %w", err)
	}
	for _, e := range entries {
		// A damaged record of another name does not matter here.
		if other, err := s.readPushed(s.path("pushed", e.Name())); err == nil && other.Digest == d.Digest {
			return other.Reference, nil
		}
	}
	return "", &NotPushedError{n, own.Reference}
}

// Digest returns the digest of a name's manifest or index. It may return a [NotFoundError].
func (s *Store) Digest(n string) (v1.Hash, error) {
	d, err := s.ref(n)
	return d.Digest, err
}

// ByDigest returns a name with a digest instead of its tag. If the name is a digest, it
// returns the digest alone.
func ByDigest(n string, d v1.Hash) string {
	if hexDigest().MatchString(n) {
		return d.String()
	}
	n, _, _ = strings.Cut(n, "@")
	if i := strings.LastIndexByte(n, ':'); i > strings.LastIndexByte(n, '/') {
		n = n[:i]
	}
	return n + "@" + d.String()
}

// pushedFile returns the path of a name's record. n may be a digest.
func (s *Store) pushedFile(n string) string {
	if key, err := Canonical(n); err == nil {
		n = key
	}
	return s.path("pushed", escape(n))
}

// readPushed reads a record. A missing one is empty.
func (s *Store) readPushed(file string) (p pushedTo, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = files.CheckJSON(b)
	}
	if err == nil || errors.Is(err, files.ErrNoSum) {
		err = json.Unmarshal(b, &p)
	}
	if err == nil {
		err = checkHash(p.Digest)
	}
	if err == nil && !strings.HasSuffix(p.Reference, "@"+p.Digest.String()) {
		err = fmt.Errorf("%q does not refer to %s", p.Reference, p.Digest)
	}
	if err != nil {
		return pushedTo{}, fmt.Errorf("reading what was pushed, %s: %w; remove the file, and push again", file, err)
	}
	return p, nil
}

// notePushed stores the record of a push.
func (s *Store) notePushed(n string, p pushedTo) error {
	b, err := files.SealJSON(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path("pushed"), 0o755); err != nil {
		return s.placeError(err)
	}
	return s.writeFile(filepath.Join("pushed", filepath.Base(s.pushedFile(n))), b)
}

// byDigestIn returns the permanent reference of an image in a registry, in the form that
// clusters accept.
func byDigestIn(r name.Repository, d v1.Hash) string {
	host := r.RegistryStr()
	if host == name.DefaultRegistry {
		host = "docker.io"
	}
	return host + "/" + r.RepositoryStr() + "@" + d.String()
}
