package protocol

// States of an addon on a replica. AddonLoading is the state until the engine has loaded it.
const (
	AddonLoading = "loading"
	AddonLoaded  = "loaded" // the replica can serve requests for the addon
	AddonFailed  = "failed" // the replica could not load it; see Addon.Reason
)

// An Addon is the state of an addon of a replica: a LoRA adapter or hot-loaded weights. ID is a
// result of domain.AddonID or domain.HotWeights.ID.
type Addon struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why the addon could not be loaded, when State is AddonFailed
	// Residency says whether the engine has the addon now, when State is AddonLoaded
	Residency string `json:"residency,omitempty"`
}

// Values of Addon.Residency.
const (
	AddonResident = ""        // the engine has loaded the addon; also in heartbeats of earlier versions
	AddonQueued   = "queued"  // requests wait until the engine has loaded the addon
	AddonEvicted  = "evicted" // the engine has unloaded the addon for others; a request loads it again
)

// ReplicaAddons says which addons a replica should have. Keep has the IDs of addons in the last
// heartbeat that stay, and Load the addons to load. The replica unloads each addon of the last
// heartbeat that is not in Keep, after its requests in progress.
type ReplicaAddons struct {
	Replica string            `json:"replica"` // ID of the replica's allocation
	Keep    []string          `json:"keep,omitempty"`
	Load    []AddonAssignment `json:"load,omitempty"`
}

// An AddonAssignment is an addon that a replica must load.
type AddonAssignment struct {
	ID    string  `json:"id"`
	Files FileSet `json:"folder"`
	// the files are full weights that replace those of the base model, and not a LoRA adapter
	Full bool `json:"full,omitempty"`
	// other replicas have loaded the addon, so the replica may load it at the first request
	Proven bool `json:"proven,omitempty"`
}
