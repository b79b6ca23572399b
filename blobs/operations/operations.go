// Package operations is the journal of the operations of training runs and sampling sessions, and
// of their results. Each run and each sampling session has a journal of its own, a lane: files in
// the bucket, not events of the log. An operation is durable before it is acknowledged, and is
// stored once for each sequence number. Callers that wait are woken when an operation or a result
// is stored.
//
// The files are below blobs.JournalPrefix of the trainer job, so they are deleted with the job.
package operations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
)

// A Lane identifies the journal of one training run or one sampling session. The operations of a
// run are executed in the order of their sequence numbers, from 1. Those of a sampling session are
// independent.
type Lane struct {
	Account string
	Job     string // ID of the event that created the trainer job
	ID      string // ID of the training run or of the sampling session
	Samples bool   // whether ID is that of a sampling session
}

// Directories of the lanes below blobs.JournalPrefix.
const (
	runsDir    = "runs/"
	samplesDir = "samples/"
)

func (l Lane) prefix() string {
	dir := runsDir
	if l.Samples {
		dir = samplesDir
	}
	return blobs.JournalPrefix(l.Account, l.Job) + dir + l.ID + "/"
}

// Names of the files of a lane: laneFile, only of a run, and for each operation SEQ.op and
// SEQ.result.
const (
	laneFile        = "lane"
	operationSuffix = ".op"
	resultSuffix    = ".result"
)

// firstSeq returns the first sequence number that clients may use: 0 of a run is its creation.
func (l Lane) firstSeq() int64 {
	if l.Samples {
		return 0
	}
	return 1
}

// MaxNote is the maximum length of Operation.Note in bytes.
const MaxNote = 16 << 10

// MaxSeq is the maximum sequence number of an operation.
const MaxSeq = 1<<31 - 1

func (l Lane) operationKey(seq int64) string {
	return fmt.Sprintf("%s%010d%s", l.prefix(), seq, operationSuffix)
}
func (l Lane) resultKey(seq int64) string {
	return fmt.Sprintf("%s%010d%s", l.prefix(), seq, resultSuffix)
}

// An Operation is an operation that a client has submitted.
type Operation struct {
	Seq  int64
	Kind string
	Note string // data with which the server converts the result to a response, at most MaxNote bytes
	Body []byte
	Hash [32]byte // SHA-256 of the client's request, by which a retried request is recognized
	Time time.Time
}

// A Result is the result of an operation: Body, or Err if it has failed.
type Result struct {
	Attempt int // attempt of the job that executed the operation
	Body    []byte
	Err     *domain.Error
	Time    time.Time
	Kind    string // Kind of the operation; Finish sets it
	Note    string // Note of the operation; Finish sets it
}

// A Store stores operations and results. It is safe for concurrent use. Several control planes can
// use one bucket; each announces its changes to the others: see SetAnnounce and Notify.
type Store struct {
	blobs    *blobs.Store
	now      func() time.Time
	announce func(Lane, ...int64)

	memory *memory
}

// New returns a store of the operations in a bucket. now returns the current time; nil stands for
// time.Now.
func New(bucket *blobs.Store, now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	return &Store{blobs: bucket, now: now, memory: newMemory(),
		announce: func(Lane, ...int64) {}}
}

// SetAnnounce sets a function that is called with the sequence number of each operation or result
// that was stored. It must make the other control planes call Notify, and must not block.
// SetAnnounce must be called before the store is used.
func (s *Store) SetAnnounce(announce func(lane Lane, seqs ...int64)) { s.announce = announce }

// Reasons of errors.
const (
	ReasonSequenceReused   = "SEQUENCE_REUSED"
	ReasonJournalLost      = "JOURNAL_LOST"
	ReasonOperationLost    = "OPERATION_LOST"
	ReasonOperationExpired = "OPERATION_EXPIRED"
	ReasonUnknownOperation = "OPERATION_NOT_FOUND"
)

// Create creates the journal of a training run. If it exists, Create changes nothing. The journals
// of sampling sessions need not be created.
func (s *Store) Create(ctx context.Context, lane Lane) error {
	if lane.Samples {
		return nil
	}
	err := s.blobs.Create(ctx, lane.prefix()+laneFile, encodeLane(laneState{}))
	if domain.CodeOf(err) == domain.AlreadyExists {
		return nil
	}
	return err
}

