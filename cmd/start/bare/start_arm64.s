#include "textflag.h"

// hpcc_start: see start_amd64.s.
TEXT hpcc_start(SB),NOSPLIT|NOFRAME,$0
	CALL	hpcc_thread(SB)
	MOVD	RSP, R0
	SUB	$32, RSP
	MOVD	R0, 8(RSP)
	CALL	·begin(SB)
	MOVD	16(RSP), R0
	ADD	$32, RSP
	CBNZ	R0, left
	JMP	hpcc_entry(SB)
left:
	MOVD	R0, hpcc∕runtime·entered(SB)
	JMP	_rt0_arm64_linux(SB)
