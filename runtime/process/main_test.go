package process

import (
	"os"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// endingVariable is set for copies of this program that end in a way of endings.
const endingVariable = "HPCC_TEST_ENDING"

func TestMain(m *testing.M) {
	if os.Getenv(endingVariable) != "" {
		endings[os.Args[1]]()
		os.Exit(99)
	}
	testenv.Run(m)
}
