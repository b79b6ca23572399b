package train

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"anneal/domain"
	"anneal/domain/rows"
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/tokenizer"
)

// Limits of a dataset.
const (
	maxLine   = 8 << 20   // bytes of one row
	maxRows   = 3_000_000 // of all files of an order
	maxTokens = 1 << 28   // of all files of an order
)

// A reader parses and tokenizes files of rows.
type reader struct {
	tokens   *tokenizer.Tokenizer
	template *chat.Template // nil if the model has none
	parseErr error          // why the model's template cannot be parsed
	given    bool           // the template is the job's, not the model's
	window   int            // maximum tokens of a sample
	vocab    int
	weights  map[string]float64      // of metrics
	take     func(line []byte) error // parses one row

	digest  hash.Hash
	samples []*Sample
	groups  []group   // scored samples
	alone   group     // scored samples that are the only one of their row
	prompts []*prompt // to be answered
	kept    int       // samples and prompts
	count   int       // tokens
}

// newReader returns a reader of supervised rows.
func newReader(t *tokenizer.Tokenizer, window, vocab int) *reader {
	r := &reader{tokens: t, window: window, vocab: vocab, digest: sha256.New()}
	r.take = r.supervised
	return r
}

func (r *reader) keep(s *Sample) {
	r.samples = append(r.samples, s)
	r.kept, r.count = r.kept+1, r.count+s.inputs()+1
}

// hash is the digest of all files read so far.
func (r *reader) hash() string { return "sha256:" + hex.EncodeToString(r.digest.Sum(nil)) }

// read appends a file's rows. The error is InvalidArgument with file and line for an invalid
// row.
func (r *reader) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("training data: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(io.TeeReader(f, r.digest))
	lines.Buffer(make([]byte, 1<<16), maxLine)
	n := 0
	refuse := func(format string, args ...any) error {
		return domain.Errorf(domain.InvalidArgument, "%s line %d: %s", filepath.Base(path), n, fmt.Sprintf(format, args...))
	}
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := r.take(line); err != nil {
			return refuse("%v", err)
		}
		if r.kept > maxRows || r.count > maxTokens {
			return refuse("the dataset exceeds %d rows or %d tokens: use fewer rows", maxRows, maxTokens)
		}
	}
	n++
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return refuse("the row is longer than %d bytes: shorten or split it", maxLine)
	}
	return lines.Err()
}

// supervised parses a row of one sample.
func (r *reader) supervised(line []byte) error {
	row, err := parse(line, domain.ShapeChat, domain.ShapeCompletion)
	if err != nil {
		return err
	}
	ids, learn, err := r.render(&row)
	if err != nil {
		return err
	}
	s, err := r.sequence(ids, learn)
	if err != nil {
		return err
	}
	if s.scored() == 0 {
		return errors.New("the row has no target tokens: give an assistant message weight 1, or a completion")
	}
	r.keep(s)
	return nil
}

// sequence checks the tokens against the vocabulary and the maximum length.
func (r *reader) sequence(ids []int, learn []bool) (*Sample, error) {
	s := &Sample{Tokens: make([]int32, len(ids)), Scored: learn}
	for i, id := range ids {
		if id < 0 || id >= r.vocab {
			return nil, errForeignToken(id, r.vocab)
		}
		s.Tokens[i] = int32(id)
	}
	if len(ids) > r.window {
		return nil, fmt.Errorf("the row has %d tokens, more than the limit of %d: shorten it, or raise maxContextLength "+
			"up to the model's context length", len(ids), r.window)
	}
	return s, nil
}

func errForeignToken(id, vocab int) error {
	return fmt.Errorf("token %d is outside the model's vocabulary of %d: the tokenizer does not belong to the model", id,
		vocab)
}

// render tokenizes a conversation, or a prompt and its completion.
func (r *reader) render(one *rows.Row) (ids []int, learn []bool, err error) {
	if one.Shape == domain.ShapeChat {
		t, err := newConversation(one.Messages, one.Tools)
		if err != nil {
			return nil, nil, err
		}
		return r.renderChat(t)
	}
	ids, learn = r.begin(ids, learn)
	ids, learn = r.text(ids, learn, one.Prompt, false)
	ids, learn = r.text(ids, learn, one.Completion, true)
	if eos := r.tokens.EOS(); eos >= 0 {
		ids, learn = append(ids, eos), append(learn, true)
	}
	return ids, learn, nil
}

func (r *reader) begin(ids []int, learn []bool) ([]int, []bool) {
	if bos := r.tokens.BOS(); bos >= 0 {
		return append(ids, bos), append(learn, false)
	}
	return ids, learn
}

func (r *reader) text(ids []int, learn []bool, text string, wanted bool) ([]int, []bool) {
	for _, id := range r.tokens.Encode(text) {
		ids, learn = append(ids, id), append(learn, wanted)
	}
	return ids, learn
}
