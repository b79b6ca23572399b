package tracking

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/workers/tracking/trackertest"
)

// TestRestartLosesNoRows checks that the tracker receives the rows after the last checkpoint even
// if the control plane has lost them in a crash and the agent reports later rows first: sending
// waits until the metrics file has the lost rows or the agent repeats them.
func TestRestartLosesNoRows(t *testing.T) {
	for name, after := range map[string]func(b *harness){
		"metrics file": func(b *harness) { b.checkpoint(1, 14) },
		"repeated":     func(b *harness) { b.report(1, 4, 15) },
		"end": func(b *harness) {
			b.store(14)
			b.life(domain.FailJob{Attempt: 1, Status: domain.Status{Code: "INTERNAL"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
				b.start("supervisedFineTuningJobs")
				b.checkpoint(1, 4)
				b.report(1, 1, 10)
				require.True(t, b.turn())
				require.Equal(t, upTo(9), p.steps(t))
				b.restart()
				b.report(1, 12, 15)
				require.True(t, b.turn())
				require.Equal(t, upTo(9), p.steps(t), "the rows of 10 and 11 are missing")
				after(b)
				require.True(t, b.turn())
				if name == "end" {
					require.Equal(t, upTo(15), p.steps(t))
				} else {
					require.Equal(t, upTo(14), p.steps(t))
				}
			})
		})
	}
}

// TestGivesUp checks that a job whose tracker does not respond is sent until giveUpAfter after its end.
func TestGivesUp(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		p.handler.FailWith(func(*http.Request) trackertest.Fault { return trackertest.Refuse })
		b.start("supervisedFineTuningJobs")
		b.life(domain.FailJob{Attempt: 1, Status: domain.Status{Code: "INTERNAL"}})
		require.False(t, b.turn())
		l := loop{Sender: b.sender, sessions: b.sessions, returned: make(chan *session, 1)}
		dispatch := func() {
			l.dispatch(t.Context())
			l.running.Wait()
		}
		b.now = b.now.Add(giveUpAfter)
		before := p.handler.Requests()
		dispatch()
		require.Equal(t, before+1, p.handler.Requests())
		(<-l.returned).busy, l.busy = false, 0
		b.now = b.now.Add(time.Second + 2*maxBackoff)
		dispatch()
		require.Equal(t, before+1, p.handler.Requests())
		require.Empty(t, b.sessions)
		dispatch()
		require.Empty(t, b.sessions, "it is not added again")
		require.Contains(t, b.logged.String(), "the tracker has not received the end of a job in time")
	})
}

// TestRunOfADeletedJob checks that a job does not show the run of a deleted job with the same name
// if the job was created while the tracker created that run.
func TestRunOfADeletedJob(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		b.start("supervisedFineTuningJobs")
		replaced := false
		p.handler.FailWith(func(*http.Request) trackertest.Fault {
			if !replaced {
				replaced = true
				b.life(domain.DeleteJob{})
				b.life(domain.CleanJob{})
				b.life(domain.PurgeJob{})
				_, intent := create["supervisedFineTuningJobs"](canary)
				b.do(intent)
			}
			return trackertest.None
		})
		require.True(t, b.turn(), b.logged.String())
		require.True(t, replaced)
		require.Empty(t, b.tracking())
	})
}
