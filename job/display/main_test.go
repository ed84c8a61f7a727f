package display

import (
	"testing"

	"hpcc/testdata/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }
