package grammar

import (
	"strconv"
	"strings"
)

// numbers returns an expression that matches the numbers that conform to all schemas; only integers
// if integers is true.
func (k *schemaKit) numbers(all []*schema, integers bool) expr {
	var low, high bound
	for _, s := range all {
		low.tighten(s.number.low, 1)
		high.tighten(s.number.high, -1)
	}
	if !low.given && !high.given {
		if integers {
			return k.integer()
		}
		return k.number()
	}
	const limit = 1e15 - 1 // largest integer of maxDigits digits
	if !low.given {
		low = bound{at: min(-limit, high.at)}
	}
	if !high.given {
		high = bound{at: max(limit, low.at)}
	}
	if integers {
		return integersBetween(inner(low, 1), inner(high, -1))
	}
	var ways []expr
	if high.at > 0 || high.at == 0 && !high.open { // the bounds allow non-negative numbers
		from := low
		if from.at < 0 {
			from = bound{}
		}
		ways = append(ways, decimals(from, high))
	}
	if low.at < 0 { // the bounds allow negative numbers; 0 has no minus sign
		from := bound{at: -high.at, open: high.open}
		if from.at <= 0 {
			from = bound{open: true}
		}
		ways = append(ways, seq(text("-"), decimals(from, bound{at: -low.at, open: low.open})))
	}
	return alt(append(ways, never)...)
}

// inner returns the first integer within the bound b. inward is the direction of the allowed
// numbers: 1 for a lower bound, -1 for an upper bound.
func inner(b bound, inward int64) int64 {
	if b.open {
		return b.at + inward
	}
	return b.at
}

// decimals returns an expression that matches the non-negative numbers within the bounds, with or
// without a fraction.
func decimals(low, high bound) expr {
	tail := repeat(digit, 0, maxFraction)
	some := seq(text("."), repeat(digit, 1, maxFraction))
	ways := []expr{integersBetween(inner(low, 1), inner(high, -1))}
	from := low.at
	// The number low is excluded, so its digits must be followed by a fraction other than 0.
	if low.open && low.at < high.at {
		part := seq(text("."), repeat(text("0"), 0, maxFraction-1), runes(class{{'1', '9'}}), tail)
		ways = append(ways, seq(text(strconv.FormatInt(low.at, 10)), part))
		from++
	}
	if from < high.at {
		ways = append(ways, seq(integersBetween(from, high.at-1), some))
	}
	return alt(ways...)
}

// integersBetween returns an expression that matches the integers from low to high.
func integersBetween(low, high int64) expr {
	ways := []expr{never}
	if low < 0 {
		ways = append(ways, seq(text("-"), between(max(-high, 1), -low)))
	}
	if high >= 0 {
		ways = append(ways, between(max(low, 0), high))
	}
	return alt(ways...)
}

// between returns an expression that matches the non-negative integers from low to high.
func between(low, high int64) expr {
	if low > high {
		return never
	}
	var ways []expr
	for low <= high {
		from := strconv.FormatInt(low, 10)
		limit, err := strconv.ParseInt(strings.Repeat("9", len(from)), 10, 64)
		if err != nil || limit > high {
			limit = high
		}
		ways = append(ways, digits(from, strconv.FormatInt(limit, 10)))
		low = limit + 1
	}
	return alt(ways...)
}

// digits returns an expression that matches the numbers from low to high, which have the same
// number of digits.
func digits(low, high string) expr {
	rest := len(low) - 1
	switch {
	case low == "":
		return nothing
	case strings.Trim(low, "0") == "" && strings.Trim(high, "9") == "":
		return repeat(digit, len(low), len(low))
	case low[0] == high[0]:
		return seq(text(low[:1]), digits(low[1:], high[1:]))
	}
	zeros, nines := strings.Repeat("0", rest), strings.Repeat("9", rest)
	from, to := rune(low[0]), rune(high[0])
	var ways []expr
	if low[1:] != zeros {
		ways = append(ways, seq(runes(one(from)), digits(low[1:], nines)))
		from++
	}
	if high[1:] != nines {
		ways = append(ways, seq(runes(one(to)), digits(zeros, high[1:])))
		to--
	}
	if from <= to {
		ways = append(ways, seq(runes(class{{from, to}}), repeat(digit, rest, rest)))
	}
	return alt(ways...)
}
