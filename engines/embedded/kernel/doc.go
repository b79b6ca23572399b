// Package kernel holds the arithmetic of the embedded engine: products of
// float32 matrices and the vector operations of a transformer.
//
// On amd64 the inner loops are assembly written by the generator in gen;
// elsewhere they are plain Go. A call into assembly lasts some 50 µs at most,
// because Go cannot interrupt it. The instruction set is chosen at start-up from
// what the processor has: see Level. The environment variable ANNEAL_KERNEL
// (avx512, avx2 or go) asks for a lower one.
//
// # The order of additions
//
// An element of C = A·B starts at zero (or at its former value when the call
// accumulates) and takes its k products one after another in ascending order
// of k, at the levels avx512 and avx2 with one rounding per step. Nothing else
// takes part: not the number of rows or columns, not the row's place in its
// batch, not the number of workers. A row alone and the same row in a batch
// therefore give the same bits. The vector
// reductions (Dot, Sum, Softmax, RMSNorm) have an order that depends on their
// length and the level only.
//
// Lengths that do not fit each other are mistakes of the caller and panic.
// Operands written to must not overlap others unless the function says so.
package kernel

//go:generate go run ./gen
