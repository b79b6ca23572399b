package external

import (
	"context"
	"os"

	"anneal/engines"
)

// A turn is when a speaker speaks.
type turn struct {
	Start   float64 `json:"start"`
	End     float64 `json:"end"`
	Speaker string  `json:"speaker"`
}

// speakers asks who speaks when in a whole recording.
func (l *listener) speakers(ctx context.Context, pcm *os.File) ([]turn, error) {
	select {
	case l.turns <- struct{}{}:
		defer func() { <-l.turns }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	url, err := l.server.at()
	if err != nil {
		return nil, err
	}
	f := newForm()
	f.add("model", l.settings.DiarizationModel)
	f.add("response_format", "json")
	request, err := f.file(ctx, url+l.dialect.diarization, pcm)
	if err != nil {
		return nil, err
	}
	response, err := l.server.do(request)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Segments []turn `json:"segments"`
	}
	if err := l.server.read(ctx, l.dialect.diarization, response, &answer); err != nil {
		return nil, err
	}
	return answer.Segments, nil
}

// label gives each word to whom it overlaps most, and the segment to who speaks
// longest in it.
func label(s *engines.Segment, turns []turn) {
	if len(turns) == 0 {
		return
	}
	for i := range s.Words {
		w := &s.Words[i]
		w.Speaker = speaker(w.Start, w.End, turns)
	}
	s.Speaker = speaker(s.Start, s.End, turns)
}

// speaker is who speaks longest between two times, the first of several; "" is
// nobody.
func speaker(from, until float64, turns []turn) (who string) {
	spoken := map[string]float64{}
	for _, t := range turns {
		overlap := min(until, t.End) - max(from, t.Start)
		if overlap <= 0 {
			continue
		}
		if spoken[t.Speaker] += overlap; who == "" || spoken[t.Speaker] > spoken[who] {
			who = t.Speaker
		}
	}
	return who
}
