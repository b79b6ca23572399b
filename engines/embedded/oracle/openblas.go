//go:build openblas

package oracle

/*
#cgo LDFLAGS: -lopenblas
#include <cblas.h>
void openblas_set_num_threads(int);
*/
import "C"

func init() { C.openblas_set_num_threads(1) }

// sgemmT computes c = a·bᵀ with OpenBLAS on one core. The matrices are row-major: a is m×k, b n×k,
// and c m×n.
func sgemmT(m, n, k int, a, b, c []float32) {
	C.cblas_sgemm(C.CblasRowMajor, C.CblasNoTrans, C.CblasTrans, C.blasint(m), C.blasint(n), C.blasint(k), 1,
		(*C.float)(&a[0]), C.blasint(k), (*C.float)(&b[0]), C.blasint(k), 0, (*C.float)(&c[0]), C.blasint(n))
}
