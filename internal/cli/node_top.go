package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

var topColumns = []column{{"NODE", "node"}, {"STATE", "state"}, {"WORK", "work"}, {"DEVICE", "device"},
	{"HEALTH", "health"}, {"CPU MILLI", "cpu"}, {"MEMORY MIB", "memory"}, {"DEVICE MIB", "deviceMemory"},
	{"UTIL %", "utilization"}, {"TEMP C", "temperature"}}

func nodeTop() *cobra.Command {
	return &cobra.Command{Use: "top", Short: "Show what runs on which node and device", Args: arguments(0, 0),
		Long: `Lists each job and replica with its node and devices, and each device that nothing uses. Work that still uses a
device after its allocation was released is marked as (ending). With -o json it prints the nodes with their
allocations and devices. Memory, utilization and temperature are shown for the devices that nvidia-smi reports.`,
		RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			items, err := operator.list(c.Context(), operator.path("nodes"), "nodes", nil)
			if err != nil {
				return err
			}
			if inJSON, err := wantsJSON(c); inJSON || err != nil {
				if err != nil {
					return err
				}
				return printItems(c, noRows{}, items)
			}
			var rows []map[string]any
			for _, item := range items {
				rows = append(rows, topRows(item)...)
			}
			return printItems(c, noRows{"no nodes",
				"create a join token with `anneal node token`, and run `anneal work` on a machine"},
				rows, topColumns...)
		}}
}

// topRows returns the table rows of a node: one for each allocation on each of its devices, and
// then one for each device without an allocation. The work of an allocation that has been released
// may still use its device: it is marked as ending.
func topRows(node map[string]any) (rows []map[string]any) {
	state := cell(node, "state")
	if scheduling := cell(node, "scheduling"); state == "READY" && scheduling != "SCHEDULABLE" {
		state = scheduling
	}
	row := func(work string, allocation, device map[string]any) {
		one := map[string]any{"node": id(cell(node, "name")), "state": state, "work": work}
		if allocation != nil {
			one["cpu"], one["memory"] = cell(allocation, "takes.cpuMilli"), cell(allocation, "takes.memoryMib")
		}
		if device != nil {
			one["device"] = cell(device, "index") + " " + cell(device, "type")
			if milli := cell(allocation, "takes.share.milli"); milli != "-" {
				one["device"] = one["device"].(string) + " " + milli + "/1000"
			}
			one["health"], one["utilization"] = cell(device, "health"), cell(device, "utilizationPercent")
			one["temperature"] = cell(device, "temperatureC")
			if total := cell(device, "memoryMib"); total != "-" {
				one["deviceMemory"] = strings.Replace(cell(device, "memoryUsedMib"), "-", "0", 1) + "/" + total
			}
		}
		rows = append(rows, one)
	}
	devices, allocated := objects(node["devices"]), map[string]bool{}
	for _, allocation := range objects(node["allocations"]) {
		allocated[cell(allocation, "id")] = true
		used := 0
		for _, device := range devices {
			if slices.Contains(usersOf(device), cell(allocation, "id")) {
				row(cell(allocation, "id"), allocation, device)
				// The CPU and the memory of an allocation are shown only in its first row.
				allocation = map[string]any{"id": allocation["id"]}
				used++
			}
		}
		if used == 0 {
			row(cell(allocation, "id"), allocation, nil)
		}
	}
	for _, device := range devices {
		if device["allocation"] == nil {
			row("", nil, device)
		}
		for _, user := range usersOf(device) {
			if !allocated[user] {
				row(user+" (ending)", nil, device)
			}
		}
	}
	if len(rows) == 0 {
		row("", nil, nil)
	}
	return rows
}

// usersOf returns the IDs of the allocations whose work uses a device.
func usersOf(device map[string]any) (ids []string) {
	sharing, _ := device["sharing"].([]any)
	for _, one := range sharing {
		if id, ok := one.(string); ok {
			ids = append(ids, id)
		}
	}
	if id, ok := device["allocation"].(string); ok && len(ids) == 0 {
		ids = append(ids, id)
	}
	return ids
}

func objects(list any) (all []map[string]any) {
	items, _ := list.([]any)
	for _, item := range items {
		if one, ok := item.(map[string]any); ok {
			all = append(all, one)
		}
	}
	return all
}
