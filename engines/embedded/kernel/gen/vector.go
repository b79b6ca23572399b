package main

import (
	"fmt"
	"strings"
)

// A body appends the instructions of a kernel for one vector of its arrays.
type body func(v vec)

// A kernel is an operation on arrays of equal length.
type kernel struct {
	name    string
	doc     string
	arrays  []string // names of the arguments that are pointers to arrays
	scalars []string // names of the arguments that are floats, which are broadcast to the registers 13 and 14
	factors bool     // the last argument is a pointer to adamFactors
	reduce  string   // instruction that combines two partial results; "" without a reduction
	body    body
}

// A vec generates code for one vector of a kernel's arrays. masked is true for the incomplete
// vector at the end. turn is the number of the vector among those of an unrolled loop.
type vec struct {
	*assembly
	wide   bool // the vector has 512 bits, not 256
	masked bool
	turn   int
	arrays []string
}

var arrayRegisters = []string{"DI", "SI", "R8", "R9", "R10"}

const (
	scalarRegister = 13
	maskRegister   = 15
	sumRegister    = 8 // first of the four registers with partial results of a reduction
)

func (v vec) bytes() int {
	if v.wide {
		return 64
	}
	return 32
}

func (v vec) reg(i int) string {
	if v.wide {
		return fmt.Sprintf("Z%d", i)
	}
	return fmt.Sprintf("Y%d", i)
}

// do appends an instruction on registers, the sources before the destination.
func (v vec) do(name string, registers ...int) {
	var list []string
	for _, r := range registers {
		list = append(list, v.reg(r))
	}
	v.op("%s %s", name, strings.Join(list, ", "))
}

// with appends an instruction whose first source is a constant.
func (v vec) with(name, constant string, value float64, registers ...int) {
	list := []string{v.constant(constant, value)}
	for _, r := range registers {
		list = append(list, v.reg(r))
	}
	v.op("%s %s", name, strings.Join(list, ", "))
}

func (v vec) at(array string) string {
	for i, name := range v.arrays {
		if name == array {
			return fmt.Sprintf("%d(%s)(AX*4)", v.turn*v.bytes(), arrayRegisters[i])
		}
	}
	panic("the kernel has no array " + array)
}

// load appends an instruction that loads this vector of an array into register r. Lanes after the
// end become zero.
func (v vec) load(array string, r int) {
	switch {
	case !v.masked:
		v.op("VMOVUPS %s, %s", v.at(array), v.reg(r))
	case v.wide:
		v.op("VMOVUPS.Z %s, K1, %s", v.at(array), v.reg(r))
	default:
		v.op("VMASKMOVPS %s, %s, %s", v.at(array), v.reg(maskRegister), v.reg(r))
	}
}

func (v vec) store(r int, array string) {
	switch {
	case !v.masked:
		v.op("VMOVUPS %s, %s", v.reg(r), v.at(array))
	case v.wide:
		v.op("VMOVUPS %s, K1, %s", v.reg(r), v.at(array))
	default:
		v.op("VMASKMOVPS %s, %s, %s", v.reg(r), v.reg(maskRegister), v.at(array))
	}
}

// clearRest appends instructions that zero the lanes of register r after the end of the arrays.
func (v vec) clearRest(r int) {
	switch {
	case !v.masked:
	case v.wide:
		v.op("VMOVAPS.Z %s, K1, %s", v.reg(r), v.reg(r))
	default:
		v.do("VANDPS", maskRegister, r, r)
	}
}

// sum returns the register with the partial result to which this vector contributes.
func (v vec) sum() int { return sumRegister + v.turn }

// factor appends an instruction that broadcasts element i of the adamFactors to register r. BX has
// their address.
func (v vec) factor(i, r int) {
	v.op("VBROADCASTSS %d(BX), %s", 4*i, v.reg(r))
}

