package store

import (
	"bytes"
	stdgzip "compress/gzip"
	"io"
	"os"
	"testing"

	"github.com/klauspost/compress/gzip"
)

func BenchmarkGunzip(b *testing.B) {
	packed, err := os.ReadFile(os.Getenv("HPCC_BENCH_GZIP"))
	if err != nil {
		b.Skip("HPCC_BENCH_GZIP names no file")
	}
	for name, open := range map[string]func(io.Reader) (io.Reader, error){
		"hpcc":      func(r io.Reader) (io.Reader, error) { return newGunzip(r) },
		"klauspost": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"std":       func(r io.Reader) (io.Reader, error) { return stdgzip.NewReader(r) },
	} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 1<<20)
			for b.Loop() {
				z, err := open(bytes.NewReader(packed))
				if err != nil {
					b.Fatal(err)
				}
				n := int64(0)
				for {
					k, err := z.Read(buf)
					n += int64(k)
					if err == io.EOF {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				b.SetBytes(n)
			}
		})
	}
}
