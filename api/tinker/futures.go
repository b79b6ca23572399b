package tinker

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"anneal/api/request"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	protocol "anneal/tinker"
)

func (s *Service) futureOperations() []request.Operation {
	return []request.Operation{{ID: "retrieveTrainingFuture", Method: "POST", Path: "retrieve_future",
		Summary: "Wait for the result of an operation", Permission: request.Read, Uncounted: true,
		Handle: s.handle(retrieveFuture, protocol.MaxBody)}}
}

// A requestID identifies an operation whose result a client polls for. It is sent as KIND:ID:SEQ.
type requestID struct {
	kind string
	id   string // of the run or of the lane of a sampling session
	seq  int64  // 0 of a run is its creation
}

// Kinds of request IDs.
const (
	runRequest    = "run"
	unloadRequest = "unload"
	sampleRequest = "sample"
)

func (r requestID) String() string { return r.kind + ":" + r.id + ":" + strconv.FormatInt(r.seq, 10) }

func parseRequestID(text string) (requestID, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		r := requestID{kind: parts[0], id: parts[1]}
		var err error
		r.seq, err = strconv.ParseInt(parts[2], 10, 64)
		known := r.kind == runRequest || r.kind == unloadRequest || r.kind == sampleRequest
		if err == nil && known && validLane(r.id) && r.seq >= 0 && r.seq <= operations.MaxSeq {
			return r, nil
		}
	}
	return requestID{}, request.NotFoundReason("REQUEST_NOT_FOUND",
		"there is no operation with the request_id %s: send the request_id of the response to an operation", quote(text))
}

// validLane reports whether id can be the ID of a run or of the lane of a sampling session.
func validLane(id string) bool {
	return id != "" && len(id) <= maxLaneID && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

const maxLaneID = 160

// retrieveFuture waits for a result. If there is none in time, it responds with 408 and try_again.
func retrieveFuture(c *call) (any, error) {
	given, err := decode[protocol.FutureRequest](c)
	if err != nil {
		return nil, err
	}
	id, err := parseRequestID(given.RequestID)
	if err != nil {
		return nil, err
	}
	c.Conn.ReleaseBody()
	lane := operations.Lane{Account: c.Account, Job: c.job.CreateEvent, ID: id.id, Samples: id.kind == sampleRequest}
	var row *projections.Row[domain.TrainingRun]
	if !lane.Samples {
		if row, err = c.trainingRun(id.id); err != nil {
			return nil, err
		}
		if ended, err := endedWithout(c, row, id, lane); ended != nil || err != nil {
			return ended, err
		}
	}
	result, err := c.await(lane, id.seq)
	var missing *domain.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		state, reason := c.queueState()
		wakeForPoll(c)
		return nil, writeJSON(c.Writer, http.StatusRequestTimeout, protocol.NewTryAgain(given.RequestID, state, reason))
	case errors.As(err, &missing) && missing.Code == domain.NotFound:
		return nil, &domain.Error{Code: domain.NotFound, Reason: reasonExpired,
			Message: missing.Message + ": results are stored for a limited time after they were computed"}
	case errors.As(err, &missing) && missing.Code == domain.DataLoss:
		return protocol.NewFailed(missing), nil
	case err != nil:
		return nil, err
	case result.Err != nil:
		return protocol.NewFailed(result.Err), nil
	}
	return c.answer(id, result, given.AllowMetadataOnly)
}

// endedWithout returns the response for an operation without a result of a run that has ended,
// because such an operation is no longer executed. It returns nil if there is a result, or can
// still be one.
func endedWithout(c *call, row *projections.Row[domain.TrainingRun], id requestID, lane operations.Lane) (any, error) {
	if id.kind == unloadRequest {
		if row.State.State == domain.TrainingRunUnloadedState {
			return protocol.UnloadModelResponse{ModelID: id.id, Type: "unload_model"}, nil
		}
		return nil, request.NotFoundReason("REQUEST_NOT_FOUND", "the model %s was not unloaded", id.id)
	}
	ended := row.State.MustLive()
	if ended == nil {
		return nil, nil
	}
	if _, ok, err := c.Journal.Result(c.Ctx, lane, id.seq); ok || err != nil {
		return nil, nil // await returns the result or the error
	}
	return protocol.NewFailed(ended), nil
}

// await waits for a result. It returns context.DeadlineExceeded after the time that a poll is held,
// and when the server stops.
func (c *call) await(lane operations.Lane, seq int64) (operations.Result, error) {
	ctx, cancel := context.WithTimeout(c.Ctx, c.Hold)
	defer cancel()
	defer context.AfterFunc(c.Closing, cancel)()
	result, err := c.Journal.Wait(ctx, lane, seq)
	if err != nil && ctx.Err() != nil && c.Ctx.Err() == nil {
		err = context.DeadlineExceeded
	}
	return result, err
}

