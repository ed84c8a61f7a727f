package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"hpcc/build/attest"
	"hpcc/build/source"
	"hpcc/unpack"
)

// maxStdin limits the size of a context on standard input, in bytes.
const maxStdin = 64 << 30

// download downloads a file of ADD and compares its checksum ("": none). The file is named
// after the last part of the URL and has mode 600, as in Docker.
func (b *builder) download(ctx context.Context, word, checksum string, fetched func(done, total int64)) (source.Set, string, error) {
	u, err := url.Parse(word)
	if err != nil || u.Host == "" {
		return source.Set{}, "", fmt.Errorf("adding %q: not a URL", word)
	}
	name := path.Base(u.Path)
	dir, err := os.MkdirTemp(b.work, "add-")
	if err != nil {
		return source.Set{}, "", err
	}
	file := filepath.Join(dir, "file")
	sum, err := source.Fetch(ctx, word, file, checksum != "", fetched)
	if err != nil {
		return source.Set{}, "", fmt.Errorf("adding %q: %w", u.Redacted(), err)
	}
	if checksum != "" && sum != checksum {
		return source.Set{}, "", fmt.Errorf("adding %q: checksum mismatch: %s, --checksum is %s", u.Redacted(), sum, checksum)
	}
	if name == "/" || name == "." {
		name = ""
	}
	b.Inputs.add(attest.PublicURL(word), "sha256", strings.TrimPrefix(sum, "sha256:"))
	return source.Set{Name: name, Items: []source.Item{{Path: file, Mode: 0o600}}}, sum, nil
}

// clone clones a repository, REPOSITORY[#REF[:DIRECTORY]]. The commit identifies its content.
func (b *builder) clone(ctx context.Context, word string, keepGit bool) (dir, commit string, err error) {
	dir, commit, sub, err := source.Clone(ctx, b.work, word, keepGit)
	if err != nil {
		return "", "", err
	}
	b.Inputs.repository(word, commit, word == b.Context)
	return dir, commit + ":" + sub, nil
}

// repository returns a clone as a source of ADD.
func (b *builder) repository(ctx context.Context, word string, keepGit bool) (source.Set, string, error) {
	top, commit, err := b.clone(ctx, word, keepGit)
	if err != nil {
		return source.Set{}, "", err
	}
	set, err := (&source.Dir{Dir: top, Of: "the repository"}).Walk(".", nil)
	return set, commit, err
}

// fetchContext creates the context directory of a repository or of standard input: a tar
// archive or, as in docker build, only a Dockerfile.
func (b *builder) fetchContext(ctx context.Context) error {
	switch {
	case source.IsGit(b.Context):
		dir, _, err := b.clone(ctx, b.Context, false)
		b.Context = dir
		return err
	case b.Context != "-":
		return nil
	case b.Options.Dockerfile == "-":
		return errors.New("the Dockerfile and the context cannot both come from standard input")
	}
	dir := filepath.Join(b.work, "context")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(b.work, "stdin")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(b.Stdin, maxStdin))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && n == 0 {
		err = errors.New("no data; provide a tar archive or a Dockerfile")
	}
	if err != nil {
		return fmt.Errorf("reading the context from standard input: %w", err)
	}
	r, ok, err := source.Archive(file)
	if err != nil {
		return fmt.Errorf("reading the context from standard input: %w", err)
	}
	b.Context = dir
	if !ok {
		if n > maxDockerfile {
			return errors.New("standard input is not a tar archive or a Dockerfile")
		}
		return os.Rename(file, filepath.Join(dir, "Dockerfile"))
	}
	if b.Options.Dockerfile != "" && !filepath.IsAbs(b.Options.Dockerfile) {
		b.Options.Dockerfile = filepath.Join(dir, b.Options.Dockerfile)
	}
	defer r.Close()
	return unpack.Archive(ctx, r, dir)
}

// fetchNamed returns the directory of a named context, which it downloads if the value is a
// URL.
func (b *builder) fetchNamed(ctx context.Context, value string) (dir string, err error) {
	if source.IsGit(value) {
		dir, _, err = b.clone(ctx, value, false)
		return dir, err
	}
	return value, nil
}
