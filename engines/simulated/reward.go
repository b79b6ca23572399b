package simulated

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
	"anneal/engines"
)

// meanReward returns the mean reward of all samples in the request's rows. The reward of a sample
// is the sum of its values, each multiplied by its weight in RewardWeights, or by 1 if
// RewardWeights is empty. It returns InvalidArgument if a sample lacks a value with a weight.
func meanReward(request engines.TrainRequest) (float64, error) {
	sum, samples := 0.0, 0
	for _, file := range request.DataFiles {
		f, err := os.Open(file)
		if err != nil {
			return 0, err
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 4<<20)
		for line := 1; lines.Scan(); line++ {
			var row struct {
				Samples []map[string]any `json:"samples"`
			}
			if json.Unmarshal(lines.Bytes(), &row) != nil || len(row.Samples) == 0 {
				err = domain.Errorf(domain.InvalidArgument,
					"%s line %d: has no samples; write {samples: [{messages, REWARD: 0..1}]}", filepath.Base(file), line)
				break
			}
			for _, sample := range row.Samples {
				var reward float64
				if reward, err = rewardOf(sample, request.Settings.RewardWeights); err != nil {
					break
				}
				sum, samples = sum+reward, samples+1
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			err = lines.Err()
		}
		_ = f.Close() // the file is only read, so its data cannot be lost
		if err != nil {
			return 0, err
		}
	}
	return sum / float64(max(samples, 1)), nil
}

func rewardOf(sample map[string]any, weights map[string]float64) (total float64, err error) {
	names := make([]string, 0, len(weights))
	for name := range weights {
		names = append(names, name)
	}
	for name := range sample {
		if _, isNumber := sample[name].(float64); isNumber && len(weights) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		value, ok := sample[name].(float64)
		if !ok {
			return 0, domain.Errorf(domain.InvalidArgument,
				"rewardWeights: a sample lacks the reward %q; use only rewards for which every sample has a number", name)
		}
		weight := 1.0
		if w, given := weights[name]; given {
			weight = w
		}
		total += weight * value
	}
	return total, nil
}
