package oci

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) {
	if child, err := runtime.Init(Child); child {
		fmt.Fprintln(os.Stderr, err)
		var e *process.Error
		if errors.As(err, &e) {
			os.Exit(e.Status)
		}
		os.Exit(process.ExitFailed)
	}
	testenv.Run(m)
}
