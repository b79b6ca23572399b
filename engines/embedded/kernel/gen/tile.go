package main

import (
	"fmt"
	"strings"
)

// A shape describes the micro-kernel of an instruction set for a product C = A·B. The micro-kernel
// computes a tile: a block of C with a limited number of rows, and as many columns as fit into two
// vector registers. The sums of the tile stay in registers while the kernel adds the k products of
// each sum.
type shape struct {
	name    string // first letter of the registers' names, Z or Y
	suffix  string
	rows    int // maximum number of rows of a tile
	width   int // number of floats in a register
	scratch int // first register without a sum, in a tile of the maximum number of rows
}

var shapes = []shape{
	{name: "Z", suffix: "512", rows: 14, width: 16, scratch: 28},
	{name: "Y", suffix: "256", rows: 6, width: 8, scratch: 12},
}

// A storage is a number format of the elements of a panel.
type storage struct {
	name  string // suffix of the names of kernels
	kind  string // Go type of the elements
	bytes int    // size of an element in bytes
}

var storages = []storage{
	{"", "float32", 4}, {"BF16", "uint16", 2}, {"F16", "uint16", 2}, {"Int8", "int8", 1}, {"E4M3", "uint8", 1},
}

// panelCols is the number of columns of a panel, as in package kernel.
const panelCols = 32

// panelBytes is the size in bytes of one step k of a panel of float32.
const panelBytes = 4 * panelCols

func (f storage) arguments() []argument {
	args := append(append(pointers("c"), ints("cStride")...), append(pointers("a"), ints("rowStride", "kStride")...)...)
	return append(append(args, argument{"b", "*" + f.kind}), ints("k", "cols", "load")...)
}

// load appends instructions that read as many elements as a register has floats, and convert them
// to float32.
func (f storage) load(a *assembly, from, reg string) {
	switch f.name {
	case "BF16":
		a.op("VPMOVZXWD %s, %s", from, reg)
		a.op("VPSLLD $16, %s, %s", reg, reg)
	case "Int8":
		a.op("VPMOVSXBD %s, %s", from, reg)
		a.op("VCVTDQ2PS %s, %s", reg, reg)
	case "F16":
		a.op("VCVTPH2PS %s, %s", from, reg)
	case "E4M3":
		loadE4M3(a, from, reg)
	default:
		a.op("VMOVUPS %s, %s", from, reg)
	}
}

// ahead is the prefetch distance in bytes: hardware prefetching stops at the end of a memory page,
// and weights are seldom in a cache.
const ahead = 2048

// prefetch appends an instruction that prefetches the elements of one step, at a distance of ahead
// bytes.
func (f storage) prefetch(a *assembly, ahead int, index string) {
	for line := 0; line < f.bytes*panelCols; line += 64 {
		a.op("PREFETCHT0 %d(BX)%s", ahead+line, index)
	}
}

// loadE4M3 appends instructions that move the sign, the exponent and the fraction of each E4M3
// value to their places in a binary16. The result is the value divided by 2⁸, because the biases of
// the exponents are 7 and 15. Subnormal numbers are converted correctly.
func loadE4M3(a *assembly, from, reg string) {
	half, and := "Y"+reg[1:], "VPANDD"
	if reg[0] == 'Y' {
		half, and = "X"+reg[1:], "VPAND"
	}
	a.op("VPMOVSXBW %s, %s", from, half)
	a.op("VPSLLW $7, %s, %s", half, half)
	a.constants["code"] = 0xbfffbfff // clears the second copy of the sign
	a.op("%s code<>(SB), %s, %s", and, half, half)
	a.op("VCVTPH2PS %s, %s", half, reg)
}

func tileAssembly(f storage) []byte {
	a := newAssembly()
	for _, s := range shapes {
		for rows := 1; rows <= s.rows; rows++ {
			s.tile(a, f, rows)
		}
		for rows := 1; rows <= s.quadRows(); rows++ {
			s.quad(a, f, rows)
		}
	}
	a.lanes()
	return a.finish()
}

// tile generates the kernel of a tile. The registers DI and SI have the address and the row stride
// of C; R8, R9 and R10 the addresses of rows 0, 5 and 10 of A; R11 and R12 one and three row
// strides of A; R13 the k stride of A; BX the address of the panel; CX the number of remaining
// steps.
func (s shape) tile(a *assembly, f storage, rows int) {
	at := a.function(fmt.Sprintf("tile%s%sx%d", s.suffix, f.name, rows), f.arguments(), false)
	a.op("MOVQ %s, DI", at["c"])
	a.op("MOVQ %s, SI", at["cStride"])
	a.op("MOVQ %s, R8", at["a"])
	a.op("MOVQ %s, R11", at["rowStride"])
	a.op("MOVQ %s, R13", at["kStride"])
	a.op("MOVQ %s, BX", at["b"])
	a.op("MOVQ %s, CX", at["k"])
	a.op("LEAQ (R11)(R11*2), R12")
	a.op("LEAQ (R12)(R11*2), DX")
	a.op("LEAQ (R8)(DX*1), R9")
	a.op("LEAQ (R9)(DX*1), R10")
	s.mask(a, at)
	a.op("MOVQ %s, AX", at["load"])
	a.op("TESTQ AX, AX")
	a.op("JZ zero")
	s.eachRow(a, rows, func(r, v int) { s.load(a, v, s.sum(r, v)) })
	a.op("JMP loop")
	a.label("zero")
	for i := range 2 * rows {
		s.zero(a, s.sum(i/2, i%2))
	}
	a.label("loop")
	s.step(a, f, rows)
	a.op("DECQ CX")
	a.op("JNZ loop")
	if s.name == "Y" {
		s.storeFullTile(a, at, rows)
		s.mask(a, at) // the loop has overwritten the registers of the mask
	}
	s.eachRow(a, rows, func(r, v int) { s.store(a, v, s.sum(r, v)) })
	a.op("VZEROUPPER")
	a.op("RET")
}

// storeFullTile appends the end of the function for tiles that have all columns. It stores them
// without a mask, because masked 256-bit stores are slow on some processors.
func (s shape) storeFullTile(a *assembly, at map[string]string, rows int) {
	a.op("MOVQ %s, AX", at["cols"])
	a.op("CMPQ AX, $%d", 2*s.width)
	a.op("JNE some")
	s.eachRow(a, rows, func(r, v int) { a.op("VMOVUPS %s, %d(DX)", s.sum(r, v), 4*s.width*v) })
	a.op("VZEROUPPER")
	a.op("RET")
	a.label("some")
}

func (s shape) zero(a *assembly, reg string) {
	if s.name == "Z" {
		a.op("VPXORD %s, %s, %s", reg, reg, reg)
		return
	}
	a.op("VXORPS %s, %s, %s", reg, reg, reg)
}

func (s shape) sum(row, v int) string { return fmt.Sprintf("%s%d", s.name, 2*row+v) }

// step appends the instructions of one step k: they load two registers of the panel, broadcast one
// element of each row, and add the products.
func (s shape) step(a *assembly, f storage, rows int) {
	b := [2]string{fmt.Sprintf("%s%d", s.name, s.scratch), fmt.Sprintf("%s%d", s.name, s.scratch+1)}
	f.load(a, "(BX)", b[0])
	f.load(a, fmt.Sprintf("%d(BX)", f.bytes*s.width), b[1])
	f.prefetch(a, ahead, "")
	for r := range rows {
		x := fmt.Sprintf("%s%d", s.name, s.scratch+2+r%2)
		a.op("VBROADCASTSS %s, %s", address(r), x)
		for v := range 2 {
			a.op("VFMADD231PS %s, %s, %s", b[v], x, s.sum(r, v))
		}
	}
	a.op("ADDQ $%d, BX", f.bytes*panelCols)
	for i, base := range []string{"R8", "R9", "R10"} {
		if rows > 5*i {
			a.op("ADDQ R13, %s", base)
		}
	}
}