// wakeForPoll makes the job continue if it stopped when the operation was submitted: the operation waits in
// the journal, and a client that sends no heartbeats only polls.
func wakeForPoll(c *call) {
	row, ok := projections.TableOf(c.World.View(), domain.TrainerJobs).Get(c.Direct)
	if !ok || row.CreateEvent != c.job.CreateEvent || row.State.State != domain.JobIdleState {
		return
	}
	if c.Principal.Authorize(c.Account, request.Write) != nil ||
		!c.Principal.IsOperator() && c.RequireActive(c.Account) != nil {
		return
	}
	c.job = row
	_ = c.wake() // if the job cannot start, the next poll says in which state it is
}

// queueState says why an operation has no result yet.
func (c *call) queueState() (protocol.QueueState, string) {
	job, ok := projections.TableOf(c.World.View(), domain.TrainerJobs).Get(c.Direct)
	switch {
	case !ok:
		return protocol.QueuePausedCapacity, "the trainer job was deleted"
	case job.State.Serving && job.State.State == domain.JobRunningState:
		return protocol.QueueActive, ""
	}
	reason := "the trainer job is " + strings.TrimPrefix(job.State.State, "JOB_STATE_")
	if job.State.Status.Message != "" {
		reason += ": " + job.State.Status.Message
	}
	return protocol.QueuePausedCapacity, reason
}

// answer returns the response with a result.
func (c *call) answer(id requestID, r operations.Result, metadataOnly bool) (any, error) {
	if id.kind == runRequest && id.seq == 0 {
		return protocol.CreateModelResponse{ModelID: id.id, Type: "create_model"}, nil
	}
	result, err := engines.DecodeTrainOperationResult(r.Body)
	if err != nil {
		return protocol.NewFailed(err), nil
	}
	switch {
	case r.Kind == kindPass && result.Pass != nil:
		out := protocol.OutputOf(result.Pass, targetsOfNote(r.Note))
		return c.large(&out, metadataOnly)
	case r.Kind == kindSample && result.Samples != nil:
		topK, _ := strconv.Atoi(r.Note)
		out := protocol.SampleResponseOf(result.Samples, topK)
		return c.large(&out, metadataOnly)
	case r.Kind == kindStep && result.Step != nil:
		return protocol.StepResponse(*result.Step), nil
	case r.Kind == kindSave && result.Saved != nil:
		path := protocol.Path{Run: id.id, Kind: protocol.TrainingCheckpoint, Name: result.Saved.Name}
		return protocol.SaveWeightsResponse{Path: path.String(), Type: kindSave}, nil
	case r.Kind == kindSampler && result.Saved != nil && r.Note != "":
		return protocol.SaveWeightsForSamplerResponse{SamplingSessionID: r.Note, Type: kindSampler}, nil
	case r.Kind == kindSampler && result.Saved != nil:
		path := protocol.Path{Run: id.id, Kind: protocol.SamplerCheckpoint, Name: result.Saved.Name}
		return protocol.SaveWeightsForSamplerResponse{Path: path.String(), Type: kindSampler}, nil
	case r.Kind == kindLoad:
		return protocol.LoadWeightsResponse{Path: r.Note, ModelID: id.id, Type: kindLoad}, nil
	}
	return protocol.NewFailed(domain.Errorf(domain.Internal, "the attempt has stored a result of another operation")), nil
}

// A largeResult is a result that has a protobuf encoding: of a pass or of samples.
type largeResult interface{ MarshalProto() []byte }

// large writes a result in the encoding that the client accepts, or only its size.
func (c *call) large(out largeResult, metadataOnly bool) (any, error) {
	if !strings.Contains(c.Request.Header.Get("Accept"), protocol.ContentTypeProtobuf) {
		return out, nil
	}
	data := out.MarshalProto()
	if metadataOnly && len(data) >= metadataSize {
		return protocol.ResultMetadata{Status: "complete_metadata", ResponsePayloadSize: len(data)}, nil
	}
	c.Writer.Header().Set("Content-Type", protocol.ContentTypeProtobuf)
	c.Writer.Header().Set("Content-Length", strconv.Itoa(len(data)))
	c.Writer.Header().Set("X-Content-Type-Options", "nosniff")
	c.Writer.WriteHeader(http.StatusOK)
	_, _ = c.Writer.Write(data)
	return nil, nil
}
