// Command make writes a large store; see package bigstore.
//
//	go run ./testdata/helpers/bigstore/make -jobs 50000 DIR
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"hpcc/testdata/helpers/bigstore"
)

func main() {
	size := bigstore.Full
	flag.IntVar(&size.Images, "images", size.Images, "number of images")
	flag.IntVar(&size.Unused, "unused", size.Unused, "number of images without a name")
	flag.IntVar(&size.Files, "files", size.Files, "number of files in each tree")
	flag.Int64Var(&size.Layer, "layer", size.Layer, "bytes of each layer")
	flag.IntVar(&size.Jobs, "jobs", size.Jobs, "number of jobs")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: make [FLAG...] DIR")
		os.Exit(2)
	}
	if err := bigstore.Make(flag.Arg(0), size, time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "make:", err)
		os.Exit(1)
	}
}
