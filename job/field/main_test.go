package field

import (
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }
