package domain

import "math/big"

// Money is an amount in a currency. Nanos are billionths of a unit and have the same sign as the
// units.
type Money struct {
	CurrencyCode string `json:"currencyCode"` // currency code of ISO 4217, such as USD
	Units        Count  `json:"units"`
	Nanos        int    `json:"nanos"`
}

// NanosPerUnit is the number of nanos in one unit of a currency.
const NanosPerUnit = 1_000_000_000

// DefaultCurrency is the currency of an installation whose operator sets none.
const DefaultCurrency = "USD"

// Prices are the prices of training that the operator of an installation sets. The zero value makes
// training free.
type Prices struct {
	CurrencyCode  string // currency code of ISO 4217; "" stands for DefaultCurrency
	Adapter       int64  // nanos per million training tokens of an adapter
	AllParameters int64  // nanos per million training tokens of a full-parameter fine-tune
}

// Cost estimates the cost of the job on a dataset with these statistics:
//
//	tokens of the dataset × share of its rows used for training × epochs × price of a million tokens / 1,000,000
//
// rounded up to a nano. It counts every token once per epoch, including those beyond
// maxContextLength and those of epochs that early stopping may skip. It does not count evaluation,
// or steps that another attempt repeats. The tokens are the dataset's estimatedTokenCount, which is
// an estimate for a large dataset.
func (s SupervisedSpec) Cost(prices Prices, rows DatasetStats) Money {
	price := prices.Adapter
	if s.LoraRank != nil && *s.LoraRank == 0 {
		price = prices.AllParameters
	}
	amount := big.NewInt(rows.EstimatedTokenCount.Int64())
	divisor := big.NewInt(1_000_000)
	amount.Mul(amount, big.NewInt(int64(max(s.Epochs, DefaultEpochs)))).Mul(amount, big.NewInt(price))
	if s.holdsOut() && rows.ExampleCount > 0 {
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
