package main

import (
	"fmt"
	"strings"
)

// heads is the number of rows of one call of the kernel, each of which is multiplied with its own
// panel. With only one row, each addition would wait for the previous one; attention of one query
// without shared KV heads has only one row for each panel.
const heads = 4

var headsArguments = append(
	append(append(pointers("c"), ints("cStride")...), append(pointers("a"), ints("rowStride")...)...),
	append(pointers("b"), ints("panelStride", "k", "cols", "load")...)...)

func (s shape) headsName() string { return "heads" + s.suffix }

// headsKernel generates a kernel like tile in which each row of A is multiplied with its own panel.
// It uses registers like tile, but R9 and R10 have one and three panel strides.
func (s shape) headsKernel(a *assembly) {
	at := a.function(s.headsName(), headsArguments, false)
	for _, arg := range [][2]string{
		{"c", "DI"}, {"cStride", "SI"}, {"a", "R8"}, {"rowStride", "R11"}, {"b", "BX"}, {"panelStride", "R9"}, {"k", "CX"},
	} {
		a.op("MOVQ %s, %s", at[arg[0]], arg[1])
	}
	a.op("LEAQ (R9)(R9*2), R10")
	a.op("LEAQ (R11)(R11*2), R12")
	s.mask(a, at)
	a.op("MOVQ %s, AX", at["load"])
	a.op("TESTQ AX, AX")
	a.op("JZ zero")
	s.eachRow(a, heads, func(r, v int) { s.load(a, v, s.sum(r, v)) })
	a.op("JMP loop")
	a.label("zero")
	for i := range 2 * heads {
		s.zero(a, s.sum(i/2, i%2))
	}
	a.label("loop")
	for r := range heads {
		x, b := fmt.Sprintf("%s%d", s.name, s.scratch+2+r%2), fmt.Sprintf("%s%d", s.name, s.scratch+r%2)
		a.op("VBROADCASTSS %s, %s", address(r), x)
		for v := range 2 {
			a.op("VMOVUPS %d(BX)%s, %s", 4*s.width*v, []string{"", "(R9*1)", "(R9*2)", "(R10*1)"}[r], b)
			a.op("VFMADD231PS %s, %s, %s", b, x, s.sum(r, v))
		}
	}
	a.op("ADDQ $%d, BX", panelBytes)
	a.op("ADDQ $4, R8")
	a.op("DECQ CX")
	a.op("JNZ loop")
	if s.name == "Y" {
		s.mask(a, at) // the loop has overwritten the registers of the mask
	}
	s.eachRow(a, heads, func(r, v int) { s.store(a, v, s.sum(r, v)) })
	a.op("VZEROUPPER")
	a.op("RET")
}

func headsAssembly() []byte {
	a := newAssembly()
	for _, s := range shapes {
		s.headsKernel(a)
	}
	a.lanes()
	return a.finish()
}

func headsGo() []byte {
	var text strings.Builder
	for _, s := range shapes {
		fmt.Fprintf(
			&text,
			"// %s adds k steps of %d rows of A, each with a separate panel, to C, or overwrites\n// C if load is 0. cols is "+
				"at most %d. Strides are in bytes.\n//\n//go:noescape\n%s\n\n",
			s.headsName(), heads, 2*s.width, declaration(s.headsName(), headsArguments, false))
	}
	return formatted(text.String())
}
