package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
)

// A rowSpool collects rows as JSON in a temporary file, because the JSON of an evaluation has the
// results of the models before the rows.
type rowSpool struct {
	file *os.File
	out  *bufio.Writer
	rows int
}

func newRowSpool() (*rowSpool, error) {
	file, err := os.CreateTemp("", "anneal-eval-*.json")
	if err != nil {
		return nil, err
	}
	return &rowSpool{file: file, out: bufio.NewWriter(file)}, nil
}

func (s *rowSpool) close() { _ = errors.Join(s.file.Close(), os.Remove(s.file.Name())) }

// indented returns a value as indented JSON, in which each line except the first begins with
// prefix.
func indented(value any, prefix string) ([]byte, error) {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	to.SetIndent(prefix, "  ")
	err := to.Encode(value)
	return bytes.TrimSpace(text.Bytes()), err
}

func (s *rowSpool) add(item any) error {
	text, err := indented(item, "    ")
	if err != nil {
		return err
	}
	if s.rows++; s.rows > 1 {
		_, err = s.out.WriteString(",")
	}
	_, writeErr := s.out.WriteString("\n    " + string(text))
	return errors.Join(err, writeErr)
}

// print prints the results and the collected rows as one JSON object.
func (s *rowSpool) print(out io.Writer, results []evaluation) error {
	models, err := indented(results, "  ")
	if err != nil {
		return err
	}
	if err := s.out.Flush(); err != nil {
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	rows := io.MultiReader(bytes.NewReader([]byte("{\n  \"models\": "+string(models)+",\n  \"rows\": [")), s.file,
		bytes.NewReader([]byte("\n  ]\n}\n")))
	_, err = io.Copy(out, rows)
	return err
}
