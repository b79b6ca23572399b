package domain

// maxFailedDevices is the maximum number of failed devices that an agent reports about its node.
const maxFailedDevices = 1024

// Values of the health of an accelerator. The health is UNKNOWN when the agent does not read it or
// cannot read it, and the device is then used.
const (
	DeviceHealthy = "HEALTHY"
	DeviceFailed  = "FAILED"
	DeviceUnknown = "UNKNOWN"
)

// DeviceHealth lists the values of the health of an accelerator.
var DeviceHealth = []string{DeviceHealthy, DeviceFailed, DeviceUnknown}

// A FailedDevice is an accelerator of a node that must not be used. It is not part of the node's
// capacity.
type FailedDevice struct {
	Type   string `json:"type"`
	Index  int    `json:"index"`
	Reason string `json:"reason"`
}

func checkFailedDevices(v *Violations, devices []FailedDevice) {
	const field = "failedDevices"
	v.Require(len(devices) <= maxFailedDevices, field, "must have at most %d entries", maxFailedDevices)
	for _, device := range devices[:min(len(devices), maxFailedDevices)] {
		v.Require(len(device.Type) <= MaxShortName && len(device.Reason) <= MaxDescription, field,
			"types must have at most %d bytes, and reasons %d", MaxShortName, MaxDescription)
		v.Require(device.Index >= 0, field, "indexes must not be negative")
		v.RequireText(field, device.Type, false)
		v.RequireText(field, device.Reason, false)
	}
}
