package tinker

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"strings"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
	protocol "anneal/tinker"
)

func (s *Service) sessionOperations() []request.Operation {
	post := func(id, path, summary string, permission request.Permission, h handler) request.Operation {
		return request.Operation{ID: id, Method: "POST", Path: path, Summary: summary, Permission: permission,
			Handle: s.handle(h, protocol.MaxBody)}
	}
	heartbeat := post("heartbeatTraining", "session_heartbeat", "Keep a session alive", request.Write, heartbeat)
	heartbeat.Uncounted = true
	return []request.Operation{
		post("getTrainingClientConfig", "client/config", "Read the settings of a client", request.Read, clientConfig),
		post("getTrainingDynamicConfig", "client/dynamic_config", "Read the settings of a running client", request.Read,
			dynamicConfig),
		post("createTrainingSession", "create_session", "Create a session", request.Write, createSession),
		heartbeat,
		post("sendTrainingTelemetry", "telemetry", "Send events of a client, which are discarded", request.Read, telemetry),
		{ID: "getTrainingCapabilities", Method: "GET", Path: "get_server_capabilities", Summary: "List the base models",
			Permission: request.Read, Handle: s.handle(capabilities, 0)},
		{ID: "getTrainingHealth", Method: "GET", Path: "healthz", Summary: "Read whether the server runs",
			Gate: request.Everyone, Handle: func(*request.Call) (any, error) { return protocol.Health{Status: "ok"}, nil }},
		{ID: "listTrainingSessions", Method: "GET", Path: "sessions", Summary: "List sessions", Permission: request.Read,
			Handle: s.handle(listSessions, 0)},
		{ID: "getTrainingSession", Method: "GET", Path: "sessions/{session}", Summary: "Read what a session has created",
			Permission: request.Read, Handle: s.handle(getSession, 0)},
	}
}

func clientConfig(c *call) (any, error) {
	if err := checkObject(c.body); err != nil {
		return nil, err
	}
	return protocol.NewClientConfig(), nil
}

func dynamicConfig(c *call) (any, error) {
	if err := checkObject(c.body); err != nil {
		return nil, err
	}
	return protocol.DynamicConfig{RefreshIntervalSec: protocol.RefreshSeconds}, nil
}

// checkObject returns an error unless a body is empty or a JSON object. Its fields depend on the
// version of the client, and are ignored.
func checkObject(body []byte) error {
	var fields map[string]json.RawMessage
	if len(strings.TrimSpace(string(body))) > 0 && json.Unmarshal(body, &fields) != nil {
		return &domain.Error{Code: domain.InvalidArgument, Reason: protocol.BodyNotValid,
			Message: "the body must be a JSON object"}
	}
	return nil
}

func telemetry(c *call) (any, error) {
	if _, err := decode[protocol.TelemetryRequest](c); err != nil {
		return nil, err
	}
	return protocol.TelemetryResponse{Status: "accepted"}, nil
}

func capabilities(c *call) (any, error) {
	base, err := c.baseModel()
	if err != nil {
		return nil, err
	}
	model := protocol.SupportedModel{ModelName: modelName(base)}
	if row, ok := c.View().Models.Get(base); ok {
		model.MaxContextLength = row.State.ContextLength
	}
	return protocol.ServerCapabilities{SupportedModels: []protocol.SupportedModel{model}}, nil
}

// unembedWarning is the warning of every new session, because clients set train_unembed by default.
const unembedWarning = "train_unembed is accepted, but engines may ignore it: the embedded engine does not train the " +
	"unembedding"

func createSession(c *call) (any, error) {
	given, err := decode[protocol.CreateSessionRequest](c)
	if err != nil {
		return nil, err
	}
	metadata, err := metadataOf(given.UserMetadata)
	if err != nil {
		return nil, err
	}
	sessions := 0
	for row := range c.View().Sessions.In(c.Account) {
		if c.ofJob(row.State.Job, row.State.JobEvent) {
			sessions++
		}
	}
	if sessions >= MaxSessions {
		return nil, tooMany("sessions", MaxSessions)
	}
	id := "ts-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(randomBytes(10)))
	name := domain.NewName(c.Account, domain.TrainingSessions.Collection, id)
	_, err = c.Do(domain.Intend(domain.TrainingSessions, name, domain.Command[domain.TrainingSession](
		domain.CreateTrainingSession{TrainingSessionSpec: domain.TrainingSessionSpec{Job: c.job.Name,
			JobEvent: c.job.CreateEvent, Tags: given.Tags, UserMetadata: metadata, SDKVersion: given.SDKVersion,
			CreatedBy: string(c.Principal.Key)}})))
	if err != nil {
		return nil, err
	}
	return protocol.CreateSessionResponse{SessionID: id, WarningMessage: unembedWarning, Type: "create_session"}, nil
}

func tooMany(what string, limit int) error {
	return &domain.Error{Code: domain.FailedPrecondition, Reason: "TOO_MANY_" + strings.ToUpper(what),
		Message: domain.Count(limit).Of(strings.TrimSuffix(what, "s")) + " is the maximum of a trainer job: create " +
			"another job with serviceMode"}
}

func randomBytes(n int) []byte {
	random := make([]byte, n)
	_, _ = rand.Read(random) // never returns an error
	return random
}

// metadataOf returns user_metadata, whose values must be strings.
func metadataOf(raw json.RawMessage) (map[string]string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var metadata map[string]string
	if json.Unmarshal(raw, &metadata) != nil {
		var v domain.Violations
		v.Add("user_metadata", "must be an object whose values are strings: encode other values as JSON strings")
		return nil, v.Err()
	}
	return metadata, nil
}

// heartbeat records that the client of a session is alive, which keeps the job's attempt running.
// If the job is IDLE and the session has a live run, it starts the training service of the job.
func heartbeat(c *call) (any, error) {
	given, err := decode[protocol.HeartbeatRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.activeSession(given.SessionID)
	if err != nil {
		return nil, err
	}
	c.Touch(c.job.Name, c.Now())
	if c.job.State.State == domain.JobIdleState && c.hasLiveRun(row.Name) {
		_ = c.wake() // if the job cannot start, the response to the next operation says why
	}
	return protocol.HeartbeatResponse{Type: "session_heartbeat"}, nil
}

// activeSession returns a session that has not ended.
func (c *call) activeSession(id string) (*projections.Row[domain.TrainingSession], error) {
	row, err := c.session(id)
	if err == nil && row.State.EndTime != nil {
		err = &domain.Error{Code: domain.FailedPrecondition, Reason: "SESSION_ENDED",
			Message: "the session " + id + " has ended (" + row.State.EndReason + "): create another session"}
	}
	return row, err
}

func (c *call) hasLiveRun(session domain.Name) bool {
	for row := range c.View().Runs.In(c.Account) {
		if row.State.Session == session && row.State.Live() && c.ofJob(row.State.Job, row.State.JobEvent) {
			return true
		}
	}
	return false
}
