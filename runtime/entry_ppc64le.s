#include "textflag.h"

// hpcc_entry: see entry_amd64.s. 0(R1) holds argc.
TEXT hpcc_entry(SB),NOSPLIT|NOFRAME,$0
	CALL	hpcc_thread(SB)
	MOVD	R1, R3
	ADD	$-64, R1
	MOVD	R3, 32(R1)
	CALL	·begin(SB)
	ADD	$64, R1
	BR	_rt0_ppc64le_linux(SB)

// hpcc_thread lets compiled Go code run: its goroutine is in a register, and R0
// is zero.
TEXT hpcc_thread(SB),NOSPLIT|NOFRAME,$0
	XOR	R0, R0
	MOVD	$·goroutine(SB), g
	MOVD	R1, ·kernelStack(SB)
	MOVD	·onRuntimeWrite(SB), R3
	MOVD	R3, runtime·overrideWrite(SB)
	RET