// Submit stores an operation durably. If the lane has an operation with the same Seq and Hash,
// Submit changes nothing and created is false; with another Hash, the error is InvalidArgument with
// ReasonSequenceReused. It returns OutOfRange with ReasonOperationExpired if the operation has been
// executed and its result was deleted since, ResourceExhausted with ReasonQueueFull if the account
// has too many operations without results, and DataLoss if the journal of a run does not exist. The
// Time of the operation is set.
func (s *Store) Submit(ctx context.Context, lane Lane, o Operation) (created bool, err error) {
	if first := lane.firstSeq(); o.Seq < first || o.Seq > MaxSeq {
		return false, domain.Errorf(domain.InvalidArgument, "the sequence number is %d: it must be from %d to %d", o.Seq,
			first, MaxSeq)
	}
	if len(o.Note) > MaxNote {
		return false, domain.Errorf(domain.Internal, "the note of an operation has %d bytes: the maximum is %d", len(o.Note),
			MaxNote)
	}
	if result, err := s.header(ctx, lane.resultKey(o.Seq)); err == nil {
		return false, sameOperation(o, result)
	} else if domain.CodeOf(err) != domain.NotFound {
		return false, err
	}
	if err := s.checkLane(ctx, lane, o.Seq); err != nil {
		return false, err
	}
	o.Time = s.now().UTC()
	err = s.checkCapacity(ctx, lane.Account, len(o.Body))
	if err != nil {
		if stored, found := s.header(ctx, lane.operationKey(o.Seq)); found == nil {
			return false, sameOperation(o, stored)
		}
		return false, err
	}
	err = s.blobs.Create(ctx, lane.operationKey(o.Seq), encodeOperation(o))
	switch domain.CodeOf(err) {
	case domain.OK:
		s.memory.submitted(lane, o.Seq, len(o.Body))
		s.announce(lane, o.Seq)
		return true, nil
	case domain.AlreadyExists:
		stored, err := s.header(ctx, lane.operationKey(o.Seq))
		if domain.CodeOf(err) == domain.NotFound { // finished and deleted meanwhile
			stored, err = s.header(ctx, lane.resultKey(o.Seq))
		}
		if err != nil {
			return false, err
		}
		return false, sameOperation(o, stored)
	}
	return false, err
}

// sameOperation returns an error unless stored is the header of the same request's operation or
// result.
func sameOperation(o Operation, stored header) error {
	if stored.Hash == hexOf(o.Hash) {
		return nil
	}
	return &domain.Error{Code: domain.InvalidArgument, Reason: ReasonSequenceReused,
		Message: fmt.Sprintf("the sequence number %d was used before for another request (%s): send each request with the "+
			"next number, and repeat a request only unchanged", o.Seq, stored.Kind)}
}

// checkLane returns an error unless the journal of a run exists and the operation was not trimmed.
func (s *Store) checkLane(ctx context.Context, lane Lane, seq int64) error {
	if lane.Samples {
		return nil
	}
	state, err := s.lane(ctx, lane)
	if err == nil && seq <= state.Through {
		err = &domain.Error{Code: domain.OutOfRange, Reason: ReasonOperationExpired,
			Message: fmt.Sprintf("the operation %d was executed, and its result is no longer stored", seq)}
	}
	return err
}

// lane returns the state of the journal of a run.
func (s *Store) lane(ctx context.Context, lane Lane) (laneState, error) {
	data, err := s.read(ctx, lane.prefix()+laneFile)
	if domain.CodeOf(err) == domain.NotFound {
		return laneState{}, &domain.Error{Code: domain.DataLoss, Reason: ReasonJournalLost,
			Message: "the operations of the training run are lost: its journal does not exist"}
	}
	if err != nil {
		return laneState{}, err
	}
	return decodeLane(data)
}

// Operation returns a stored operation. The error is NotFound if there is none.
func (s *Store) Operation(ctx context.Context, lane Lane, seq int64) (Operation, error) {
	data, err := s.read(ctx, lane.operationKey(seq))
	if err != nil {
		return Operation{}, err
	}
	return decodeOperation(data, seq)
}

// Body returns the body of a stored operation. The error is NotFound if there is none.
func (s *Store) Body(ctx context.Context, lane Lane, seq int64) ([]byte, error) {
	o, err := s.Operation(ctx, lane, seq)
	return o.Body, err
}

// Next returns the operation of a run with the sequence number last+1. It waits until there is one;
// ok is false if ctx is done before. It returns DataLoss if the journal does not exist, or the
// operation is damaged, was trimmed, or is missing although it has a result.
func (s *Store) Next(ctx context.Context, lane Lane, last int64) (o Operation, ok bool, err error) {
	w := s.memory.wait(lane, last+1)
	defer s.memory.leave(lane, last+1, w)
	for {
		o, err = s.Operation(ctx, lane, last+1)
		if err == nil {
			return o, true, nil
		}
		if domain.CodeOf(err) == domain.NotFound {
			err = s.checkGap(ctx, lane, last+1)
		}
		switch {
		case ctx.Err() != nil:
			return Operation{}, false, nil
		case err != nil:
			return Operation{}, false, err
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return Operation{}, false, nil
		}
	}
}

