package live

import (
	"time"

	"anneal/domain"
)

// A Device is the state of an accelerator of a node, as the node's agent has last reported it.
type Device struct {
	Type       string `json:"type"`
	Index      int    `json:"index"`
	Allocation string `json:"allocation,omitempty"` // ID of the allocation that uses the device
	// IDs of all allocations that share the device; empty if at most one uses it
	Sharing []string `json:"sharing,omitempty"`
	Health  string   `json:"health"` // one of the values in domain.DeviceHealth
	// temperature in °C; nil if unknown
	TemperatureC       *int `json:"temperatureC,omitempty"`
	UtilizationPercent *int `json:"utilizationPercent,omitempty"`
	MemoryUsedMiB      *int `json:"memoryUsedMib,omitempty"`
	MemoryMiB          *int `json:"memoryMib,omitempty"`
}

type nodeDevices struct {
	list []Device
	time time.Time
}

// SetDevices records the devices of a node from a report at the given time, unless a later report
// is recorded. The Status keeps list, so the caller must not change it.
func (s *Status) SetDevices(node domain.Name, list []Device, reportTime time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.now.devices.Get(node)
	if known && reportTime.Before(last.time) || !known && len(list) == 0 {
		return
	}
	if !known && s.now.devices.Len() >= MaxNodes {
		evict(s.now.devices, func(d nodeDevices) time.Time { return d.time })
	}
	s.now.devices.Set(node, nodeDevices{list, reportTime})
	s.now.reports++
}

// Devices returns the devices of a node; nil if its agent has reported none.
func (v View) Devices(node domain.Name) []Device {
	if v.devices == nil {
		return nil
	}
	found, _ := v.devices.Get(node)
	return found.list
}
