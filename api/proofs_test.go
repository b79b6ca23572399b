package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/integrity"
	"anneal/eventlog/transparency"
)

// fakeProofs implements events.Proofs for a log in which all events are equal, so that the examples
// of the document do not depend on random IDs.
type fakeProofs struct{ testing.TB }

// fakeLog is the log of fakeProofs, with n events.
type fakeLog struct{ n uint64 }

func (fakeLog) message(position uint64) integrity.Message {
	return integrity.NewMessage(position, "events.lumen-outdoor.deployments.support-assistant", []integrity.Attribute{
		{Name: "ce-actor", Value: "accounts/lumen-outdoor/apiKeys/training"},
		{Name: "ce-time", Value: "2026-03-02T08:30:00Z"},
		{Name: "ce-type", Value: "deployment.updated.v1"},
	}, []byte(`{"displayName":"Support assistant"}`))
}

func (l fakeLog) Last(context.Context) (integrity.Checkpoint, error) {
	return integrity.Checkpoint{Position: l.n}, nil
}

func (l fakeLog) Each(_ context.Context, after, upTo uint64, each func(integrity.Message) error) error {
	for position := after + 1; position <= upTo; position++ {
		if err := each(l.message(position)); err != nil {
			return err
		}
	}
	return nil
}

func (l fakeLog) At(_ context.Context, position uint64) (integrity.Message, error) {
	return l.message(position), nil
}

func (fakeLog) SaltKey(context.Context, string) ([]byte, error) {
	return pepper, nil
}

// with calls use with a transparency.Publisher of the first n events.
func (f fakeProofs) with(n uint64, use func(*transparency.Publisher) error) error {
	signer, err := transparency.NewSigner(pepper)
	if err != nil {
		return err
	}
	p := transparency.NewPublisher(transparency.Options{Dir: f.TempDir(), Messages: fakeLog{n}, Keys: fakeLog{n},
		Signer: signer})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	defer running.Wait()
	defer stop()
	if err := p.WaitFor(ctx, n); err != nil {
		return err
	}
	return use(p)
}

func (f fakeProofs) Prove(ctx context.Context, position, since uint64, payload bool) (b transparency.Bundle,
	err error) {
	err = f.with(position+5, func(p *transparency.Publisher) (err error) {
		b, err = p.Prove(ctx, position, since, payload)
		return err
	})
	return b, err
}

func (f fakeProofs) Resource(path string) (r transparency.Resource, err error) {
	err = f.with(300, func(p *transparency.Publisher) (err error) {
		r, err = p.Resource(path)
		return err
	})
	return r, err
}

// TestProofsOfEvents checks which events an account can prove, and that the data of events with
// secrets are not disclosed.
func TestProofsOfEvents(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(aDataset)
	last := s.last()
	seen := map[string]bool{}
	for position := uint64(1); position <= last.Position; position++ {
		e, err := s.log.At(t.Context(), position)
		require.NoError(t, err)
		path := fmt.Sprintf("/v1/accounts/acme/events/%d:prove", position)
		a := s.call("GET", path, "admin", "")
		if e.Name.Account() != "acme" {
			require.Equal(t, http.StatusNotFound, a.status, e.Name)
			continue
		}
		require.Equal(t, http.StatusOK, a.status, "%s: %s", e.Name, a.body)
		b, err := transparency.ParseBundle(a.body)
		require.NoError(t, err)
		collection := e.Name.Collection()
		seen[collection] = true
		require.Equal(t, collection == domain.APIKeys.Collection, b.Event.Payload == nil, e.Type)
		anyEvent := fmt.Sprintf("/v1/events/%d:prove", position)
		require.Equal(t, http.StatusForbidden, s.call("GET", anyEvent, "admin", "").status)
		want := http.StatusOK
		if collection == domain.APIKeys.Collection {
			want = http.StatusNotFound
		}
		require.Equal(t, want, s.call("GET", path, "user", "").status, "%s", e.Type)
	}
	require.True(t, seen[domain.APIKeys.Collection] && seen[domain.Datasets.Collection])
	beyond := s.call("GET", "/v1/accounts/acme/events/999999:prove", "admin", "")
	require.Equal(t, http.StatusNotFound, beyond.status)
	require.Contains(t, string(beyond.body), fmt.Sprintf("event at position 999999 not found: the position of the last "+
		"event is %d", last.Position))
}

// TestFilesOfTheLog checks who may read checkpoints and tiles.
func TestFilesOfTheLog(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, http.StatusUnauthorized, s.call("GET", "/log/checkpoint", "", "").status)
	require.Equal(t, http.StatusForbidden, s.call("GET", "/log/checkpoint", "admin", "").status)
	require.Equal(t, http.StatusOK, s.call("GET", "/log/checkpoint", "operator", "").status)
	tile := s.call("GET", "/log/tile/0/000", "operator", "")
	require.Equal(t, http.StatusOK, tile.status)
	require.Len(t, tile.body, 256*32)
	require.Contains(t, tile.header.Get("Cache-Control"), "immutable")
	require.Equal(t, http.StatusNotFound, s.call("GET", "/log/tile/0/009", "operator", "").status)

	public := s.another(func(o *Options) { o.PublicLog = true })
	a := public.call("GET", "/log/checkpoint", "", "")
	require.Equal(t, http.StatusOK, a.status)
	require.Contains(t, a.header.Get("Content-Type"), "text/plain")
}
