package torch

import (
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// elsewhere are the settings that the script does not read: those that Train rejects, those that
// only the parent process needs, and those without effect on any trainer.
var elsewhere = []string{
	"TrainSettings.JinjaTemplate", "TrainSettings.ReplayWeight", "InferenceParameters.ExtraBody", // rejected
	"TrainSettings.RewardWeights",                              // of the method RLOR, which Methods does not name
	"Rollouts.MaxConcurrentEvaluations",                        // limits the evaluator's processes
	"DPOLoss.RefCacheConcurrency", "DPOLoss.RefCacheBatchSize", // without effect on any trainer
}

// TestSettingsAct checks for each setting of a job that the script reads it, or that Ignored names it.
func TestSettingsAct(t *testing.T) {
	var text strings.Builder
	require.NoError(t, fs.WalkDir(script, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(script, path)
		text.Write(data)
		return err
	}))
	seen := 0
	for _, of := range []reflect.Type{reflect.TypeFor[engines.TrainSettings](), reflect.TypeFor[engines.Rollouts](),
		reflect.TypeFor[domain.InferenceParameters](), reflect.TypeFor[domain.LossConfig](),
		reflect.TypeFor[domain.DPOLoss](), reflect.TypeFor[domain.ORPOLoss]()} {
		for f := range of.Fields() {
			field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			name := of.Name() + "." + f.Name
			if field == "" || slices.Contains(elsewhere, name) { // an embedded struct has no name
				continue
			}
			seen++
			require.Equal(t, !slices.Contains(Ignored(), name), strings.Contains(text.String(), `"`+field+`"`), name)
		}
	}
	require.Greater(t, seen, 20)
}
