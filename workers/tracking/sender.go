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
	sendInterval  = 5 * time.Second  // minimum time between two requests with metrics of a running job
	keepInterval  = 30 * time.Second // time without a request after which the tracker is told that the run continues
	turnTimeout   = 2 * time.Minute
	maxConcurrent = 8 // maximum number of jobs for which requests are sent concurrently

	// giveUpAfter is how long after the end of a job the Sender tries to send its data.
	giveUpAfter  = 24 * time.Hour
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	// problemAfter is the time without a response of the tracker after which the job shows this as
	// a problem.
	problemAfter = time.Minute
)

// A Sender sends the data of jobs with an enabled trackerConfig to the experiment tracker. It sends
// the metrics that agents have already reported, so that training never waits for the tracker.
// After a restart it continues where it stopped. It tries again after failures, until giveUpAfter.
type Sender struct {
	Log     eventlog.Log
	World   *projections.World // state of all resources; must fold the events of Log: see World.Run
	Blobs   *blobs.Store
	Open    secrets.OpenFunc
	Service Service
	Now     func() time.Time
	Logger  *slog.Logger
}

// Run sends the data of jobs until ctx is done.
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
		case sess := <-l.returned:
			sess.busy = false
			l.busy--
		}
	}
}

// A loop has the sessions of the jobs whose data are sent. Only the goroutine of Run uses its
// fields.
type loop struct {
	*Sender
	sessions map[string]*session // by ID of the event that created the job
	scanned  uint64              // log position of the last view in which scan has looked for jobs
	busy     int                 // number of sessions whose turn is in progress
	running  sync.WaitGroup
	returned chan *session // receives the session of each turn that has ended
}

// dispatch starts a turn for each session that is due, and removes sessions that have nothing more
// to send.
func (l *loop) dispatch(ctx context.Context) {
	view, now := l.World.View(), l.Now()
	if view.Position != l.scanned || l.scanned == 0 {
		l.scan(view, now)
		l.scanned = view.Position
	}
	for event, sess := range l.sessions {
		if sess.busy || l.busy == maxConcurrent {
			continue
		}
		life, state := sess.find(view), ""
		if life != nil {
			state = endingOf(life)
		}
		switch {
		case life == nil && sess.dropped():
			delete(l.sessions, event)
			continue
		case life != nil && givenUp(life, now):
			if sess.sent != state {
				l.Logger.Warn("the tracker has not received the end of a job in time: this is not tried again, and the "+
					"job's run stays unfinished there", "job", sess.name, "tracker", l.Service.address, "after", giveUpAfter)
			}
			delete(l.sessions, event)
			continue
		case life != nil && sess.sent == state:
			continue
		case sess.failures > 0 && now.Before(sess.due), state == sess.seen && now.Before(sess.due):
			continue
		}
		sess.busy, sess.seen = true, state
		l.busy++
		l.running.Go(func() {
			l.turn(ctx, view, sess)
			select {
			case l.returned <- sess:
			case <-ctx.Done():
			}
		})
	}
}

// scan creates a session for each job that has a tracker and has begun to train.
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

// givenUp reports whether a job ended so long ago that its data are not sent any more.
func givenUp(l *domain.JobLife, now time.Time) bool {
	return l.Terminal() && l.CompletedTime != nil && now.Sub(*l.CompletedTime) > giveUpAfter
}

// A session is what a Sender knows about one job. A turn is one call of Sender.turn for the
// session; only the turn in progress uses the fields.
type session struct {
	name  domain.Name
	event string // ID of the event that created the job

	busy     bool      // a turn of the session is in progress
	due      time.Time // time of the next turn, unless the state of the job changes before
	seen     string    // result of endingOf in the last turn
	sent     string    // result of endingOf for the end of the job that the tracker has received; "" for none
	failures int       // number of consecutive failed turns
	since    time.Time // when the first of these consecutive turns failed

	loaded    bool
	state     saved
	key       domain.SecretValue
	contact   time.Time   // time of the last successful request to the tracker for the job
	readFile  fileVersion // version of the metrics file whose rows were sent
	fileEnd   int         // last step in the metrics file of version readFile
	lastTries int         // number of attempts to tell the tracker that the job was deleted
}

// file returns the blob key of the session's saved state.
func (sess *session) file() string { return blobs.TrackerFile(sess.name, sess.event) }

// find returns the life cycle of the session's job; nil when the job was deleted.
func (sess *session) find(view *projections.View) *domain.JobLife {
	row, ok := view.Job(sess.name)
	if !ok || row.CreateEvent != sess.event {
		return nil
	}
	return row.State.Life()
}

const maxLastTries = 3

// dropped reports whether the session of a deleted job has nothing more to send.
func (sess *session) dropped() bool {
	return !sess.loaded || !sess.state.Run.Complete || sess.state.Ended != "" || sess.lastTries >= maxLastTries
}
