package backup

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"

	"anneal/blobs"
	"anneal/eventlog/streamcopy"
)

const segmentMessages = 100_000 // maximum number of messages in a segment

// putSegments stores the messages of a stream in segments, whose keys begin with prefix. It calls
// visit with every message before it stores the message.
func putSegments(ctx context.Context, target *blobs.Store, prefix, id string,
	messages iter.Seq2[streamcopy.Message, error], visit func(streamcopy.Message) error) (all []Segment, err error) {
	next, stop := iter.Pull2(messages)
	defer stop()
	m, err, more := next()
	for more {
		if err != nil {
			return nil, err
		}
		first, last, count := m.Position, m.Position, 0
		write := compressed(func(w io.Writer) error {
			encoder := json.NewEncoder(w)
			for more && count < segmentMessages {
				if err != nil {
					return err
				}
				if err := visit(m); err != nil {
					return err
				}
				if err := encoder.Encode(m); err != nil {
					return err
				}
				last = m.Position
				count++
				m, err, more = next()
			}
			return nil
		})
		object, failed := put(ctx, target, fmt.Sprintf("%s%020d-%s.zst", prefix, first, id), write)
		if failed != nil {
			return nil, failed
		}
		all = append(all, Segment{first, last, object})
	}
	return all, nil
}

// segment reads the messages of a segment, and calls visit with every message.
func segment(ctx context.Context, target *blobs.Store, s Segment, visit func(streamcopy.Message) error) error {
	return lines(ctx, target, s.Object, func(line []byte) error {
		var m streamcopy.Message
		if err := json.Unmarshal(line, &m); err != nil {
			return fmt.Errorf("read %s of the backup: %w", s.Key, err)
		}
		return visit(m)
	})
}
