package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"anneal/tinker"
)

// A Model is a training run. It is safe for concurrent use. Its operations are executed in the
// order of the calls. If the context of a call is done before the server has confirmed the
// operation, the next call first submits that operation again. The server executes it once.
type Model struct {
	session *Session
	id      string

	mu          sync.Mutex
	seq         int64    // sequence number of the next operation
	unconfirmed *request // operation seq, if it was sent and its confirmation was lost
}

// ID returns the ID of the training run.
func (m *Model) ID() string { return m.id }

// submit submits the next operation of a model. build returns its request.
func submit[T any](ctx context.Context, m *Model, path string, decode func(string, []byte) (T, error),
	build func(seq int64) any) (*Future[T], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, err := m.send(ctx, func(seq int64) (request, error) {
		body, err := json.Marshal(build(seq))
		return request{method: http.MethodPost, path: path, body: body, limit: requestLimit,
			header: http.Header{"Content-Type": {tinker.ContentTypeJSON}}}, err
	})
	if err != nil {
		return nil, fmt.Errorf("%s of model %s: %w", path, m.id, err)
	}
	return newFuture(m.session.client, id, decode), nil
}

// send sends the next operation until the server has stored or refused it, and returns its request
// ID. An operation that the server refuses takes no sequence number. The caller has locked m.mu.
func (m *Model) send(ctx context.Context, build func(seq int64) (request, error)) (string, error) {
	var submitted tinker.Submitted
	if m.unconfirmed != nil {
		err := m.session.client.do(ctx, *m.unconfirmed, &submitted)
		if err != nil && !isRefused(err) {
			return "", fmt.Errorf("confirm operation %d, which an earlier call submitted: %w", m.seq, err)
		}
		if m.unconfirmed = nil; err == nil {
			m.seq++
		}
	}
	r, err := build(m.seq)
	if err != nil {
		return "", err
	}
	if err := m.session.client.do(ctx, r, &submitted); err != nil {
		if !isRefused(err) {
			m.unconfirmed = &r
		}
		return "", err
	}
	m.seq++
	return submitted.RequestID, nil
}

// ForwardBackward submits a pass that adds the gradient of its loss to the accumulated gradient,
// which the next OptimStep applies. Large data are divided into several passes.
func (m *Model) ForwardBackward(ctx context.Context, in tinker.ForwardBackwardInput) (
	*Future[tinker.ForwardBackwardOutput], error) {
	return m.pass(ctx, in, false)
}

// Forward submits a pass that computes the loss and no gradient.
func (m *Model) Forward(ctx context.Context, in tinker.ForwardBackwardInput) (
	*Future[tinker.ForwardBackwardOutput], error) {
	return m.pass(ctx, in, true)
}

