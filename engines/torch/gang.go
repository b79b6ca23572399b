package torch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// A gangTrainer trains on the nodes of a gang with torchrun. The training processes of all nodes
// are one process group of PyTorch: they connect to one another, share the rows of each step and add
// up their gradients. The process with rank 0, which reads the rows and writes the checkpoints, runs on
// the leader.
type gangTrainer struct {
	trainer
	address string // IP address of this machine at which the processes of other nodes connect
	device  string // network interface with this address
}

// A membership is the part of a node in a training run on several nodes.
type membership struct {
	rendezvous
	rank   int    // rank of the node in its gang
	device string // network interface with which the processes connect
}

// A rendezvous is where the processes of all nodes meet.
type rendezvous struct {
	Version int    `json:"version"`
	Nodes   int    `json:"nodes"` // number of nodes of the gang
	Address string `json:"address"`
	Port    int    `json:"port"`
}

const gangVersion = 1

// args returns the options of torchrun.
func (m *membership) args() []string {
	return []string{fmt.Sprintf("--nnodes=%d", m.Nodes), fmt.Sprintf("--node_rank=%d", m.rank),
		"--master_addr=" + m.Address, fmt.Sprintf("--master_port=%d", m.Port), "--monitor_interval=1"}
}

// A gangMessage is a message between the leader of a gang and another node, a helper. Exactly one
// field is set.
type gangMessage struct {
	Ready  bool        `json:"ready,omitempty"`  // the helper can start its processes
	Start  *rendezvous `json:"start,omitempty"`  // the helper starts its processes
	Failed string      `json:"failed,omitempty"` // why the processes of the helper failed
	// Stopping reports that the helper's node shuts down: all processes save a checkpoint and exit.
	Stopping bool `json:"stopping,omitempty"`
	End      bool `json:"end,omitempty"` // the training run has ended on the leader
}

const (
	// helperErrorWait is the time that the leader waits for the errors of other nodes after its own
	// processes have failed, and ownErrorWait the time in which its own processes must exit after those
	// of another node have failed. Errors of both are reported, because either can be the cause.
	helperErrorWait = 10 * time.Second
	ownErrorWait    = 5 * time.Second
	// leaderWait is the time that a helper whose processes have failed waits for the leader to end
	// the training run, before it reports the failure itself.
	leaderWait      = 30 * time.Second
	lastMessageWait = 2 * time.Second
)

// InterfaceOf returns the name of the network interface of this machine with an IP address.
func InterfaceOf(address string) (string, error) {
	want, err := netip.ParseAddr(address)
	if err != nil {
		return "", domain.Errorf(domain.InvalidArgument, "%q is not an IP address", address)
	}
	devices, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list the network interfaces: %w", err)
	}
	for _, device := range devices {
		addresses, err := device.Addrs()
		if err != nil {
			continue // the interface was removed
		}
		for _, one := range addresses {
			if prefix, err := netip.ParsePrefix(one.String()); err == nil && prefix.Addr() == want.Unmap() {
				return device.Name, nil
			}
		}
	}
	return "", domain.Errorf(domain.InvalidArgument, "%s is not an address of this machine: see `ip address`", address)
}

// Train implements engines.Trainer.
func (t gangTrainer) Train(
	ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher,
) (result engines.TrainResult, err error) {
	if request.Gang == nil || len(request.Gang.Links) == 0 {
		return t.trainer.Train(ctx, request, watch)
	}
	links := request.Gang.Links
	defer func() {
		for _, link := range links {
			// Without this message, the helper ends when its attempt is no longer assigned.
			_ = sendLast(ctx, link, gangMessage{End: true})
		}
	}()
	if err := checkSettings(request.Settings); err != nil {
		return result, err
	}
	for i, link := range links {
		m, err := receiveMessage(ctx, link)
		if err == nil && m.Failed != "" {
			err = helperError(i, m)
		}
		if err != nil {
			return result, err
		}
	}
	run, err := t.startAll(ctx, request, watch)
	if err != nil {
		return result, err
	}
	defer run.close()
	return t.lead(ctx, run, links)
}

