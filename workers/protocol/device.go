package protocol

// MaxDevices is the maximum number of devices in a heartbeat.
const MaxDevices = 1024

// A Device is the state of an accelerator of the node.
type Device struct {
	Type       string `json:"type"`
	Index      int    `json:"index"`
	Allocation string `json:"allocation,omitempty"` // ID of the allocation that uses the device; "" when none does
	// IDs of all allocations that share the device; empty when at most one uses it
	Sharing []string `json:"sharing,omitempty"`
	Health  string   `json:"health"` // one of the constants of device health in domain, such as domain.DeviceFailed
	// last values that the driver reported; nil when they are unknown
	TemperatureC       *int `json:"temperatureC,omitempty"`
	UtilizationPercent *int `json:"utilizationPercent,omitempty"`
	MemoryUsedMiB      *int `json:"memoryUsedMib,omitempty"`
	MemoryMiB          *int `json:"memoryMib,omitempty"`
}
