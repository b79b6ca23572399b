package domain

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Regions lists the regions that a node can be in, and that a deployment's placement can name.
var Regions = []string{"REGION_UNSPECIFIED", "US_IOWA_1", "US_VIRGINIA_1", "US_VIRGINIA_2", "US_ILLINOIS_1",
	"AP_TOKYO_1",
	"EU_LONDON_1", "US_ARIZONA_1", "US_TEXAS_1", "US_ILLINOIS_2", "EU_FRANKFURT_1", "US_TEXAS_2", "EU_PARIS_1",
	"EU_HELSINKI_1",
	"US_NEVADA_1", "EU_ICELAND_1", "EU_ICELAND_2", "US_WASHINGTON_1", "US_WASHINGTON_2", "EU_ICELAND_DEV_1",
	"US_WASHINGTON_3",
	"US_ARIZONA_2", "AP_TOKYO_2", "US_CALIFORNIA_1", "US_MISSOURI_1", "US_UTAH_1", "US_TEXAS_3", "US_ARIZONA_3",
	"US_GEORGIA_1",
	"US_GEORGIA_2", "US_WASHINGTON_4", "US_GEORGIA_3", "NA_BRITISHCOLUMBIA_1", "US_GEORGIA_4", "EU_ICELAND_3", "US_OHIO_1"}

// AnyRegion is the region of all nodes in an installation in which no node has a region. Every
// placement allows it: otherwise an installation at one site, whose operator has no reason to set a
// region, could not run deployments that name a region.
const AnyRegion = "*"

// A Fleet holds the nodes of an installation.
type Fleet struct {
	Nodes   iter.Seq2[Name, Node] // the nodes in the order of their names
	Located bool                  // at least one registered node has a region
}

// FleetOf returns a fleet of the given nodes, which must be in the order of their names.
func FleetOf(nodes iter.Seq2[Name, Node]) Fleet {
	for _, node := range nodes {
		if node.Registered() && node.Region != "" {
			return Fleet{nodes, true}
		}
	}
	return Fleet{nodes, false}
}

// RegionIn returns the region of a node, for Need.Allows. located is Fleet.Located of the node's
// fleet; if it is false, RegionIn returns AnyRegion.
func (n Node) RegionIn(located bool) string {
	if !located {
		return AnyRegion
	}
	return n.Region
}

// multiRegions are the prefixes of the regions of each group; the group GLOBAL has all regions.
var multiRegions = map[string]string{"US": "US_", "EUROPE": "EU_", "APAC": "AP_"}

// Allowed returns the regions in which replicas may run; nil if they may run on every node, with or
// without a region.
func (p *Placement) Allowed() (regions []string) {
	switch {
	case p == nil:
	case !unspecified(p.Region):
		return []string{p.Region}
	case len(p.Regions) > 0:
		return slices.DeleteFunc(slices.Clone(p.Regions), unspecified)
	case multiRegions[p.MultiRegion] != "":
		for _, region := range Regions {
			if strings.HasPrefix(region, multiRegions[p.MultiRegion]) {
				regions = append(regions, region)
			}
		}
	}
	return regions
}

// Allows reports whether nodes in a region, a result of Node.RegionIn, can meet the need.
func (n Need) Allows(region string) bool {
	return len(n.Regions) == 0 || region == AnyRegion || slices.Contains(n.Regions, region)
}

// where describes the regions of the need for messages: " in EU_PARIS_1", or "" for every region.
func (n Need) where() string {
	const named = 3
	switch {
	case len(n.Regions) == 0:
		return ""
	case len(n.Regions) <= named:
		return " in " + strings.Join(n.Regions, " or ")
	}
	return fmt.Sprintf(" in %s or %d other regions", n.Regions[0], len(n.Regions)-1)
}

// AcceleratorTypes lists the devices that a deployment can request.
var AcceleratorTypes = []string{"ACCELERATOR_TYPE_UNSPECIFIED", "VENDOR_A_A100_80GB", "VENDOR_A_H100_80GB",
	"VENDOR_B_MI300X_192GB",
	"VENDOR_A_A10G_24GB", "VENDOR_A_A100_40GB", "VENDOR_A_L4_24GB", "VENDOR_A_H200_141GB", "VENDOR_A_B200_180GB",
	"VENDOR_B_MI325X_256GB", "VENDOR_B_MI350X_288GB"}

// Precisions lists the number formats that a deployment can request.
var Precisions = []string{"PRECISION_UNSPECIFIED", "FP16", "FP8", "FP8_MM", "FP8_AR", "FP8_MM_KV_ATTN", "FP8_KV",
	"FP8_MM_V2",
	"FP8_V2", "FP8_MM_KV_ATTN_V2", "NF4", "FP4", "BF16", "FP4_BLOCKSCALED_MM", "FP4_MX_MOE"}

// MultiRegions lists the groups of regions of a placement.
var MultiRegions = []string{"MULTI_REGION_UNSPECIFIED", "GLOBAL", "US", "EUROPE", "APAC"}
