package protocol

// States of an addon on a replica.
const (
	AddonLoading = "loading"
	AddonLoaded  = "loaded" // it serves requests
	AddonFailed  = "failed" // the replica cannot load it
)

// An Addon is a LoRA adapter of a replica, or hot-loaded weights. Its ID is made by
// domain.AddonID or domain.HotWeights.ID.
type Addon struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // of a failure
}

// ReplicaAddons lists the addons that a replica should have: Keep names those of its heartbeat
// that stay, Load those that it has yet to load. The replica unloads what its heartbeat listed
// and Keep lacks; requests in progress finish.
type ReplicaAddons struct {
	Replica string            `json:"replica"` // allocation ID
	Keep    []string          `json:"keep,omitempty"`
	Load    []AddonAssignment `json:"load,omitempty"`
}

// An AddonAssignment holds all that loading an addon needs.
type AddonAssignment struct {
	ID    string  `json:"id"`
	Files FileSet `json:"folder"`
	Full  bool    `json:"full,omitempty"` // full weights, which replace those of the base model
}
