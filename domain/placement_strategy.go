package domain

// Placement strategies decide where a deployment's replicas are placed relative to one another. By
// default, replicas are packed onto accelerators that are in use, and spread over failure domains where
// this leaves no more accelerators unusable.
const (
	// PlacementPack places replicas together where it leaves no more accelerators unusable: on the same
	// node, or in the same zone or region.
	PlacementPack = "PACK"
	// PlacementSpread places each replica in the failure domain with the fewest replicas of the
	// deployment, even if accelerators become unusable.
	PlacementSpread = "SPREAD"
)

// PlacementStrategies lists the values of placementStrategy.
var PlacementStrategies = []string{"PLACEMENT_STRATEGY_UNSPECIFIED", PlacementPack, PlacementSpread}

// Strategy returns the placement strategy; "" is the default.
func (s DeploymentSpec) Strategy() string { return specified(s.PlacementStrategy) }

// ZoneLabel is the label of a node whose value is its zone. Nodes of one region and zone are one
// failure domain: they can fail together.
const ZoneLabel = "zone"
