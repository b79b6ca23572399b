package tasks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"anneal/blobs"
	"anneal/blobs/external"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// A Transferrer has what imports and exports of datasets need. Several processes may transfer the
// same dataset, because only the first result is recorded.
type Transferrer struct {
	Log    eventlog.Log
	World  *projections.World
	Blobs  *blobs.Store
	Client *http.Client // HTTP client for object stores
	Open   secrets.OpenFunc
	Now    func() time.Time
	// MaxFile is the maximum size of an imported file in bytes.
	MaxFile int64
}

// bucket opens the object store of a transfer with the credentials in the transfer's secret. The
// caller must close it.
func (t Transferrer) bucket(ctx context.Context, dataset domain.Name, s domain.TransferSpec) (*external.Bucket, error) {
	at, ok := domain.ParseObjectURL(s.ExternalURL)
	if !ok {
		return nil, domain.Errorf(domain.InvalidArgument, "externalUrl %s", domain.ObjectURLRule)
	}
	if s.CredentialsSecret == "" {
		return external.Open(ctx, at, nil, t.Client)
	}
	values, err := secrets.Resolver{Rows: t.World, Open: t.Open,
		By: secrets.Reader{Purpose: secrets.TransferDataset, Resource: dataset}}.Values(ctx, dataset.Account(),
		"credentialsSecret", []string{s.CredentialsSecret})
	if err != nil {
		return nil, err
	}
	for _, value := range values {
		credentials, wrong := domain.ParseStoreCredentials(domain.SecretValue(value))
		if len(wrong) > 0 {
			return nil, domain.Errorf(domain.InvalidArgument, "the value of secret %s %s: %s", s.CredentialsSecret,
				domain.StoreCredentialsRule, wrong[0])
		}
		return external.Open(ctx, at, &credentials, t.Client)
	}
	return nil, fmt.Errorf("secret %s has no value: set its value", s.CredentialsSecret)
}

// dataset waits until the world has an event, and returns the event's dataset; nil when it was
// deleted.
func (t Transferrer) dataset(ctx context.Context, e eventlog.Event) (*projections.Row[domain.Dataset], error) {
	if err := t.World.WaitFor(ctx, e.Position); err != nil {
		return nil, err
	}
	row, _ := t.World.View().Datasets.Get(e.Name)
	return row, nil
}

// failed returns the status for a transfer that failed, when the user must correct something; false
// when a retry may succeed.
func failed(err error) (domain.Status, bool) {
	var fault *domain.Error
	if !errors.As(err, &fault) {
		return domain.Status{}, false
	}
	switch fault.Code {
	case domain.InvalidArgument, domain.FailedPrecondition, domain.NotFound, domain.PermissionDenied:
		return domain.StatusOf(fault), true
	}
	return domain.Status{}, false
}

// gaveUp returns the status for a transfer that failed in every attempt. noun says what the
// transfer should have done with the rows, such as "imported".
func gaveUp(noun string, cause error) domain.Status {
	return domain.Status{Code: domain.Unavailable.String(), Message: "the rows could not be " + noun + " (" +
		causeOf(cause) + "): check externalUrl, and try again"}
}

func (t Transferrer) record(
	ctx context.Context, e eventlog.Event, handler string, result domain.Command[domain.Dataset],
) (recorded bool, err error) {
	request := eventlog.Reaction(e, "task/"+handler, t.Now())
	_, err = eventlog.Do(ctx, t.Log, t.World, request, domain.Intend(domain.Datasets, e.Name, result))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return false, nil // the dataset was deleted or replaced during the transfer
	}
	return err == nil, err
}
