package protocol

// States of an addon on a replica.
const (
	AddonLoading = "loading"
	AddonLoaded  = "loaded" // the addon serves requests
	AddonFailed  = "failed" // the replica cannot load it
)

// An Addon is a LoRA adapter of a replica, or hot-loaded weights. ID is the result of
// domain.AddonID or domain.HotWeights.ID.
type Addon struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why the load failed, when State is failed
}

// ReplicaAddons lists the addons that a replica should have. Keep lists the IDs of addons that the
// heartbeat listed and that stay. Load lists the addons to load. The replica unloads addons that
// the heartbeat listed and Keep does not, after their requests in progress.
type ReplicaAddons struct {
	Replica string            `json:"replica"` // allocation ID
	Keep    []string          `json:"keep,omitempty"`
	Load    []AddonAssignment `json:"load,omitempty"`
}

// An AddonAssignment holds what a replica needs to load an addon.
type AddonAssignment struct {
	ID    string  `json:"id"`
	Files FileSet `json:"folder"`
	Full  bool    `json:"full,omitempty"` // full weights, which replace those of the base model
}
