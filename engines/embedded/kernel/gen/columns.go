package main

import (
	"fmt"
	"strings"
)

// The kernels here turn rows into columns in registers: eight rows by four
// columns at a time, with 256-bit instructions at every level, because these
// shuffle on two ports where the 512-bit ones have one.

var packArguments = append(append(pointers("dst", "src"), ints("stride")...), ints("k")...)

// copyRegisters are the widths of the copies: a tile of Aᵀ and a panel of B.
var copyRegisters = []int{2, 4}

var copyArguments = append(append(pointers("dst", "src"), ints("stride")...), ints("k", "cols")...)

var rowsArguments = append(append(pointers("y", "x", "w"), ints("stride")...), ints("k", "load")...)

// rowGroups are how many times eight rows a matrix-vector kernel takes at once;
// their sums do not wait for each other.
var rowGroups = []int{1, 4}

func columnsAssembly() []byte {
	a := newAssembly()
	packColumns(a)
	for _, registers := range copyRegisters {
		copyColumns(a, registers)
	}
	for _, groups := range rowGroups {
		sumRows(a, groups)
	}
	a.lanes()
	return a.finish()
}

// rowAddress is row r of eight from a base, with AX, BX, CX and DX holding one,
// three, five and seven strides.
func rowAddress(base string, r int) string {
	return base + []string{"", "(AX*1)", "(AX*2)", "(BX*1)", "(AX*4)", "(CX*1)", "(BX*2)", "(DX*1)"}[r]
}

// strides loads the multiples of the row stride that rowAddress wants.
func strides(a *assembly, stride string) {
	a.op("MOVQ %s, AX", stride)
	a.op("LEAQ (AX)(AX*2), BX")
	a.op("LEAQ (BX)(AX*2), CX")
	a.op("LEAQ (CX)(AX*2), DX")
}

// transpose reads four columns of eight rows and leaves them in Y8 to Y11, in
// order; it uses Y12 to Y15.
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

// packColumns writes eight rows as eight columns of a panel; k is a positive
// multiple of four.
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

// copyColumns copies columns of k rows, k positive, into rows of so many
// registers and fills these up with zeros.
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

// sumRows adds the products of rows with x into y, or puts them there when load
// is 0. Row r of group g is at base g. R12 counts columns, R13 is x.
func sumRows(a *assembly, groups int) {
	bases := []string{"SI", "R8", "R9", "R10"}[:groups]
	at := a.function(fmt.Sprintf("sumRows%d", 8*groups), rowsArguments, false)
	a.op("MOVQ %s, DI", at["y"])
	a.op("MOVQ %s, R13", at["x"])
	a.op("MOVQ %s, SI", at["w"])
	a.op("MOVQ %s, R12", at["k"])
	strides(a, at["stride"])
	for g := 1; g < groups; g++ {
		a.op("LEAQ (%s)(AX*8), %s", bases[g-1], bases[g])
	}
	for g := range groups {
		a.op("VXORPS Y%d, Y%d, Y%d", g, g, g)
	}
	a.op("MOVQ %s, R11", at["load"])
	a.op("TESTQ R11, R11")
	a.op("JZ four")
	for g := range groups {
		a.op("VMOVUPS %d(DI), Y%d", 32*g, g)
	}
	a.label("four")
	a.op("SUBQ $4, R12")
	a.op("JL rest")
	for c := range 4 {
		a.op("VBROADCASTSS %d(R13), Y%d", 4*c, 4+c)
	}
	for g, base := range bases {
		transpose(a, "("+base+")")
		for c := range 4 {
			a.op("VFMADD231PS Y%d, Y%d, Y%d", 8+c, 4+c, g)
		}
	}
	advance(a, bases, 16)
	a.op("JMP four")
	a.label("rest")
	a.op("ADDQ $4, R12")
	a.op("JZ done")
	a.label("one")
	singleColumn(a, bases)
	advance(a, bases, 4)
	a.op("DECQ R12")
	a.op("JNZ one")
	a.label("done")
	for g := range groups {
		a.op("VMOVUPS Y%d, %d(DI)", g, 32*g)
	}
	a.op("VZEROUPPER")
	a.op("RET")
}

// singleColumn gathers one column, for the last ones of a k that four does not
// divide.
func singleColumn(a *assembly, bases []string) {
	a.op("VBROADCASTSS (R13), Y4")
	for g, base := range bases {
		for half := range 2 {
			a.op("VMOVSS %s, X%d", rowAddress("("+base+")", 4*half), 8+half)
			for r := 1; r < 4; r++ {
				a.op("VINSERTPS $0x%d0, %s, X%d, X%d", r, rowAddress("("+base+")", 4*half+r), 8+half, 8+half)
			}
		}
		a.op("VINSERTF128 $1, X9, Y8, Y8")
		a.op("VFMADD231PS Y8, Y4, Y%d", g)
	}
}

func advance(a *assembly, bases []string, bytes int) {
	for _, base := range append(bases, "R13") {
		a.op("ADDQ $%d, %s", bytes, base)
	}
}

func columnsGo() []byte {
	var text strings.Builder
	fmt.Fprintf(&text, "// packColumns writes the transpose of eight rows into a panel; k is a positive\n// multiple of four, the stride is in bytes.\n//\n//go:noescape\n%s\n\n", declaration("packColumns", packArguments, false))
	for _, r := range copyRegisters {
		name := fmt.Sprintf("copyColumns%d", 8*r)
		fmt.Fprintf(&text, "// %s copies up to %d columns of k rows into rows of %d and fills these up\n// with zeros; k is positive, the stride is in bytes.\n//\n//go:noescape\n%s\n\n", name, 8*r, 8*r, declaration(name, copyArguments, false))
	}
	for _, g := range rowGroups {
		name := fmt.Sprintf("sumRows%d", 8*g)
		fmt.Fprintf(&text, "// %s adds the products of %d rows with x into y, or puts them there when\n// load is 0; the stride is in bytes.\n//\n//go:noescape\n%s\n\n", name, 8*g, declaration(name, rowsArguments, false))
	}
	return formatted(text.String())
}
