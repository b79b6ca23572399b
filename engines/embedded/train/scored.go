package train

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"anneal/domain"
	"anneal/domain/rows"
)

// A group is answers that are compared with one another.
type group struct {
	samples []*Sample
	scores  []float64
}

// scored reads a row of samples that were scored elsewhere: {samples:
// [{messages, METRIC: 0..1}]}. The samples of a row are a group; those that
// stand alone in their rows are one together, in the order of the rows.
func (r *reader) scored(line []byte) error {
	row, err := parse(line, domain.ShapeSamples)
	if err != nil {
		return err
	}
	var g group
	for i, sample := range row.Samples {
		asked, answer, err := lastAnswer(sample.Messages)
		if err != nil {
			return fmt.Errorf("samples[%d].messages: %w", i, err)
		}
		s, err := r.answered(asked, answer, nil)
		if err != nil {
			return fmt.Errorf("samples[%d].messages: %w", i, err)
		}
		reward, err := weighted(sample.Metrics, r.weights)
		if err != nil {
			return fmt.Errorf("samples[%d]: %w", i, err)
		}
		g.samples, g.scores = append(g.samples, s), append(g.scores, reward)
		r.keep(s)
	}
	if len(g.samples) == 1 {
		r.alone.samples, r.alone.scores = append(r.alone.samples, g.samples...), append(r.alone.scores, g.scores...)
		return nil
	}
	r.groups = append(r.groups, g)
	return nil
}

func lastAnswer(messages []rows.Message) (asked, answer []rows.Message, err error) {
	last := len(messages) - 1
	if last < 1 || messages[last].Role != "assistant" {
		return nil, nil, errors.New("must be a question and, last, the assistant's answer")
	}
	return messages[:last], messages[last:], nil
}

// weighted is the sum of metrics, each by its weight; without weights each
// weighs 1.
func weighted(metrics, weights map[string]float64) (float64, error) {
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
			return 0, fmt.Errorf("rewardWeights names %q, which the sample does not have: it has %q", name, slices.Sorted(maps.Keys(metrics)))
		}
		sum += weights[name] * value
	}
	return sum, nil
}

// weigh gives the samples of groups their advantages and answers those of
// groups with a difference, and figures of all scores.
func weigh(groups []group) ([]*Sample, figures) {
	var live []*Sample
	var all []float64
	told := figures{}
	for _, g := range groups {
		if len(g.scores) == 0 {
			continue
		}
		all = append(all, g.scores...)
		better := advantages(g.scores)
		told.add("flat", share(better == nil), 1)
		for i := range better {
			g.samples[i].Advantage = better[i]
			live = append(live, g.samples[i])
		}
	}
	mean, std := spread(all)
	told.add("mean", mean, 1)
	told.add("std", std, 1)
	return live, told
}
