//go:build !start

package runtime

import (
	"os"

	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
)

func pidInit() error {
	s, err := readSpec()
	if err == nil && len(os.Args) > 1 {
		err = inherit.SetSignals(os.Args[1])
	}
	if err != nil {
		return setupError(err)
	}
	foreign, err := setUp(s)
	if err != nil {
		return setupError(err)
	}
	if os.Getpid() == 1 { // linked without the entry point of runtime/entry.go
		return launch(s, foreign, process.AsInit)
	}
	return launch(s, foreign, inherit.Exec)
}
