package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestCostOfSupervisedJobs(t *testing.T) {
	prices := domain.Prices{CurrencyCode: "EUR", Adapter: 400_000_000, AllParameters: 1_200_000_000}
	rows := domain.DatasetStats{ExampleCount: 100, EstimatedTokenCount: 2_500_000}
	for _, line := range []struct {
		name   string
		spec   domain.SupervisedSpec
		rows   domain.DatasetStats
		prices domain.Prices
		want   domain.Money
	}{
		{"an adapter, one epoch by default", domain.SupervisedSpec{}, rows, prices,
			domain.Money{CurrencyCode: "EUR", Units: 1}},
		{"three epochs", domain.SupervisedSpec{TrainingConfig: domain.TrainingConfig{Epochs: 3}}, rows, prices,
			domain.Money{CurrencyCode: "EUR", Units: 3}},
		{"all parameters", domain.SupervisedSpec{TrainingConfig: domain.TrainingConfig{LoraRank: ptr(0)}}, rows, prices,
			domain.Money{CurrencyCode: "EUR", Units: 3}},
		{"a tenth held out", domain.SupervisedSpec{EvalAutoCarveout: true}, rows, prices,
			domain.Money{CurrencyCode: "EUR", Nanos: 900_000_000}},
		{"a tenth held out for earlyStop", domain.SupervisedSpec{EarlyStop: true}, rows, prices,
			domain.Money{CurrencyCode: "EUR", Nanos: 900_000_000}},
		{"earlyStop with an evaluation dataset", domain.SupervisedSpec{EarlyStop: true, EvaluationDataset: "e"}, rows, prices,
			domain.Money{CurrencyCode: "EUR", Units: 1}},
		{"rounded up to a nano", domain.SupervisedSpec{}, domain.DatasetStats{ExampleCount: 3, EstimatedTokenCount: 1},
			domain.Prices{Adapter: 1}, domain.Money{CurrencyCode: "USD", Nanos: 1}},
		{"nothing", domain.SupervisedSpec{}, rows, domain.Prices{}, domain.Money{CurrencyCode: "USD"}},
		{"intermediate results above 64 bits", domain.SupervisedSpec{TrainingConfig: domain.TrainingConfig{Epochs: 1000}},
			domain.DatasetStats{EstimatedTokenCount: 1e12},
			domain.Prices{Adapter: 1000 * domain.NanosPerUnit}, domain.Money{CurrencyCode: "USD", Units: 1e12}},
	} {
		t.Run(line.name, func(t *testing.T) { require.Equal(t, line.want, line.spec.Cost(line.prices, line.rows)) })
	}
}

// TestEarlyStopHoldsOutRows checks that a job with earlyStop and without evaluation rows holds out
// rows of its dataset.
func TestEarlyStopHoldsOutRows(t *testing.T) {
	for _, line := range []struct {
		spec domain.SupervisedSpec
		want bool
	}{
		{domain.SupervisedSpec{}, false},
		{domain.SupervisedSpec{EvalAutoCarveout: true}, true},
		{domain.SupervisedSpec{EarlyStop: true}, true},
		{domain.SupervisedSpec{EarlyStop: true, EvaluationDataset: "accounts/a/datasets/e"}, false},
	} {
		require.Equal(t, line.want, domain.SupervisedJob{SupervisedSpec: line.spec}.Spec().AutoCarveout)
	}
}
