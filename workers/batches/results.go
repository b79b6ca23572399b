package batches

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"anneal/blobs"
)

// A stored is a result as one line of a segment. A segment is a file with some of the results of a
// running batch. When the segment is stored, the results in it are durable, and their requests are
// not sent again. Segments are read in the order of their names. When two segments have a result
// for the same line of the input, because a process continued after it had lost its lease, the
// first one counts.
type stored struct {
	Line   int    `json:"line"`
	Result result `json:"result"`
}

// A result is a line of a batch's output file or error file, in the format of OpenAI's batch API.
type result struct {
	ID       string         `json:"id"`
	CustomID string         `json:"custom_id"`
	Response *answer        `json:"response"`
	Error    *resultMissing `json:"error"`
}

type answer struct {
	StatusCode int             `json:"status_code"`
	RequestID  string          `json:"request_id"`
	Body       json.RawMessage `json:"body"`
}

// A resultMissing is the field error of a result: it says why the request has no response.
type resultMissing struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// succeeded reports whether the result belongs in the output file; otherwise it belongs in the
// error file.
func (r *result) succeeded() bool { return r.Response != nil && r.Response.StatusCode == http.StatusOK }

// resultID returns the ID of the result for a line of the input. event is the ID of the event that
// created the batch.
func resultID(event string, line int) string {
	sum := sha256.Sum256([]byte(event + "/" + strconv.Itoa(line)))
	return "batch-req-" + hex.EncodeToString(sum[:16])
}

// requestID returns the ID of the request in a line of the input, a UUID. When a request is sent
// again it has the same ID, so that its usage is recorded once. event is the ID of the event that
// created the batch.
func requestID(event string, line int) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(event+"/"+strconv.Itoa(line))).String()
}

// A tally counts the results in the segments of a batch.
type tally struct {
	done              map[int]bool // numbers of the input lines that have a result
	completed, failed int
	segments          int
}

func (t *tally) add(one stored) (first bool) {
	if t.done[one.Line] {
		return false
	}
	t.done[one.Line] = true
	if one.Result.succeeded() {
		t.completed++
	} else {
		t.failed++
	}
	return true
}

// results reads all segments of the batch and counts their results. If visit is not nil, it is
// called with the first result for each line of the input.
func (s *session) results(ctx context.Context, visit func(stored) error) (*tally, error) {
	t := &tally{done: map[int]bool{}}
	for file, err := range s.Blobs.List(ctx, blobs.BatchPrefix(s.name, s.event)) {
		if err != nil {
			return nil, err
		}
		t.segments++
		if err := s.segment(ctx, file.Key, t, visit); err != nil {
			return nil, fmt.Errorf("read the results of the batch in %s: %w", file.Key, err)
		}
	}
	return t, nil
}

func (s *session) segment(ctx context.Context, key string, t *tally, visit func(stored) error) (err error) {
	content, err := s.Blobs.Get(ctx, key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	for in := json.NewDecoder(content); ; {
		var one stored
		if err := in.Decode(&one); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if t.add(one) && visit != nil {
			if err := visit(one); err != nil {
				return err
			}
		}
	}
}

// store stores results as a segment. Segments are ordered by number, with which the segment's name
// begins.
func (s *session) store(ctx context.Context, number int, results []stored) error {
	var data bytes.Buffer
	for _, one := range results {
		if err := writeLine(&data, one); err != nil {
			return err
		}
	}
	key := fmt.Sprintf("%s%09d-%s.jsonl", blobs.BatchPrefix(s.name, s.event), number, uuid.NewString())
	_, err := s.Blobs.Put(ctx, key, &data)
	return err
}

func writeLine(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// write stores a file with one result per line. lines calls add with each result. write returns the
// number of lines and the size of the file in bytes.
func (s *session) write(ctx context.Context, key string, lines func(add func(result) error) error) (n int, size int64,
	err error) {
	reader, pipe := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out := bufio.NewWriterSize(pipe, 64<<10)
		failed := lines(func(one result) error {
			n++
			return writeLine(out, one)
		})
		_ = pipe.CloseWithError(errors.Join(failed, out.Flush())) // CloseWithError always returns nil
	}()
	size, err = s.Blobs.Put(ctx, key, reader)
	_ = reader.Close() // ends the goroutine when Put has failed; Close always returns nil
	<-done
	return n, size, err
}
