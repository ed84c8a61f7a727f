package build

import "testing"

// FuzzEntryPart reads files that are not hpcc.
func FuzzEntryPart(f *testing.F) {
	head := make([]byte, 200)
	copy(head, "\x7fELF\x02\x01\x01")
	head[16], head[18], head[20], head[32], head[52], head[54], head[56], head[64] = 2, 62, 1, 64, 64, 56, 1, 1
	f.Add(head, uint16(0))
	f.Add(append(head, head...), uint16(len(head)))
	f.Fuzz(func(t *testing.T, b []byte, off uint16) {
		if len(b) > 80 {
			b[72], b[73] = byte(off), byte(off>>8)
		}
		if part, err := entryPart(b, "amd64"); err == nil && len(part) > len(b) {
			t.Fatal("the part is larger than the file")
		}
	})
}
