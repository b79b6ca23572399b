package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

const drainPoll = time.Second // time between two reads of a node that is being drained

func nodeCordon() *cobra.Command {
	var reason string
	c := &cobra.Command{Use: "cordon ID", Short: "Close a node for new work; the work on it continues",
		Args:    arguments(1, 1),
		Example: "  anneal node cordon gpu-7 --reason 'new driver on Friday'",
		RunE: func(c *cobra.Command, args []string) error {
			return changeNode(c, args[0], ":cordon", map[string]any{"reason": reason}, "cordoned")
		}}
	c.Flags().StringVar(&reason, "reason", "", "reason to record in the event log")
	return c
}

func nodeUncordon() *cobra.Command {
	return &cobra.Command{Use: "uncordon ID", Short: "Open a node for new work, and end its drain",
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return changeNode(c, args[0], ":uncordon", nil, "uncordoned")
		}}
}

func nodeDrain() *cobra.Command {
	var reason string
	var deadline time.Duration
	var wait bool
	c := &cobra.Command{Use: "drain ID", Short: "Move the work of a node to other nodes",
		Args:    arguments(1, 1),
		Example: "  anneal node drain gpu-7 --deadline 30m --reason 'new driver' --wait",
		Long: `Cordons the node and moves its work. Jobs save a checkpoint and are queued again. Each replica is replaced,
and stops when its replacement is ready, so that no request fails. At the deadline, the jobs and replicas that
still run are stopped: jobs continue on other nodes from their last checkpoint. The node is DRAINED when nothing
runs on it, and remains cordoned until ` + "`anneal node uncordon`.",
		RunE: func(c *cobra.Command, args []string) error {
			if deadline < 0 || deadline > domain.MaxDrain {
				return usage.Errorf("--deadline %s must be from 0s to %s", deadline, domain.MaxDrain)
			}
			done := "is being drained"
			if wait {
				done = ""
			}
			body := map[string]any{"reason": reason, "deadline": deadline.String()}
			if err := changeNode(c, args[0], ":drain", body, done); err != nil || !wait {
				return err
			}
			return awaitDrained(c, args[0])
		}}
	c.Flags().StringVar(&reason, "reason", "", "reason to record in the event log")
	c.Flags().DurationVar(&deadline, "deadline", domain.DefaultDrain, "time after which the jobs and replicas that "+
		"still run on the node are stopped")
	c.Flags().BoolVar(&wait, "wait", false, "return when the node is DRAINED")
	return c
}

// changeNode calls the custom method verb of a node with a body, and then prints done, which
// describes the change. If done is "", it prints nothing.
func changeNode(c *cobra.Command, node, verb string, body map[string]any, done string) error {
	operator, err := newOperator(c)
	if err != nil {
		return err
	}
	var sent any
	if body != nil {
		sent = body
	}
	err = operator.call(c.Context(), http.MethodPost, operator.path("nodes", id(node))+verb, nil, sent, nil)
	if err != nil || done == "" {
		return err
	}
	return printDone(c, "node", node, done)
}

// awaitDrained waits until the node is DRAINED. It returns an error if the drain is ended.
func awaitDrained(c *cobra.Command, node string) error {
	operator, err := newOperator(c)
	if err != nil {
		return err
	}
	nodes := watch{client: operator, cmd: c, name: operator.name("nodes", id(node))}
	for {
		item, err := nodes.read()
		if err != nil {
			return err
		}
		switch state := cell(item, "scheduling"); state {
		case domain.NodeDrainedState:
			return printDone(c, "node", node, "drained")
		case domain.NodeDrainingState:
		default:
			return domain.Errorf(domain.Aborted, "the drain of node %s was cancelled: the node is %s", id(node), state)
		}
		if err := sleep(c.Context(), drainPoll); err != nil {
			return err
		}
	}
}
