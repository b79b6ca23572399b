package domain

// A PlacementReason records why a node was chosen for an allocation. The node has the highest score of
// all nodes that had capacity, and the lowest rank of those with this score that have no other replica
// of the same deployment.
type PlacementReason struct {
	Score    int64 `json:"score"`    // see package schedulers/placement
	Rank     int   `json:"rank"`     // of the node among the nodes with this type of accelerators
	Feasible int   `json:"feasible"` // number of nodes that had capacity
	// FragmentationMilli is by how much the allocation changed the fragmentation of the node, in
	// thousandths of a device. Fragmentation is how many free accelerators a typical request cannot use.
	FragmentationMilli int64 `json:"fragmentationMilli"`
}
