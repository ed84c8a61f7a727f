package conda

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"hpcc/conda/fetch"
	"hpcc/conda/layer"
	"hpcc/store"
)

// VerifyCache reads the cached packages and indexes, several in parallel, and compares them
// with the digests in their names or first lines. It returns an error for each damaged file,
// by its path relative to the store, and the numbers of files and bytes read. progress,
// which may be nil, receives the size of each file; calls do not overlap.
func VerifyCache(ctx context.Context, s *store.Store,
	progress func(n int64)) (damaged map[string]error, files int, bytes int64, err error) {
	dir := layer.Archives(s)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, 0, fmt.Errorf("verifying the packages: %w", err)
	}
	damaged = map[string]error{}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !e.Type().IsRegular() { // temporary files
			continue
		}
		g.Go(func() error {
			n, err := verifyCached(gctx, filepath.Join(dir, e.Name()))
			if gctx.Err() != nil || errors.Is(err, fs.ErrNotExist) {
				return gctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			files, bytes = files+1, bytes+n
			if progress != nil {
				progress(n)
			}
			if err != nil {
				damaged[filepath.Join("cache", "conda", e.Name())] = err
			}
			return nil
		})
	}
	return damaged, files, bytes, g.Wait()
}

// verifyCached compares a file of the cache with its digest and returns its size.
func verifyCached(ctx context.Context, file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	in := fetch.Reader(ctx, f)
	name := filepath.Base(file)
	if strings.HasPrefix(name, "index-") {
		k, head, err := checkCached(in)
		return head + k.Size, err
	}
	if strings.HasPrefix(name, "table-") {
		return verifyTable(ctx, f)
	}
	want, _, _ := strings.Cut(strings.TrimPrefix(name, "shard-"), "-")
	var sum hash.Hash
	switch len(want) {
	case 2 * sha256.Size:
		sum = sha256.New()
	case 2 * md5.Size:
		sum = md5.New()
	default:
		return 0, errors.New("no digest in the file name")
	}
	n, err := io.Copy(sum, in)
	if got := hex.EncodeToString(sum.Sum(nil)); err == nil && got != want {
		err = fmt.Errorf("digest mismatch: the content has %s", got)
	}
	return n, err
}

// verifyTable compares the directory and the blocks of a table with their digests. A table in
// another format is not damaged.
func verifyTable(ctx context.Context, f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	t, err := readDirectory(f, fi.Size())
	if err == nil {
		err = t.read(f, slices.Repeat([]bool{true}, len(t.Blocks)), func([]byte) error { return ctx.Err() })
	}
	if errors.Is(err, errFormat) {
		err = nil
	}
	return fi.Size(), err
}
