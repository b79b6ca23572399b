package external

import (
	"bufio"
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"anneal/engines"
)

var _ engines.LoadReporter = loader{}

// Load implements engines.LoadReporter with the metrics of the server.
func (m loader) Load(ctx context.Context) (engines.ModelLoad, error) {
	url, err := m.server.address()
	if err != nil {
		return engines.NoLoad(), err
	}
	response, err := m.server.send(ctx, url, http.MethodGet, "/metrics", nil)
	if err != nil {
		return engines.NoLoad(), err
	}
	defer response.Body.Close()
	return loadOfVLLM(io.LimitReader(response.Body, maxResponse))
}

// loadOfVLLM returns the load in vLLM's metrics, the sums over its engines. vLLM does not report the
// number of pending prompt tokens. The size and the use of the KV cache have different names in its
// versions.
func loadOfVLLM(metrics io.Reader) (engines.ModelLoad, error) {
	load := engines.NoLoad()
	used, caches := 0.0, 0
	add := func(sum *int64, value float64) { *sum = max(*sum, 0) + int64(math.Round(value)) }
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, labels, value, ok := sample(lines.Text())
		if !ok {
			continue
		}
		switch name {
		case "vllm:num_requests_running":
			add(&load.Running, value)
		case "vllm:num_requests_waiting":
			add(&load.Waiting, value)
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc":
			used += value
			caches++
		case "vllm:cache_config_info":
			blocks, err := strconv.ParseInt(labels["num_gpu_blocks"], 10, 32)
			size, sizeErr := strconv.ParseInt(labels["block_size"], 10, 32)
			if err == nil && sizeErr == nil && blocks > 0 && size > 0 {
				add(&load.CacheTokens, float64(blocks*size))
			}
		}
	}
	if caches > 0 && load.CacheTokens > 0 {
		load.CacheUsed = int64(math.Round(min(used/float64(caches), 1) * float64(load.CacheTokens)))
	}
	return load, lines.Err()
}

// sample parses a line in the text format of Prometheus. ok is false for a comment and for a value that
// is negative or not finite.
func sample(line string) (name string, labels map[string]string, value float64, ok bool) {
	line = strings.TrimSpace(line)
	end := strings.IndexAny(line, "{ ")
	if end <= 0 || line[0] == '#' {
		return "", nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		if labels, rest, ok = labelsOf(rest[1:]); !ok {
			return "", nil, 0, false
		}
	}
	words := strings.Fields(rest) // the value and, optionally, a timestamp
	if len(words) == 0 {
		return "", nil, 0, false
	}
	value, err := strconv.ParseFloat(words[0], 64)
	return name, labels, value, err == nil && value >= 0 && value < 1<<53
}

// labelsOf parses labels up to the closing brace, and returns the text after it.
func labelsOf(text string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for {
		text = strings.TrimLeft(text, ", ")
		if rest, ended := strings.CutPrefix(text, "}"); ended {
			return labels, rest, true
		}
		name, quoted, found := strings.Cut(text, "=")
		if !found {
			return nil, "", false
		}
		prefix, err := strconv.QuotedPrefix(quoted)
		if err != nil {
			return nil, "", false
		}
		labels[name], _ = strconv.Unquote(prefix) // QuotedPrefix returns a valid string
		text = quoted[len(prefix):]
	}
}
