package domain

import "time"

// CreateBatch creates a batch of the requests in a file.
type CreateBatch struct {
	BatchSpec
	CreatedBy string
}

func (c CreateBatch) Decide(b Batch, now time.Time) (Event[Batch], error) {
	if b.Exists() {
		return nil, alreadyExists("a batch")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return BatchCreated{c.BatchSpec, c.CreatedBy, now.Add(BatchTime)}, nil
}

// StartBatch records that the requests of the input file are valid, and which model they name. The
// batch is then in_progress.
type StartBatch struct {
	Total int
	Model string
}

func (c StartBatch) Decide(b Batch, now time.Time) (Event[Batch], error) {
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.State == BatchInProgress:
		return nil, nil
	case b.State != BatchValidating:
		return nil, b.cannot("start")
	}
	return BatchStarted{c.Total, c.Model, now}, nil
}

// ReportBatch records how many requests of the batch were processed so far, by their result.
type ReportBatch struct{ Completed, Failed int }

func (c ReportBatch) Decide(b Batch, _ time.Time) (Event[Batch], error) {
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.State != BatchInProgress:
		return nil, b.cannot("progress")
	case c.Completed+c.Failed <= b.Counts.Completed+b.Counts.Failed:
		return nil, nil
	}
	return BatchProgressed(c), nil
}

// FinalizeBatch records that no further request is sent, because all are processed or, if Overdue is
// set, because the batch's ExpireTime has passed.
type FinalizeBatch struct {
	Completed, Failed int
	Overdue           bool
}

func (c FinalizeBatch) Decide(b Batch, now time.Time) (Event[Batch], error) {
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.State == BatchFinalizingState:
		return nil, nil
	case b.State != BatchInProgress:
		return nil, b.cannot("be finalized")
	}
	return BatchFinalizing{c.Completed, c.Failed, c.Overdue, now}, nil
}

// CancelBatch requests the cancellation of a batch. A batch that has ended stays as it is.
type CancelBatch struct{}

func (CancelBatch) Decide(b Batch, now time.Time) (Event[Batch], error) {
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.State == BatchCancellingState || b.State == BatchCancelledState:
		return nil, nil
	case b.State != BatchValidating && b.State != BatchInProgress:
		return nil, b.cannot("be cancelled")
	}
	return BatchCancelling{now}, nil
}

// EndBatch ends a batch and records its result files. The batch becomes cancelled if it is cancelling,
// expired if it is Overdue, and completed otherwise.
type EndBatch struct {
	BatchResults
	Completed, Failed int
}

func (c EndBatch) Decide(b Batch, now time.Time) (Event[Batch], error) {
	end := BatchEnd{c.BatchResults, c.Completed, c.Failed, now}
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.State == BatchCancellingState:
		return BatchCancelled{end}, nil
	case b.State == BatchFinalizingState && b.Overdue:
		return BatchExpired{end}, nil
	case b.State == BatchFinalizingState:
		return BatchCompleted{end}, nil
	case !b.Live() && b.State != BatchFailedState && b.Results == c.BatchResults:
		return nil, nil
	}
	return nil, b.cannot("end")
}

// FailBatch ends a batch that cannot be run, with the reasons.
type FailBatch struct{ Failures []BatchError }

func (c FailBatch) Decide(b Batch, now time.Time) (Event[Batch], error) {
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.State == BatchFailedState:
		return nil, nil
	case !b.Live():
		return nil, b.cannot("fail")
	}
	return BatchFailed{c.Failures, now}, nil
}

// RemoveBatch removes a batch that has ended. Its files stay.
type RemoveBatch struct{}

func (RemoveBatch) Decide(b Batch, _ time.Time) (Event[Batch], error) {
	switch {
	case !b.Exists():
		return nil, notFound("batch")
	case b.Live():
		return nil, b.cannot("be removed")
	}
	return BatchRemoved{}, nil
}

// cannot returns the error of a command that the state of the batch does not allow. do is what the
// batch cannot do, such as "start".
func (b Batch) cannot(do string) error {
	return precondition("BATCH_"+stateReasons[b.State], "the batch is %s and cannot %s", b.State, do)
}

// stateReasons maps each state of a batch to its name in the reasons of errors.
var stateReasons = map[string]string{BatchValidating: "VALIDATING", BatchFailedState: "FAILED",
	BatchInProgress: "IN_PROGRESS", BatchFinalizingState: "FINALIZING", BatchCompletedState: "COMPLETED",
	BatchExpiredState: "EXPIRED", BatchCancellingState: "CANCELLING", BatchCancelledState: "CANCELLED"}
