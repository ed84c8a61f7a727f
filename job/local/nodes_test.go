package local

import (
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestLocalNodes(t *testing.T) {
	c, err := System{}.Nodes(t.Context(), "")
	testenv.Check(t, err)
	list, notes := c.Nodes, c.Notes
	if len(list) != 1 || len(notes) > 0 || list[0].CPUs < 1 || list[0].Memory < 1<<20 || list[0].FreeMemory > list[0].Memory {
		t.Errorf("this machine is %+v, %v, %v", list, notes, err)
	}
	all, free, kind := nvidiaGPUs("NVIDIA H200, 1, 143771\nNVIDIA H200, 70000, 143771\n")
	if all != 2 || free != 1 || kind != "NVIDIA H200" {
		t.Errorf("%d of %d GPUs of %q are free; want 1 of 2", free, all, kind)
	}
}
