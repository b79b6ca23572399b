package domain

import (
	"slices"
	"strings"
	"time"
)

// HotWeights are weights of a trainer job that a deployment serves, or is loading, in place of the
// weights of its model.
type HotWeights struct {
	Job       Name      `json:"job"`
	TrainStep int       `json:"trainStep"`       // number of the train step that produced the weights
	Step      int       `json:"step,omitempty"`  // training step of the checkpoint; 0 for the result of the train step
	Model     Name      `json:"model,omitempty"` // model that was registered when the train step finished; "" until then
	Adapter   bool      `json:"adapter"`         // true: an adapter on the deployment's base model; false: full weights
	Files     Files     `json:"files"`
	Position  uint64    `json:"position"` // log position of the job's newest event when the weights were recorded
	Made      time.Time `json:"made"`     // when the weights were recorded; orders weights by age
}

// ID returns the ID by which replicas report the weights. It contains the prefix of the files,
// which is unique.
func (w HotWeights) ID() string { return hotPrefix + w.Files.Prefix }

const hotPrefix = "hot:"

// IsHot reports whether the ID is that of hot-loaded weights. Replicas also report the IDs of
// addons, see AddonID.
func IsHot(id string) bool { return strings.HasPrefix(id, hotPrefix) }

// HotLoad is the state of a deployment's hot loading. Offered weights are loaded beside the served
// weights, and replace them once every ready replica has loaded the offered weights.
type HotLoad struct {
	Served  *HotWeights `json:"served,omitempty"`  // weights that are served; nil for the model's own weights
	Offered *HotWeights `json:"offered,omitempty"` // weights that the replicas are loading; nil when they load none
	Refused *HotWeights `json:"refused,omitempty"` // newest weights that could not be served; nil after a swap
	Status  Status      `json:"status"`            // why the last weights were refused or withdrawn
	// ID of the weights served before; "" for the model's own
	Previous string    `json:"former,omitempty"`
	Time     time.Time `json:"time"` // when offered weights last replaced the served ones; zero if never
}

// Has reports whether the deployment serves, or is loading, the weights with this ID.
func (h HotLoad) Has(id string) bool {
	return h.Served != nil && h.Served.ID() == id || h.Offered != nil && h.Offered.ID() == id
}

// Accepts reports whether w is newer than the served, the offered and the refused weights.
func (h HotLoad) Accepts(w HotWeights) bool {
	for _, known := range []*HotWeights{h.Served, h.Offered, h.Refused} {
		if known != nil && !w.Made.After(known.Made) {
			return false
		}
	}
	return true
}

type WeightsOffered struct{ HotWeights }

func (e WeightsOffered) Evolve(d *Deployment) { d.Hot.Offered = &e.HotWeights }

// WeightsSwapped contains the weights that are served from this event on, so that a reader of the
// log does not have to look up the offer.
type WeightsSwapped struct {
	HotWeights
	Time time.Time `json:"time"`
}

func (e WeightsSwapped) Evolve(d *Deployment) {
	former := ""
	if d.Hot.Served != nil {
		former = d.Hot.Served.ID()
	}
	d.Hot = HotLoad{Served: &e.HotWeights, Previous: former, Status: StatusOf(nil), Time: e.Time}
}

type WeightsRefused struct {
	HotWeights
	Status Status `json:"status"`
}

func (e WeightsRefused) Evolve(d *Deployment) {
	d.Hot.Offered, d.Hot.Refused, d.Hot.Status = nil, &e.HotWeights, e.Status
}

type WeightsWithdrawn struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
}

func (e WeightsWithdrawn) Evolve(d *Deployment) {
	if d.Hot.Offered != nil && d.Hot.Offered.ID() == e.ID {
		d.Hot.Offered = nil
	}
	if d.Hot.Served != nil && d.Hot.Served.ID() == e.ID {
		d.Hot.Served, d.Hot.Previous = nil, e.ID
	}
	d.Hot.Status = e.Status
}

// OfferWeights makes the replicas load a trainer job's newest weights. The caller checks that they
// fit the deployment.
type OfferWeights struct{ HotWeights }

func (c OfferWeights) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	if d.Hot.Has(c.ID()) {
		return nil, nil
	}
	if d.Hot.Offered != nil {
		return nil, precondition("SWAP_UNDER_WAY", "the deployment is loading weights of train step %d of %s: wait until "+
			"the weights are swapped", d.Hot.Offered.TrainStep, d.Hot.Offered.Job)
	}
	return WeightsOffered(c), d.mustAccept(c.HotWeights)
}

