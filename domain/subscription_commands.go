package domain

import (
	"cmp"
	"reflect"
	"time"
)

// CreateSubscription creates a subscription. Signing is required for a webhook.
type CreateSubscription struct {
	SubscriptionSpec
	CreatedBy string
	Signing   *SigningSecret
}

func (c CreateSubscription) Decide(s Subscription, now time.Time) (Event[Subscription], error) {
	if s.Exists() {
		return nil, alreadyExists("a subscription")
	}
	var v Violations
	c.check(&v, now)
	c.checkSelection(&v)
	if err := v.Err(); err != nil {
		return nil, err
	}
	if c.Webhook == nil {
		c.Signing = nil
	}
	return SubscriptionCreated(c), nil
}

// UpdateSubscription changes the display name, or the URL of the webhook. Other fields cannot
// change, because the deliveries of one subscription have one order and one filter.
type UpdateSubscription struct{ SubscriptionSpec }

func (c UpdateSubscription) Decide(s Subscription, now time.Time) (Event[Subscription], error) {
	if !s.Exists() {
		return nil, notFound("subscription")
	}
	var v Violations
	checkText(&v, c.DisplayName, "")
	for _, fixed := range []struct {
		field         string
		before, after any
	}{
		{"eventTypes", s.EventTypes, c.EventTypes}, {"resources", s.Resources, c.Resources},
		{"startPosition", s.StartPosition, c.StartPosition}, {"startEventId", s.StartEventID, c.StartEventID},
		{"startTime", s.StartTime, c.StartTime},
	} {
		v.Require(sameValue(fixed.before, fixed.after), fixed.field,
			"cannot change: create another subscription")
	}
	const other = "cannot be added or removed: create another subscription"
	v.Require((s.Webhook == nil) == (c.Webhook == nil), "webhook", other)
	v.Require((s.Files == nil) == (c.Files == nil), "files", other)
	if s.Files != nil && c.Files != nil {
		v.Require(s.Files.ExternalURL == c.Files.ExternalURL, "files.externalUrl",
			"cannot change, because the files of a subscription are in one directory: create another subscription")
		v.Require(cmp.Or(s.Files.Format, EventFilesJSONL) == cmp.Or(c.Files.Format, EventFilesJSONL), "files.format",
			"cannot change, because the files of a subscription have one format: create another subscription")
	}
	c.checkTarget(&v)
	if err := v.Err(); err != nil {
		return nil, err
	}
	if c.DisplayName == s.DisplayName && reflect.DeepEqual(c.Webhook, s.Webhook) && reflect.DeepEqual(c.Files, s.Files) {
		return nil, nil
	}
	return SubscriptionUpdated{c.DisplayName, c.Webhook, c.Files}, nil
}

// sameValue reports whether two values of one type are equal. Empty and missing lists are equal,
// and times are compared as moments.
func sameValue(a, b any) bool {
	switch a := a.(type) {
	case []string:
		return len(a) == 0 && len(b.([]string)) == 0 || reflect.DeepEqual(a, b)
	case *time.Time:
		if b := b.(*time.Time); a != nil && b != nil {
			return a.Equal(*b)
		}
	}
	return reflect.DeepEqual(a, b)
}

// PauseSubscription stops the delivery. Events that are recorded while the subscription is paused
// are delivered when it is resumed.
type PauseSubscription struct{}

func (PauseSubscription) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case s.State == SubscriptionPausedState:
		return nil, nil
	}
	return SubscriptionPaused{}, nil
}

// DisableSubscription stops the delivery for a reason that a user must resolve.
type DisableSubscription struct{ Status Status }

func (c DisableSubscription) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case s.State == SubscriptionDisabledState:
		return nil, nil
	case s.State == SubscriptionPausedState:
		return nil, precondition("SUBSCRIPTION_PAUSED", "the subscription is paused")
	}
	return SubscriptionDisabled(c), nil
}

