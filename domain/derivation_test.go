package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestDerivedDataset(t *testing.T) {
	type D = decision[domain.Dataset]
	f := events[domain.Dataset]
	from := &domain.Derivation{Source: "accounts/a/datasets/source", Prefix: "s/1/", Filter: "n > 1"}
	spec := domain.DatasetSpec{Transformed: &domain.DatasetTransformed{SourceDatasetID: "source", Filter: "n > 1"}}
	made := domain.DatasetCreated{DatasetSpec: spec, From: from}
	rows := domain.DatasetStats{Format: domain.FormatChat, Shape: domain.ShapeChat, ExampleCount: 4}
	filled := domain.DatasetFilled{Files: domain.Files{Prefix: "d/x/", Sizes: map[string]int64{"rows.jsonl": 9}},
		DatasetStats: rows}
	unfilled := domain.DatasetUnfilled{Status: someStatus}
	renamed := spec
	renamed.DisplayName = "mine"
	decide(t, domain.Datasets, []D{
		{name: "create", when: domain.CreateDataset{DatasetSpec: spec, From: from}, then: made},
		{name: "create an empty part",
			when: domain.CreateDataset{From: &domain.Derivation{Split: &domain.Split{Held: 1, Of: 1}}}, fault: "INVALID_FIELDS",
			says: "at least 2 rows"},
		{name: "create a split without a source",
			when:  domain.CreateDataset{DatasetSpec: domain.DatasetSpec{Splitted: &domain.DatasetSplitted{Fraction: 0.5}}},
			fault: "INVALID_FIELDS", says: "sourceDatasetId"},
		{name: "create with a fraction of 1",
			when: domain.CreateDataset{DatasetSpec: domain.DatasetSpec{Splitted: &domain.DatasetSplitted{Fraction: 1}},
				From: from}, fault: "INVALID_FIELDS", says: "below 1"},
		{name: "fill", given: f(made), when: domain.FillDataset(filled), then: filled},
		{name: "fill twice", given: f(made, filled), when: domain.FillDataset(filled)},
		{name: "fill with other rows", given: f(made, filled), when: domain.FillDataset{Files: domain.Files{Prefix: "d/y/"}},
			fault: "DATASET_READY"},
		{name: "fill after a failure", given: f(made, unfilled), when: domain.FillDataset(filled),
			fault: "DATASET_UNFILLED", says: someStatus.Message},
		{name: "fill an uploaded dataset", given: f(domain.DatasetCreated{}), when: domain.FillDataset(filled),
			fault: "NOT_DERIVED"},
		{name: "fill a missing dataset", when: domain.FillDataset(filled), fault: "NOT_FOUND"},
		{name: "fail", given: f(made), when: domain.FailFill(unfilled), then: unfilled},
		{name: "fail twice", given: f(made, unfilled), when: domain.FailFill(unfilled)},
		{name: "fail a READY dataset", given: f(made, filled), when: domain.FailFill(unfilled),
			fault: "DATASET_READY"},
		{name: "upload into a derived dataset", given: f(made), when: domain.UploadDataset{Upload: 1, Files: filled.Files},
			fault: "DATASET_DERIVED", says: "accounts/a/datasets/source"},
		{name: "rename", given: f(made), when: domain.UpdateDataset{DatasetSpec: renamed},
			then: domain.DatasetUpdated{DatasetSpec: renamed}},
		{name: "update the origin", given: f(made), when: domain.UpdateDataset{}, fault: "DATASET_DERIVED"},
	})
	state := fold(t, domain.Datasets, made)
	require.True(t, state.Filling())
	require.False(t, state.FillFailed())
	state = fold(t, domain.Datasets, made, unfilled)
	require.False(t, state.Filling())
	require.True(t, state.FillFailed())
	state = fold(t, domain.Datasets, made, filled)
	require.False(t, state.Filling() || state.FillFailed())
	require.Equal(t, filled.Files, state.Files)
	require.EqualValues(t, 4, state.ExampleCount)
}

func TestHowManyRowsAreHeld(t *testing.T) {
	for rows, held := range map[domain.Count]domain.Count{2: 1, 3: 1, 14: 1, 15: 2, 60: 6, 9_994: 999, 10_000: 1000,
		3_000_000: 1000} {
		require.Equal(t, held, domain.CarveOut(rows), "of %d", rows)
		split := domain.Split{Held: held, Of: rows, Seed: 5}
		origin := split.Origin("accounts/a/datasets/d")
		require.Equal(t, "d", origin.SourceDatasetID)
		require.Equal(t, &split, domain.SplitOf(rows, origin.Fraction, origin.Seed, origin.Rest),
			"what a split says of itself makes it again")
	}
	require.EqualValues(t, 1, domain.SplitOf(10, 0.001, 0, false).Held, "one row at least")
	require.EqualValues(t, 9, domain.SplitOf(10, 0.999, 0, false).Held, "one row is left")
}