// checkGap returns DataLoss if a missing operation of a run must have existed: it was trimmed or
// has a result. Another missing operation has not been submitted yet, or is lost without a trace.
func (s *Store) checkGap(ctx context.Context, lane Lane, seq int64) error {
	if lane.Samples {
		return nil
	}
	state, err := s.lane(ctx, lane)
	if err != nil {
		return err
	}
	_, err = s.header(ctx, lane.resultKey(seq))
	switch {
	case seq <= state.Through, err == nil:
		return &domain.Error{Code: domain.DataLoss, Reason: ReasonOperationLost,
			Message: fmt.Sprintf("the operation %d of the training run is lost", seq)}
	case domain.CodeOf(err) == domain.NotFound:
		return nil
	}
	return err
}

// Finish stores the result of an operation durably and wakes the callers that wait for it. If the
// operation has a result, Finish changes nothing: the first result is kept. Sequence number 0 of a
// run is its creation, for which no operation is submitted. The Time of the result is set.
func (s *Store) Finish(ctx context.Context, lane Lane, seq int64, r Result) error {
	var of header
	if seq >= lane.firstSeq() {
		var err error
		of, err = s.header(ctx, lane.operationKey(seq))
		if domain.CodeOf(err) == domain.NotFound {
			if _, done := s.header(ctx, lane.resultKey(seq)); done == nil {
				return nil
			}
		}
		if err != nil && domain.CodeOf(err) != domain.DataLoss { // a damaged operation can still fail
			return err
		}
	}
	r.Time, r.Kind, r.Note = s.now().UTC(), of.Kind, of.Note
	err := s.blobs.Create(ctx, lane.resultKey(seq), encodeResult(r, of))
	if domain.CodeOf(err) == domain.AlreadyExists {
		s.memory.finished(lane, seq, nil)
		return nil
	}
	if err == nil {
		s.memory.finished(lane, seq, &r)
		s.announce(lane, seq)
	}
	return err
}

// Result returns the result of an operation; ok is false if there is none yet.
func (s *Store) Result(ctx context.Context, lane Lane, seq int64) (r Result, ok bool, err error) {
	data, err := s.read(ctx, lane.resultKey(seq))
	if domain.CodeOf(err) == domain.NotFound {
		return Result{}, false, nil
	}
	if err == nil {
		r, err = decodeResult(data)
	}
	return r, err == nil, err
}

// Wait returns the result of an operation. It waits until there is one, or returns the error of ctx
// if ctx is done before. It returns NotFound if there is no such operation, or, with the reason
// ReasonOperationExpired, if its result was deleted.
func (s *Store) Wait(ctx context.Context, lane Lane, seq int64) (Result, error) {
	w := s.memory.wait(lane, seq)
	defer s.memory.leave(lane, seq, w)
	for {
		r, ok, err := s.Result(ctx, lane, seq)
		if ok || err != nil {
			return r, err
		}
		if err := s.checkWaiting(ctx, lane, seq); err != nil {
			return Result{}, err
		}
		select {
		case r := <-w.changed:
			if r != nil {
				return *r, nil
			}
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
}

// checkWaiting returns NotFound unless there is an operation whose result can be waited for.
func (s *Store) checkWaiting(ctx context.Context, lane Lane, seq int64) error {
	if seq < lane.firstSeq() {
		return nil
	}
	_, err := s.blobs.Size(ctx, lane.operationKey(seq))
	if domain.CodeOf(err) != domain.NotFound {
		return err
	}
	if _, err := s.header(ctx, lane.resultKey(seq)); err == nil { // finished and trimmed meanwhile
		return nil
	}
	if state, err := s.lane(ctx, lane); !lane.Samples && err == nil && seq <= state.Through || lane.Samples {
		return &domain.Error{Code: domain.NotFound, Reason: ReasonOperationExpired,
			Message: fmt.Sprintf("the result of the operation %d is no longer stored", seq)}
	} else if !lane.Samples && err != nil {
		return err
	}
	return &domain.Error{Code: domain.NotFound, Reason: ReasonUnknownOperation,
		Message: fmt.Sprintf("there is no operation %d", seq)}
}

// read returns the content of a file. It does not verify the content.
func (s *Store) read(ctx context.Context, key string) ([]byte, error) {
	r, err := s.blobs.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// header returns the header of the file of an operation or a result.
func (s *Store) header(ctx context.Context, key string) (header, error) {
	r, err := s.blobs.Get(ctx, key)
	if err != nil {
		return header{}, err
	}
	data, err := io.ReadAll(io.LimitReader(r, maxHeader))
	if err = errors.Join(err, r.Close()); err != nil {
		return header{}, err
	}
	magic := operationMagic
	if strings.HasSuffix(key, resultSuffix) {
		magic = resultMagic
	}
	h, _, err := split(data, magic)
	return h, err
}