// startAll starts the processes of this node, and has the other nodes start theirs.
func (t gangTrainer) startAll(
	ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher,
) (*training, error) {
	port, err := freePort(t.address)
	if err != nil {
		return nil, fmt.Errorf("find a free port at the gang address %s: %w", t.address, err)
	}
	m := membership{rendezvous{gangVersion, 1 + len(request.Gang.Links), t.address, port}, 0, t.device}
	for _, link := range request.Gang.Links {
		if err := sendMessage(ctx, link, gangMessage{Start: &m.rendezvous}); err != nil {
			return nil, err
		}
	}
	return t.start(request, watch, &m)
}

func freePort(address string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// lead follows the processes of this node, the leader. It kills them when those of another node
// have failed.
func (t gangTrainer) lead(
	ctx context.Context, run *training, links []engines.Link,
) (result engines.TrainResult, err error) {
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	failed, stopping := make(chan error, len(links)), make(chan error, 1)
	for i, link := range links {
		go func() {
			for {
				m, err := receiveMessage(watched, link)
				switch {
				case err != nil:
					return
				case m.Stopping:
					select {
					case stopping <- fmt.Errorf("node %d of the gang stops", i+2):
					default: // another message has said so
					}
				case m.Failed != "":
					failed <- helperError(i, m)
					run.killAfter(watched, ownErrorWait)
					return
				}
			}
		}()
	}
	result, err = run.follow(ctx)
	var failure *domain.Error
	if err == nil || ctx.Err() != nil || errors.As(err, &failure) {
		return result, err
	}
	select {
	case cause := <-failed:
		if run.killed.Load() {
			return result, cause
		}
		return result, fmt.Errorf("%w; %w", err, cause) // either can be the cause of the other
	case cause := <-stopping:
		// The control plane ends the attempt because of that node, and requeues the job.
		select {
		case <-ctx.Done():
			return result, ctx.Err()
		case <-time.After(t.grace):
			return result, cause
		}
	case <-ctx.Done():
		return result, ctx.Err()
	case <-time.After(helperErrorWait):
		return result, err
	}
}

// Assist implements engines.GangTrainer.
func (t gangTrainer) Assist(ctx context.Context, request engines.TrainRequest) error {
	link := request.Gang.Links[0]
	if err := sendMessage(ctx, link, gangMessage{Ready: true}); err != nil {
		return err
	}
	m, err := receiveMessage(ctx, link)
	if err != nil || m.End {
		return err
	}
	ended := make(chan struct{}) // closed when the training run has ended on the leader
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if m, err := receiveMessage(watched, link); err == nil && m.End {
			close(ended)
		}
	}()
	err = t.help(ctx, request, m.Start, ended)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// The leader decides which of the nodes' errors is reported, because processes also fail when
	// those of another node have failed.
	if err := sendMessage(ctx, link, gangMessage{Failed: err.Error()}); err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(leaderWait):
		return err
	}
}

// help runs the processes of this node until they exit, the training run has ended on the leader, or
// ctx is done.
func (t gangTrainer) help(
	ctx context.Context, request engines.TrainRequest, meet *rendezvous, ended <-chan struct{},
) error {
	if meet == nil || meet.Version != gangVersion {
		return errors.New("the leader of the gang has another version of anneal: upgrade the agents to the same version")
	}
	run, err := t.start(request, nil, &membership{*meet, request.Gang.Rank, t.device})
	if err != nil {
		return err
	}
	defer run.close()
	select {
	case <-ended:
		return nil
	case <-run.program.Done():
		if err := run.program.Err(); err != nil {
			return fmt.Errorf("the training script failed: %w", err)
		}
		return nil
	case <-ctx.Done():
		// Its error means that the leader's node is unreachable; then its processes end too.
		_ = sendLast(ctx, request.Gang.Links[0], gangMessage{Stopping: true})
		run.program.Stop(context.Background(), t.grace)
		return ctx.Err()
	}
}

// helperError returns the error of a helper; i is the index of its link.
func helperError(i int, m gangMessage) error {
	return fmt.Errorf("node %d of the gang: %s", i+2, m.Failed)
}

// sendLast sends a message also when ctx is done, if the link accepts it within lastMessageWait.
func sendLast(ctx context.Context, link engines.Link, m gangMessage) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastMessageWait)
	defer cancel()
	return sendMessage(ctx, link, m)
}

func sendMessage(ctx context.Context, link engines.Link, m gangMessage) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return link.Send(ctx, data)
}

func receiveMessage(ctx context.Context, link engines.Link) (m gangMessage, err error) {
	data, err := link.Receive(ctx)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("decode a message of another node of the gang: %w", err)
	}
	return m, nil
}
