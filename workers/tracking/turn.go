package tracking

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// turn sends the data of a job that the tracker does not have yet, and schedules the next turn.
func (s *Sender) turn(ctx context.Context, view *projections.View, sess *session) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	row, there := view.Job(sess.name)
	there = there && row.CreateEvent == sess.event
	var err error
	if there && !row.State.Life().Deleting() {
		err = s.advance(ctx, view, sess, &row)
	} else {
		err = s.abandon(ctx, sess)
	}
	now := s.Now()
	if err == nil {
		sess.failures, sess.due = 0, now.Add(sendInterval)
		return
	}
	if sess.failures == 0 {
		sess.since = now
	}
	sess.failures++
	sess.due = now.Add(backoff(sess.failures, err))
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return // the server is shutting down, which is no failure of the turn
	}
	s.Logger.Warn("cannot send the data of a job to its experiment tracker: trying "+
		"again", "job", sess.name, "tracker", s.Service.address,
		"retry", sess.due.Sub(now).Round(time.Millisecond), "error", err)
	var rejected rejection
	if there && (errors.As(err, &rejected) || now.Sub(sess.since) >= problemAfter) {
		s.record(ctx, sess, &row, s.problem(err))
	}
}

// problem returns the text of an error for the job's users. Details that only the operator may see,
// such as addresses and paths, are only in the server's log.
func (s *Sender) problem(err error) string {
	why := "the tracker does not respond"
	var rejected rejection
	var busy busyError
	switch {
	case errors.As(err, &rejected):
		why = rejected.message
	case errors.As(err, &busy):
		why = busy.message
	}
	_, base, _ := strings.Cut(s.Service.address, "=")
	return "the tracker at " + base + " does not receive this job: " + why
}

// backoff returns the time until the next turn after a number of consecutive failures. err is the
// last error.
func backoff(failures int, err error) time.Duration {
	wait := min(firstBackoff<<min(failures-1, 20), maxBackoff)
	var rejected rejection
	if errors.As(err, &rejected) { // the turn is repeated, because the user may correct the key or its permissions
		wait = max(wait, maxBackoff/10)
	}
	var busy busyError
	if errors.As(err, &busy) {
		wait = min(max(wait, busy.after), maxBackoff)
	}
	return wait + rand.N(wait/4)
}

// advance sends those parameters, metrics and end states that the tracker does not have yet.
func (s *Sender) advance(
	ctx context.Context, view *projections.View, sess *session, row *projections.Row[domain.Job],
) (err error) {
	life, file, state := row.State.Life(), sess.file(), &sess.state
	if !sess.loaded {
		if *state, err = s.load(ctx, file); err != nil {
			return err
		}
		sess.loaded = true
	}
	if life.Terminal() && state.Ended == endingOf(life) {
		sess.sent = state.Ended
		return nil
	}
	if sess.key == "" {
		if sess.key, err = s.open(ctx, row); err != nil {
			return err
		}
	}
	if !state.Run.Complete || state.Ended != "" && !life.Terminal() {
		if err := s.Service.tracker.begin(ctx, sess.key, describe(row), &state.Run); err != nil {
			return err
		}
		state.Ended, sess.contact = "", s.Now()
		if state.Attempt == 0 {
			state.TrainStep, state.Attempt = trainStep(row), life.Attempt
		}
		if err := s.save(ctx, file, state); err != nil {
			return err
		}
		s.record(ctx, sess, row, "")
	}
	if len(state.Sending) > 0 {
		if err := s.send(ctx, sess, true); err != nil {
			return err
		}
	}
	if err := s.sendRows(ctx, view, sess, row); err != nil {
		return err
	}
	switch {
	case life.Terminal():
		if err := s.finish(ctx, sess, life); err != nil {
			return err
		}
		sess.sent = endingOf(life)
	case life.Live() && s.Now().Sub(sess.contact) >= keepInterval:
		if err := s.Service.tracker.keep(ctx, sess.key, state.Run); err != nil {
			return err
		}
		sess.contact = s.Now()
	}
	s.record(ctx, sess, row, "")
	return nil
}

// finish tells the tracker how the job ended. Before that it saves that all rows were sent, so that
// no rows follow the end after a crash.
func (s *Sender) finish(ctx context.Context, sess *session, life *domain.JobLife) error {
	with := ending{State: life.State, Time: s.Now(), Last: sess.state.Last}
	if life.CompletedTime != nil {
		with.Time = *life.CompletedTime
	}
	if err := s.save(ctx, sess.file(), &sess.state); err != nil {
		return err
	}
	if err := s.Service.tracker.end(ctx, sess.key, sess.state.Run, with); err != nil {
		return err
	}
	sess.state.Ended = endingOf(life)
	return s.save(ctx, sess.file(), &sess.state)
}

