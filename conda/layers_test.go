package conda

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// layerDigests are the digests of layers as one string.
func layerDigests(t testing.TB, layers []v1.Layer) (out string) {
	t.Helper()
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		out += d.Hex + "\n"
	}
	return out
}
