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

// Limits of the datasets of a job.
const (
	maxLine   = 8 << 20   // maximum size of a row in bytes
	maxRows   = 3_000_000 // maximum number of rows in all files
	maxTokens = 1 << 28   // maximum number of tokens in all files
)

// A reader parses and tokenizes the rows of dataset files.
type reader struct {
	tokens   *tokenizer.Tokenizer
	template *chat.Template // nil if there is no valid chat template
	parseErr error          // why the chat template cannot be loaded; nil if it is loaded or missing
	given    bool           // the template is that of the job, not the model's
	window   int            // maximum number of tokens of a sample
	vocab    int
	weights  map[string]float64      // weights of the rewards of scored samples
	take     func(line []byte) error // parses one row for the job's method

	digest  hash.Hash
	samples []*Sample
	groups  []group     // scored samples: a group for each row with several
	singles group       // scored samples that are alone in their row
	prompts []*prompt   // prompts to which the model generates responses
	stats   promptStats // of the prompts of the rows, for replay
	kept    int         // number of samples and prompts read so far
	count   int         // number of tokens read so far
}

// newReader returns a reader of rows for supervised training.
func newReader(t *tokenizer.Tokenizer, window, vocab int) *reader {
	r := &reader{tokens: t, window: window, vocab: vocab, digest: sha256.New()}
	r.take = r.supervised
	return r
}

func (r *reader) keep(s *Sample) {
	r.samples = append(r.samples, s)
	r.kept, r.count = r.kept+1, r.count+s.inputs()+1
}

// hash returns the digest of the files read so far.
func (r *reader) hash() string { return "sha256:" + hex.EncodeToString(r.digest.Sum(nil)) }

// read parses the rows of a file. For an invalid row, it returns InvalidArgument with the file and
// the line.
func (r *reader) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("training data: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(io.TeeReader(f, r.digest))
	lines.Buffer(make([]byte, 1<<16), maxLine)
	n := 0
	invalid := func(format string, args ...any) error {
		return domain.Errorf(domain.InvalidArgument, "%s line %d: %s", filepath.Base(path), n, fmt.Sprintf(format, args...))
	}
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := r.take(line); err != nil {
			return invalid("%v", err)
		}
		if r.kept > maxRows || r.count > maxTokens {
			return invalid("the dataset exceeds %d rows or %d tokens: use fewer rows", maxRows, maxTokens)
		}
	}
	n++
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return invalid("the row is longer than %d bytes: shorten or split it", maxLine)
	}
	return lines.Err()
}

// supervised parses a row with a sample for supervised training.
func (r *reader) supervised(line []byte) error {
	row, err := parse(line, domain.ShapeChat, domain.ShapeCompletion)
	if err != nil {
		return err
	}
	ids, isTarget, err := r.render(&row)
	if err != nil {
		return err
	}
	s, err := r.sequence(ids, isTarget)
	if err != nil {
		return err
	}
	r.stats.add(&row)
	if s.scored() == 0 {
		return errors.New("the row has no target tokens: give an assistant message weight 1, or a completion")
	}
	r.keep(s)
	return nil
}

// sequence checks tokens against the vocabulary and the maximum length, and returns them as a
// sample.
func (r *reader) sequence(ids []int, isTarget []bool) (*Sample, error) {
	s := &Sample{Tokens: make([]int32, len(ids)), Scored: isTarget}
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
func (r *reader) render(one *rows.Row) (ids []int, isTarget []bool, err error) {
	if one.Shape == domain.ShapeChat {
		t, err := newConversation(one.Messages, one.Tools)
		if err != nil {
			return nil, nil, err
		}
		return r.renderChat(t)
	}
	ids, isTarget = r.begin(ids, isTarget)
	ids, isTarget = r.text(ids, isTarget, one.Prompt, false)
	ids, isTarget = r.text(ids, isTarget, one.Completion, true)
	if eos := r.tokens.EOS(); eos >= 0 {
		ids, isTarget = append(ids, eos), append(isTarget, true)
	}
	return ids, isTarget, nil
}

func (r *reader) begin(ids []int, isTarget []bool) ([]int, []bool) {
	if bos := r.tokens.BOS(); bos >= 0 {
		return append(ids, bos), append(isTarget, false)
	}
	return ids, isTarget
}

func (r *reader) text(ids []int, isTarget []bool, text string, wanted bool) ([]int, []bool) {
	for _, id := range r.tokens.Encode(text) {
		ids, isTarget = append(ids, id), append(isTarget, wanted)
	}
	return ids, isTarget
}
