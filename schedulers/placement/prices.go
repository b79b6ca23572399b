package placement

import (
	"slices"
	"strings"
)

// maxPrice is the highest price of a model. A model has this price when its share of the demand is
// at least its share of the capacity.
const maxPrice = 1000

// Prices returns the price of each model in the fleet, from 0 to 1000. A price is the sum, over all
// lists of models M that requests name and that contain the model, of
//
//	demand(M) · capacity · 1000 / (demand · capacity(M)),
//
// where demand is in milli-GPU and capacity in devices × 1000. A model is cheap when few requests
// name it, and expensive when its share of the demand exceeds its share of the fleet. Requests that
// can use another model leave an expensive one free.
func Prices(counts map[Request]int64, nodes []Node) map[string]int64 {
	demand, capacity := map[string]int64{}, map[string]int64{}
	demandAll, capacityAll := int64(0), int64(0)
	for r, n := range counts {
		demandAll += r.gpu() * n
		if r.Models != "" && r.Devices > 0 {
			demand[canonical(r.Models)] += r.gpu() * n
		}
	}
	for _, node := range nodes {
		if node.Devices > 0 {
			capacity[node.Model] += int64(node.Devices) * WholeDevice
			capacityAll += int64(node.Devices) * WholeDevice
		}
	}
	prices := map[string]int64{}
	for model := range capacity {
		price := int64(0)
		for models, milli := range demand {
			if !allows(models, model) {
				continue
			}
			allowed := int64(0)
			for other, milli := range capacity {
				if allows(models, other) {
					allowed += milli
				}
			}
			price += ratio(milli, demandAll, capacityAll, allowed)
		}
		prices[model] = min(maxPrice, price)
	}
	return prices
}

// ratio returns demand · capacityAll · 1000 / (demandAll · capacity). It scales the values down if
// the products would not fit into 64 bits.
func ratio(demand, demandAll, capacityAll, capacity int64) int64 {
	for demandAll > 1<<26 || capacityAll > 1<<26 {
		demand, demandAll, capacityAll, capacity = (demand+1)/2, (demandAll+1)/2, (capacityAll+1)/2, (capacity+1)/2
	}
	if demandAll == 0 || capacity == 0 {
		return 0
	}
	return demand * capacityAll * 1000 / (demandAll * capacity)
}

// canonical returns models, a list separated by "|", sorted and without duplicates.
func canonical(models string) string {
	list := strings.Split(models, "|")
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "|")
}