// address returns the memory operand of row r of A.
func address(r int) string {
	base := []string{"R8", "R9", "R10"}[r/5]
	return fmt.Sprintf([]string{"(%s)", "(%s)(R11*1)", "(%s)(R11*2)", "(%s)(R12*1)", "(%s)(R11*4)"}[r%5], base)
}

// mask appends instructions that create the mask of the columns that exist, in K1 and K2 or, with
// 256 bits, in Y14 and Y15.
func (s shape) mask(a *assembly, at map[string]string) {
	a.op("MOVQ %s, AX", at["cols"])
	if s.name == "Z" {
		a.op("MOVL $-1, DX")
		a.op("BZHIL AX, DX, DX")
		a.op("KMOVW DX, K1")
		a.op("SHRL $16, DX")
		a.op("KMOVW DX, K2")
		return
	}
	a.op("LEAQ lanes<>+128(SB), DX")
	a.op("SHLQ $2, AX")
	a.op("SUBQ AX, DX")
	a.op("VMOVUPS (DX), Y14")
	a.op("VMOVUPS 32(DX), Y15")
}

func (s shape) load(a *assembly, v int, reg string) {
	if s.name == "Z" {
		a.op("VMOVUPS.Z %d(DX), K%d, %s", 64*v, v+1, reg)
		return
	}
	a.op("VMASKMOVPS %d(DX), Y%d, %s", 32*v, 14+v, reg)
}

func (s shape) store(a *assembly, v int, reg string) {
	if s.name == "Z" {
		a.op("VMOVUPS %s, K%d, %d(DX)", reg, v+1, 64*v)
		return
	}
	a.op("VMASKMOVPS %s, Y%d, %d(DX)", reg, 14+v, 32*v)
}

// eachRow appends instructions that move DX over the rows of C, and calls visit for both registers
// of each row.
func (s shape) eachRow(a *assembly, rows int, visit func(row, v int)) {
	a.op("MOVQ DI, DX")
	for r := range rows {
		visit(r, 0)
		visit(r, 1)
		if r < rows-1 {
			a.op("ADDQ SI, DX")
		}
	}
}

func tileGo() []byte {
	var text strings.Builder
	for _, s := range shapes {
		fmt.Fprintf(&text, "// tileRows%s is the maximum number of rows that tile%s computes.\n"+
			"const tileRows%s = %d\n\n", s.suffix, s.suffix,
			s.suffix, s.rows)
		fmt.Fprintf(&text, "// quadRows%s is the maximum number of rows that quad%s computes.\n"+
			"const quadRows%s = %d\n\n", s.suffix, s.suffix,
			s.suffix, s.quadRows())
	}
	for _, f := range storages {
		for _, s := range shapes {
			s.declare(&text, f)
			s.declareQuads(&text, f)
		}
	}
	return formatted(text.String())
}

// declare appends the declarations of the kernels, and the function that selects a kernel by the
// number of rows.
func (s shape) declare(text *strings.Builder, f storage) {
	name := "tile" + s.suffix + f.name
	for rows := 1; rows <= s.rows; rows++ {
		fmt.Fprintf(text, "//go:noescape\n%s\n\n", declaration(fmt.Sprintf("%sx%d", name, rows), f.arguments(), false))
	}
	fmt.Fprintf(text,
		"// %s adds k steps of rows × cols elements to C, or overwrites C if load is 0.\n// cols is at most %d. "+
			"Strides are in bytes.\n", name, 2*s.width)
	fmt.Fprintf(text, "%s {\nswitch rows {\n", wrapped(declaration(name, append(ints("rows"), f.arguments()...), false)))
	for rows := 1; rows <= s.rows; rows++ {
		fmt.Fprintf(text, "case %d:\n%sx%d(c, cStride, a, rowStride, kStride, b, k, cols, load)\n", rows, name, rows)
	}
	text.WriteString("}\n}\n\n")
}
