package engines

// Reasons of errors with the code Unavailable. They state whether a replica may have executed a
// part of the request.
const (
	// ReplicaUnreachable: the request was not delivered to the node of the replica.
	ReplicaUnreachable = "REPLICA_UNREACHABLE"
	// ReplicaGone: the node does not serve the replica (any more), so the request was not
	// completed.
	ReplicaGone = "REPLICA_GONE"
	// ReplicaLost: the node stopped responding after it had received the request. The replica may
	// have executed a part of the request, but cannot complete it.
	ReplicaLost = "REPLICA_LOST"
)
