package kernel

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// simd is the width of the vector registers in use, in bits: 512, 256, or 0 without vector
// instructions.
var simd int

// piece is the maximum number of elements that one call of an assembly function processes. It
// limits the duration of the call, because Go cannot preempt assembly.
const piece = 16 << 10

// packPiece is the maximum number of rows of B that are packed at a time, so that a part of a panel
// stays in the L1 cache while four passes write to it.
const packPiece = 256

var negInf = float32(math.Inf(-1))

// levels returns the names of the instruction sets that this processor supports, best first:
// avx512, avx2 and go.
func levels() []string {
	var list []string
	avx2 := cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C
	if avx2 && cpu.X86.HasBMI2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL {
		list = append(list, "avx512")
	}
	if avx2 {
		list = append(list, "avx2")
	}
	return append(list, "go")
}

// mathFeatures returns a suffix for the instructions that math.Exp uses on this processor.
func mathFeatures() string {
	if cpu.X86.HasAVX && cpu.X86.HasFMA {
		return "-fma"
	}
	return ""
}

func use(level string) { simd = map[string]int{"avx512": 512, "avx2": 256}[level] }

// quadRows returns the maximum number of rows that a call of the function quad can compute; 0
// without vector instructions, for which there is no quad.
func quadRows() int {
	switch simd {
	case 512:
		return quadRows512
	case 256:
		return quadRows256
	}
	return 0
}

// tileRows returns the maximum number of rows that a call of the function tile can compute.
func tileRows() int {
	switch simd {
	case 512:
		return tileRows512
	case 256:
		return tileRows256
	}
	return 4
}

// packPanel copies up to 32 columns of b into a panel.
func packPanel(dst []float32, b Matrix) {
	if simd == 0 {
		packPanelGo(dst, b)
		return
	}
	for from := 0; from < b.Rows; from += packPiece {
		copyColumns32(&dst[from*panelCols], &b.Data[from*b.Stride], 4*b.Stride, min(packPiece, b.Rows-from), b.Cols)
	}
}

// packTile copies up to 16 columns of k rows into rows of 16 elements. Without vector instructions
// a copy is not worthwhile: packTile then copies nothing and returns false.
func packTile(dst, src []float32, stride, k, cols int) bool {
	if simd == 0 {
		return false
	}
	copyColumns16(&dst[0], &src[0], 4*stride, k, cols)
	return true
}

// packPanelT copies the transpose of up to 32 rows of w into a panel.
func packPanelT(dst []float32, w Matrix) {
	if simd == 0 {
		packPanelTGo(dst, w)
		return
	}
	whole, k := w.Rows&^7, w.Cols&^3
	for from := 0; from < k; from += packPiece {
		for j := 0; j < whole; j += 8 {
			packColumns(&dst[from*panelCols+j], &w.Data[j*w.Stride+from], 4*w.Stride, min(packPiece, k-from))
		}
	}
	packRowsGo(dst, w, 0, whole, k)
	packRowsGo(dst, w, whole, w.Rows, 0)
	clearRest(dst, w.Rows, w.Cols)
}

// spin executes multiply-adds in registers, for PeakGFlops, and returns the number of operations.
func spin() int {
	const steps = 4000
	switch simd {
	case 512:
		peak512(steps)
	case 256:
		peak256(steps)
	default:
		return spinGo(steps)
	}
	return steps * 12 * 2 * int(uintptr(simd/8)/unsafe.Sizeof(float32(0)))
}
