package main

import (
	"fmt"
	"strings"
)

// The functions of this file generate kernels that transpose in registers, eight rows and four
// columns at a time. They use 256-bit instructions at every level: processors execute 256-bit
// shuffles on two ports, but 512-bit shuffles on one.

var packArguments = append(append(pointers("dst", "src"), ints("stride")...), ints("k")...)

// copyRegisters are the widths of copied rows in registers: two for a tile of Aᵀ, four for a panel
// of B.
var copyRegisters = []int{2, 4}

var copyArguments = append(append(pointers("dst", "src"), ints("stride")...), ints("k", "cols")...)

func columnsAssembly() []byte {
	a := newAssembly()
	packColumns(a)
	for _, registers := range copyRegisters {
		copyColumns(a, registers)
	}
	a.lanes()
	return a.finish()
}

// rowAddress returns the memory operand of row r, from 0 to 7. base is the register with the
// address of row 0; AX, BX, CX and DX have one, three, five and seven row strides.
func rowAddress(base string, r int) string {
	return base + []string{"", "(AX*1)", "(AX*2)", "(BX*1)", "(AX*4)", "(CX*1)", "(BX*2)", "(DX*1)"}[r]
}

// strides appends instructions that load the multiples of the row stride for rowAddress.
func strides(a *assembly, stride string) {
	a.op("MOVQ %s, AX", stride)
	a.op("LEAQ (AX)(AX*2), BX")
	a.op("LEAQ (BX)(AX*2), CX")
	a.op("LEAQ (CX)(AX*2), DX")
}

// transpose appends instructions that read four columns of eight rows, and write them to Y8 to Y11,
// in order. They overwrite Y12 to Y15.
func transpose(a *assembly, base string) {
	for r := range 4 {
		a.op("VMOVUPS %s, X%d", rowAddress(base, r), 8+r)
	}
	for r := range 4 {
		a.op("VINSERTF128 $1, %s, Y%d, Y%d", rowAddress(base, r+4), 8+r, 8+r)
	}
	a.op("VUNPCKLPS Y9, Y8, Y12")
	a.op("VUNPCKHPS Y9, Y8, Y13")
	a.op("VUNPCKLPS Y11, Y10, Y14")
	a.op("VUNPCKHPS Y11, Y10, Y15")
	a.op("VUNPCKLPD Y14, Y12, Y8")
	a.op("VUNPCKHPD Y14, Y12, Y9")
	a.op("VUNPCKLPD Y15, Y13, Y10")
	a.op("VUNPCKHPD Y15, Y13, Y11")
}

// packColumns generates the kernel that stores eight rows as eight columns of a panel. Its argument
// k is a positive multiple of four.
func packColumns(a *assembly) {
	at := a.function("packColumns", packArguments, false)
	a.op("MOVQ %s, DI", at["dst"])
	a.op("MOVQ %s, SI", at["src"])
	a.op("MOVQ %s, R8", at["k"])
	strides(a, at["stride"])
	a.label("loop")
	transpose(a, "(SI)")
	for c := range 4 {
		a.op("VMOVUPS Y%d, %d(DI)", 8+c, panelBytes*c)
	}
	a.op("ADDQ $16, SI")
	a.op("ADDQ $%d, DI", 4*panelBytes)
	a.op("SUBQ $4, R8")
	a.op("JNZ loop")
	a.op("VZEROUPPER")
	a.op("RET")
}

// copyColumns generates the kernel that copies columns of k rows into rows of a number of
// registers, and pads the rows with zeros. Its argument k is positive.
func copyColumns(a *assembly, registers int) {
	at := a.function(fmt.Sprintf("copyColumns%d", 8*registers), copyArguments, false)
	a.op("MOVQ %s, DI", at["dst"])
	a.op("MOVQ %s, SI", at["src"])
	a.op("MOVQ %s, BX", at["stride"])
	a.op("MOVQ %s, CX", at["k"])
	a.op("MOVQ %s, AX", at["cols"])
	a.op("LEAQ lanes<>+128(SB), DX")
	a.op("SHLQ $2, AX")
	a.op("SUBQ AX, DX")
	for i := range registers {
		a.op("VMOVUPS %d(DX), Y%d", 32*i, 4+i)
	}
	a.label("loop")
	for i := range registers {
		a.op("VMASKMOVPS %d(SI), Y%d, Y%d", 32*i, 4+i, i)
	}
	for i := range registers {
		a.op("VMOVUPS Y%d, %d(DI)", i, 32*i)
	}
	a.op("ADDQ BX, SI")
	a.op("ADDQ $%d, DI", 32*registers)
	a.op("DECQ CX")
	a.op("JNZ loop")
	a.op("VZEROUPPER")
	a.op("RET")
}

func columnsGo() []byte {
	var text strings.Builder
	fmt.Fprintf(&text,
		"// packColumns writes the transpose of eight rows into a panel; k is a positive\n// multiple of four. The stride "+
			"is in bytes.\n//\n//go:noescape\n%s\n\n", declaration("packColumns", packArguments, false))
	for _, r := range copyRegisters {
		name := fmt.Sprintf("copyColumns%d", 8*r)
		fmt.Fprintf(&text,
			"// %s copies up to %d columns of k rows into rows of %d columns and fills the\n"+
				"// remaining columns with zeros. k must be positive. The stride is in bytes.\n//\n//go:noescape\n%s\n\n",
			name, 8*r, 8*r, declaration(name, copyArguments, false))
	}
	return formatted(text.String())
}
