// Package kernel implements the arithmetic of the embedded engine: products of float32 matrices and
// the vector operations of a transformer.
//
// On amd64 the inner loops are assembly that the generator in gen writes; elsewhere they are plain
// Go. A call into assembly takes at most about 50 µs, because Go cannot preempt it. The level (the
// instruction set) is selected at start-up: see Level. The environment variable ANNEAL_KERNEL
// (avx512, avx2 or go) selects a lower one.
//
// # Order of summation
//
// An element of C = A·B starts at zero, or at its previous value if the call accumulates. Its k
// products are added in ascending order of k; at the levels avx512 and avx2, with one rounding for
// each product. If B has scales, the sum always starts at zero, and is multiplied by the scale
// before it is added to C. The order does not depend on the number of rows or columns, the position
// of the row in its batch, or the number of workers. A row alone and the same row in a batch are
// therefore bit-identical. The order of vector reductions (Dot, Sum, Softmax, RMSNorm) depends on
// their length and the level only.
//
// Functions panic if the lengths of their operands do not match. Output operands must not overlap
// others unless a function allows it.
package kernel

//go:generate go run ./gen
