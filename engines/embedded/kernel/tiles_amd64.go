package kernel

// tile computes k steps of rows × cols elements of C. It adds to C if load is true, and overwrites
// C otherwise. The element of A for row i and step l is a[i*rowStride+l*kStride]. b is a panel.
func tile(c []float32, ldc int, a []float32, rowStride, kStride int, b panel, k, rows, cols int, load bool) {
	var add int
	if load {
		add = 1
	}
	switch simd {
	case 512:
		wide(c, 4*ldc, a, 4*rowStride, 4*kStride, b, k, rows, cols, add)
	case 256:
		const half = panelCols / 2
		narrow(c, 4*ldc, a, 4*rowStride, 4*kStride, b, 0, k, rows, min(half, cols), add)
		if cols > half {
			narrow(c[half:], 4*ldc, a, 4*rowStride, 4*kStride, b, half, k, rows, cols-half, add)
		}
	default:
		tileGo(c, ldc, a, rowStride, kStride, b, k, rows, cols, load)
	}
}

// wide computes a tile with 512-bit registers. The strides are in bytes.
func wide(c []float32, ldc int, a []float32, rowStride, kStride int, b panel, k, rows, cols, add int) {
	switch {
	case b.bf16 != nil:
		tile512BF16(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.bf16[0], k, cols, add)
	case b.f16 != nil:
		tile512F16(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.f16[0], k, cols, add)
	case b.int8 != nil:
		tile512Int8(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.int8[0], k, cols, add)
	case b.e4m3 != nil:
		tile512E4M3(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.e4m3[0], k, cols, add)
	default:
		tile512(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.float[0], k, cols, add)
	}
}

// narrow computes half a tile with 256-bit registers: the columns of the panel from j on.
func narrow(c []float32, ldc int, a []float32, rowStride, kStride int, b panel, j, k, rows, cols, add int) {
	switch {
	case b.bf16 != nil:
		tile256BF16(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.bf16[j], k, cols, add)
	case b.f16 != nil:
		tile256F16(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.f16[j], k, cols, add)
	case b.int8 != nil:
		tile256Int8(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.int8[j], k, cols, add)
	case b.e4m3 != nil:
		tile256E4M3(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.e4m3[j], k, cols, add)
	default:
		tile256(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.float[j], k, cols, add)
	}
}

// quad computes a tile of four full panels for a few rows. The panels begin depth steps apart.
func quad(c []float32, ldc int, a []float32, rowStride, kStride int, b panel, depth, k, rows int, load bool) {
	var add int
	if load {
		add = 1
	}
	ldc, rowStride, kStride = 4*ldc, 4*rowStride, 4*kStride
	stride := depth * panelCols
	if simd == 512 {
		switch {
		case b.bf16 != nil:
			quad512BF16(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.bf16[0], 2*stride, k, add)
		case b.f16 != nil:
			quad512F16(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.f16[0], 2*stride, k, add)
		case b.int8 != nil:
			quad512Int8(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.int8[0], stride, k, add)
		case b.e4m3 != nil:
			quad512E4M3(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.e4m3[0], stride, k, add)
		default:
			quad512(rows, &c[0], ldc, &a[0], rowStride, kStride, &b.float[0], 4*stride, k, add)
		}
		return
	}
	for j := 0; j < panelCols; j += panelCols / 2 {
		switch {
		case b.bf16 != nil:
			quad256BF16(rows, &c[j], ldc, &a[0], rowStride, kStride, &b.bf16[j], 2*stride, k, add)
		case b.f16 != nil:
			quad256F16(rows, &c[j], ldc, &a[0], rowStride, kStride, &b.f16[j], 2*stride, k, add)
		case b.int8 != nil:
			quad256Int8(rows, &c[j], ldc, &a[0], rowStride, kStride, &b.int8[j], stride, k, add)
		case b.e4m3 != nil:
			quad256E4M3(rows, &c[j], ldc, &a[0], rowStride, kStride, &b.e4m3[j], stride, k, add)
		default:
			quad256(rows, &c[j], ldc, &a[0], rowStride, kStride, &b.float[j], 4*stride, k, add)
		}
	}
}

// fourRows computes MulPanels. It returns false, and computes nothing, if the level has too few
// registers.
func fourRows(c, a Matrix, b []float32, stride int, load bool) bool {
	var add int
	if load {
		add = 1
	}
	switch simd {
	case 512:
		heads512(&c.Data[0], 4*c.Stride, &a.Data[0], 4*a.Stride, &b[0], 4*stride, a.Cols, c.Cols, add)
	case 256:
		const half = panelCols / 2
		heads256(&c.Data[0], 4*c.Stride, &a.Data[0], 4*a.Stride, &b[0], 4*stride, a.Cols, min(half, c.Cols), add)
		if c.Cols > half {
			heads256(&c.Data[half], 4*c.Stride, &a.Data[0], 4*a.Stride, &b[half], 4*stride, a.Cols, c.Cols-half, add)
		}
	default:
		return false
	}
	return true
}