// ResumeSubscription continues the delivery where it stopped.
type ResumeSubscription struct{}

func (ResumeSubscription) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case s.State == SubscriptionActive:
		return nil, nil
	}
	return SubscriptionResumed{}, nil
}

// RotateSigningSecret replaces the signing secret of a webhook. Until Overlap has passed, requests
// have the signatures of both the new and the previous secret.
type RotateSigningSecret struct {
	Signing SigningSecret
	Overlap time.Duration
}

func (c RotateSigningSecret) Decide(s Subscription, now time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case s.Webhook == nil:
		return nil, precondition("NOT_A_WEBHOOK", "the subscription writes files, which have no signatures: use this with "+
			"the subscription of a webhook")
	case s.Signing != nil && s.Signing.PublicKey == c.Signing.PublicKey:
		return nil, nil
	}
	var v Violations
	v.Require(c.Overlap >= 0 && c.Overlap <= MaxSecretOverlap, "overlap", "must be between 0s and %.0fs",
		MaxSecretOverlap.Seconds())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return SubscriptionSecretRotated{c.Signing, now.Add(c.Overlap)}, nil
}

// RequestRedelivery requests that events, or dead letters, are delivered again to a webhook.
type RequestRedelivery struct {
	Position    Count // position of the first event; 0 for dead letters only
	DeadLetters bool
}

func (c RequestRedelivery) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case s.Webhook == nil:
		return nil, precondition("NOT_A_WEBHOOK", "a subscription writes each event to its files once: to write the events "+
			"again, create another subscription with another directory")
	case s.Redelivers && s.Redelivery.Position == c.Position && s.Redelivery.DeadLetters == c.DeadLetters:
		return nil, nil
	case s.Redelivers:
		return nil, precondition("REDELIVERY_PENDING", "an earlier redelivery has not started: resume the subscription if "+
			"it is not ACTIVE, then try again")
	}
	var v Violations
	v.Require(c.Position >= 0, "position", "must be the position of an event")
	v.Require(c.Position > 0 || c.DeadLetters, "position", "give a position, or deadLetters")
	if err := v.Err(); err != nil {
		return nil, err
	}
	return SubscriptionRedeliveryRequested{Redelivery{s.Redelivery.Number + 1, c.Position, c.DeadLetters}}, nil
}

// CompleteRedelivery records that the redelivery with this number has started, so that another one
// can be requested.
type CompleteRedelivery struct{ Number int }

func (c CompleteRedelivery) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case !s.Redelivers || s.Redelivery.Number != c.Number:
		return nil, nil
	}
	return SubscriptionRedeliveryStarted(c), nil
}

// RecordEventFile records the range of the next file before the file is written, so that every
// attempt to write the file has the same name and content. After is the last position of the
// previous file; 0 for the first file.
type RecordEventFile struct {
	EventFile
	After uint64
}

func (c RecordEventFile) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	switch {
	case !s.Exists():
		return nil, notFound("subscription")
	case s.File != nil && *s.File == c.EventFile:
		return nil, nil
	case s.State != SubscriptionActive || s.Files == nil:
		return nil, precondition("SUBSCRIPTION_"+s.State, "the subscription is %s and writes no files", s.State)
	case s.lastFile() != c.After || c.First <= c.After || c.Last < c.First:
		return nil, precondition("FILE_OUT_OF_ORDER",
			"the newest file ends at position %d, not at %d: another process has recorded a file", s.lastFile(), c.After)
	}
	return SubscriptionFileRecorded{c.EventFile}, nil
}

// DeleteSubscription deletes a subscription. The files that it has written stay.
type DeleteSubscription struct{}

func (DeleteSubscription) Decide(s Subscription, _ time.Time) (Event[Subscription], error) {
	if !s.Exists() {
		return nil, notFound("subscription")
	}
	return SubscriptionDeleted{}, nil
}
