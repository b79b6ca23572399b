package domain

import "strings"

// A Referrer is the state of a resource that can refer to other resources. A resource cannot be
// deleted while another one refers to it. References returns the names of the resources that the
// state refers to; self is the name of the referring resource. Some of the returned names may be
// empty. A resource that has ended refers to no other.
type Referrer interface{ References(self Name) []string }

// activeReferences returns names, which the job's spec refers to, and the job's derived datasets.
// It returns nil when the job has ended.
func (l JobLife) activeReferences(names []string) []string {
	if !l.Exists() || l.Terminal() || l.Deleting() {
		return nil
	}
	if in := l.Inputs; in != nil {
		names = append(names, string(in.Train), string(in.Evaluation))
	}
	return names
}

// secretsOf returns the names of the secrets with the credentials that a job uses for object stores
// and blob stores; some of the names may be empty.
func secretsOf(store *ObjectStoreConfig, blobs *BlobStoreConfig) (named []string) {
	if store != nil {
		named = append(named, store.CredentialsSecret)
	}
	if blobs != nil {
		named = append(named, blobs.CredentialsSecret)
	}
	return named
}

// References implements Referrer. A live deployment refers to its base model and draft model, to
// the model of the hot-loaded weights that it serves, and to its shape.
func (d Deployment) References(Name) []string {
	if !d.Live() {
		return nil
	}
	shape, _, _ := strings.Cut(d.DeploymentShape, "/versions/")
	names := []string{d.BaseModel, d.Drafter(), shape}
	if hot := d.Hot.Served; hot != nil {
		names = append(names, string(hot.Model))
	}
	return names
}

// References implements Referrer. It returns the addon, unless the deployed model is UNDEPLOYED.
func (m DeployedModel) References(Name) []string {
	if m.State == ModelUndeployedState {
		return nil
	}
	return []string{m.Model}
}

// References implements Referrer. It returns the models of the newest version.
func (s DeploymentShape) References(Name) []string {
	newest := s.Newest()
	return []string{newest.BaseModel, newest.DraftModel}
}

// References implements Referrer. It returns the base model of an addon.
func (m Model) References(Name) []string {
	if m.Kind != PEFTAddon {
		return nil
	}
	return []string{m.BaseModel}
}

// References implements Referrer. It returns the secrets that are passed to the code.
func (v Evaluator) References(Name) []string { return v.Secrets }

// References implements Referrer. It returns the source of a dataset that is being derived, and the
// secrets of transfers that have not ended.
func (d Dataset) References(Name) (names []string) {
	if d.Filling() {
		names = append(names, string(d.From.Source))
	}
	for _, t := range []*Transfer{d.Import, d.Export} {
		if t.Running() {
			names = append(names, t.CredentialsSecret)
		}
	}
	return names
}
