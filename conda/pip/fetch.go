package pip

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/files"
	"hpcc/store"
)

// A fetcher downloads wheels into the store's package cache.
type fetcher struct {
	store *store.Store
	dir   string
	web   *fetch.Web
	metas map[string]*distMeta // by the address of the file

	builder *builder // builds wheels from sources; nil if sources are refused
}

func newFetcher(s *store.Store, web *fetch.Web) (*fetcher, error) {
	f := &fetcher{store: s, dir: layer.Archives(s), web: web, metas: map[string]*distMeta{}}
	return f, os.MkdirAll(f.dir, 0o755)
}

// sha256 returns the digest that the index or the row's only --hash demands, or "".
func (p *pick) sha256() string {
	for _, h := range p.file.hashes {
		if sum, ok := strings.CutPrefix(h, "sha256:"); ok {
			return sum
		}
	}
	if len(p.hashes) == 1 {
		if sum, ok := strings.CutPrefix(p.hashes[0], "sha256:"); ok {
			return sum
		}
	}
	return ""
}

// record describes the wheel as an archive to fetch.
func (p *pick) record() *fetch.File {
	return &fetch.File{FileName: p.file.name, URL: p.file.url, SHA256: p.sha256(), Size: p.file.size}
}

// archive fetches a wheel or sources into the cache and verifies the digests.
func (f *fetcher) archive(ctx context.Context, p *pick, add func(n int64)) (string, *fetch.File, error) {
	r := p.record()
	name, ok := r.Cached(f.dir)
	if !ok {
		tmp, err := f.store.TempDir()
		if err != nil {
			return "", nil, err
		}
		defer files.RemoveAll(tmp)
		src, err := f.web.Get(ctx, p.file.url, "", r.SHA256 != "")
		if err != nil {
			return "", nil, fmt.Errorf("fetching %s: %w", p.file.name, err)
		}
		defer src.Close()
		if name, err = r.Keep(ctx, src, f.dir, tmp, add); err != nil {
			return "", nil, fmt.Errorf("fetching %s: %w", fetch.Hide(r.URL), fetch.Plain(err))
		}
	} else {
		add(r.Size)
	}
	if err := checkHashes(name, p, "sha256:"+r.SHA256); err != nil {
		return "", nil, fmt.Errorf("fetching %s: %w", fetch.Hide(p.file.url), err)
	}
	return name, r, nil
}

// checkHashes compares a file, whose sha256 is known, with the digests of the index and
// of the list. All digests of the index must match, and one of the list's.
func checkHashes(name string, p *pick, known string) error {
	other := func(h string) bool { return h != known }
	if !slices.ContainsFunc(p.file.hashes, other) && (len(p.hashes) == 0 || slices.Contains(p.hashes, known)) {
		return nil
	}
	sums := map[string]hash.Hash{}
	for _, h := range slices.Concat(p.file.hashes, p.hashes) {
		alg, _, _ := strings.Cut(h, ":")
		sums[alg] = newHash(alg)
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var to []io.Writer
	for _, h := range sums {
		to = append(to, h)
	}
	if _, err := io.Copy(io.MultiWriter(to...), f); err != nil {
		return err
	}
	is := func(h string) bool {
		alg, sum, _ := strings.Cut(h, ":")
		return hex.EncodeToString(sums[alg].Sum(nil)) == sum
	}
	for _, h := range p.file.hashes {
		if !is(h) {
			return fmt.Errorf("digest mismatch: the index lists %s", h)
		}
	}
	if len(p.hashes) > 0 && !slices.ContainsFunc(p.hashes, is) {
		return fmt.Errorf("digest mismatch: the list has %s", input.List(p.hashes))
	}
	return nil
}

func newHash(alg string) hash.Hash {
	switch alg {
	case "md5":
		return md5.New()
	case "sha1":
		return sha1.New()
	case "sha224":
		return sha256.New224()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return sha256.New()
}

// metadata reads the metadata of a wheel: from the index's .metadata file (PEP 658) or
// else from the wheel. Sources without static metadata are built first.
func (f *fetcher) metadata(ctx context.Context, p *pick) (*distMeta, error) {
	if m := f.metas[p.address()]; m != nil {
		return m, nil
	}
	var b []byte
	var m *distMeta
	var err error
	switch {
	case p.file.wheel == nil:
		if m, err = f.builder.metadata(ctx, p); err != nil {
			return nil, err
		}
	case p.file.metadata != "":
		b, err = f.published(ctx, p.file)
	default:
		b, err = f.embedded(ctx, p)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what %s needs: %w", p.file.name, err)
	}
	if m == nil {
		m, err = parseDistMeta(b)
	}
	if err == nil && !m.of(p) {
		err = fmt.Errorf("reading METADATA: it describes %s %s", m.name, m.version)
	}
	if err != nil {
		return nil, &badMetadata{p.file.name, err}
	}
	f.metas[p.address()] = m
	return m, nil
}

// A badMetadata is the error for a wheel that matches its index but whose metadata cannot
// be read.
type badMetadata struct {
	file string
	err  error
}

func (e *badMetadata) Error() string { return e.file + " cannot be used: " + e.err.Error() }
func (e *badMetadata) Unwrap() error { return e.err }

// published downloads the file's .metadata file from the index and verifies its digest.
func (f *fetcher) published(ctx context.Context, file *indexFile) ([]byte, error) {
	a, err := f.web.Get(ctx, file.url+".metadata", "", false)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := input.ReadAll(a, maxMetadata)
	if err != nil {
		return nil, err
	}
	if alg, sum, ok := strings.Cut(file.metadata, ":"); ok {
		h := newHash(alg)
		h.Write(b)
		if got := hex.EncodeToString(h.Sum(nil)); got != sum {
			return nil, fmt.Errorf("metadata has %s %s, the index lists %s", alg, got, sum)
		}
	}
	return b, nil
}

// embedded reads METADATA in the wheel itself.
func (f *fetcher) embedded(ctx context.Context, p *pick) ([]byte, error) {
	name, _, err := f.archive(ctx, p, func(int64) {})
	if err != nil {
		return nil, err
	}
	w, files, err := openArchive(name, p.file.wheel)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.readInfoFile(files, "METADATA", maxMetadata)
}
