package quant

import (
	"encoding/binary"
	"math"
)

// encodeQ80 stores x as integers times d = max|x|/127.
func encodeQ80(to []byte, x []float32) {
	peak := float32(0)
	for _, v := range x {
		peak = max(peak, float32(math.Abs(float64(v))))
	}
	d := peak / 127
	putHalf(to, d)
	for i, v := range x {
		q := 0.0
		if d > 0 {
			q = math.Round(float64(v / d))
		}
		to[2+i] = byte(int8(q))
	}
}

func decodeQ80(x []float32, from []byte) {
	d := half(from)
	for i := range x {
		x[i] = d * float32(int8(from[2+i]))
	}
}

// encodeQ50 stores x as d·(q-16).
func encodeQ50(to []byte, x []float32) {
	d := putHalf(to, symmetric(x, 16))
	var q [small]uint8
	roundTo(q[:], x, d, -16*d, 31)
	putFiveBits(to[2:], &q)
}

func decodeQ50(x []float32, from []byte) {
	d, q := half(from), fiveBits(from[2:])
	for i := range x {
		x[i] = d * (float32(q[i]) - 16)
	}
}

// encodeQ51 stores x as d·q + m.
func encodeQ51(to []byte, x []float32) {
	scale, low := affine(x, 31, false)
	d, m := putHalf(to, scale), putHalf(to[2:], low)
	var q [small]uint8
	roundTo(q[:], x, d, m, 31)
	putFiveBits(to[4:], &q)
}

func decodeQ51(x []float32, from []byte) {
	d, m, q := half(from), half(from[2:]), fiveBits(from[4:])
	for i := range x {
		x[i] = d*float32(q[i]) + m
	}
}

// putFiveBits stores 5-bit integers: bit i of a 32-bit word is the highest bit of q[i]. The next 16
// bytes have the lower four bits of q[i] and, shifted by four, of q[i+16].
func putFiveBits(to []byte, q *[small]uint8) {
	high := uint32(0)
	for i, v := range q {
		high |= uint32(v>>4) << i
	}
	binary.LittleEndian.PutUint32(to, high)
	for i := range small / 2 {
		to[4+i] = q[i]&15 | q[i+small/2]<<4
	}
}

// fiveBits returns the 5-bit integers that putFiveBits has stored.
func fiveBits(from []byte) (q [small]uint8) {
	high := binary.LittleEndian.Uint32(from)
	for i := range small / 2 {
		q[i], q[i+small/2] = from[4+i]&15, from[4+i]>>4
	}
	for i := range q {
		q[i] |= uint8(high>>i&1) << 4
	}
	return q
}

const (
	groups     = super / small // number of groups in a block of Q4_K and Q5_K
	maxScale   = 63            // maximum of a 6-bit scale
	sixGroup   = 16            // number of values in a group of Q6_K
	sixGroups  = super / sixGroup
	quarter    = 32 // distance between values of Q6_K that share a byte
	sixPerHalf = super / 2
)

func encodeQ4K(to []byte, x []float32) {
	q := encodeGroups(to, x, 15)
	putNibbles(to[4+packedScales:], q[:])
}

func encodeQ5K(to []byte, x []float32) {
	q := encodeGroups(to, x, 31)
	high := to[4+packedScales:][:super/8]
	clear(high)
	for i, v := range q {
		high[i%small] |= v >> 4 << (i / small) // bit g of byte i is the highest bit of value i of group g
	}
	putNibbles(to[4+packedScales+super/8:], q[:])
}

func decodeQ4K(x []float32, from []byte) {
	q := nibbles(from[4+packedScales:])
	decodeGroups(x, from, &q)
}

func decodeQ5K(x []float32, from []byte) {
	high, q := from[4+packedScales:], nibbles(from[4+packedScales+super/8:])
	for i := range q {
		q[i] |= high[i%small] >> (i / small) & 1 << 4
	}
	decodeGroups(x, from, &q)
}

// encodeGroups stores d, m and the scales s and t of the groups of x. It returns the integers from
// 0 to top for the values of x.
func encodeGroups(dst []byte, x []float32, top int) (q [super]uint8) {
	var scales, lows [groups]float32
	peak, deepest := float32(0), float32(0)
	for g := range groups {
		scales[g], lows[g] = affine(x[g*small:][:small], top, true)
		peak, deepest = max(peak, scales[g]), max(deepest, -lows[g])
	}
	d, m := putHalf(dst, peak/maxScale), putHalf(dst[2:], deepest/maxScale)
	var s, t [groups]uint8
	for g := range groups {
		values := x[g*small:][:small]
		s[g], t[g] = scaleOf(values, top, d, m, scales[g], lows[g])
		roundTo(q[g*small:][:small], values, d*float32(s[g]), -m*float32(t[g]), top)
	}
	putScales(dst[4:], &s, &t)
	return q
}

