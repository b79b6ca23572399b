package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"anneal/tinker"
)

// heartbeatInterval is the interval of heartbeats. A job without any heartbeat becomes idle.
const heartbeatInterval = 10 * time.Second

// SessionOptions are the labels of a session, which lists show.
type SessionOptions struct {
	Tags         []string
	UserMetadata map[string]string
}

// A Session keeps the job running for as long as it is open. It is safe for concurrent use.
type Session struct {
	client     *Client
	id         string
	warning    string
	config     tinker.ClientConfig
	models     atomic.Int64  // sequence number of the next model
	samplers   atomic.Int64  // sequence number of the next sampler
	slots      chan struct{} // semaphore of the calls of Sample in flight
	cancel     context.CancelFunc
	heartbeats sync.WaitGroup
}

// OpenSession opens a session, and sends heartbeats until Close is called. ctx bounds only this
// call.
func (c *Client) OpenSession(ctx context.Context, o SessionOptions) (*Session, error) {
	s := &Session{client: c}
	if err := c.call(ctx, http.MethodPost, "client/config", tinker.ClientConfigRequest{SDKVersion: Version},
		&s.config); err != nil {
		return nil, fmt.Errorf("read the settings of the server: %w", err)
	}
	request := tinker.CreateSessionRequest{Tags: append([]string{}, o.Tags...), SDKVersion: Version}
	if o.UserMetadata != nil {
		metadata, err := json.Marshal(o.UserMetadata)
		if err != nil {
			return nil, err
		}
		request.UserMetadata = metadata
	}
	var created tinker.CreateSessionResponse
	if err := c.call(ctx, http.MethodPost, "create_session", request, &created); err != nil {
		return nil, fmt.Errorf("create a session: %w", err)
	}
	if created.ErrorMessage != "" {
		return nil, fmt.Errorf("create a session: %s", created.ErrorMessage)
	}
	for _, message := range []string{created.WarningMessage, created.InfoMessage} {
		if message != "" {
			c.log.Info("training service: " + message)
		}
	}
	s.id, s.warning = created.SessionID, created.WarningMessage
	s.slots = make(chan struct{}, max(1, s.config.MaxConcurrentSamples))
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.heartbeats.Go(func() { s.heartbeat(running) })
	return s, nil
}

// ID returns the ID of the session.
func (s *Session) ID() string { return s.id }

// Warning returns the warning with which the server created the session, such as about settings
// that it ignores; "" if there is none.
func (s *Session) Warning() string { return s.warning }

// Close stops the heartbeats. After five minutes in which no client uses the job, the job saves the
// state of its runs and becomes idle.
func (s *Session) Close() {
	s.cancel()
	s.heartbeats.Wait()
}

func (s *Session) heartbeat(ctx context.Context) {
	for sleep(ctx, heartbeatInterval) {
		body, err := json.Marshal(tinker.HeartbeatRequest{SessionID: s.id})
		if err != nil {
			return
		}
		status, _, response, err := s.client.send(ctx, request{method: http.MethodPost, path: "session_heartbeat",
			body: body, limit: heartbeatInterval, header: http.Header{"Content-Type": {tinker.ContentTypeJSON}}})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.client.log.Warn("training service: heartbeat failed", "session", s.id, "error", err)
		case status >= 300:
			s.client.log.Warn("training service: heartbeat refused", "session", s.id, "error", errorOf(status, response))
		}
	}
}

// A ModelConfig describes a training run to create.
type ModelConfig struct {
	BaseModel    string
	Lora         tinker.LoraConfig
	UserMetadata map[string]string
}

// CreateModel creates a training run with a new adapter, and waits for it.
func (s *Session) CreateModel(ctx context.Context, config ModelConfig) (*Model, error) {
	number := s.models.Add(1) - 1
	request := tinker.CreateModelRequest{SessionID: s.id, ModelSeqID: &number, BaseModel: config.BaseModel,
		LoraConfig: &config.Lora}
	if config.UserMetadata != nil {
		metadata, err := json.Marshal(config.UserMetadata)
		if err != nil {
			return nil, err
		}
		request.UserMetadata = metadata
	}
	var submitted tinker.Submitted
	if err := s.client.call(ctx, http.MethodPost, "create_model", request, &submitted); err != nil {
		return nil, fmt.Errorf("create a model: %w", err)
	}
	created, err := newFuture(s.client, submitted.RequestID, decodeJSON[tinker.CreateModelResponse]).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("create a model: %w", err)
	}
	return &Model{session: s, id: created.ModelID, seq: 1}, nil
}

// LoadModel creates a training run that continues from the checkpoint with a tinker:// path, and
// waits for it. If optimizer is false, the run begins with a new optimizer state.
func (s *Session) LoadModel(ctx context.Context, path string, optimizer bool) (*Model, error) {
	info, err := s.client.WeightsInfo(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	m, err := s.CreateModel(ctx, ModelConfig{BaseModel: info.BaseModel, Lora: tinker.LoraConfig{Rank: info.LoraRank,
		TrainAttn: info.TrainAttn, TrainMLP: info.TrainMLP, TrainUnembed: info.TrainUnembed}})
	if err != nil {
		return nil, err
	}
	loaded, err := submit(ctx, m, "load_weights", decodeJSON[tinker.LoadWeightsResponse], func(seq int64) any {
		return tinker.LoadWeightsRequest{ModelID: m.id, SeqID: &seq, Path: path, Optimizer: optimizer}
	})
	if err == nil {
		_, err = loaded.Wait(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	return m, nil
}
