package domain

// EventVersion is the version of the stored events of this version of anneal. A release increases it
// when it adds a type of event, or adds to a type something that earlier releases must not ignore. Control
// planes of different releases run side by side during an upgrade: until all of them can read a
// version, no event of that version is recorded.
const EventVersion = 1

// eventVersions has the version of each type of event that a version after 1 added, or added something
// to.
var eventVersions = map[string]int{}

// EventVersionOf returns the version of a type of event.
func EventVersionOf(eventType string) int {
	return max(1, eventVersions[eventType])
}
