package domain

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Labels describe a node; its agent reports them. Taints keep jobs and replicas off a node; the
// operator sets them. For each account, the operator decides which labels a node must have to run
// the account's jobs and replicas, and which taints these tolerate: see NodePolicy.

// always NoSchedule is the only effect of a taint, as in Kubernetes: the node gets no new jobs and
// replicas that do not tolerate the taint. Those that are running on the node stay.
const NoSchedule = "NoSchedule"

// Limits of labels, taints and policies.
const (
	MaxNodeLabels  = 32
	MaxNodeTaints  = 16
	maxLabelLength = 63
)

// A Taint keeps new jobs and replicas off a node, unless their account tolerates the taint.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"` // effect of the taint, always NoSchedule
}

// String formats a taint as key=value:NoSchedule.
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + t.Effect }

// A NodePolicy restricts the nodes that the jobs and replicas of an account may use. The zero value
// allows all nodes without taints.
type NodePolicy struct {
	// labels that a node must have to be used; empty requires none
	Selector    map[string]string `json:"nodeSelector,omitempty"`
	Tolerations []Taint           `json:"tolerations,omitempty"` // taints that a node may nevertheless have
}

func (p NodePolicy) equal(o NodePolicy) bool {
	return maps.Equal(p.Selector, o.Selector) && slices.Equal(p.Tolerations, o.Tolerations)
}

const hasTaint = "has the taint " // begins the reasons that name a taint

// withoutTaint returns a reason without the taint that it may name, because operators write names
// of other accounts in taints.
func withoutTaint(reason string) string {
	if strings.HasPrefix(reason, hasTaint) {
		return "has a taint that the account does not tolerate"
	}
	return reason
}

// mismatch returns why the policy excludes a node with these labels and taints; "" when it allows the
// node.
func (p NodePolicy) mismatch(labels map[string]string, taints []Taint) string {
	for _, key := range slices.Sorted(maps.Keys(p.Selector)) {
		if value, ok := labels[key]; !ok || value != p.Selector[key] {
			return "lacks the label " + key + "=" + p.Selector[key]
		}
	}
	for _, taint := range taints {
		if !slices.Contains(p.Tolerations, taint) {
			return hasTaint + taint.String()
		}
	}
	return ""
}

// String describes the policy for messages: "" for the zero value.
func (p NodePolicy) String() string {
	var text strings.Builder
	for i, key := range slices.Sorted(maps.Keys(p.Selector)) {
		text.WriteString([]string{" with label ", " and "}[min(i, 1)] + key + "=" + p.Selector[key])
	}
	for i, taint := range p.Tolerations {
		text.WriteString([]string{" tolerating ", " and "}[min(i, 1)] + taint.String())
	}
	return text.String()
}

// AdmitsNode reports whether the need's policy allows a node with these labels and taints.
func (n Need) AdmitsNode(labels map[string]string, taints []Taint) bool {
	return n.Policy.mismatch(labels, taints) == ""
}

var (
	labelKey   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)
)

// LabelRule is the rule for keys and values of labels and taints.
const LabelRule = "must have at most 63 characters of A-Z, a-z, 0-9, '-', '_' and '.' (in a key also '/'), and " +
	"begin and end with a letter or digit; only a value may be empty"

// ValidLabel reports whether key and value obey LabelRule.
func ValidLabel(key, value string) bool {
	return len(key) <= maxLabelLength && len(value) <= maxLabelLength && labelKey.MatchString(key) &&
		labelValue.MatchString(value)
}

func checkLabels(v *Violations, field string, labels map[string]string) {
	v.Require(len(labels) <= MaxNodeLabels, field, "must have at most %d entries", MaxNodeLabels)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		v.Require(ValidLabel(key, labels[key]), field, "%.64q=%.64q: key and value %s", key, labels[key], LabelRule)
	}
}

func (t Taint) check(v *Violations, field string) {
	v.Require(ValidLabel(t.Key, t.Value), field, "%.64q=%.64q: key and value %s", t.Key, t.Value, LabelRule)
	v.Require(t.Effect == NoSchedule, field, "has the effect %.64q: the only effect is %s", t.Effect, NoSchedule)
}

type NodeTainted struct{ Taint }

func (e NodeTainted) Evolve(n *Node) {
	n.Taints = append(withoutKey(n.Taints, e.Key), e.Taint)
	slices.SortFunc(n.Taints, func(a, b Taint) int { return strings.Compare(a.Key, b.Key) })
}

type NodeUntainted struct {
	Key string `json:"key"`
}

func (e NodeUntainted) Evolve(n *Node) { n.Taints = withoutKey(n.Taints, e.Key) }

// withoutKey returns a copy of taints without the taint that has the key; nil if no taint is left.
func withoutKey(taints []Taint, key string) (kept []Taint) {
	for _, taint := range taints {
		if taint.Key != key {
			kept = append(kept, taint)
		}
	}
	return kept
}

// TaintNode adds a taint to a node, or replaces the taint with the same key.
type TaintNode struct{ Taint }

func (c TaintNode) Decide(n Node, _ time.Time) (Event[Node], error) {
	var v Violations
	c.check(&v, "taint")
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case slices.Contains(n.Taints, c.Taint):
		return nil, nil
	case len(withoutKey(n.Taints, c.Key)) >= MaxNodeTaints:
		return nil, precondition("TOO_MANY_TAINTS", "the node has %d taints, which is the maximum: remove a taint first",
			len(n.Taints))
	}
	return NodeTainted(c), nil
}

// UntaintNode removes the taint that has the key from a node.
type UntaintNode struct{ Key string }

func (c UntaintNode) Decide(n Node, _ time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case !slices.ContainsFunc(n.Taints, func(t Taint) bool { return t.Key == c.Key }):
		return nil, nil
	}
	return NodeUntainted(c), nil
}

type AccountNodesSet struct{ NodePolicy }

func (e AccountNodesSet) Evolve(a *Account) { a.Nodes = e.NodePolicy }

// SetAccountNodes replaces the node policy of an account. Running jobs and replicas stay on their
// nodes.
type SetAccountNodes struct{ NodePolicy }

func (c SetAccountNodes) Decide(a Account, _ time.Time) (Event[Account], error) {
	var v Violations
	checkLabels(&v, "nodeSelector", c.Selector)
	v.Require(len(c.Tolerations) <= MaxNodeTaints, "tolerations", "must have at most %d entries", MaxNodeTaints)
	for i, taint := range c.Tolerations {
		taint.check(&v, fmt.Sprintf("tolerations[%d]", i))
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case !a.Exists():
		return nil, notFound("account")
	case a.Nodes.equal(c.NodePolicy):
		return nil, nil
	}
	return AccountNodesSet(c), nil
}
