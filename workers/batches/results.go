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

// A stored result is one line of a segment: a file with some of the results of a running batch. A
// result is durable once its segment is stored, and its request is then not sent again. The
// segments of a batch are read in the order of their names; if a process that has lost its lease
// stores a second result for a line of the input, the first one counts.
type stored struct {
	Line   int    `json:"line"`
	Result result `json:"result"`
}

// A result is a line of an output file or error file, in the format of OpenAI's batch API.
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

// A resultMissing states why a request has no response.
type resultMissing struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// succeeded reports whether the result belongs to the output file.
func (r *result) succeeded() bool { return r.Response != nil && r.Response.StatusCode == http.StatusOK }

// resultID returns the ID of the result of a line. event is the ID of the event that created the
// batch.
func resultID(event string, line int) string {
	sum := sha256.Sum256([]byte(event + "/" + strconv.Itoa(line)))
	return "batch-req-" + hex.EncodeToString(sum[:16])
}

// requestID returns the ID of the request of a line, which is a UUID. A request that is sent again
// has the same ID, so that its usage is recorded once.
func requestID(event string, line int) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(event+"/"+strconv.Itoa(line))).String()
}

// A tally counts the results in the segments of a batch.
type tally struct {
	done              map[int]bool // lines of the input with a result
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

// results reads all segments, and calls visit, unless it is nil, for the first result of each line.
func (s *session) results(ctx context.Context, visit func(stored) error) (*tally, error) {
	t := &tally{done: map[int]bool{}}
	for file, err := range s.Blobs.List(ctx, blobs.BatchPrefix(s.name, s.event)) {
		if err != nil {
			return nil, err
		}
		t.segments++
		if err := s.segment(ctx, file.Key, t, visit); err != nil {
			return nil, fmt.Errorf("read results %s: %w", file.Key, err)
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

// store stores a segment under a name that begins with number, so that the segments are ordered by
// number.
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

// write stores a file with the results that lines adds, one a line, and returns the number of lines
// and the size in bytes.
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
		_ = pipe.CloseWithError(errors.Join(failed, out.Flush())) // always nil
	}()
	size, err = s.Blobs.Put(ctx, key, reader)
	_ = reader.Close() // ends the goroutine if Put has failed; always nil
	<-done
	return n, size, err
}
