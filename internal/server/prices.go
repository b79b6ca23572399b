package server

import (
	"cmp"
	"math/big"
	"regexp"

	"anneal/domain"
	"anneal/internal/usage"
)

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// prices returns the prices of training in the flags.
func (f Flags) prices() (domain.Prices, error) {
	if !currencyCode.MatchString(f.currency) {
		return domain.Prices{}, usage.Errorf("--currency %q must be three capital letters, such as EUR", f.currency)
	}
	adapter, err := nanosOf("--training-price", f.price)
	if err != nil {
		return domain.Prices{}, err
	}
	whole, err := nanosOf("--full-training-price", cmp.Or(f.fullPrice, f.price))
	return domain.Prices{CurrencyCode: f.currency, Adapter: adapter, AllParameters: whole}, err
}

var amount = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,9})?$`)

// nanosOf parses a decimal amount, and returns it in billionths. flag is the name of its flag, for
// errors.
func nanosOf(flag, text string) (int64, error) {
	if !amount.MatchString(text) {
		return 0, usage.Errorf("%s %q must be an amount below 1000000 with at most 9 decimals, such as 0.5", flag, text)
	}
	value, _ := new(big.Rat).SetString(text)
	return value.Mul(value, big.NewRat(domain.NanosPerUnit, 1)).Num().Int64(), nil
}
