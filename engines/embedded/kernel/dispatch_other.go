//go:build !amd64

package kernel

// levels returns the names of the supported instruction sets: only plain Go on this architecture.
func levels() []string { return []string{"go"} }

func use(string) {}

func mathFeatures() string { return "" }

func tileRows() int { return 4 }

func tile(c []float32, ldc int, a []float32, rowStride, kStride int, b panel, k, rows, cols int, load bool) {
	tileGo(c, ldc, a, rowStride, kStride, b, k, rows, cols, load)
}

func quadRows() int { return 0 }

func fourRows(Matrix, Matrix, []float32, int, bool) bool { return false }

func quad([]float32, int, []float32, int, int, panel, int, int, int, bool) { panic("not reached") }

func packPanel(dst []float32, b Matrix)                     { packPanelGo(dst, b) }
func packTile(dst, src []float32, stride, k, cols int) bool { return false }
func packPanelT(dst []float32, w Matrix)                    { packPanelTGo(dst, w) }

func dot(a, b []float32) float32                       { return dotGo(a, b) }
func dot3(a, b, c []float32) float32                   { return dot3Go(a, b, c) }
func sum(x []float32) float32                          { return sumGo(x) }
func greatest(x []float32) float32                     { return greatestGo(x) }
func axpy(x, y []float32, alpha float32)               { axpyGo(x, y, alpha) }
func add(dst, x, y []float32)                          { addGo(dst, x, y) }
func mul(dst, x, y []float32)                          { mulGo(dst, x, y) }
func scale(x []float32, alpha float32)                 { scaleGo(x, alpha) }
func exp(dst, x []float32)                             { expGo(dst, x) }
func expSum(dst, x []float32, shift float32) float32   { return expSumGo(dst, x, shift) }
func softmaxGrad(dp, p []float32, mean float32)        { softmaxGradGo(dp, p, mean) }
func silu(dst, x []float32)                            { siluGo(dst, x) }
func swiglu(dst, gate, up []float32)                   { swigluGo(dst, gate, up) }
func swigluGrad(dGate, dUp, gate, up, d []float32)     { swigluGradGo(dGate, dUp, gate, up, d) }
func scaleMul(dst, x, w []float32, factor float32)     { scaleMulGo(dst, x, w, factor) }
func normGrad(dx, dy, w, x []float32, p, q float32)    { normGradGo(dx, dy, w, x, p, q) }
func mulAdd(dst, x, y []float32, factor float32)       { mulAddGo(dst, x, y, factor) }
func rope(x, y, cos, sin []float32, direction float32) { ropeGo(x, y, cos, sin, direction) }
func spin() int                                        { return spinGo(4000) }
func adam(w, m, v, g []float32, f *adamFactors)        { adamGo(w, m, v, g, f) }
