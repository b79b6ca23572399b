package engines

import "context"

// A Gang has the rank of one node of an attempt that runs on several nodes, and its links to other
// nodes. The leader is the node of rank 0: it trains, and reports for all nodes. The others assist.
type Gang struct {
	Rank int // rank of this node, from 0; 0 is the leader
	// Links of the leader to each other node, by rank; a node that is not the leader has only the
	// link to the leader.
	Links []Link
}

// A Link exchanges messages with one other node of a gang. It delivers every message once and in
// order. Send and Receive return an error only when ctx is done, and may run concurrently.
type Link interface {
	Send(ctx context.Context, message []byte) error
	Receive(ctx context.Context) ([]byte, error)
}

// A GangTrainer is a Trainer that uses all nodes of a gang. The leader calls Train. The other nodes
// call Assist with the same request, but without data files, evaluation and OnRollouts.
type GangTrainer interface {
	Trainer
	// Assist computes for the leader until ctx is done, or until the leader ends the training.
	Assist(ctx context.Context, request TrainRequest) error
}
