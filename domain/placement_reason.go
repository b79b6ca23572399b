package domain

// A PlacementReason records why a node was chosen for an allocation. The chosen node has the
// highest score of all nodes that had capacity. Of nodes with the same score, it is in the failure
// domain with the fewest replicas of the deployment, and has the first rank there. With the
// placement strategy SPREAD, the failure domain comes before the score.
type PlacementReason struct {
	Score    int64 `json:"score"`    // score of the node: see package schedulers/placement
	Rank     int   `json:"rank"`     // rank of the node among the nodes with its type of accelerators
	Feasible int   `json:"feasible"` // number of nodes that had capacity
	// FragmentationMilli is by how much the allocation changed the fragmentation of the node, in
	// thousandths of a device. Fragmentation is how many free accelerators a typical request cannot
	// use.
	FragmentationMilli int64 `json:"fragmentationMilli"`

	// DeviceMilli is how many thousandths of the shared device were allocated before this allocation;
	// 0 for whole devices.
	DeviceMilli int `json:"deviceMilli,omitempty"`

	Strategy      string `json:"strategy,omitempty"`      // placement strategy of the deployment; "" is the default
	FailureDomain string `json:"failureDomain,omitempty"` // region and zone of the node; "" without them
	// number of other replicas of the deployment in FailureDomain
	DomainReplicas int `json:"domainReplicas,omitempty"`
	NodeReplicas   int `json:"nodeReplicas,omitempty"` // number of other replicas of the deployment on the node
}
