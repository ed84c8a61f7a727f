package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
)

// A cacheEntry is the cached result of installing packages.
type cacheEntry struct {
	Layer store.LayerInfo `json:"layer"`
	Data  json.RawMessage `json:"learned,omitempty"` // the caller's
}

// Find returns the layer cached under a key and the data that Keep stored with it. ok is false
// if the layer is missing or damaged.
func Find(s *store.Store, key string) (l v1.Layer, data json.RawMessage, ok bool) {
	var entry cacheEntry
	b, err := s.Cached("installed", key)
	if err != nil || json.Unmarshal(b, &entry) != nil || !s.HasLayer(entry.Layer) {
		return nil, nil, false
	}
	l, err = s.Layer(entry.Layer)
	return l, entry.Data, err == nil
}

// Keep caches a layer under a key and returns the layer. data is stored with it as JSON, unless
// it is nil.
func Keep(s *store.Store, key string, info store.LayerInfo, data any) (v1.Layer, error) {
	entry := cacheEntry{Layer: info}
	var err error
	if data != nil {
		entry.Data, err = json.Marshal(data)
	}
	var b []byte
	if err == nil {
		b, err = json.Marshal(entry)
	}
	if err == nil {
		err = s.Cache("installed", key, b)
	}
	if err != nil {
		return nil, fmt.Errorf("caching the layer: %w", err)
	}
	return s.Layer(info)
}

// Key returns the cache key of a layer: a digest of inputs, everything that it depends on.
func Key(inputs any) (string, error) {
	b, err := json.Marshal(inputs)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}
