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
	"hpcc/files"
	"hpcc/store"
)

// Sharded indexes (CEP 16): one file maps each package name to the digest of a shard, the file
// with the records of that name. Only the wanted shards are downloaded, and they can be
// cached forever.

// Limits of a sharded index. conda-forge's largest shard has about 20 MB.
const (
	maxShard      = 64 << 20  // bytes of a compressed shard
	maxShardText  = 512 << 20 // bytes of a decompressed shard
	shardsAtATime = 8
)

// shardsName is the file that lists the shards.
const shardsName = "repodata_shards.msgpack.zst"

// A shardIndex is the content of the file shardsName.
type shardIndex struct {
	Version int `json:"version"`
	Info    struct {
		BaseURL   string `json:"base_url"`        // of the packages
		ShardsURL string `json:"shards_base_url"` // of the shards
	} `json:"info"`
	Shards map[string][]byte `json:"shards"` // SHA-256 by package name
}

// errNoShards means that a channel has no sharded index in a supported version.
var errNoShards = fmt.Errorf("no shards: %w", fs.ErrNotExist)

// sharded reads the records of the wanted names from a sharded index. The error
// is errNoShards if the channel has only a full index, and fs.ErrNotExist if a shard is missing.
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
	shardsURL, err := resolveURL(dir, ix.Info.ShardsURL)
	if err != nil {
		return nil, err
	}
	if c.names != nil {
		for name := range ix.Shards {
			c.names.Store(name, true)
		}
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
	g.SetLimit(files.MaxParallel(shardsAtATime, 4))
	for i, name := range names {
		g.Go(func() error {
			text, err := c.shard(gctx, shardsURL, ix.Shards[name])
			if err != nil {
				return fmt.Errorf("reading the records of %s: %w", name, err)
			}
			found[i], err = c.scan(bytes.NewReader(text), subdir, base, map[string]bool{name: true})
			return err
		})
	}
	err = g.Wait()
	return slices.Concat(found...), err
}

// shardIndex reads the list of shards below a URL.
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

// shard returns the shard with the given digest below a URL, as JSON.
func (c channel) shard(ctx context.Context, shardsURL string, digest []byte) ([]byte, error) {
	if len(digest) != sha256.Size {
		return nil, fmt.Errorf("the index has a digest of %d bytes; want %d", len(digest), sha256.Size)
	}
	name := hex.EncodeToString(digest)
	file := filepath.Join(c.cache, "shard-"+name)
	if c.cache != "" {
		if packed, err := readBounded(os.Open(file)); err == nil && hasDigest(packed, digest) {
			now := time.Now() // mark as used: the store's garbage collection goes by age
			_ = os.Chtimes(file, now, now)
			return unpackShard(packed)
		}
	}
	u := strings.TrimRight(shardsURL, "/") + "/" + name + ".msgpack.zst"
	packed, err := readBounded(fetch.Open(ctx, u, true))
	if err != nil {
		return nil, err
	}
	if !hasDigest(packed, digest) {
		return nil, fmt.Errorf("%s: SHA-256 mismatch with the file name", fetch.Hide(u))
	}
	if c.cache != "" && !strings.HasPrefix(u, "file:") {
		if err := storeShard(file, packed); err != nil {
			return nil, err
		}
	}
	return unpackShard(packed)
}

func hasDigest(b, digest []byte) bool {
	sum := sha256.Sum256(b)
	return bytes.Equal(sum[:], digest)
}

// readBounded reads all of r, up to a limit, and closes it.
func readBounded[R io.ReadCloser](r R, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxShard+1))
	if err == nil && len(b) > maxShard {
		err = fmt.Errorf("response larger than %d bytes", maxShard)
	}
	return b, err
}

// unpackShard decompresses a shard and converts its MessagePack to JSON. Binary data becomes
// base64, as in encoding/json.
func unpackShard(packed []byte) ([]byte, error) {
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	raw, err := io.ReadAll(io.LimitReader(z, maxShardText+1))
	if err == nil && len(raw) > maxShardText {
		err = fmt.Errorf("shard unpacks to more than %d bytes", maxShardText)
	}
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	rest, err := msgp.UnmarshalAsJSON(&text, raw)
	if err == nil && len(rest) > 0 {
		err = errors.New("unexpected data at the end")
	}
	return text.Bytes(), err
}

// storeShard stores a shard in the cache, for all users of the store.
func storeShard(file string, packed []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return store.NewFile(file, func(f *os.File) error {
		_, err := f.Write(packed)
		return errors.Join(err, f.Chmod(0o644))
	})
}
