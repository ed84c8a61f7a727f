package conda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/tinylib/msgp/msgp"
	"golang.org/x/sync/errgroup"

	"hpcc/conda/fetch"
	"hpcc/conda/solve"
	"hpcc/store"
	"hpcc/store/disk"
)

// Sharded indexes (CEP 16): one file that says for each package which file has
// its records, by digest. Of a large channel only what is wanted is fetched,
// and it is good for ever.

// The bounds of a sharded index: conda-forge's largest shard has some 20 MB.
const (
	maxShard      = 64 << 20 // a shard on its way
	maxShardText  = 512 << 20
	shardsAtATime = 8
)

// shardsName is the file that names the shards.
const shardsName = "repodata_shards.msgpack.zst"

// A shardIndex is what that file says.
type shardIndex struct {
	Version int `json:"version"`
	Info    struct {
		BaseURL string `json:"base_url"`
		Shards  string `json:"shards_base_url"`
	} `json:"info"`
	Shards map[string][]byte `json:"shards"` // SHA-256 by name of the package
}

// errNoShards says that a channel has no sharded index, or none that we can read.
var errNoShards = fmt.Errorf("no shards: %w", fs.ErrNotExist)

// sharded reads the records of the wanted names from a sharded index. Without
// one it returns errNoShards, without one of its parts fs.ErrNotExist.
func (c channel) sharded(ctx context.Context, subdir string, wanted map[string]bool) ([]*solve.Record, error) {
	dir := c.url + "/" + subdir + "/"
	ix, err := c.shardIndex(ctx, dir)
	if err != nil {
		return nil, err
	}
	base, err := resolveURL(dir, ix.Info.BaseURL)
	if err != nil {
		return nil, err
	}
	from, err := resolveURL(dir, ix.Info.Shards)
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range wanted {
		if len(ix.Shards[name]) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	found := make([][]*solve.Record, len(names))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(disk.AtOnce(shardsAtATime, 4))
	for i, name := range names {
		g.Go(func() error {
			text, err := c.shard(gctx, from, ix.Shards[name])
			if err != nil {
				return fmt.Errorf("the records of %s: %w", name, err)
			}
			found[i], err = c.scan(bytes.NewReader(text), subdir, base, map[string]bool{name: true})
			return err
		})
	}
	err = g.Wait()
	return slices.Concat(found...), err
}

// shardIndex reads the file that names the shards below a URL.
func (c channel) shardIndex(ctx context.Context, dir string) (*shardIndex, error) {
	packed, err := readBounded(c.open(ctx, dir+shardsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoShards
	}
	if err != nil {
		return nil, err
	}
	ix := &shardIndex{}
	text, err := unpackShard(packed)
	if err == nil {
		err = json.Unmarshal(text, ix)
	}
	if err != nil {
		c.forget(dir + shardsName)
		return nil, fmt.Errorf("reading %s: %w", shardsName, err)
	}
	if ix.Version != 1 {
		return nil, errNoShards
	}
	return ix, nil
}

// shard gets a shard by its digest, as JSON.
func (c channel) shard(ctx context.Context, from string, digest []byte) ([]byte, error) {
	if len(digest) != sha256.Size {
		return nil, fmt.Errorf("its digest has %d bytes", len(digest))
	}
	name := hex.EncodeToString(digest)
	file := filepath.Join(c.cache, "shard-"+name)
	if c.cache != "" {
		if packed, err := readBounded(os.Open(file)); err == nil && hasDigest(packed, digest) {
			now := time.Now() // used: the store's GC goes by age
			_ = os.Chtimes(file, now, now)
			return unpackShard(packed)
		}
	}
	u := strings.TrimRight(from, "/") + "/" + name + ".msgpack.zst"
	packed, err := readBounded(fetch.Open(ctx, u, true))
	if err != nil {
		return nil, err
	}
	if !hasDigest(packed, digest) {
		return nil, fmt.Errorf("%s: what came is not what its name says (SHA-256)", fetch.Hide(u))
	}
	if c.cache != "" && !strings.HasPrefix(u, "file:") {
		if err := keepShard(file, packed); err != nil {
			return nil, err
		}
	}
	return unpackShard(packed)
}

func hasDigest(b, digest []byte) bool {
	sum := sha256.Sum256(b)
	return bytes.Equal(sum[:], digest)
}

// readBounded reads what was opened whole, and closes it.
func readBounded[R io.ReadCloser](r R, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxShard+1))
	if err == nil && len(b) > maxShard {
		err = fmt.Errorf("more than %d bytes came", maxShard)
	}
	return b, err
}

// unpackShard makes JSON of MessagePack; binary becomes base64, as
// encoding/json has it.
func unpackShard(packed []byte) ([]byte, error) {
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	raw, err := io.ReadAll(io.LimitReader(z, maxShardText+1))
	if err == nil && len(raw) > maxShardText {
		err = fmt.Errorf("unpacks to more than %d bytes", maxShardText)
	}
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	rest, err := msgp.UnmarshalAsJSON(&text, raw)
	if err == nil && len(rest) > 0 {
		err = errors.New("something follows its end")
	}
	return text.Bytes(), err
}

// keepShard puts a shard into the cache, for all who share the store.
func keepShard(file string, packed []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return store.NewFile(file, func(f *os.File) error {
		_, err := f.Write(packed)
		return errors.Join(err, f.Chmod(0o644))
	})
}
