package engines

// Reasons of errors with the code Unavailable that report whether a replica may have run a request.
const (
	// ReplicaUnreachable: the request was not delivered to the node of the replica.
	ReplicaUnreachable = "REPLICA_UNREACHABLE"
	// ReplicaGone: the node does not serve the replica, so the request did not run to its end.
	ReplicaGone = "REPLICA_GONE"
	// ReplicaLost: the node stopped responding after the request was sent to it. The replica may have
	// run a part of the request, and cannot complete it any more.
	ReplicaLost = "REPLICA_LOST"
)
