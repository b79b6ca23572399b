package rest

import (
	"fmt"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// zeroDefaults maps the numeric fields of requests in which 0 means a default to that default. 0
// cannot be a value there, because JSON in the style of proto3 does not distinguish 0 from an
// absent field. If a request sets such a field to 0, the response has a warning. A key is the name
// of a field, or of a type and its field. In all other numeric fields, 0 is a value or is rejected:
// see zeroValues in the tests.
var zeroDefaults = map[string]string{
	"epochs":                              fmt.Sprint(domain.DefaultEpochs),
	"learningRate":                        "the engine's default",
	"batchSize":                           "the engine's default",
	"batchSizeSamples":                    "the engine's default",
	"gradientAccumulationSteps":           "1",
	"nodes":                               "1",
	"nodeCount":                           "1",
	"beta":                                fmt.Sprint(domain.DefaultDPOBeta),
	"lambda":                              fmt.Sprint(domain.DefaultORPOLambda),
	"chunkSize":                           fmt.Sprint(domain.DefaultChunkSize),
	"maxConcurrentRollouts":               "the engine's default",
	"maxConcurrentEvaluations":            "the engine's default",
	"maxInferenceReplicaCount":            "1",
	"InferenceParameters.maxOutputTokens": "the engine's default",
	"responseCandidatesCount":             fmt.Sprint(domain.DefaultCandidates),
	"acceleratorCount":                    shownDefault,
	"draftTokenCount":                     shownDefault,
	"ngramSpeculationLength":              shownDefault,
	"numLoraDeviceCached":                 fmt.Sprint(domain.DefaultAddonSlots),
	"maxWithRevocableReplicaCount":        "maxReplicaCount",
	"previewQuestion.maxSamples":          "all of sampleData, or the first rows of the dataset",
	"fraction":                            shownDefault,
	"queueWeight":                         "1",
}

// shownDefault is the entry in zeroDefaults of a field whose default the server computes and shows
// in the response. If the response does not have the field, there is no warning.
const shownDefault = "shown"

// warnZeros adds a warning about each field that the request sets to 0, if 0 means a default there.
// wrapper is the field of the body that contains the resource; "" if the body is the resource.
// previous and updated are the resource before and after the change, or nil. There is no warning if
// the field was 0 before or is 0 after the change, because a client may send back the 0 that it has
// read.
func warnZeros(c *request.Call, p *request.Params, wrapper string, previous, updated map[string]any) {
	for _, path := range wire.SortedKeys(p.Zeros) {
		typeName, name := p.Zeros[path], path[strings.LastIndexByte(path, '.')+1:]
		meaning, known := zeroDefaults[typeName+"."+name]
		if !known {
			meaning = zeroDefaults[name]
		}
		inResource := strings.TrimPrefix(path, wrapper+".")
		effective, isShown := numberAt(updated, inResource)
		old, _ := numberAt(previous, inResource)
		switch {
		case meaning == "", isShown && effective == 0, previous != nil && old == 0, !isShown && meaning == shownDefault:
			continue
		case isShown:
			meaning = fmt.Sprint(effective)
		}
		if !strings.HasSuffix(meaning, " default") {
			meaning = "the default, " + meaning
		}
		c.Warn("%s: 0 means %s: leave the field out, or give the value that you want", path, meaning)
	}
}

// numberAt returns the number at a path of field names in a JSON object; ok is false if there is
// none.
func numberAt(tree map[string]any, path string) (number float64, ok bool) {
	name, rest, nested := strings.Cut(path, ".")
	if nested {
		inner, _ := tree[name].(map[string]any)
		return numberAt(inner, rest)
	}
	number, ok = tree[name].(float64)
	return number, ok
}
