package domain

// A PlacementReason records why a node was chosen for an allocation. The node has the highest score of
// all nodes that had capacity. Between nodes with this score, and with the placement strategy SPREAD
// before the score, the failure domains of the replicas of the same deployment decide, and then the
// rank.
type PlacementReason struct {
	Score    int64 `json:"score"`    // see package schedulers/placement
	Rank     int   `json:"rank"`     // of the node among the nodes with this type of accelerators
	Feasible int   `json:"feasible"` // number of nodes that had capacity
	// FragmentationMilli is by how much the allocation changed the fragmentation of the node, in
	// thousandths of a device. Fragmentation is how many free accelerators a typical request cannot use.
	FragmentationMilli int64 `json:"fragmentationMilli"`

	// DeviceMilli is how many thousandths of the device other work had, for an allocation with a share
	DeviceMilli int `json:"deviceMilli,omitempty"`

	Strategy       string `json:"strategy,omitempty"`       // PlacementPack or PlacementSpread; "" is the default
	FailureDomain  string `json:"failureDomain,omitempty"`  // region and zone of the node; "" without them
	DomainReplicas int    `json:"domainReplicas,omitempty"` // replicas of the deployment in it before
	NodeReplicas   int    `json:"nodeReplicas,omitempty"`   // replicas of the deployment on the node before
}