func (m *Model) pass(ctx context.Context, in tinker.ForwardBackwardInput, forward bool) (
	*Future[tinker.ForwardBackwardOutput], error) {
	var requests []tinker.ForwardBackwardRequest
	for _, chunk := range m.chunks(in.Data) {
		r := tinker.ForwardBackwardRequest{ModelID: m.id, ForwardOnly: forward, Input: in}
		r.Input.Data = chunk
		// The server checks passes too. But when it refused one, it would have stored those before it.
		if _, err := r.Pass(); err != nil {
			return nil, fmt.Errorf("pass of model %s: %w", m.id, err)
		}
		requests = append(requests, r)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var parts []*Future[tinker.ForwardBackwardOutput]
	for _, r := range requests {
		id, err := m.send(ctx, func(seq int64) (request, error) {
			r.SeqID = seq
			return m.passRequest(r.MarshalProto()), nil
		})
		if err != nil {
			return nil, fmt.Errorf("pass of model %s: %w", m.id, err)
		}
		parts = append(parts, newFuture(m.session.client, id, decodeProto[tinker.ForwardBackwardOutput]))
	}
	return futureOf(func(ctx context.Context) (tinker.ForwardBackwardOutput, error) {
		outputs := make([]tinker.ForwardBackwardOutput, len(parts))
		for i, part := range parts {
			var err error
			if outputs[i], err = part.Wait(ctx); err != nil {
				return tinker.ForwardBackwardOutput{}, err
			}
		}
		return tinker.CombineOutputs(outputs), nil
	}), nil
}

// minCompressed is the minimum size of a body that is compressed.
const minCompressed = 4 << 10

func (m *Model) passRequest(body []byte) request {
	header := http.Header{"Content-Type": {tinker.ContentTypeProtobuf}}
	if m.session.config.CompressPasses && len(body) >= minCompressed {
		body = m.session.client.zstd.EncodeAll(body, nil)
		header.Set("Content-Encoding", tinker.EncodingZstd)
	}
	return request{method: http.MethodPost, path: "forward_backward", body: body, limit: requestLimit, header: header}
}

// chunks divides data into chunks of the maximum size that the server has sent. Without data, it
// returns one empty chunk, which the check of the pass refuses.
func (m *Model) chunks(data []tinker.Datum) [][]tinker.Datum {
	maxBytes, maxLen := m.session.config.MaxChunkBytes, m.session.config.MaxChunkLen
	var all [][]tinker.Datum
	begin, size := 0, 0
	for i := range data {
		n := data[i].WireBytes()
		if i > begin && (maxBytes > 0 && size+n > maxBytes || maxLen > 0 && i-begin == maxLen) {
			all = append(all, data[begin:i])
			begin, size = i, 0
		}
		size += n
	}
	return append(all, data[begin:])
}

// OptimStep submits an optimizer step, which applies the accumulated gradient.
func (m *Model) OptimStep(ctx context.Context, params tinker.AdamParams) (*Future[tinker.OptimStepResponse], error) {
	return submit(ctx, m, "optim_step", decodeJSON[tinker.OptimStepResponse], func(seq int64) any {
		return tinker.OptimStepRequest{ModelID: m.id, SeqID: &seq, AdamParams: &params}
	})
}

// SaveOptions are the options of a checkpoint.
type SaveOptions struct {
	TTL       time.Duration // how long the server keeps the checkpoint; 0 stands for no limit
	Overwrite bool          // replace a checkpoint with the same name; SaveForSampler ignores it
}

func (o SaveOptions) seconds() *int64 {
	if o.TTL == 0 {
		return nil
	}
	return new(int64(o.TTL / time.Second))
}

// Save submits a checkpoint of the complete state, from which LoadModel continues. The result is
// its tinker:// path.
func (m *Model) Save(ctx context.Context, name string, o SaveOptions) (*Future[tinker.SaveWeightsResponse], error) {
	return submit(ctx, m, "save_weights", decodeJSON[tinker.SaveWeightsResponse], func(seq int64) any {
		return tinker.SaveWeightsRequest{ModelID: m.id, SeqID: &seq, Path: &name, TTLSeconds: o.seconds(),
			Overwrite: o.Overwrite}
	})
}

// SaveForSampler submits a checkpoint of the adapter. The result is its tinker:// path, from which
// Session.Sampler creates a sampler.
func (m *Model) SaveForSampler(ctx context.Context, name string, o SaveOptions) (
	*Future[tinker.SaveWeightsForSamplerResponse], error) {
	return submit(ctx, m, "save_weights_for_sampler", decodeJSON[tinker.SaveWeightsForSamplerResponse],
		func(seq int64) any {
			return tinker.SaveWeightsForSamplerRequest{ModelID: m.id, SeqID: &seq, Path: &name, TTLSeconds: o.seconds()}
		})
}

// Sampler saves the current weights without a name, and returns a sampler of them. The server keeps
// such weights only for the newest samplers of a model.
func (m *Model) Sampler(ctx context.Context) (*Sampler, error) {
	number := m.session.samplers.Add(1) - 1
	saved, err := submit(ctx, m, "save_weights_for_sampler", decodeJSON[tinker.SaveWeightsForSamplerResponse],
		func(seq int64) any {
			return tinker.SaveWeightsForSamplerRequest{ModelID: m.id, SeqID: &seq, SamplingSessionSeqID: &number}
		})
	if err != nil {
		return nil, err
	}
	response, err := saved.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("save weights of model %s for a sampler: %w", m.id, err)
	}
	return &Sampler{session: m.session, id: response.SamplingSessionID}, nil
}

// Info returns the base model and the rank of the model.
func (m *Model) Info(ctx context.Context) (tinker.ModelInfo, error) {
	var out tinker.ModelInfo
	return out, m.session.client.call(ctx, http.MethodPost, "get_info", tinker.ModelInfoRequest{ModelID: m.id}, &out)
}

// Unload ends the training run. Its checkpoints are kept.
func (m *Model) Unload(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var submitted tinker.Submitted
	err := m.session.client.call(ctx, http.MethodPost, "unload_model", tinker.UnloadModelRequest{ModelID: m.id},
		&submitted)
	if err == nil {
		_, err = newFuture(m.session.client, submitted.RequestID, decodeJSON[tinker.UnloadModelResponse]).Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("unload model %s: %w", m.id, err)
	}
	return nil
}
