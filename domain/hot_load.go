package domain

import (
	"slices"
	"strings"
	"time"
)

// HotWeights are weights of a trainer job with which a deployment answers in
// the place of its own model's, or is to.
type HotWeights struct {
	Job       Name      `json:"job"`
	TrainStep int       `json:"trainStep"`       // of the job
	Step      int       `json:"step,omitempty"`  // the checkpoint's; 0 when the train step is done
	Model     Name      `json:"model,omitempty"` // that came of the train step, once it is done
	Adapter   bool      `json:"adapter"`         // to the deployment's base; else they are all parameters
	Files     Files     `json:"files"`
	Position  uint64    `json:"position"` // of the job's newest event when it had them
	Made      time.Time `json:"made"`     // of two, the later are the newer
}

// ID is what replicas call the weights. No others have the folder.
func (w HotWeights) ID() string { return hotPrefix + w.Files.Folder }

const hotPrefix = "hot:"

// IsHot reports whether what a replica has loaded are hot weights, and no addon.
func IsHot(id string) bool { return strings.HasPrefix(id, hotPrefix) }

// HotLoad is how far a deployment is with the weights of trainer jobs: offered
// ones are loaded beside those that answer, and take their place when every
// ready replica has them.
type HotLoad struct {
	Served  *HotWeights `json:"served,omitempty"`  // they answer; nil when the model's own do
	Offered *HotWeights `json:"offered,omitempty"` // being loaded
	Refused *HotWeights `json:"refused,omitempty"` // the newest that did not fit
	Status  Status      `json:"status"`            // why they did not, or why there are none any more
	Former  string      `json:"former,omitempty"`  // ID of those that the served ones took the place of; "" for the model's own
	Time    time.Time   `json:"time"`              // of the last swap
}

// Has reports whether the deployment serves the weights, or is to.
func (h HotLoad) Has(id string) bool {
	return h.Served != nil && h.Served.ID() == id || h.Offered != nil && h.Offered.ID() == id
}

// Takes reports whether weights are newer than all that the deployment was given.
func (h HotLoad) Takes(w HotWeights) bool {
	for _, known := range []*HotWeights{h.Served, h.Offered, h.Refused} {
		if known != nil && !w.Made.After(known.Made) {
			return false
		}
	}
	return true
}

type WeightsOffered struct{ HotWeights }

func (e WeightsOffered) Evolve(d *Deployment) { d.Hot.Offered = &e.HotWeights }

// WeightsSwapped says which checkpoint answers from here on, so that who reads
// the log need not look for the offer.
type WeightsSwapped struct {
	HotWeights
	Time time.Time `json:"time"`
}

func (e WeightsSwapped) Evolve(d *Deployment) {
	former := ""
	if d.Hot.Served != nil {
		former = d.Hot.Served.ID()
	}
	d.Hot = HotLoad{Served: &e.HotWeights, Former: former, Status: StatusOf(nil), Time: e.Time}
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
		d.Hot.Served, d.Hot.Former = nil, e.ID
	}
	d.Hot.Status = e.Status
}

// OfferWeights has the replicas load a trainer job's newest weights. Who asks
// makes sure that they may fit.
type OfferWeights struct{ HotWeights }

func (c OfferWeights) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	if d.Hot.Has(c.ID()) {
		return nil, nil
	}
	if d.Hot.Offered != nil {
		return nil, precondition("SWAP_UNDER_WAY", "the deployment is loading other weights: they are swapped first")
	}
	return WeightsOffered(c), d.mustTake(c.HotWeights)
}

// SwapWeights records that the offered weights answer: all ready replicas are
// among those that have them.
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
		return nil, precondition("STALE_WEIGHTS", "the weights are not the offered ones any more")
	}
	for _, r := range d.Replicas {
		if r.State == ReplicaReady && !slices.Contains(c.Replicas, r.ID) {
			return nil, precondition("NOT_READY", "replica %s has not loaded the weights yet", r.ID)
		}
	}
	return WeightsSwapped{*d.Hot.Offered, now}, nil
}

// RefuseWeights records why weights do not answer; those that do stay.
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
		return nil, precondition("SWAP_UNDER_WAY", "the deployment is loading other weights")
	}
	return WeightsRefused(c), d.mustTake(c.HotWeights)
}

// WithdrawWeights records that weights are there no more: where they answered
// the deployment's own model does.
type WithdrawWeights struct{ ID, Reason string }

func (c WithdrawWeights) Decide(d Deployment, _ time.Time) (Event[Deployment], error) {
	if !d.Hot.Has(c.ID) {
		return nil, nil
	}
	return WeightsWithdrawn{c.ID, Status{FailedPrecondition.String(), c.Reason}}, nil
}

// mustTake is why the deployment takes no weights like these, or nil.
func (d Deployment) mustTake(w HotWeights) error {
	switch err := d.mustLive(); {
	case err != nil:
		return err
	case !d.EnableHotLoad:
		return precondition("HOT_LOAD_OFF", "the deployment has enableHotLoad turned off")
	case !d.Hot.Takes(w):
		return precondition("STALE_WEIGHTS", "the deployment was given newer weights")
	}
	return nil
}

// HotLoadTargets are the deployments that the job's weights go to.
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

// Servable is the files of a checkpoint that can be served, and whether they
// are an adapter's: those below model/, or all of them where the engine keeps
// them so; false when there are none.
func (f Files) Servable() (model Files, adapter, ok bool) {
	const folder = "model/"
	below := Files{Folder: f.Folder + folder, Sizes: map[string]int64{}, Sums: map[string]string{}}
	for name, size := range f.Sizes {
		if inner, ok := strings.CutPrefix(name, folder); ok {
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
