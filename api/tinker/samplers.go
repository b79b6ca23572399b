package tinker

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"

	"anneal/api/request"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	protocol "anneal/tinker"
)

// A sampler is the state of a sampling session, which its ID contains.
type sampler struct {
	session string
	seq     int64  // number of the sampling session in its session
	path    string // tinker:// path of the checkpoint; "" is the base model
}

func samplerOf(session string, seq int64, path string) sampler { return sampler{session, seq, path} }

// String returns the ID. It contains the path, so that sampling sessions are not stored.
func (s sampler) String() string {
	path := base64.RawURLEncoding.EncodeToString([]byte(s.path))
	return s.session + ":sample:" + strconv.FormatInt(s.seq, 10) + ":" + path
}

// lane returns the ID of the journal of the sampling session. It depends on the path too, so that
// another path with the same number has another journal.
func (s sampler) lane() string {
	sum := sha256.Sum256([]byte(s.path))
	return s.session + "-s" + strconv.FormatInt(s.seq, 10) + "-" + hex.EncodeToString(sum[:8])
}

// sampler returns the sampling session with an ID.
func (c *call) sampler(id string) (sampler, error) {
	parts := strings.Split(id, ":")
	if len(parts) == 4 && parts[1] == "sample" {
		seq, err := strconv.ParseInt(parts[2], 10, 32)
		path, invalid := base64.RawURLEncoding.DecodeString(parts[3])
		if s := samplerOf(parts[0], seq, string(path)); err == nil && invalid == nil && seq >= 0 && s.String() == id {
			_, err := c.session(s.session)
			return s, err
		}
	}
	return sampler{}, request.NotFoundReason("SAMPLER_NOT_FOUND",
		"there is no sampling session %s: create one with create_sampling_session or save_weights_for_sampler", quote(id))
}

// sampledModel returns the path of the model that a request names; "" is the base model of the job.
func (c *call) sampledModel(baseModel, modelPath string) (string, error) {
	if baseModel != "" || modelPath == "" {
		if _, err := c.checkBaseModel(baseModel); err != nil {
			return "", err
		}
	}
	return modelPath, nil
}

func createSamplingSession(c *call) (any, error) {
	given, err := decode[protocol.CreateSamplingSessionRequest](c)
	if err != nil {
		return nil, err
	}
	session, err := c.activeSession(given.SessionID)
	if err != nil {
		return nil, err
	}
	path, err := c.sampledModel(given.BaseModel, given.ModelPath)
	if err != nil {
		return nil, err
	}
	if _, err := c.weights(path); err != nil {
		return nil, err
	}
	if err := c.wake(); err != nil {
		return nil, err
	}
	return protocol.CreateSamplingSessionResponse{Type: "create_sampling_session",
		SamplingSessionID: samplerOf(session.Name.ID(), *given.SamplingSessionSeqID, path).String()}, nil
}

// weights returns the prefix of the files of the sampler checkpoint with a path; "" for the base
// model.
func (c *call) weights(path string) (string, error) {
	if path == "" {
		_, err := c.baseModel()
		return "", err
	}
	parsed, saved, _, err := c.checkpoint("model_path", path)
	if err != nil {
		return "", err
	}
	var v domain.Violations
	v.Require(parsed.Kind == protocol.SamplerCheckpoint, "model_path", "is a checkpoint for training: sample from one "+
		"that save_weights_for_sampler has saved, tinker://RUN/%s/NAME", protocol.SamplerCheckpoint)
	return saved.Files.Prefix, v.Err()
}

func getSampler(c *call) (any, error) {
	s, err := c.sampler(c.PathValue("sampler"))
	if err != nil {
		return nil, err
	}
	base, err := c.baseModel()
	if err != nil {
		return nil, err
	}
	return protocol.Sampler{SamplerID: s.String(), BaseModel: modelName(base), ModelPath: s.path}, nil
}

func sample(c *call) (any, error) {
	given, err := decode[protocol.SampleRequest](c)
	if err != nil {
		return nil, err
	}
	lane := operations.Lane{Account: c.Account, Job: c.job.CreateEvent, Samples: true}
	path, seq := "", int64(0)
	if given.SamplingSessionID != "" {
		s, err := c.sampler(given.SamplingSessionID)
		if err != nil {
			return nil, err
		}
		path, lane.ID, seq = s.path, s.lane(), *given.SeqID
	} else if path, err = c.sampledModel(given.BaseModel, given.ModelPath); err == nil {
		lane.ID = "once-" + hex.EncodeToString(randomBytes(16)) // a request without a session has a journal of its own
	}
	if err != nil {
		return nil, err
	}
	weights, err := c.weights(path)
	if err != nil {
		return nil, err
	}
	o, err := given.Sample(weights, sampleSeed(lane, seq))
	if err != nil {
		return nil, err
	}
	if err := c.wake(); err != nil {
		return nil, err
	}
	note := strconv.Itoa(given.TopKPromptLogprobs)
	if err := c.store(lane, seq, kindSample, note, engines.TrainOperation{Sample: &o}); err != nil {
		return nil, err
	}
	return protocol.Submitted{RequestID: requestID{kind: sampleRequest, id: lane.ID, seq: seq}.String()}, nil
}

// sampleSeed returns the seed for a request that has none. The requests of a sampling session get
// different seeds; a retried request gets the same one.
func sampleSeed(lane operations.Lane, seq int64) uint64 {
	sum := sha256.Sum256([]byte(lane.Job + "\x00" + lane.ID + "\x00" + strconv.FormatInt(seq, 10)))
	return binary.LittleEndian.Uint64(sum[:])
}
