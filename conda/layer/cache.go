package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
)

// A made is the cached result of installing packages.
type made struct {
	Layer   store.LayerInfo `json:"layer"`
	Learned json.RawMessage `json:"learned,omitempty"`
}

// Find returns the undamaged layer cached under a key, and what was learned with it.
func Find(s *store.Store, key string) (l v1.Layer, learned json.RawMessage, ok bool) {
	var made made
	b, err := s.Cached("installed", key)
	if err != nil || json.Unmarshal(b, &made) != nil || !s.HasLayer(made.Layer) {
		return nil, nil, false
	}
	l, err = s.Layer(made.Layer)
	return l, made.Learned, err == nil
}

// Keep caches a layer under a key, with what was learned while it was written (may be
// nil), and returns the layer.
func Keep(s *store.Store, key string, info store.LayerInfo, learned any) (v1.Layer, error) {
	made := made{Layer: info}
	var err error
	if learned != nil {
		made.Learned, err = json.Marshal(learned)
	}
	var b []byte
	if err == nil {
		b, err = json.Marshal(made)
	}
	if err == nil {
		err = s.Cache("installed", key, b)
	}
	if err != nil {
		return nil, fmt.Errorf("caching the layer: %w", err)
	}
	return s.Layer(info)
}

// Key returns a digest of everything that a layer depends on.
func Key(all any) (string, error) {
	b, err := json.Marshal(all)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}
