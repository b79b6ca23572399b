package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestPrices(t *testing.T) {
	for _, line := range []struct {
		currency, price, full string
		want                  domain.Prices
		says                  string
	}{
		{"USD", "0", "", domain.Prices{CurrencyCode: "USD"}, ""},
		{"EUR", "0.5", "", domain.Prices{CurrencyCode: "EUR", Adapter: 500_000_000, AllParameters: 500_000_000}, ""},
		{"EUR", "999999.000000001", "12",
			domain.Prices{CurrencyCode: "EUR", Adapter: 999_999_000_000_001, AllParameters: 12_000_000_000}, ""},
		{"eur", "1", "", domain.Prices{}, "--currency"},
		{"EUR", "-1", "", domain.Prices{}, "--training-price"},
		{"EUR", "1e3", "", domain.Prices{}, "--training-price"},
		{"EUR", "1", "1000000", domain.Prices{}, "--full-training-price"},
		{"EUR", "0.0000000001", "", domain.Prices{}, "at most 9 decimals"},
	} {
		flags := DefaultFlags()
		flags.currency, flags.price, flags.fullPrice = line.currency, line.price, line.full
		got, err := flags.prices()
		if line.says != "" {
			require.ErrorContains(t, err, line.says)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, line.want, got)
	}
}
