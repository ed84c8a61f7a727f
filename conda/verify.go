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
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/solve"
	"hpcc/conda/trust"
	"hpcc/store"
)

// VerifyCache reads the cached packages and indexes, several in parallel, and compares them
// with the digests in their names or first lines. It returns an error for each damaged file,
// by its path relative to the store, and the numbers of files and bytes read. progress,
// which may be nil, receives the size of each file; calls do not overlap.
func VerifyCache(ctx context.Context, s *store.Store, progress func(n int64)) (damaged map[string]error, files int, bytes int64, err error) {
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

// Names of the sidecar with a package's attestations, after the URL of the package: the name of
// CEP 50, which ends with the digest in the index if there is one, and the name of prefix.dev.
const (
	sidecarName  = ".sigs"
	sidecarName0 = ".v0.sigs"
)

// noteAttestations notes the packages whose index has attestations that no policy covers.
func (p *Plan) noteAttestations(o Options) {
	n := 0
	for _, r := range p.pkgs {
		if r.Attestations != "" && len(covering(o.Trust, r)) == 0 {
			n++
		}
	}
	if n > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %s attestations, which are not verified because no policy covers their channels", p.export.File, input.Share(n, len(p.pkgs), "has", "have")))
	}
}

// covering returns the policies that cover a package. Its channel decides, because an index may
// name another server for the files (CEP 15).
func covering(all []*trust.Policy, r *solve.Record) (out []*trust.Policy) {
	for _, p := range all {
		if p.Covers(fetch.Bare(r.Origin)) {
			out = append(out, p)
		}
	}
	return out
}

// attested verifies the attestations of a downloaded package by the policies that cover it.
func (in *installer) attested(ctx context.Context, r *solve.Record, o Options) error {
	policies := covering(o.Trust, r)
	if len(policies) == 0 {
		return nil
	}
	cached := filepath.Join(o.Cache, "attestations-"+r.SHA256)
	if o.Cache != "" {
		sidecar, err := readBounded(os.Open(cached))
		if err == nil && in.verify(policies, sidecar, r) == nil {
			return nil
		}
	}
	sidecar, err := fetchSidecar(ctx, r)
	if err == nil {
		err = in.verify(policies, sidecar, r)
	}
	if err != nil {
		return fmt.Errorf("%s: the policy %s requires an attestation of the publisher: %w; install another build, or correct the policy", r.FileName, policies[0].File, err)
	}
	if o.Cache == "" {
		return nil
	}
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return err
	}
	return store.NewFile(cached, func(f *os.File) error {
		_, err := f.Write(sidecar)
		return errors.Join(err, f.Chmod(0o644))
	})
}

// verify verifies the sidecar of a package by policies, and records the signers.
func (in *installer) verify(policies []*trust.Policy, sidecar []byte, r *solve.Record) error {
	signers := map[string]bool{}
	for _, p := range policies {
		signer, err := p.Verify(sidecar, fetch.Bare(r.Origin), r.FileName, r.SHA256)
		if err != nil {
			return err
		}
		signers[signer] = true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.signers == nil {
		in.signers = map[string]int{}
	}
	for s := range signers {
		in.signers[s]++
	}
	return nil
}

// noteSigners notes the signers of verified attestations.
func (in *installer) noteSigners() {
	for _, signer := range slices.Sorted(maps.Keys(in.signers)) {
		in.env.Notes = append(in.env.Notes, fmt.Sprintf("%s: valid attestations by %s: %d", in.plan.export.File, input.Text(signer), in.signers[signer]))
	}
}

// fetchSidecar downloads the attestations of a package. If the index has their digest, only the
// file with that digest is valid.
func fetchSidecar(ctx context.Context, r *solve.Record) ([]byte, error) {
	if r.Attestations != "" {
		b, err := sidecarAt(ctx, r, sidecarName+"."+r.Attestations)
		sum := sha256.Sum256(b)
		if digest := hex.EncodeToString(sum[:]); err == nil && digest != r.Attestations {
			return nil, fmt.Errorf("the attestations have the SHA-256 %s, but the index has %s", digest, r.Attestations)
		}
		return b, err
	}
	b, err := sidecarAt(ctx, r, sidecarName)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = sidecarAt(ctx, r, sidecarName0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the channel has no attestations of it (%s or %s)", sidecarName, sidecarName0)
	}
	return b, err
}

// sidecarAt reads a file next to a package, at the first mirror that has it.
func sidecarAt(ctx context.Context, r *solve.Record, name string) (b []byte, err error) {
	read := func(ctx context.Context, u string) error {
		u, query, _ := strings.Cut(u, "?")
		if u += name; query != "" {
			u += "?" + query
		}
		b, err = readBounded(fetch.Open(ctx, u, r.Attestations != ""))
		return err
	}
	if r.Mirrors == nil {
		err = read(ctx, r.URL)
		return b, err
	}
	err = r.Mirrors.Try(ctx, func(ctx context.Context, mirror string) error {
		return read(ctx, mirror+strings.TrimPrefix(r.URL, r.Mirrors.URLs[0]))
	})
	return b, err
}
