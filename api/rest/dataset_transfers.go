package rest

import (
	"cmp"
	"reflect"
	"strings"

	"anneal/api/request"
	"anneal/domain"
	sealed "anneal/eventlog/secrets"
)

// DatasetExport is the wire type of an export of a dataset's files.
type DatasetExport struct {
	domain.TransferSpec
	State  string        `json:"state"`
	Status domain.Status `json:"status"`
}

func exportOf(t *domain.Transfer) *DatasetExport {
	if t == nil {
		return nil
	}
	return &DatasetExport{t.TransferSpec, t.State, t.Status}
}

// importBody is the request body of importDataset.
type importBody struct {
	ExternalURL       string `json:"externalUrl,omitempty"`
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// exportBody is the request body of exportDataset.
type exportBody struct {
	ExternalURL       string `json:"externalUrl"`
	CredentialsSecret string `json:"credentialsSecret"`
}

var _ = register(func(s *Service) []request.Operation {
	const one = request.CollectionPath + "datasets/{id}"
	return []request.Operation{
		{ID: "importDataset", Tag: "datasets", Method: "POST", Path: one + ":import",
			Summary: "Import the rows of a dataset from an object store", Permission: request.Write,
			Description: "Imports an object, or all objects directly in a directory, into a dataset that is not READY. The " +
				"response is the dataset in the state UPLOADING. Its state becomes READY when the rows are stored and valid. " +
				"If the import or the validation fails, the state remains UPLOADING, and the status has the error. A dataset " +
				"that is created with externalUrl imports its rows without this operation.",
			Body: reflect.TypeFor[importBody](), BodyOptional: true, Response: reflect.TypeFor[Dataset](),
			Handle: s.handle(importDataset)},
		{ID: "exportDataset", Tag: "datasets", Method: "POST", Path: one + ":export",
			Summary: "Export the files of a dataset to an object store", Permission: request.Write,
			Description: "Writes the files of a READY dataset to an object or a directory, where they replace objects with " +
				"the same names. The response is sent before the export is complete; the field export of the dataset shows its " +
				"state.",
			Body: reflect.TypeFor[exportBody](), Required: []string{"externalUrl", "credentialsSecret"},
			Response: reflect.TypeFor[Dataset](), Handle: s.handle(exportDataset)},
	}
})

// importDataset records the command to import rows. If the request has no externalUrl, the rows are
// imported from the dataset's externalUrl, with the dataset's credentialsSecret unless the request
// has one.
func importDataset(c *call) (any, error) {
	var body importBody
	p := c.Params()
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	if body.ExternalURL == "" {
		body = importBody{row.State.ExternalURL, cmp.Or(body.CredentialsSecret, row.State.CredentialsSecret)}
	}
	return transfer(c, p, row.Name, domain.TransferSpec(body), func(s domain.TransferSpec) domain.Command[domain.Dataset] {
		return domain.RequestImport{TransferSpec: s}
	})
}

// exportDataset records the command to export the files of a dataset.
func exportDataset(c *call) (any, error) {
	var body exportBody
	p := c.Params()
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	return transfer(c, p, row.Name, domain.TransferSpec(body), func(s domain.TransferSpec) domain.Command[domain.Dataset] {
		return domain.RequestExport{TransferSpec: s}
	})
}

// transfer records the command of an import or export, and responds with the dataset.
func transfer(
	c *call, p *request.Params, name domain.Name, s domain.TransferSpec,
	command func(domain.TransferSpec) domain.Command[domain.Dataset],
) (any, error) {
	if again, err := recordedRow(c, datasets, name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return datasets.rendered(c, again), nil
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	if err := requireCredentials(c, &p.Violations, "credentialsSecret", s.CredentialsSecret); err != nil {
		return nil, err
	}
	intent := domain.Intend(domain.Datasets, name, command(s))
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	change, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	return datasets.reply(c, change)
}

// importing checks a new dataset that imports its rows from externalUrl. It adds violations, and
// returns an error if the account's storage quota is exhausted.
func importing(c *call, v *domain.Violations, given *Dataset) error {
	if given.ExternalURL == "" {
		return requireCredentials(c, v, "dataset.credentialsSecret", given.CredentialsSecret)
	}
	if err := c.RequireActive(c.Account); err != nil {
		return err
	}
	if err := requireCredentials(c, v, "dataset.credentialsSecret", given.CredentialsSecret); err != nil || len(*v) > 0 {
		return err
	}
	// checks that the quota is not exhausted; the size of the rows is not known yet
	return c.Uploads.Reserve(c.Call, 1)
}

// requireCredentials adds a violation if ref, the value of the field, names a secret that does not
// exist or has no credentials for an object store. It accepts an empty ref. Violations never
// contain a part of the secret's value.
func requireCredentials(c *call, v *domain.Violations, field, ref string) error {
	before := len(*v)
	c.requireSecret(v, field, ref)
	if ref == "" || len(*v) > before {
		return nil
	}
	row, _ := c.View().Secrets.Get(domain.Name(ref))
	if !row.State.HasValue() {
		v.Add(field, "%s has no value: its value %s", ref, domain.StoreCredentialsRule)
		return nil
	}
	value, err := c.Sealer.Open(c.Ctx, secretReader(c, sealed.CheckCredentials, ""), row.Name, row.State.Value)
	if err != nil {
		return err
	}
	if _, wrong := domain.ParseStoreCredentials(value); len(wrong) > 0 {
		v.Add(field, "the value of %s %s: %s", ref, domain.StoreCredentialsRule, strings.Join(wrong, "; "))
	}
	return nil
}
