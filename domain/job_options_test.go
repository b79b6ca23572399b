package domain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestJobOptions checks the limits of job options, and that Spec contains the options that the trainer
// uses.
func TestJobOptions(t *testing.T) {
	spec := domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows"}
	created := func(o domain.JobOptions) (domain.Event[domain.SupervisedJob], error) {
		return domain.CreateSupervisedJob{SupervisedSpec: spec, ID: "j", Options: &o}.Decide(domain.SupervisedJob{},
			time.Time{})
	}
	number := func(n int) *int { return &n }
	spans(t, domain.JobOptions{}, func(o domain.JobOptions) error { _, err := created(o); return err },
		[]span[domain.JobOptions]{
			{"options.seed", 0, domain.MaxSeed, 1, func(o *domain.JobOptions, n float64) { o.Seed = number(int(n)) }},
			{"options.learningRateMultiplier", 0, domain.MaxLearningScale, 0.5,
				func(o *domain.JobOptions, n float64) { o.LearningRateMultiplier = n }},
			{"options.batchSizeSamples", 0, 1 << 30, 1,
				func(o *domain.JobOptions, n float64) { o.BatchSizeSamples = int(n) }},
		})
	for suffix, accepted := range map[int]bool{domain.MaxSuffix: true, domain.MaxSuffix + 1: false} {
		_, err := created(domain.JobOptions{Suffix: strings.Repeat("ü", suffix)})
		require.Equal(t, accepted, err == nil, "%v", err)
	}
	for size, accepted := range map[[2]int]bool{{domain.MaxMetadataKey, domain.MaxMetadataValue}: true,
		{domain.MaxMetadataKey + 1, 1}: false, {1, domain.MaxMetadataValue + 1}: false} {
		_, err := created(domain.JobOptions{Metadata: map[string]string{strings.Repeat("ü", size[0]): strings.Repeat("ü",
			size[1])}})
		require.Equal(t, accepted, err == nil, "%v: %v", size, err)
	}
	many := map[string]string{}
	for i := range domain.MaxMetadata + 1 {
		many[strings.Repeat("k", i+1)] = ""
	}
	_, err := created(domain.JobOptions{Metadata: many})
	require.ErrorContains(t, err, "options.metadata: must have at most 16 entries, not 17")
	spec.LearningRate = 0.1
	_, err = created(domain.JobOptions{LearningRateMultiplier: 2})
	require.ErrorContains(t, err, "options.learningRateMultiplier: scales the default learning rate")
}

// TestOptionsOfEveryKindOfJob checks that Spec contains the options that the trainer uses, for each
// kind of job that has options.
func TestOptionsOfEveryKindOfJob(t *testing.T) {
	seed := 7
	options := &domain.JobOptions{Seed: &seed, LearningRateMultiplier: 0.5, BatchSizeSamples: 3}
	for name, spec := range map[string]domain.JobSpec{
		"supervised": evolved(domain.SupervisedJobCreated{Options: options}).Spec(),
		"dpo":        evolved(domain.DPOJobCreated{Options: options}).Spec(),
		"rl":         evolved(domain.ReinforcementJobCreated{Options: options}).Spec(),
	} {
		require.Equal(t, []any{7, 0.5, 3}, []any{*spec.Seed, spec.LearningRateMultiplier, spec.Config.BatchSizeSamples},
			name)
	}
	require.Nil(t, evolved(domain.DPOJobCreated{}).Spec().Seed, "an event of an earlier version has no options")
}

// evolved returns the state after one event.
func evolved[S any](e domain.Event[S]) *S {
	state := new(S)
	e.Evolve(state)
	return state
}
