package rest

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
)

// zeroValues are the numeric fields of requests in which 0 is a value or is refused. A key is the name
// of a field, or of a type and its field.
var zeroValues = map[string]string{
	"loraRank":                "trains all parameters",
	"learningRateWarmupSteps": "no warmup",
	"pruneRequest.keep":       "keepDays alone decides; 0 for both is refused",
	"pruneRequest.keepDays":   "keep alone decides; 0 for both is refused",
	"optimizerWeightDecay":    "no decay",
	"maxContextLength":        "the specification defines 0 as the model's context length",
	"klBeta":                  "no KL term",
	"refCacheBatchSize":       "the field has no effect with any value",
	"refCacheConcurrency":     "the field has no effect with any value",
	"mtpNumDraftTokens":       "the field has no effect with any value",
	"replayWeight":            "no responses are replayed",
	"maxStaleness":            "the newest weights generate rollouts, as documented",
	"temperature":             "refused for rollouts",
	"topK":                    "sampling from all tokens, as documented",
	"topP":                    "the filter is off, as with 1",
	"exampleCount":            "no rows yet",
	"seed":                    "a seed",
	"minReplicaCount":         "scales to zero",
	"maxErrorIncreasePercent": "no higher error rate",
	"maxLatencyPercent":       "refused",
	"minSamples":              "refused",
	"maxReplicaCount":         "no replicas",
	"replicaCount":            "no replicas",
	"maxValue":                "nothing is allowed",
	"startPosition":           "delivers all events",
	"position":                "refused",

	"acceleratorShare":                    "whole devices",
	"defaultDraftTokenCount":              "no speculation",
	"defaultNgramSpeculationLength":       "no speculation",
	"JobAcceleratorRow.acceleratorCount":  "CPUs only",
	"JobAcceleratorRow.maxParameterCount": "models of every size",
}

// TestZerosOfNumericFields checks that every numeric field of a request either has a default that 0
// stands for, which a warning states, or gives 0 a meaning.
func TestZerosOfNumericFields(t *testing.T) {
	used := map[string]bool{}
	find := func(typeName, name string) (key string) {
		for _, key = range []string{typeName + "." + name, name} {
			_, warned := zeroDefaults[key]
			_, value := zeroValues[key]
			if warned || value {
				require.False(t, warned && value, "%s is in both tables", key)
				used[key] = true
				return key
			}
		}
		t.Errorf("%s.%s: add it to zeroDefaults, or to zeroValues", typeName, name)
		return ""
	}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(of reflect.Type) {
		switch of = wire.Deref(of); wire.KindOf(of) {
		case wire.List, wire.Map:
			walk(of.Elem())
		case wire.Object:
			if seen[of] {
				return
			}
			seen[of] = true
			for _, f := range wire.StructOf(of).Fields {
				switch kind := wire.KindOf(wire.Deref(f.Type)); {
				case f.Output:
				case kind == wire.Int || kind == wire.Float || kind == wire.Count:
					find(of.Name(), f.Name)
				default:
					walk(f.Type)
				}
			}
		}
	}
	for _, op := range (*Service)(nil).Operations() {
		if op.Body != nil {
			walk(op.Body)
		}
	}
	for _, table := range []map[string]string{zeroDefaults, zeroValues} {
		for key, meaning := range table {
			require.True(t, used[key], "no request has %s", key)
			require.NotEmpty(t, meaning, key)
		}
	}
}
