package kernel

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// simd is the width in bits of the vector instructions in use: 512, 256 or 0.
var simd int

// piece bounds the numbers of an array that one call into assembly takes: Go
// cannot interrupt it.
const piece = 16 << 10

// packPiece bounds the k that is packed at once, so that the four passes over a
// part of a panel find it in the first-level cache.
const packPiece = 256

var least = float32(math.Inf(-1))

// levels are what this processor can do, best first.
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

func use(level string) { simd = map[string]int{"avx512": 512, "avx2": 256}[level] }

// quadRows is how many rows quad takes.
func quadRows() int {
	switch simd {
	case 512:
		return quadRows512
	case 256:
		return quadRows256
	}
	return 0
}

// tileRows is the greatest height of a tile.
func tileRows() int {
	switch simd {
	case 512:
		return tileRows512
	case 256:
		return tileRows256
	}
	return 4
}

// packPanel copies up to 32 columns into a panel.
func packPanel(dst []float32, b Matrix) {
	if simd == 0 {
		packPanelGo(dst, b)
		return
	}
	for from := 0; from < b.Rows; from += packPiece {
		copyColumns32(&dst[from*panelCols], &b.Data[from*b.Stride], 4*b.Stride, min(packPiece, b.Rows-from), b.Cols)
	}
}

// packTile copies up to 16 columns of k rows into rows of 16; it answers false
// where that would not help.
func packTile(dst, src []float32, stride, k, cols int) bool {
	if simd == 0 {
		return false
	}
	copyColumns16(&dst[0], &src[0], 4*stride, k, cols)
	return true
}

// packPanelT writes the transpose of up to 32 rows into a panel.
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

// spin keeps the multipliers busy and returns the operations done.
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
