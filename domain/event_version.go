package domain

// EventVersion is the newest version of stored events that this release of anneal can read and
// record. A release increases it when it adds a type of event, or adds a field to a type that
// earlier releases must not ignore, or stores files that earlier releases cannot read. Control planes of
// different releases run side by side during an upgrade: until all of them can read a version, no
// event of that version is recorded.
const EventVersion = 4

// BundlesVersion is the event version from which control planes can read bundles, in which package
// blobs stores the small results of jobs.
const BundlesVersion = 2

// eventVersions maps each type of event that was added or extended after version 1 to the version
// that added or extended it.
var eventVersions = map[string]int{
	"account.jobAcceleratorsSet.v1":             2,
	"account.queueWeightSet.v1":                 2,
	"dpoJob.prioritized.v1":                     2,
	"reinforcementFineTuningJob.prioritized.v1": 2,
	"rlorTrainerJob.prioritized.v1":             2,
	"subscription.created.v1":                   2,
	"subscription.deleted.v1":                   2,
	"subscription.disabled.v1":                  2,
	"subscription.fileRecorded.v1":              2,
	"subscription.paused.v1":                    2,
	"subscription.redeliveryRequested.v1":       2,
	"subscription.redeliveryStarted.v1":         2,
	"subscription.resumed.v1":                   2,
	"subscription.secretRotated.v1":             2,
	"subscription.updated.v1":                   2,
	"supervisedFineTuningJob.prioritized.v1":    2,
	"usage.corrected.v1":                        2,
	"usage.rolledUp.v1":                         2,
	"usageWindow.completed.v1":                  2,
	"usageWindow.opened.v1":                     2,

	"deployment.releaseStarted.v1":    3,
	"deployment.releaseAdvanced.v1":   3,
	"deployment.releasePromoted.v1":   3,
	"deployment.releaseRolledBack.v1": 3,

	"trainingSession.created.v1":             4,
	"trainingSession.ended.v1":               4,
	"trainingSession.deleted.v1":             4,
	"trainingRun.created.v1":                 4,
	"trainingRun.opened.v1":                  4,
	"trainingRun.checkpointSaved.v1":         4,
	"trainingRun.checkpointDeleted.v1":       4,
	"trainingRun.checkpointExpiryChanged.v1": 4,
	"trainingRun.unloaded.v1":                4,
	"trainingRun.corrupted.v1":               4,
	"trainingRun.deleted.v1":                 4,
	"rlorTrainerJob.serviceStarted.v1":       4,
	"rlorTrainerJob.serviceStopped.v1":       4,
}

// EventVersionOf returns the event version that a reader of the type of event must support.
func EventVersionOf(eventType string) int {
	return max(1, eventVersions[eventType])
}
