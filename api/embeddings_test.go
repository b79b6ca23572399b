package api

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

func (s *harness) embedText(key, body string) response {
	s.Helper()
	return s.call("POST", "/v1/embeddings", key, `{"model": "accounts/acme/deployments/d1", `+body+`}`)
}

// TestEmbeddings checks the forms of input, the encodings of vectors, the order and the usage.
func TestEmbeddings(t *testing.T) {
	s := servingHarness(t, 1)
	for input, want := range map[string][][]float32{
		`"abc"`:            {{3, 0, 0.1, -2.5}},
		`["abc", "", "x"]`: nil, // an empty input
		`["abc", "x"]`:     {{3, 0, 0.1, -2.5}, {1, 0, 0.1, -2.5}},
		`[7, 8, 9]`:        {{0, 3, 0.1, -2.5}},
		`[[7, 8, 9], [1]]`: {{0, 3, 0.1, -2.5}, {0, 1, 0.1, -2.5}},
		`["` + strings.Repeat(`a", "`, 99) + `bb"]`: append(slicesOf([]float32{1, 0, 0.1, -2.5}, 99),
			[]float32{2, 0, 0.1, -2.5}),
	} {
		a := s.embedText("inference", `"input": `+input)
		if want == nil {
			require.Equal(t, 400, a.status, "%s", a.body)
			continue
		}
		require.Equal(t, 200, a.status, "%s", a.body)
		var list struct {
			Object, Model string
			Data          []struct {
				Object    string
				Index     int
				Embedding []float32
			}
			Usage map[string]int
		}
		require.NoError(t, json.Unmarshal(a.body, &list))
		require.Equal(t, "list", list.Object)
		require.Equal(t, "accounts/acme/deployments/d1", list.Model)
		tokens := 0
		require.Len(t, list.Data, len(want))
		for i, one := range list.Data {
			require.Equal(t, i, one.Index)
			require.Equal(t, "embedding", one.Object)
			require.Equal(t, want[i], one.Embedding)
			tokens += max(1+int(want[i][0]), int(want[i][1]))
		}
		require.Equal(t, map[string]int{"prompt_tokens": tokens, "total_tokens": tokens}, list.Usage)
		require.Equal(t, fmt.Sprint(tokens), a.header.Get("anneal-prompt-tokens"))
		require.Equal(t, "accounts/acme/deployments/d1", a.header.Get("anneal-deployment"))

		encoded := s.embedText("inference", `"encoding_format": "base64", "input": `+input)
		var packed struct{ Data []struct{ Embedding string } }
		require.NoError(t, json.Unmarshal(encoded.body, &packed))
		for i, one := range packed.Data {
			data, err := base64.StdEncoding.DecodeString(one.Embedding)
			require.NoError(t, err)
			var vector []float32
			for ; len(data) > 0; data = data[4:] {
				vector = append(vector, math.Float32frombits(binary.LittleEndian.Uint32(data)))
			}
			require.Equal(t, want[i], vector)
		}
	}
	short := s.embedText("inference", `"input": "abc", "dimensions": 2`)
	require.Contains(t, string(short.body), `"embedding":[1,0]`)
}

func slicesOf[T any](value T, n int) (all []T) {
	for range n {
		all = append(all, value)
	}
	return all
}

// TestEmbeddingErrors checks the errors of embedding requests: which field they name, and that all
// violations are collected.
func TestEmbeddingErrors(t *testing.T) {
	s := servingHarness(t, 1)
	for body, want := range map[string]struct {
		status  int
		param   string
		message string
	}{
		`"dimensions": 2`:                                    {400, "input", "is required"},
		`"input": ""`:                                        {400, "input", "must not be empty"},
		`"input": []`:                                        {400, "input", "must not be an empty list"},
		`"input": [[1], []]`:                                 {400, "input", "must not be empty"},
		`"input": {"a": 1}`:                                  {400, "input", "must be text"},
		`"input": ["a", 1]`:                                  {400, "input", "must be text"},
		`"input": [-1]`:                                      {400, "input", "a token ID is a whole number of at least 0"},
		`"input": "a", "dimensions": 0`:                      {400, "dimensions", "from 1 to"},
		`"input": "a", "encoding_format": "int8"`:            {400, "encoding_format", "float, base64"},
		`"input": "", "dimensions": 0, "user": 1`:            {400, "input", "3 fields"},
		`"input": [` + strings.Repeat(`"a",`, 2048) + `"a"]`: {400, "input", "at most 2048 prompts, not 2049"},
	} {
		a := s.embedText("user", body)
		require.Equal(t, want.status, a.status, "%s: %s", body, a.body)
		fault := a.json(t)["error"].(map[string]any)
		require.Equal(t, want.param, fault["param"], "%s", a.body)
		if want.message != "3 fields" {
			require.Contains(t, fault["message"], want.message)
			continue
		}
		for _, field := range []string{"input", "dimensions", "user"} {
			require.Contains(t, fault["message"], field+": ")
		}
	}
	warned := s.embedText("user", `"input": "a", "truncate": true`)
	require.Equal(t, 200, warned.status)
	require.Contains(t, warned.header.Get("anneal-warning"), `"truncate"`)

	s.replicas.embed = func(_ context.Context, req engines.EmbeddingRequest) (engines.Embedding, engines.Usage, error) {
		if req.Input == "long" {
			var v domain.Violations
			v.Add("input", "has 900 tokens, more than the context length of 512: shorten it")
			return engines.Embedding{}, engines.Usage{}, v.Err()
		}
		return engines.Embedding{}, engines.Usage{}, engines.EmbeddingsError("its engine cannot")
	}
	long := s.embedText("user", `"input": ["long", "long"]`)
	require.Equal(t, 400, long.status)
	require.Contains(t, long.json(t)["error"].(map[string]any)["message"], "]: has 900 tokens")
	none := s.embedText("user", `"input": "a"`)
	require.Equal(t, 400, none.status, "%s", none.body)
	require.Equal(t, engines.NoEmbeddings, codeOf(t, none))
}

// TestEmbeddingsAreMetered checks the usage record of an embedding request.
func TestEmbeddingsAreMetered(t *testing.T) {
	s, meter := newHarness(t, request.Limits{}), &usageRecorder{}
	s.server.inference.Router.Meter = meter
	s.deploy("d1", 1)
	require.Equal(t, 200, s.embedText("inference", `"input": ["abc", "x"]`).status)
	require.Equal(t, []metering.Record{{Time: epoch, Kind: metering.Embedding, Account: "acme",
		Key: keyNameOf(t, s.keys["inference"]), Deployment: "accounts/acme/deployments/d1",
		Model: "accounts/acme/deployments/d1", Complete: true, PromptTokens: 6}}, meter.taken(t))
}
