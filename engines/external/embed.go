package external

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

var _ engines.Embedder = (*model)(nil)

// Embed implements engines.Embedder with the path /v1/embeddings of the server. The server decides
// whether its model computes embeddings: vLLM by the model's files, and llama.cpp's server by the
// options with which it was started.
func (m *model) Embed(ctx context.Context, req engines.EmbeddingRequest) (engines.Embedding, engines.Usage, error) {
	name, release, err := m.acquire(req.Addon)
	if err != nil {
		return engines.Embedding{}, engines.Usage{}, err
	}
	defer release()
	b := body{"model": name, "input": any(req.Input), "encoding_format": "float"}
	if req.Tokens != nil {
		b["input"] = req.Tokens
	}
	var response struct {
		Data []struct {
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := m.post(ctx, "/v1/embeddings", b, &response); err != nil {
		return engines.Embedding{}, engines.Usage{}, embeddingError(err)
	}
	usage := engines.Usage{PromptTokens: response.Usage.PromptTokens, ContextLength: m.contextLength()}
	if len(response.Data) != 1 || len(response.Data[0].Embedding) == 0 {
		return engines.Embedding{}, usage, domain.Errorf(domain.Internal,
			"the model server must return one embedding with values for one input, but returned none, an empty one or "+
				"several (number of embeddings: %d): use another model, or ask the operator to check the model server",
			len(response.Data))
	}
	vector := response.Data[0].Embedding
	if req.Dimensions > len(vector) {
		var v domain.Violations
		v.Add("dimensions", "must be 1 to %d, the size of the model's embeddings, not %d", len(vector), req.Dimensions)
		return engines.Embedding{}, usage, v.Err()
	}
	return engines.NewEmbedding(engines.Shorten(vector, req.Dimensions)), usage, nil
}

// embeddingError returns an error with the reason NoEmbeddings for a server's error that its model
// computes no embeddings. It returns any other error unchanged.
func embeddingError(err error) error {
	var refused *domain.Error
	if !errors.As(err, &refused) || refused.Code != domain.InvalidArgument {
		return err
	}
	text := strings.ToLower(refused.Message)
	for _, sign := range []string{"not found", "not support embeddings", "not support the embeddings",
		"not support the request", "does not support embed"} {
		if strings.Contains(text, sign) {
			return engines.EmbeddingsError(refused.Message)
		}
	}
	return err
}

// embeddingOptions returns the options of llama.cpp's server for the embedding model in dir,
// according to modules.json and the config.json of its module Pooling. It returns nil for any other
// model, because a server with these options does not complete prompts.
func embeddingOptions(dir string) []string {
	var modules []struct{ Type, Path string }
	if readJSON(filepath.Join(dir, "modules.json"), &modules) != nil {
		return nil
	}
	options := []string{"--embeddings"}
	for _, one := range modules {
		var fields map[string]any
		if !strings.HasSuffix(one.Type, ".Pooling") || !filepath.IsLocal(one.Path) ||
			readJSON(filepath.Join(dir, one.Path, "config.json"), &fields) != nil {
			continue
		}
		for _, mode := range []struct{ field, value string }{{"pooling_mode_mean_tokens", "mean"},
			{"pooling_mode_lasttoken", "last"}, {"pooling_mode_cls_token", "cls"}} {
			if fields[mode.field] == true && !slices.Contains(options, "--pooling") {
				options = append(options, "--pooling", mode.value)
			}
		}
	}
	return options
}

func readJSON(path string, out any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
