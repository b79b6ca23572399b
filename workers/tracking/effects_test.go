package tracking

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile/faults"
)

// TestFaultsAtEveryEffect injects a fault at each effect of the sender: its files and its events.
// After a restart the tracker must receive each row once, and the end state.
func TestFaultsAtEveryEffect(t *testing.T) {
	for name, newProtocol := range protocols() {
		t.Run(name, func(t *testing.T) {
			steps := sendWithFault(t, newProtocol, faults.NewPlan("", 0))
			require.Greater(t, len(steps), 4)
			for _, mode := range faults.Modes {
				for at := range len(steps) {
					t.Run(fmt.Sprintf("%s %d", mode, at),
						func(t *testing.T) { sendWithFault(t, newProtocol, faults.NewPlan(mode, at+1)) })
				}
			}
		})
	}
}

// sendWithFault sends the rows and the end state of a job with the faults of a plan, restarts the
// sender after the first failure, and returns the effects.
func sendWithFault(t *testing.T, newProtocol func() protocol, plan *faults.Plan) []string {
	p := newProtocol()
	b := newHarness(t, p.kind, p.handler)
	log := b.log
	faulty := true
	turn := func(last int) {
		for range 3 {
			if faulty {
				b.plan.Store(plan)
				b.sender.Log = plan.Log(log)
			}
			sent := b.turn()
			b.plan.Store(nil)
			b.sender.Log = log
			if sent {
				return
			}
			faulty = false
			b.restart()
			if row, _ := b.world.View().Job(b.job); row.State.Life().Active() {
				b.report(1, 1, last) // the agent repeats the rows that no metrics file has
			}
		}
		t.Fatal("the turns fail: ", b.logged.String())
	}
	b.failJob(t, p, turn)
	return plan.Steps()
}