// SwapWeights records that the deployment serves the offered weights. Replicas are the IDs of the
// replicas that have loaded them; every ready replica must be among them.
type SwapWeights struct {
	ID       string
	Replicas []string
}

func (c SwapWeights) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch err := d.mustLive(); {
	case err != nil:
		return nil, err
	case d.Hot.Served != nil && d.Hot.Served.ID() == c.ID:
		return nil, nil
	case d.Hot.Offered == nil || d.Hot.Offered.ID() != c.ID:
		return nil, precondition("STALE_WEIGHTS", "the deployment is not loading the weights %s", c.ID)
	}
	for _, r := range d.Replicas {
		if r.State == ReplicaReady && !slices.Contains(c.Replicas, r.ID) {
			return nil, precondition("NOT_READY", "replica %s has not loaded the weights yet", r.ID)
		}
	}
	return WeightsSwapped{*d.Hot.Offered, now}, nil
}

// RefuseWeights records that offered weights cannot be served, and why. The deployment continues to
// serve the same weights as before.
type RefuseWeights struct {
	HotWeights
	Status Status
}

func (c RefuseWeights) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	switch offered, refused := d.Hot.Offered, d.Hot.Refused; {
	case refused != nil && refused.ID() == c.ID():
		return nil, nil
	case offered != nil && offered.ID() == c.ID():
		return WeightsRefused(c), d.mustLive()
	case offered != nil:
		return nil, precondition("SWAP_UNDER_WAY", "the deployment is loading weights of train step %d of %s, "+
			"and no other weights can be refused until it has loaded them", offered.TrainStep, offered.Job)
	}
	return WeightsRefused(c), d.mustAccept(c.HotWeights)
}

// WithdrawWeights records that hot-loaded weights no longer exist. If the deployment served them,
// it serves its own model again.
type WithdrawWeights struct{ ID, Reason string }

func (c WithdrawWeights) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	if !d.Hot.Has(c.ID) {
		return nil, nil
	}
	return WeightsWithdrawn{c.ID, Status{FailedPrecondition.String(), c.Reason}}, nil
}

// mustAccept returns an error unless the deployment is live, has hot loading enabled, and was not
// offered newer weights.
func (d Deployment) mustAccept(w HotWeights) error {
	switch err := d.mustLive(); {
	case err != nil:
		return err
	case !d.EnableHotLoad:
		return precondition("HOT_LOAD_OFF", "the deployment does not load trainer weights: set its enableHotLoad to true")
	case !d.Hot.Accepts(w):
		return precondition("STALE_WEIGHTS", "the weights recorded at %s are not newer than those that the deployment "+
			"was already offered", w.Made.Format(time.RFC3339))
	}
	return nil
}

// HotLoadTargets returns the deployments that the job's newest weights are offered to. account is
// the ID of the job's account, which owns HotLoadDeploymentID.
func (s TrainerSpec) HotLoadTargets(account string) (targets []Name) {
	if name, ok := ParseName(s.RolloutDeploymentName, Deployments.Collection); ok {
		targets = append(targets, name)
	}
	if ValidID(s.HotLoadDeploymentID) {
		if name := NewName(account, Deployments.Collection, s.HotLoadDeploymentID); len(targets) == 0 || targets[0] != name {
			targets = append(targets, name)
		}
	}
	return targets
}

// Servable returns the files of a checkpoint that an engine can serve: those below model/, or all
// files when none is below model/. adapter reports whether the files are an adapter; ok is false
// when they are neither an adapter nor a full model.
func (f Files) Servable() (model Files, adapter, ok bool) {
	const dir = "model/"
	below := Files{Prefix: f.Prefix + dir, Sizes: map[string]int64{}, Sums: map[string]string{}}
	for name, size := range f.Sizes {
		if inner, ok := strings.CutPrefix(name, dir); ok {
			below.Sizes[inner] = size
			if sum := f.Sums[name]; sum != "" {
				below.Sums[inner] = sum
			}
		}
	}
	if len(below.Sizes) == 0 {
		below = f
	}
	_, adapter = below.Sizes["adapter_config.json"]
	_, full := below.Sizes["config.json"]
	return below, adapter, adapter || full
}