// abandon tells the tracker that a job was deleted while it ran. The saved state is deleted with
// the job, so this is tried only a few times, and not after a restart.
func (s *Sender) abandon(ctx context.Context, sess *session) error {
	if sess.dropped() || sess.key == "" {
		sess.lastTries = maxLastTries
		return nil
	}
	sess.lastTries++
	err := s.Service.tracker.end(ctx, sess.key, sess.state.Run,
		ending{State: domain.JobDeletingState, Time: s.Now(), Last: sess.state.Last})
	if err == nil {
		sess.state.Ended = domain.JobDeletingState
	}
	return err
}

// open decrypts the API key with which the job's data are sent.
func (s *Sender) open(ctx context.Context, row *projections.Row[domain.Job]) (domain.SecretValue, error) {
	key, err := s.Open(ctx, secrets.Reader{Purpose: secrets.TrackJob, Resource: row.Name}, row.Name,
		*row.State.Spec().Tracker.APIKey)
	if code := domain.CodeOf(err); code == domain.NotFound || code == domain.DataLoss {
		return "", rejection{"the job's trackerConfig.apiKey cannot be decrypted: set it again"}
	}
	return key, err
}

// sendRows sends the rows that the tracker does not have yet, in batches.
func (s *Sender) sendRows(
	ctx context.Context, view *projections.View, sess *session, row *projections.Row[domain.Job],
) (err error) {
	defer func() {
		if err != nil {
			sess.readFile = fileVersion{} // rows of the metrics file may not have been sent, so read it again
		}
	}()
	for {
		rows, next, err := s.collect(ctx, view, sess, row)
		if err != nil {
			return err
		}
		for len(rows) > 0 {
			n := batchOf(rows)
			sess.state.Sending, rows = rows[:n], rows[n:]
			if err := s.save(ctx, sess.file(), &sess.state); err != nil {
				sess.state.Sending = nil
				return err
			}
			if err := s.send(ctx, sess, false); err != nil {
				return err
			}
		}
		if !next {
			return nil
		}
		state := &sess.state
		state.Base, state.TrainStep, state.Attempt = state.Step, trainStep(row), row.State.Life().Attempt
		sess.readFile = fileVersion{}
		if err := s.save(ctx, sess.file(), state); err != nil {
			return err
		}
	}
}

// send sends the rows that are saved in Sending. The caller then saves that they were sent. After a
// crash before that, the same rows are sent again to the same place in the run.
func (s *Sender) send(ctx context.Context, sess *session, repeated bool) error {
	state := &sess.state
	if err := s.Service.tracker.log(ctx, sess.key, state.Run, state.Sent, state.Sending, repeated); err != nil {
		return err
	}
	state.Sent += len(state.Sending)
	state.Step = state.Sending[len(state.Sending)-1].Step
	if state.Last == nil {
		state.Last = map[string]float64{}
	}
	for _, row := range state.Sending {
		maps.Copy(state.Last, row.Values)
	}
	state.Sending, sess.contact = nil, s.Now()
	return nil
}

// trainStep returns the number of the current train step of a trainer job; 0 for other jobs.
func trainStep(row *projections.Row[domain.Job]) int {
	if job, ok := row.State.(*domain.TrainerJob); ok {
		return job.Step.Number
	}
	return 0
}

// record records the URL of the run and the current problem in the job, unless the job has them
// already. It does nothing when the job was deleted, even if another job has its name. It only logs
// a failure, because the next turn calls it again.
func (s *Sender) record(ctx context.Context, sess *session, row *projections.Row[domain.Job], problem string) {
	const maxProblem = 700 // maximum length of the problem in bytes

	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the turn has used up its time: use a new context
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), scanInterval)
		defer cancel()
	}
	tracking := domain.JobTracking{RunID: sess.state.Run.ID, URL: sess.state.Run.URL,
		Problem: strings.ToValidUTF8(problem[:min(len(problem), maxProblem)], "")}
	request := eventlog.Request{Time: s.Now(), Actor: "tracking"}
	_, err := eventlog.Do(ctx, s.Log, s.World, request,
		domain.IntendJob(row.Name, domain.RecordTracking{JobTracking: tracking}).Of(sess.event))
	if err != nil && ctx.Err() == nil {
		s.Logger.Debug("cannot record a run's URL and the tracker's problem in the job: trying "+
			"again", "job", row.Name, "error", err)
	}
}
