package domain

import "slices"

// Entries in NodeSpec.Engines of nodes that train a job together with other nodes: those with the
// same entry.
const (
	GangAbility = "train:gang" // the agents of the nodes exchange gradients
	// TorchGangAbility is the ability of nodes with PyTorch whose training processes connect to those
	// of the other nodes.
	TorchGangAbility = "train:gang:torch"
)

// GangAbilities lists the abilities of nodes that train together with other nodes.
var GangAbilities = []string{GangAbility, TorchGangAbility}

// GangAbilityOf returns the first of GangAbilities in engines; "" if a node with these engines
// trains only alone.
func GangAbilityOf(engines []string) string {
	for _, ability := range GangAbilities {
		if slices.Contains(engines, ability) {
			return ability
		}
	}
	return ""
}

// InGang returns the need with Gang set to the ability of the nodes that train the job, if it needs
// several nodes: the one of GangAbilities for which most nodes of the fleet could run the job if
// they were empty; of abilities with equally many nodes, the first. All other needs are returned
// unchanged.
func (n Need) InGang(fleet Fleet) Need {
	if n.Pool != PoolTraining || n.Count < 2 || n.Gang != "" {
		return n
	}
	chosen, best := n, -1
	for _, ability := range GangAbilities {
		n.Gang = ability
		if capable := n.capable(fleet); capable > best {
			chosen, best = n, capable
		}
	}
	return chosen
}

// capable returns the number of nodes of a fleet that could meet the need if they were empty and
// READY.
func (n Need) capable(fleet Fleet) (count int) {
	for _, node := range fleet.Nodes {
		if node.Registered() && n.Allows(node.RegionIn(fleet.Located)) && n.shortage(node, Resources{}, nil) == "" {
			count++
		}
	}
	return count
}

// TrainsWith reports whether a node with these engines trains with the other nodes of the need: it
// has the ability Gang or, if that is "", one of GangAbilities.
func (n Need) TrainsWith(engines []string) bool {
	switch {
	case n.Pool != PoolTraining || n.Count < 2:
		return true
	case n.Gang == "":
		return GangAbilityOf(engines) != ""
	}
	return slices.Contains(engines, n.Gang)
}
