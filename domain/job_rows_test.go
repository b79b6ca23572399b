package domain_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestJobsTakeRowsOfTheirShapes(t *testing.T) {
	fits := map[string]string{
		"supervisedFineTuningJobs": "chat completion CHAT COMPLETION", "dpoJobs": "preference CHAT",
		"reinforcementFineTuningJobs": "prompt RL", "rlorTrainerJobs": "samples RL",
	}
	require.Len(t, slices.Collect(domain.JobKinds()), len(fits), "every kind of job trains on something")
	for _, c := range []struct {
		known   string
		dataset domain.Dataset
	}{
		{"chat", domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat}, Shape: domain.ShapeChat}},
		{"preference", domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat},
			Shape: domain.ShapePreference}},
		{"completion", domain.Dataset{Shape: domain.ShapeCompletion}},
		{"prompt", domain.Dataset{Shape: domain.ShapePrompt}},
		{"samples", domain.Dataset{Shape: domain.ShapeSamples}},
		{"CHAT", domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat}}},
		{"COMPLETION", domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatCompletion}}},
		{"RL", domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatRL}}},
		{"", domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: "FORMAT_UNSPECIFIED"}}},
		{"", domain.Dataset{}},
	} {
		for kind := range domain.JobKinds() {
			collection, shapes := kind.CollectionID(), domain.JobShapes(kind.CollectionID())
			words := " " + fits[collection] + " "
			fit := c.known == "" || strings.Contains(words, " "+c.known+" ")
			require.Equal(t, fit, c.dataset.ShapeMismatch(shapes...) == "", "%s for %s", c.known, collection)
		}
	}
	chat := domain.Dataset{Shape: domain.ShapeChat}
	require.Equal(t, "has chat rows (format CHAT), but preference rows (format CHAT) are needed: choose another dataset",
		chat.ShapeMismatch(domain.ShapePreference))
	coming := domain.Dataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatRL}}
	require.Equal(t, "has format RL, but chat rows (format CHAT) or completion rows (format "+
		"COMPLETION) are needed: choose another dataset",
		coming.ShapeMismatch(domain.JobShapes("supervisedFineTuningJobs")...))
}
