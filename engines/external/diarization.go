package external

import (
	"context"
	"os"

	"anneal/engines"
)

// A turn is an interval in which one speaker speaks, in seconds.
type turn struct {
	Start   float64 `json:"start"`
	End     float64 `json:"end"`
	Speaker string  `json:"speaker"`
}

// diarize requests the turns of the speakers in a recording from the server.
func (m *speechModel) diarize(ctx context.Context, pcm *os.File) ([]turn, error) {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	url, err := m.server.address()
	if err != nil {
		return nil, err
	}
	f := newForm()
	f.add("model", m.settings.DiarizationModel)
	f.add("response_format", "json")
	request, err := f.fileRequest(ctx, url+m.dialect.diarization, pcm)
	if err != nil {
		return nil, err
	}
	response, err := m.server.do(request)
	if err != nil {
		return nil, err
	}
	var body struct {
		Segments []turn `json:"segments"`
	}
	if err := m.server.read(ctx, m.dialect.diarization, response, &body); err != nil {
		return nil, err
	}
	return body.Segments, nil
}

// label sets the speaker of a segment and of each of its words.
func label(s *engines.Segment, turns []turn) {
	if len(turns) == 0 {
		return
	}
	for i := range s.Words {
		w := &s.Words[i]
		w.Speaker = mainSpeaker(w.Start, w.End, turns)
	}
	s.Speaker = mainSpeaker(s.Start, s.End, turns)
}

// mainSpeaker returns the speaker who speaks longest between two times; the first one if several
// speak equally long, and "" if nobody speaks.
func mainSpeaker(from, until float64, turns []turn) (speaker string) {
	total := map[string]float64{}
	for _, t := range turns {
		overlap := min(until, t.End) - max(from, t.Start)
		if overlap <= 0 {
			continue
		}
		if total[t.Speaker] += overlap; speaker == "" || total[t.Speaker] > total[speaker] {
			speaker = t.Speaker
		}
	}
	return speaker
}