func vectorAssembly() []byte {
	a := newAssembly()
	for _, k := range kernels {
		k.write(a, true)
		k.write(a, false)
	}
	peak(a, true)
	peak(a, false)
	a.lanes()
	return a.finish()
}

func (k kernel) arguments() []argument {
	args := pointers(k.arrays...)
	if k.factors {
		args = append(args, argument{"f", "*adamFactors"})
	}
	return append(append(args, ints("n")...), floats(k.scalars...)...)
}

func suffix(wide bool) string {
	if wide {
		return "512"
	}
	return "256"
}

// write generates the kernel: a loop over four vectors at a time for reductions, a loop over single
// vectors, and then the incomplete vector under a mask. AX has the number of processed elements, CX
// the total.
func (k kernel) write(a *assembly, wide bool) {
	v := vec{assembly: a, wide: wide, arrays: k.arrays}
	width := v.bytes() / 4
	at := a.function(k.name+suffix(wide), k.arguments(), k.reduce != "")
	for i, name := range k.arrays {
		a.op("MOVQ %s, %s", at[name], arrayRegisters[i])
	}
	if k.factors {
		a.op("MOVQ %s, BX", at["f"])
	}
	a.op("MOVQ %s, CX", at["n"])
	for i, name := range k.scalars {
		a.op("VBROADCASTSS %s, %s", at[name], v.reg(scalarRegister+i))
	}
	a.op("XORQ AX, AX")
	if k.reduce != "" {
		k.start(v)
		k.loop(v, "four", "one", 4, width)
	}
	k.loop(v, "one", "rest", 1, width)
	a.label("rest")
	a.op("SUBQ AX, CX")
	a.op("JZ done")
	v.rest()
	v.masked = true
	k.body(v)
	a.label("done")
	if k.reduce != "" {
		k.join(v)
		a.op("VMOVSS X%d, %s", sumRegister, at["ret"])
	}
	a.op("VZEROUPPER")
	a.op("RET")
}

// loop appends a loop with the label name. Each pass executes the body for several full vectors, as
// many as turns says. When fewer remain, the loop jumps to the label next. width is the number of
// elements of a vector.
func (k kernel) loop(v vec, name, next string, turns, width int) {
	v.label(name)
	v.op("LEAQ %d(AX), DX", turns*width)
	v.op("CMPQ DX, CX")
	v.op("JGT %s", next)
	for v.turn = range turns {
		k.body(v)
	}
	v.op("MOVQ DX, AX")
	v.op("JMP %s", name)
}

// rest appends instructions that create the mask of the first CX lanes.
func (v vec) rest() {
	if v.wide {
		v.op("MOVL $-1, DX")
		v.op("BZHIL CX, DX, DX")
		v.op("KMOVW DX, K1")
		return
	}
	v.op("LEAQ lanes<>+128(SB), DX")
	v.op("SHLQ $2, CX")
	v.op("SUBQ CX, DX")
	v.op("VMOVUPS (DX), Y%d", maskRegister)
}

// start appends instructions that initialize the four partial results of a reduction.
func (k kernel) start(v vec) {
	for i := range 4 {
		if k.reduce == "VMAXPS" {
			v.with("VMOVUPS", "neginf", minusInfinity, sumRegister+i)
			continue
		}
		v.op("VXORPS X%d, X%d, X%d", sumRegister+i, sumRegister+i, sumRegister+i)
	}
}

// join appends instructions that combine the four partial results, and then halve the vector until
// one lane is left.
func (k kernel) join(v vec) {
	const s = sumRegister
	v.do(k.reduce, s+1, s, s)
	v.do(k.reduce, s+3, s+2, s+2)
	v.do(k.reduce, s+2, s, s)
	if v.wide {
		v.op("VEXTRACTF64X4 $1, Z%d, Y%d", s, s+1)
		v.op("%s Y%d, Y%d, Y%d", k.reduce, s+1, s, s)
	}
	v.op("VEXTRACTF128 $1, Y%d, X%d", s, s+1)
	v.op("%s X%d, X%d, X%d", k.reduce, s+1, s, s)
	v.op("VMOVHLPS X%d, X%d, X%d", s, s, s+1)
	v.op("%s X%d, X%d, X%d", k.reduce, s+1, s, s)
	v.op("VMOVSHDUP X%d, X%d", s, s+1)
	v.op("%s X%d, X%d, X%d", k.reduce, s+1, s, s)
}

