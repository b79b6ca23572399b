package main

import (
	"fmt"
	"strings"
)

// quads is the number of panels that a call of the kernel for few rows multiplies. With only one
// panel, each addition would wait for the previous one.
const quads = 4

// quadRows returns the maximum number of rows whose sums with four panels fit into the registers.
func (s shape) quadRows() int { return s.scratch / (2 * quads) }

func (f storage) quadArguments() []argument {
	args := append(append(pointers("c"), ints("cStride")...), append(pointers("a"), ints("rowStride", "kStride")...)...)
	return append(append(args, argument{"b", "*" + f.kind}), ints("panelStride", "k", "load")...)
}

// quad generates a kernel like tile that multiplies rows with four full panels, two registers of
// each at a time. It uses registers like tile, but R9 and R10 have one and three panel strides.
func (s shape) quad(a *assembly, f storage, rows int) {
	sum := func(r, p, v int) string { return fmt.Sprintf("%s%d", s.name, 2*(quads*r+p)+v) }
	at := a.function(fmt.Sprintf("quad%s%sx%d", s.suffix, f.name, rows), f.quadArguments(), false)
	for _, arg := range [][2]string{
		{"c", "DI"}, {"cStride", "SI"}, {"a", "R8"}, {"rowStride", "R11"}, {"kStride", "R13"}, {"b", "BX"},
		{"panelStride", "R9"}, {"k", "CX"}, {"load", "AX"},
	} {
		a.op("MOVQ %s, %s", at[arg[0]], arg[1])
	}
	a.op("LEAQ (R9)(R9*2), R10")
	eachSum := func(visit func(reg, mem string)) {
		a.op("MOVQ DI, DX")
		for i := range rows * quads * 2 {
			r, p, v := i/(2*quads), i/2%quads, i%2
			if i > 0 && p+v == 0 {
				a.op("ADDQ SI, DX")
			}
			visit(sum(r, p, v), fmt.Sprintf("%d(DX)", panelBytes*p+4*s.width*v))
		}
	}
	a.op("TESTQ AX, AX")
	a.op("JZ zero")
	eachSum(func(reg, mem string) { a.op("VMOVUPS %s, %s", mem, reg) })
	a.op("JMP loop")
	a.label("zero")
	for i := range rows * quads * 2 {
		s.zero(a, fmt.Sprintf("%s%d", s.name, i))
	}
	a.label("loop")
	s.quadStep(a, f, rows, sum)
	a.op("DECQ CX")
	a.op("JNZ loop")
	eachSum(func(reg, mem string) { a.op("VMOVUPS %s, %s", reg, mem) })
	a.op("VZEROUPPER")
	a.op("RET")
}

// quadStep appends the instructions of one step k. sum returns the register of a sum by row, panel
// and half of the panel.
func (s shape) quadStep(a *assembly, f storage, rows int, sum func(r, p, v int) string) {
	row := func(r int) string { return fmt.Sprintf("%s%d", s.name, s.scratch+1+r) }
	for r := range rows {
		a.op("VBROADCASTSS %s, %s", address(r), row(r))
	}
	b := fmt.Sprintf("%s%d", s.name, s.scratch)
	for p := range quads {
		panel := []string{"", "(R9*1)", "(R9*2)", "(R10*1)"}[p]
		// float32 needs no prefetch: the kernel is memory bound, and the hardware prefetches
		// enough.
		if f.bytes < 4 {
			f.prefetch(a, ahead, panel)
		}
		for v := range 2 {
			f.load(a, fmt.Sprintf("%d(BX)%s", f.bytes*s.width*v, panel), b)
			for r := range rows {
				a.op("VFMADD231PS %s, %s, %s", b, row(r), sum(r, p, v))
			}
		}
	}
	a.op("ADDQ $%d, BX", f.bytes*panelCols)
	a.op("ADDQ R13, R8")
}

// declareQuads appends the declarations of the kernels, and the function that selects a kernel by
// the number of rows.
func (s shape) declareQuads(text *strings.Builder, f storage) {
	name := "quad" + s.suffix + f.name
	for rows := 1; rows <= s.quadRows(); rows++ {
		fmt.Fprintf(text, "//go:noescape\n%s\n\n", declaration(fmt.Sprintf("%sx%d", name, rows), f.quadArguments(), false))
	}
	fmt.Fprintf(text, "// %s is tile%s for %d columns of each of %d panels. Strides are in bytes.\n", name,
		s.suffix+f.name, 2*s.width, quads)
	fmt.Fprintf(text, "%s {\nswitch rows {\n",
		wrapped(declaration(name, append(ints("rows"), f.quadArguments()...), false)))
	for rows := 1; rows <= s.quadRows(); rows++ {
		fmt.Fprintf(text, "case %d:\n%sx%d(c, cStride, a, rowStride, kStride, b, panelStride, k, load)\n", rows, name, rows)
	}
	text.WriteString("}\n}\n\n")
}
