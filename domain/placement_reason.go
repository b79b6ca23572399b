package domain

// A PlacementReason records why a node was chosen for an allocation. The node has the highest score of
// all nodes that had capacity. Of the nodes with this score, it has the lowest rank among those
// without another replica of the same deployment, or among all if each has one.
type PlacementReason struct {
	Score    int64 `json:"score"`    // see package schedulers/placement
	Rank     int   `json:"rank"`     // of the node among the nodes with this type of accelerators
	Feasible int   `json:"feasible"` // number of nodes that had capacity
	// FragmentationMilli is by how much the allocation changed the fragmentation of the node, in
	// thousandths of a device. Fragmentation is how many free accelerators a typical request cannot use.
	FragmentationMilli int64 `json:"fragmentationMilli"`
}
