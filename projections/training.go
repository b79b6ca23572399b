package projections

import "anneal/domain"

// ServiceProgressed reports whether an attempt of a job that serves training runs has stored a
// recovery checkpoint. The loss of such an attempt does not count as a failure of the job, because
// its runs continue from the checkpoint.
func ServiceProgressed(v *View, job domain.Name, attempt int) bool {
	for row := range v.Runs.In(job.Account()) {
		if row.State.Job != job {
			continue
		}
		if last, ok := row.State.Newest(domain.TrainingCheckpointRecovery); ok && last.Attempt == attempt {
			return true
		}
	}
	return false
}
