package unpack

import (
	"fmt"
	"testing"
)

// TestCreatedBelow checks which directories contain files of the layer.
func TestCreatedBelow(t *testing.T) {
	const n = 5_000
	tr := &tree{created: map[string]bool{}}
	for i := range n {
		tr.mark(fmt.Sprintf("d/e%d/new", i))
		if !tr.createdBelow(fmt.Sprintf("d/e%d", i/2)) {
			t.Fatalf("after %d files, nothing is below the directory of number %d", i, i/2)
		}
		if tr.createdBelow(fmt.Sprintf("d/old%d", i)) {
			t.Fatalf("the layer created something below d/old%d", i)
		}
	}
	if !tr.createdBelow("d") || tr.createdBelow("d/e0/new") {
		t.Error("above a file is not what is above")
	}
}
