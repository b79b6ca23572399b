package subscriptions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"github.com/parquet-go/parquet-go"

	"anneal/eventlog"
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

// parquetRowOfEvent returns the row of an event, without the column Event.
func parquetRowOfEvent(e eventlog.Event) parquetRow {
	return parquetRow{Position: int64(e.Position), ID: e.ID, Type: e.Type, Subject: string(e.Name), Time: e.Time,
		Actor: e.Actor}
}

// parquetOf returns the events of a JSONL file as a Parquet file with one row group. rows has the
// results of parquetRowOfEvent; if it is nil, they are decoded from the lines. The same version of the
// library writes the same bytes for the same events.
func parquetOf(lines []byte, rows []parquetRow) ([]byte, error) {
	n := bytes.Count(lines, []byte("\n"))
	if len(rows) != n {
		rows = make([]parquetRow, n)
		i := 0
		for line := range bytes.Lines(lines) {
			var err error
			if rows[i], err = parquetRowOf(line); err != nil {
				return nil, err
			}
			i++
		}
	}
	i := 0
	for line := range bytes.Lines(lines) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		rows[i].Event = unsafe.String(unsafe.SliceData(line), len(line)) // lines is not changed before w.Close
		i++
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[parquetRow](&out, parquet.CreatedBy("anneal", "1", ""),
		parquet.MaxRowsPerRowGroup(int64(len(rows)+1)))
	_, err := w.Write(rows)
	if err == nil {
		err = w.Close()
	}
	for i := range rows {
		rows[i].Event = ""
	}
	if err != nil {
		return nil, fmt.Errorf("write a Parquet file: %w", err)
	}
	return out.Bytes(), nil
}

// parquetRowOf returns the row of a line, without the column Event.
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
	return parquetRow{Position: position, ID: e.ID, Type: e.Type, Subject: e.Subject, Time: e.Time, Actor: e.Actor}, nil
}
