//go:build amd64 || arm64 || ppc64le

#include "textflag.h"

// lean is where cmd/weld writes the entry point of the program that it adds to
// this one: 16 bytes to find it by, then the address, 0 until then.
DATA	·lean+0(SB)/8, $0x65772d6363706868	// "hhpcc-we"
DATA	·lean+8(SB)/8, $0x6e61656c2d646c65	// "eld-lean"
DATA	·lean+16(SB)/8, $0
GLOBL	·lean(SB), NOPTR, $24
