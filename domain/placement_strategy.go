package domain

// Placement strategies decide where a deployment's replicas are placed relative to one another. By
// default, replicas are packed onto accelerators that are in use. They are spread over failure
// domains unless more accelerators would become unusable for other requests.
const (
	// PlacementPack places replicas on the same node, or in the same zone or region, unless more
	// accelerators would become unusable for other requests.
	PlacementPack = "PACK"
	// PlacementSpread places each replica in the failure domain with the fewest replicas of the
	// deployment, even if accelerators become unusable for other requests.
	PlacementSpread = "SPREAD"
)

// PlacementStrategies lists the values of placementStrategy.
var PlacementStrategies = []string{"PLACEMENT_STRATEGY_UNSPECIFIED", PlacementPack, PlacementSpread}

// Strategy returns the placement strategy; "" is the default.
func (s DeploymentSpec) Strategy() string { return specified(s.PlacementStrategy) }

// ZoneLabel is the label of a node whose value is its zone. Nodes of one region and zone are one
// failure domain: they can fail together.
const ZoneLabel = "zone"
