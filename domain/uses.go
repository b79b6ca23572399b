package domain

import "strings"

// A User is a state whose resource works with others: what it names cannot be
// deleted from under it. Uses are their names, given the resource's own; some
// may be empty. What has ended works with nothing.
type User interface{ Uses(self Name) []string }

// working is what a job works with while it has not ended, with the rows that
// were made for it.
func (l JobLife) working(names []string) []string {
	if !l.Exists() || l.Terminal() || l.Leaving() {
		return nil
	}
	if in := l.Inputs; in != nil {
		names = append(names, string(in.Train), string(in.Evaluation))
	}
	return names
}

// secretsOf is the secrets of a job's settings.
func secretsOf(store *ObjectStoreConfig, blobs *BlobStoreConfig) (named []string) {
	if store != nil {
		named = append(named, store.CredentialsSecret)
	}
	if blobs != nil {
		named = append(named, blobs.CredentialsSecret)
	}
	return named
}

// Uses implements User: models, the weights that a trainer job brought, and the
// shape that the deployment was made by.
func (d Deployment) Uses(Name) []string {
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

// Uses implements User: the addon.
func (m DeployedModel) Uses(Name) []string { return []string{m.Model} }

// Uses implements User: the models of the newest version.
func (s DeploymentShape) Uses(Name) []string {
	newest := s.Newest()
	return []string{newest.BaseModel, newest.DraftModel}
}

// Uses implements User: the base of an addon.
func (m Model) Uses(Name) []string {
	if m.Kind != PEFTAddon {
		return nil
	}
	return []string{m.BaseModel}
}

// Uses implements User: the secrets that the code is given.
func (v Evaluator) Uses(Name) []string { return v.Secrets }

// Uses implements User: the dataset that its rows are being made from.
func (d Dataset) Uses(Name) []string {
	if !d.Filling() {
		return nil
	}
	return []string{string(d.From.Source)}
}
