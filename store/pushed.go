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

	"hpcc/store/seal"
)

// A pushedTo is the record of the last push of a name: which image it was and
// where it lies now. It says nothing of another image that gets the name later.
type pushedTo struct {
	Digest    v1.Hash `json:"digest"`    // of the manifest or index
	Reference string  `json:"reference"` // by that digest
}

// A NotPushedError says that no registry is known to have an image. Last is
// where another image of the same name went; "" when none did.
type NotPushedError struct{ Name, Last string }

func (e *NotPushedError) Error() string {
	if e.Last != "" {
		return fmt.Sprintf("%q has changed since it was pushed to %s", e.Name, e.Last)
	}
	return fmt.Sprintf("%q was not pushed to a registry from this store", e.Name)
}

// Pushed is the reference by digest under which an image, all its platforms, was
// pushed: "registry.example/team/base@sha256:…". It is what was pushed last
// under this name, else what any other name of the very image was pushed as.
// [NotFoundError]; [NotPushedError] also when the name stands for another image now.
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
		// A broken record of another name is that name's trouble.
		if other, err := s.readPushed(s.path("pushed", e.Name())); err == nil && other.Digest == d.Digest {
			return other.Reference, nil
		}
	}
	return "", &NotPushedError{n, own.Reference}
}

// Digest is that of the manifest or index that a name stands for. [NotFoundError].
func (s *Store) Digest(n string) (v1.Hash, error) {
	d, err := s.ref(n)
	return d.Digest, err
}

// ByDigest is a name with a digest in the place of its tag; the digest alone
// where the name was one.
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

// pushedFile is where the record of a name is, which may be a digest too.
func (s *Store) pushedFile(n string) string {
	if key, err := Canonical(n); err == nil {
		n = key
	}
	return s.path("pushed", escape(n))
}

// readPushed reads a record; an empty one when there is none.
func (s *Store) readPushed(file string) (p pushedTo, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = seal.CheckJSON(b)
	}
	if err == nil || errors.Is(err, seal.ErrNoSum) {
		err = json.Unmarshal(b, &p)
	}
	if err == nil {
		err = checkHash(p.Digest)
	}
	if err == nil && !strings.HasSuffix(p.Reference, "@"+p.Digest.String()) {
		err = fmt.Errorf("%q is no reference to %s", p.Reference, p.Digest)
	}
	if err != nil {
		return pushedTo{}, fmt.Errorf("reading what was pushed, %s: %w; remove the file, and push again", file, err)
	}
	return p, nil
}

// notePushed keeps the record of a push.
func (s *Store) notePushed(n string, p pushedTo) error {
	b, err := seal.JSON(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path("pushed"), 0o755); err != nil {
		return s.placeError(err)
	}
	return s.writeFile(filepath.Join("pushed", filepath.Base(s.pushedFile(n))), b)
}

// byDigestIn names what lies in a registry for good, as clusters understand it.
func byDigestIn(r name.Repository, d v1.Hash) string {
	host := r.RegistryStr()
	if host == name.DefaultRegistry {
		host = "docker.io"
	}
	return host + "/" + r.RepositoryStr() + "@" + d.String()
}
