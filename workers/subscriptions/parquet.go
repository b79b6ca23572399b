package subscriptions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
)

// A parquetRow is one event in a Parquet file. Event is the JSON of the event as in a JSONL file.
// The other columns are attributes of the event by which queries select.
type parquetRow struct {
	Position int64     `parquet:"position,delta,zstd"`
	ID       string    `parquet:"id,zstd"`
	Type     string    `parquet:"type,dict,zstd"`
	Subject  string    `parquet:"subject,dict,zstd"`
	Time     time.Time `parquet:"time,timestamp(nanosecond),zstd"`
	Actor    string    `parquet:"actor,dict,zstd"`
	Event    string    `parquet:"event,json,zstd"`
}

// parquetOf returns the events of a JSONL file as a Parquet file with one row group. The same
// version of the library writes the same bytes for the same events.
func parquetOf(lines []byte) ([]byte, error) {
	rows := make([]parquetRow, 0, bytes.Count(lines, []byte("\n")))
	for line := range bytes.Lines(lines) {
		row, err := parquetRowOf(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[parquetRow](&out, parquet.CreatedBy("anneal", "1", ""),
		parquet.MaxRowsPerRowGroup(int64(len(rows)+1)))
	if _, err := w.Write(rows); err != nil {
		return nil, fmt.Errorf("write a Parquet file: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write a Parquet file: %w", err)
	}
	return out.Bytes(), nil
}

func parquetRowOf(line []byte) (parquetRow, error) {
	var e struct {
		Position, ID, Type, Subject, Actor string
		Time                               time.Time
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return parquetRow{}, fmt.Errorf("decode an event for a Parquet file: %w", err)
	}
	position, err := strconv.ParseInt(e.Position, 10, 64)
	if err != nil {
		return parquetRow{}, fmt.Errorf("parse the position of event %s: %w", e.ID, err)
	}
	return parquetRow{position, e.ID, e.Type, e.Subject, e.Time, e.Actor, string(line)}, nil
}
