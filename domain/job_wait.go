package domain

import (
	"strings"
	"time"
)

// A QueueSituation holds the properties of a job and the queue from which the wait of the job is
// estimated, recorded when the job begins to wait for capacity. Each integer is the bit length of
// the value, so that similar situations are equal.
type QueueSituation struct {
	Size   int  `json:"size"`             // units of the job (see Resources.Units): accelerators, or CPU cores
	Over   bool `json:"over,omitempty"`   // the account of the job uses more than its share of the cluster
	Again  bool `json:"again,omitempty"`  // the job has run before: it was preempted or requeued
	Load   int  `json:"load,omitempty"`   // 8 × units ahead of the job / units started in the last hour
	Length int  `json:"length,omitempty"` // number of waiting jobs in the job's queue group (see package schedulers/queue)
	Age    int  `json:"age,omitempty"`    // minutes since the arrival of the first job in the queue group
}

// A WaitEstimate is an estimate of how many seconds a job will wait for capacity. The wait is
// between Low and High with a probability of 80 %, and below Median with a probability of 50 %.
type WaitEstimate struct {
	Low    int64 `json:"lowSeconds"`
	Median int64 `json:"medianSeconds"`
	High   int64 `json:"highSeconds"`
}

// MinWaits is the minimum number of earlier waits from which a wait is estimated. The next of n
// exchangeable waits is no longer than the longest of the n with a probability of n/(n+1), which is
// 80 % for 4: with fewer, nothing is known with that probability.
const MinWaits = 4

// A JobWait is recorded when a job begins to wait for capacity. The waits of started jobs are the
// history from which later waits are estimated.
type JobWait struct {
	Time      time.Time      `json:"time,omitzero"`
	Situation QueueSituation `json:"situation"`
	Estimate  *WaitEstimate  `json:"estimate,omitempty"` // estimated wait; nil while there is too little history
}

type JobHeld struct {
	Status   Status   `json:"status"`
	Promised bool     `json:"promised,omitempty"`
	Wait     *JobWait `json:"wait,omitempty"` // the wait for capacity that begins; nil if none begins
}

func (e JobHeld) Evolve(l *JobLife) {
	l.Status, l.Promised = e.Status, l.Promised || e.Promised
	switch {
	case !l.HeldForCapacity():
		l.Wait = nil
	case l.Wait == nil:
		l.Wait = e.Wait
	}
}

// HoldJob records For, a text that says what the job waits for, in the job's status message; an
// empty For clears the message. Promised records that other jobs are preempted for the job's next
// attempt. Wait is recorded if the job is PENDING and begins to wait for capacity; its Time is
// ignored.
type HoldJob struct {
	For      string
	Promised bool     `json:",omitempty"`
	Wait     *JobWait `json:",omitempty"`
}

// HeldPrefix begins the status message of a job that waits. After it comes HeldForCapacity if the
// job waits for capacity on nodes, and HeldForQuota if it waits for the quota of its account.
const (
	HeldPrefix      = "waiting for "
	HeldForCapacity = "capacity"
	HeldForQuota    = "the quota of accelerators"
)

func (c HoldJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	held := JobHeld{Status: StatusOf(nil), Promised: c.Promised}
	if c.For != "" {
		held.Status = Status{Unavailable.String(), HeldPrefix + c.For}
	}
	if err := l.must(JobValidatingState, JobPendingState); err != nil {
		return nil, err
	}
	if c.Wait != nil && l.Wait == nil && l.State == JobPendingState && strings.HasPrefix(c.For, HeldForCapacity) {
		held.Wait = &JobWait{now, c.Wait.Situation, c.Wait.Estimate}
	}
	if l.Status == held.Status && (l.Promised || !c.Promised) && held.Wait == nil {
		return nil, nil
	}
	return held, nil
}

// Held reports whether the job's status message says that the job waits for something.
func (l JobLife) Held() bool { return l.WaitsFor() != "" }

// WaitsFor returns what the job waits for, from its status message; "" when the job waits for
// nothing.
func (l JobLife) WaitsFor() string {
	what, held := strings.CutPrefix(l.Status.Message, HeldPrefix)
	if !held {
		return ""
	}
	return what
}

// HeldForCapacity reports whether the job's status message says that the job waits for capacity.
func (l JobLife) HeldForCapacity() bool { return strings.HasPrefix(l.WaitsFor(), HeldForCapacity) }

// Queued reports whether the job waits in the queue: it is PENDING, and waits for nothing but
// capacity or quota.
func (l JobLife) Queued() bool {
	return l.State == JobPendingState &&
		(!l.Held() || l.HeldForCapacity() || strings.HasPrefix(l.WaitsFor(), HeldForQuota))
}