func decodeGroups(x []float32, from []byte, q *[super]uint8) {
	d, m := half(from), half(from[2:])
	s, t := scales(from[4:])
	for i := range x {
		g := i / small
		x[i] = d*float32(s[g])*float32(q[i]) - m*float32(t[g])
	}
}

// putScales stores 6-bit integers: bytes 0 to 3 have s[0] to s[3], and bytes 4 to 7 t[0] to t[3];
// their highest two bits are those of s[4] to s[7] and t[4] to t[7]. Bytes 8 to 11 have the lower
// four bits of s[4] to s[7] and, shifted by four, of t[4] to t[7].
func putScales(dst []byte, s, t *[groups]uint8) {
	for i := range groups / 2 {
		dst[i] = s[i] | s[i+4]>>4<<6
		dst[i+4] = t[i] | t[i+4]>>4<<6
		dst[i+8] = s[i+4]&15 | t[i+4]<<4
	}
}

func scales(from []byte) (s, t [groups]uint8) {
	for i := range groups / 2 {
		s[i], t[i] = from[i]&63, from[i+4]&63
		s[i+4] = from[i+8]&15 | from[i]>>6<<4
		t[i+4] = from[i+8]>>4 | from[i+4]>>6<<4
	}
	return s, t
}

// putNibbles stores the lower four bits of q: byte i of each 32 bytes has value i of one group and,
// shifted by four, value i of the next.
func putNibbles(to []byte, q []uint8) {
	for pair := range groups / 2 {
		one := q[2*pair*small:]
		for i := range small {
			to[pair*small+i] = one[i]&15 | one[i+small]<<4
		}
	}
}

func nibbles(from []byte) (q [super]uint8) {
	for pair := range groups / 2 {
		for i := range small {
			both := from[pair*small+i]
			q[2*pair*small+i], q[(2*pair+1)*small+i] = both&15, both>>4
		}
	}
	return q
}

// encodeQ6K stores x as d·s·(q-32). Each half of the block has 64 bytes with the lower four bits of
// its values, and 32 bytes with the upper two bits, as layoutQ6K places them. The 8-bit scales and
// d follow.
func encodeQ6K(to []byte, x []float32) {
	var fitted [sixGroups]float32
	peak := float32(0)
	for g := range fitted {
		fitted[g] = symmetric(x[g*sixGroup:][:sixGroup], 32)
		if math.Abs(float64(fitted[g])) > math.Abs(float64(peak)) {
			peak = fitted[g]
		}
	}
	clear(to)
	d := putHalf(to[super/2+super/4+sixGroups:], peak/-128)
	var q [super]uint8
	for g := range fitted {
		values := x[g*sixGroup:][:sixGroup]
		s := signedScaleOf(values, 32, d, fitted[g])
		to[super/2+super/4+g] = byte(s)
		step := d * float32(s)
		roundTo(q[g*sixGroup:][:sixGroup], values, step, -32*step, 63)
	}
	for i, v := range q {
		low, nibble, high, pair := layoutQ6K(i)
		to[low] |= v & 15 << nibble
		to[high] |= v >> 4 << pair
	}
}

func decodeQ6K(x []float32, from []byte) {
	d := half(from[super/2+super/4+sixGroups:])
	for i := range x {
		low, nibble, high, pair := layoutQ6K(i)
		q := from[low]>>nibble&15 | from[high]>>pair&3<<4
		s := int8(from[super/2+super/4+i/sixGroup])
		x[i] = d * float32(s) * float32(int(q)-32)
	}
}

// layoutQ6K returns the place of the integer for value i: the byte and the shift of its lower four
// bits, and the byte and the shift of its upper two bits.
func layoutQ6K(i int) (low int, nibble uint, high int, pair uint) {
	part, at := i/sixPerHalf, i%sixPerHalf
	row, column := at/quarter, at%quarter
	low = part*sixPerHalf/2 + row%2*quarter + column
	high = super/2 + part*quarter + column
	return low, uint(row / 2 * 4), high, uint(row * 2)
}
