package twin

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"anneal/api/routing/balance"
)

// Limits of a trace.
const (
	maxLength    = 100_000_000               // tokens of a prompt, and of an answer
	maxTimestamp = 365 * 24 * 60 * 60 * 1000 // ms
)

// A TraceRequest is a request of a trace.
type TraceRequest struct {
	Time    time.Duration // since the beginning of the trace
	Account string
	Prompt  balance.Prompt
	Output  int64 // number of generated tokens
}

// ReadTrace reads a trace in the format of the Mooncake traces: a JSON object in each line with
// timestamp (ms), input_length and output_length (tokens) and hash_ids (one for each 512 tokens of
// the prompt; equal leading IDs mean an equal prefix). A field account may name the account of a
// request. Files whose names end with .gz are decompressed.
func ReadTrace(path string) ([]TraceRequest, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if !strings.HasSuffix(path, ".gz") {
		return DecodeTrace(file)
	}
	text, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return DecodeTrace(text)
}

// DecodeTrace decodes a trace in the format of ReadTrace. An error names the line.
func DecodeTrace(text io.Reader) ([]TraceRequest, error) {
	var trace []TraceRequest
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var row struct {
			Timestamp int64   `json:"timestamp"`
			Account   string  `json:"account"`
			Input     int64   `json:"input_length"`
			Output    int64   `json:"output_length"`
			HashIDs   []int64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d is not a JSON object with timestamp, input_length, output_length and hash_ids: %w",
				n, err)
		}
		if row.Input < 1 || row.Output < 1 || row.Timestamp < 0 || max(row.Input, row.Output) > maxLength ||
			row.Timestamp > maxTimestamp {
			return nil, fmt.Errorf("line %d: input_length is %d, output_length %d and timestamp %d: the lengths must be 1 to "+
				"%d, and the timestamp 0 to %d", n, row.Input, row.Output, row.Timestamp, maxLength, maxTimestamp)
		}
		r := TraceRequest{Time: time.Duration(row.Timestamp) * time.Millisecond, Account: row.Account, Output: row.Output,
			Prompt: balance.Prompt{Tokens: row.Input}}
		for _, id := range row.HashIDs[:min(int64(len(row.HashIDs)), row.Input/balance.BlockTokens)] {
			r.Prompt.Blocks = append(r.Prompt.Blocks, uint64(id)+1)
		}
		trace = append(trace, r)
	}
	return trace, lines.Err()
}
