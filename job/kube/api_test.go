package kube

import (
	"testing"
	"time"
)

func TestPullTime(t *testing.T) {
	for message, want := range map[string]time.Duration{
		`Successfully pulled image "r.example/x:1" in 1.25s (3.5s including waiting). Image size: 7 bytes.`: 3500 * time.Millisecond,
		`Successfully pulled image "x" in 2m3s`:                              123 * time.Second,
		`Successfully pulled image "x" in 812.5ms (812ms including waiting)`: 812 * time.Millisecond,
		`Container image "x" already present on machine`:                     0,
		`Successfully pulled image "x" in ages`:                              0,
		`Successfully pulled image "x" in -3s`:                               0,
		`Successfully pulled image "x" in 9999999h`:                          0,
		"": 0,
	} {
		if got := pullTime(message); got != want {
			t.Errorf("pullTime(%q) = %v; want %v", message, got, want)
		}
	}
}
