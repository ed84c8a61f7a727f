#include "textflag.h"

// hpcc_start: see start_amd64.s.
TEXT hpcc_start(SB),NOSPLIT|NOFRAME,$0
	CALL	hpcc_thread(SB)
	MOVD	R1, R3
	ADD	$-64, R1
	MOVD	R3, 32(R1)
	CALL	·begin(SB)
	MOVD	40(R1), R3
	ADD	$64, R1
	CMP	R3, $0
	BNE	left
	BR	hpcc_entry(SB)
left:
	MOVD	R3, hpcc∕runtime·entered(SB)
	BR	_rt0_ppc64le_linux(SB)
