#include "textflag.h"

// hpcc_entry: see entry_amd64.s. 0(RSP) holds argc.
TEXT hpcc_entry(SB),NOSPLIT|NOFRAME,$0
	CALL	hpcc_thread(SB)
	MOVD	RSP, R0
	SUB	$32, RSP
	MOVD	R0, 8(RSP)
	CALL	·begin(SB)
	ADD	$32, RSP
	JMP	_rt0_arm64_linux(SB)

// hpcc_thread lets compiled Go code run: its goroutine is in a register.
TEXT hpcc_thread(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·goroutine(SB), g
	MOVD	RSP, R0
	MOVD	R0, ·kernelStack(SB)
	MOVD	·onRuntimeWrite(SB), R0
	MOVD	R0, runtime·overrideWrite(SB)
	RET
