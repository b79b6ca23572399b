package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestJobPriority checks which priorities a job may get, and in which states.
func TestJobPriority(t *testing.T) {
	pending := domain.JobLife{State: domain.JobPendingState}
	high := domain.JobLife{State: domain.JobRunningState, Priority: domain.PriorityHigh}
	for name, c := range map[string]struct {
		life     domain.JobLife
		priority domain.JobPriority
		changes  bool
		fault    string
	}{
		"high":                {pending, domain.PriorityHigh, true, ""},
		"low while it runs":   {high, domain.PriorityLow, true, ""},
		"normal again":        {high, domain.PriorityNormal, true, ""},
		"the same":            {high, domain.PriorityHigh, false, ""},
		"normal already":      {pending, domain.PriorityNormal, false, ""},
		"none":                {pending, "", false, "INVALID_FIELDS"},
		"unknown":             {pending, "PRIORITY_HIGHEST", false, "INVALID_FIELDS"},
		"of no job":           {domain.JobLife{}, domain.PriorityHigh, false, "NOT_FOUND"},
		"of a completed job":  {domain.JobLife{State: domain.JobCompletedState}, domain.PriorityHigh, false, "JOB_STATE"},
		"of a job that ended": {domain.JobLife{State: domain.JobFailedState}, domain.PriorityHigh, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			event, err := domain.SetJobPriority{Priority: c.priority}.Decide(c.life, noon)
			if c.fault != "" {
				require.Error(t, err)
				require.Equal(t, c.fault, reasonOf(err), err.Error())
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.changes, event != nil)
			if event != nil {
				life := c.life
				event.Evolve(&life)
				require.Equal(t, c.priority.Level(), life.Priority.Level())
			}
		})
	}
}
