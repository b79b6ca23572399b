package train

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"anneal/domain"
	"anneal/domain/rows"
)

// A group has the responses that are compared with one another.
type group struct {
	samples []*Sample
	scores  []float64
}

// scored parses a row of scored samples: {samples: [{messages, METRIC: 0..1}]}. The samples of a
// row are a group. All samples that are alone in their row form one group, in the order of the
// rows.
func (r *reader) scored(line []byte) error {
	row, err := parse(line, domain.ShapeSamples)
	if err != nil {
		return err
	}
	var g group
	for i, sample := range row.Samples {
		asked, response, err := splitResponse(sample.Messages)
		if err != nil {
			return fmt.Errorf("samples[%d].messages: %w", i, err)
		}
		s, err := r.withTarget(asked, response, nil)
		if err != nil {
			return fmt.Errorf("samples[%d].messages: %w", i, err)
		}
		reward, err := weightedReward(sample.Metrics, r.weights)
		if err != nil {
			return fmt.Errorf("samples[%d]: %w", i, err)
		}
		g.samples, g.scores = append(g.samples, s), append(g.scores, reward)
		r.keep(s)
	}
	if len(g.samples) == 1 {
		r.singles.samples, r.singles.scores = append(r.singles.samples, g.samples...), append(r.singles.scores, g.scores...)
		return nil
	}
	r.groups = append(r.groups, g)
	return nil
}

func splitResponse(messages []rows.Message) (asked, response []rows.Message, err error) {
	last := len(messages) - 1
	if last < 1 || messages[last].Role != "assistant" {
		return nil, nil, errors.New("must be a conversation that ends with an assistant message, the response")
	}
	return messages[:last], messages[last:], nil
}

// weightedReward returns the sum of the metrics, each multiplied by its weight. If weights is
// empty, each metric has the weight 1.
func weightedReward(metrics, weights map[string]float64) (float64, error) {
	sum := 0.0
	if len(weights) == 0 {
		for _, name := range slices.Sorted(maps.Keys(metrics)) {
			sum += metrics[name]
		}
		return sum, nil
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		value, ok := metrics[name]
		if !ok {
			return 0, fmt.Errorf("rewardWeights has %q, which the sample lacks: use the sample's metrics %q", name,
				slices.Sorted(maps.Keys(metrics)))
		}
		sum += weights[name] * value
	}
	return sum, nil
}

// computeAdvantages sets the advantages of the samples in groups. It returns the samples of groups
// whose scores differ, and metrics of the scores of all groups.
func computeAdvantages(groups []group) ([]*Sample, means) {
	var live []*Sample
	var all []float64
	metrics := means{}
	for _, g := range groups {
		if len(g.scores) == 0 {
			continue
		}
		all = append(all, g.scores...)
		better := advantages(g.scores)
		metrics.add("flat", share(better == nil), 1)
		for i := range better {
			g.samples[i].Advantage = better[i]
			live = append(live, g.samples[i])
		}
	}
	mean, std := spread(all)
	metrics.add("mean", mean, 1)
	metrics.add("std", std, 1)
	return live, metrics
}
