package wire

// How far an addon is on a replica.
const (
	AddonLoading = "loading"
	AddonLoaded  = "loaded" // it answers
	AddonFailed  = "failed" // it cannot be loaded there
)

// An Addon of a replica, or weights that are loaded hot. Its ID is
// domain.AddonID's, or domain.HotWeights'.
type Addon struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why it failed
}

// Equipment is the addons that a replica should have: those of its beat that
// it is to keep, and others that it is to load. What the beat listed and Keep
// does not is to be unloaded; what is being answered is answered to its end.
type Equipment struct {
	Replica string      `json:"replica"` // its allocation's ID
	Keep    []string    `json:"keep,omitempty"`
	Load    []LoadAddon `json:"load,omitempty"`
}

// A LoadAddon order is all that loading an addon needs.
type LoadAddon struct {
	ID     string `json:"id"`
	Folder Folder `json:"folder"`
	Full   bool   `json:"full,omitempty"` // all parameters, in the place of the base's
}
