package tracking

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

const (
	scanInterval  = time.Second
	sendInterval  = 5 * time.Second  // minimum time between two requests with metrics of one running job
	keepInterval  = 30 * time.Second // time without a request after which keep tells the tracker that the run continues
	turnTimeout   = 2 * time.Minute
	maxConcurrent = 8 // jobs for which requests are sent concurrently

	// giveUpAfter is the time after the end of a job after which the sender sends nothing more about
	// the job.
	giveUpAfter  = 24 * time.Hour
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	// problemAfter is the time without a response of the tracker after which the job shows the
	// problem.
	problemAfter = time.Minute
)

// A Sender sends to the tracker the jobs whose trackerConfig is enabled. It reads the metrics that
// agents have already reported, so that training never waits for the tracker. After a restart it
// continues where it stopped. It retries until giveUpAfter has passed since the end of the job.
type Sender struct {
	Log     eventlog.Log
	World   *projections.World // follows Log
	Blobs   *blobs.Store
	Open    secrets.OpenFunc
	Service Service
	Now     func() time.Time
	Logger  *slog.Logger
}

// Run sends until ctx is done.
func (s *Sender) Run(ctx context.Context) error {
	l := loop{Sender: s, sessions: map[string]*session{}, returned: make(chan *session)}
	defer l.running.Wait()
	ticker := time.NewTicker(scanInterval)
	defer ticker.Stop()
	for {
		l.dispatch(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case one := <-l.returned:
			one.busy = false
			l.busy--
		}
	}
}

// A loop holds the jobs that are sent. Only Run's goroutine uses its fields.
type loop struct {
	*Sender
	sessions map[string]*session // by the ID of the event that created the job
	scanned  uint64              // position of the world up to which sessions has all jobs
	busy     int                 // sessions with a turn in progress
	running  sync.WaitGroup
	returned chan *session // sessions whose turn has ended
}

// dispatch starts a turn of each session that is due.
func (l *loop) dispatch(ctx context.Context) {
	view, now := l.World.View(), l.Now()
	if view.Position != l.scanned || l.scanned == 0 {
		l.scan(view, now)
		l.scanned = view.Position
	}
	for event, one := range l.sessions {
		if one.busy || l.busy == maxConcurrent {
			continue
		}
		life, state := one.find(view), ""
		if life != nil {
			state = endingOf(life)
		}
		switch {
		case life == nil && one.dropped():
			delete(l.sessions, event)
			continue
		case life != nil && givenUp(life, now):
			if one.sent != state {
				l.Logger.Warn("the tracker did not receive the end of the job, no further retries", "job", one.name,
					"tracker", l.Service.address, "after", giveUpAfter)
			}
			delete(l.sessions, event)
			continue
		case life != nil && one.sent == state:
			continue
		case one.failures > 0 && now.Before(one.due), state == one.seen && now.Before(one.due):
			continue
		}
		one.busy, one.seen = true, state
		l.busy++
		l.running.Go(func() {
			l.turn(ctx, view, one)
			select {
			case l.returned <- one:
			case <-ctx.Done():
			}
		})
	}
}

// scan adds a session for each job that has begun to train and has a tracker.
func (l *loop) scan(view *projections.View, now time.Time) {
	for row := range view.Jobs() {
		life := row.State.Life()
		if life.Attempt == 0 || l.sessions[row.CreateEvent] != nil || givenUp(life, now) {
			continue
		}
		if t := row.State.Spec().Tracker; t != nil && t.Enabled && t.APIKey != nil {
			l.sessions[row.CreateEvent] = &session{name: row.Name, event: row.CreateEvent}
		}
	}
}

// givenUp reports whether a job ended so long ago that nothing more is sent about it.
func givenUp(l *domain.JobLife, now time.Time) bool {
	return l.Terminal() && l.CompletedTime != nil && now.Sub(*l.CompletedTime) > giveUpAfter
}

// A session holds what a Sender knows of one job. A turn has exclusive use of it.
type session struct {
	name  domain.Name
	event string // ID of the event that created the job

	busy     bool      // a turn is in progress
	due      time.Time // time of the next turn, unless the state of the job changes before
	seen     string    // result of endingOf at the last turn
	sent     string    // result of endingOf for the end of the job that the tracker has received
	failures int       // consecutive failed turns
	since    time.Time // when the first of these turns failed

	loaded    bool
	state     saved
	key       domain.SecretValue
	contact   time.Time   // time of the last request that succeeded
	readFile  fileVersion // the metrics file whose rows were sent
	fileEnd   int         // last step of that file
	lastTries int         // attempts to tell the tracker that the job was deleted
}

// file returns the key of the file in which the state of the session is saved.
func (one *session) file() string { return blobs.TrackerFile(one.name, one.event) }

// find returns the life cycle of the job; nil when the job is deleted.
func (one *session) find(view *projections.View) *domain.JobLife {
	row, ok := view.Job(one.name)
	if !ok || row.CreateEvent != one.event {
		return nil
	}
	return row.State.Life()
}

const maxLastTries = 3

// dropped reports whether nothing is left to send about a deleted job.
func (one *session) dropped() bool {
	return !one.loaded || !one.state.Run.Complete || one.state.Ended != "" || one.lastTries >= maxLastTries
}
