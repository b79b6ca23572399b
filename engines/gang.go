package engines

import "context"

// A Gang is the place of this node in an attempt that runs on several nodes. The leader is the
// first node, of rank 0: it trains, and reports for all. The others assist it.
type Gang struct {
	Rank  int    // of this node
	Links []Link // of the leader: to each other node, by rank; of another node: to the leader only
}

// A Link exchanges messages with one other node of a gang. It delivers every message once and in
// order. Send and Receive return an error only when ctx is done, and may run concurrently.
type Link interface {
	Send(ctx context.Context, message []byte) error
	Receive(ctx context.Context) ([]byte, error)
}

// A GangTrainer is a Trainer that uses all nodes of a gang. The leader calls Train, and the other
// nodes call Assist with the same request, which lacks the data files, the evaluation and the
// recorder of rollouts.
type GangTrainer interface {
	Trainer
	// Assist computes for the leader until ctx is done or the leader ends the training.
	Assist(ctx context.Context, request TrainRequest) error
}