// peak generates the kernel that multiplies and adds zeros in registers, with twelve independent
// sums.
func peak(a *assembly, wide bool) {
	v := vec{assembly: a, wide: wide}
	at := a.function("peak"+suffix(wide), ints("steps"), false)
	a.op("MOVQ %s, CX", at["steps"])
	for i := range 14 {
		a.op("VXORPS X%d, X%d, X%d", i, i, i)
	}
	a.label("loop")
	for i := range 12 {
		v.do("VFMADD231PS", 12, 13, i)
	}
	a.op("DECQ CX")
	a.op("JNZ loop")
	a.op("VZEROUPPER")
	a.op("RET")
}

func vectorGo() []byte {
	var text strings.Builder
	for _, k := range kernels {
		for _, wide := range []bool{true, false} {
			fmt.Fprintf(&text, "//go:noescape\n%s\n\n", declaration(k.name+suffix(wide), k.arguments(), k.reduce != ""))
		}
		k.dispatch(&text)
	}
	for _, wide := range []bool{true, false} {
		fmt.Fprintf(&text, "// peak%s executes steps × 12 multiply-adds of full registers.\n%s\n\n", suffix(wide),
			declaration("peak"+suffix(wide), ints("steps"), false))
	}
	return formatted(text.String())
}

// dispatch generates the Go function that package kernel calls. It divides the arrays so that no
// call of an assembly function takes long, and calls the kernel of the active level.
func (k kernel) dispatch(text *strings.Builder) {
	var params, plain []string
	for _, name := range k.arrays {
		params, plain = append(params, name+" []float32"), append(plain, name)
	}
	if k.factors {
		params, plain = append(params, "f *adamFactors"), append(plain, "f")
	}
	for _, name := range k.scalars {
		params, plain = append(params, name+" float32"), append(plain, name)
	}
	var pieces []string
	for _, name := range k.arrays {
		pieces = append(pieces, "&"+name+"[i]")
	}
	pieces = append(append(pieces, plain[len(k.arrays):len(plain)-len(k.scalars)]...), "n")
	pieces = append(pieces, k.scalars...)
	call := func(wide bool) string {
		inner := fmt.Sprintf("%s%s(%s)", k.name, suffix(wide), strings.Join(pieces, ", "))
		switch k.reduce {
		case "":
			return inner
		case "VMAXPS":
			return "s = max(s, " + inner + ")"
		}
		return "s += " + inner
	}
	fmt.Fprintf(text, "// %s %s\nfunc %s(%s) ", k.name, k.doc, k.name, strings.Join(params, ", "))
	plainCall := fmt.Sprintf("%sGo(%s)", k.name, strings.Join(plain, ", "))
	switch k.reduce {
	case "":
		fmt.Fprintf(text, "{\nif simd == 0 {\n%s\nreturn\n}\n", plainCall)
	case "VMAXPS":
		fmt.Fprintf(text, "(s float32) {\nif simd == 0 {\nreturn %s\n}\ns = negInf\n", plainCall)
	default:
		fmt.Fprintf(text, "(s float32) {\nif simd == 0 {\nreturn %s\n}\n", plainCall)
	}
	fmt.Fprintf(text,
		"for i := 0; i < len(%s); i += piece {\nn := min(piece, len(%s)-i)\nif simd == 512 {\n%s\n} else {\n%s\n}\n}\n",
		k.arrays[0], k.arrays[0], call(true), call(false))
	if k.reduce != "" {
		text.WriteString("return s\n")
	}
	text.WriteString("}\n\n")
}
