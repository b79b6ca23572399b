package domain

import "math/big"

// Money is an amount in a currency. Nanos are billionths of a unit and never
// have another sign than the units.
type Money struct {
	CurrencyCode string `json:"currencyCode"` // ISO 4217
	Units        Count  `json:"units"`
	Nanos        int    `json:"nanos"`
}

// NanosPerUnit is how many nanos make a unit of a currency.
const NanosPerUnit = 1_000_000_000

// DefaultCurrency is that of an installation whose operator names none.
const DefaultCurrency = "USD"

// Prices are what the operator of an installation counts for training. The
// zero value counts nothing.
type Prices struct {
	CurrencyCode  string // ISO 4217; "" is DefaultCurrency
	Adapter       int64  // nanos for a million tokens that an adapter learns from
	AllParameters int64  // nanos for a million tokens that a whole model learns from
}

// Cost is what the job is expected to cost with a dataset of such rows:
//
//	tokens of the dataset × share of its rows that are learnt from × epochs × price of a million tokens / 1,000,000
//
// rounded up to a nano. It counts every token once an epoch, including those
// beyond maxContextLength; it does not count evaluation, nor steps that an
// early stop spares or another attempt repeats. Tokens are the dataset's
// estimatedTokenCount, which for a large one is itself an estimate.
func (s SupervisedSpec) Cost(prices Prices, rows DatasetFacts) Money {
	price := prices.Adapter
	if s.LoraRank != nil && *s.LoraRank == 0 {
		price = prices.AllParameters
	}
	amount := big.NewInt(rows.EstimatedTokenCount.Int64())
	divisor := big.NewInt(1_000_000)
	amount.Mul(amount, big.NewInt(int64(max(s.Epochs, DefaultEpochs)))).Mul(amount, big.NewInt(price))
	if s.EvalAutoCarveout && rows.ExampleCount > 0 {
		amount.Mul(amount, big.NewInt(max(rows.ExampleCount-CarveOut(rows.ExampleCount), 0).Int64()))
		divisor.Mul(divisor, big.NewInt(rows.ExampleCount.Int64()))
	}
	nanos, rest := amount.QuoRem(amount, divisor, new(big.Int))
	if rest.Sign() > 0 {
		nanos.Add(nanos, big.NewInt(1))
	}
	units, nano := nanos.QuoRem(nanos, big.NewInt(NanosPerUnit), new(big.Int))
	currency := prices.CurrencyCode
	if currency == "" {
		currency = DefaultCurrency
	}
	return Money{CurrencyCode: currency, Units: Count(units.Int64()), Nanos: int(nano.Int64())}
}
