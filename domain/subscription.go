package domain

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// A subscription delivers the events of its account to a webhook, or to files in an object store.
// The position up to which a webhook has received events is stored in a file outside of the log.
// The position up to which files are written is in the log, because the range of a file is recorded
// before the file is written.
//
//	(none)           --CreateSubscription-->  ACTIVE
//	ACTIVE, DISABLED --PauseSubscription-->   PAUSED
//	ACTIVE           --DisableSubscription--> DISABLED, with the reason in its status
//	PAUSED, DISABLED --ResumeSubscription-->  ACTIVE
//	any --UpdateSubscription, RotateSigningSecret, RequestRedelivery, CompleteRedelivery--> the same state
//	ACTIVE           --RecordEventFile-->     ACTIVE, with the range of the newest file
//	any              --DeleteSubscription-->  (none)
var Subscriptions = NewKind("subscriptions", map[string]Event[Subscription]{
	"subscription.created.v1":             SubscriptionCreated{},
	"subscription.updated.v1":             SubscriptionUpdated{},
	"subscription.paused.v1":              SubscriptionPaused{},
	"subscription.disabled.v1":            SubscriptionDisabled{},
	"subscription.resumed.v1":             SubscriptionResumed{},
	"subscription.secretRotated.v1":       SubscriptionSecretRotated{},
	"subscription.redeliveryRequested.v1": SubscriptionRedeliveryRequested{},
	"subscription.redeliveryStarted.v1":   SubscriptionRedeliveryStarted{},
	SubscriptionFileType:                  SubscriptionFileRecorded{},
	"subscription.deleted.v1":             SubscriptionDeleted{},
})

// SubscriptionFileType is the type of the event that records the range of a file with events. No
// subscription delivers events of this type, because each file would then cause another file.
const SubscriptionFileType = "subscription.fileRecorded.v1"

// States of a subscription.
const (
	SubscriptionActive        = "ACTIVE"
	SubscriptionPausedState   = "PAUSED"
	SubscriptionDisabledState = "DISABLED"
)

// Limits of subscriptions.
const (
	MaxSubscriptions = 100 // maximum number of subscriptions of an account
	MaxEventPatterns = 50  // maximum number of entries of eventTypes, and of resources
	maxEventPattern  = 256 // maximum length of such an entry in characters
	maxWebhookURL    = 2048
	MaxSecretOverlap = 7 * 24 * time.Hour
	SecretOverlap    = 24 * time.Hour // default time for which a rotated secret still signs
)

// SubscriptionSpec holds the fields of a subscription that the caller sets. A subscription has
// either Webhook or Files.
type SubscriptionSpec struct {
	DisplayName string `json:"displayName,omitempty"`
	// patterns of event types (see MatchesPattern); empty selects all
	EventTypes []string `json:"eventTypes,omitempty"`
	// patterns of resource names (see MatchesPattern); empty selects all
	Resources []string `json:"resources,omitempty"`
	// StartPosition is the position after which the subscription begins. Without it, and without
	// StartTime, the subscription begins after the event that creates it.
	StartPosition *Count      `json:"startPosition,omitempty"`
	StartEventID  string      `json:"startEventId,omitempty"` // ID of the event at StartPosition
	StartTime     *time.Time  `json:"startTime,omitempty"`    // events before this time are not delivered
	Webhook       *Webhook    `json:"webhook,omitempty"`
	Files         *EventFiles `json:"files,omitempty"`
}

// A Webhook is the address that receives events by HTTP.
type Webhook struct {
	URL string `json:"url"`
}

// Formats of files with events.
const (
	EventFilesJSONL   = "JSONL" // one line of JSON for each event
	EventFilesParquet = "PARQUET"
)

// EventFiles is the directory of an object store to which a subscription writes files with events.
type EventFiles struct {
	ExternalURL       string `json:"externalUrl"`
	CredentialsSecret string `json:"credentialsSecret"`
	Format            string `json:"format,omitempty"` // format of the files; "" stands for EventFilesJSONL
}

// MatchesPattern reports whether text is the pattern or, if the pattern ends in *, begins with the
// text before it.
func MatchesPattern(pattern, text string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	return pattern == text || open && strings.HasPrefix(text, prefix)
}

// Selects reports whether the subscription delivers an event of its account with this type,
// resource and time.
func (s *SubscriptionSpec) Selects(eventType string, resource Name, at time.Time) bool {
	any := func(patterns []string, text string) bool {
		return len(patterns) == 0 ||
			slices.ContainsFunc(patterns, func(pattern string) bool { return MatchesPattern(pattern, text) })
	}
	return eventType != SubscriptionFileType && any(s.EventTypes, eventType) && any(s.Resources, string(resource)) &&
		(s.StartTime == nil || !at.Before(*s.StartTime))
}

// A SigningSecret signs the requests to a webhook. Value is the sealed result of SigningKeys.Text.
type SigningSecret struct {
	Value     Sealed `json:"value"`
	PublicKey string `json:"publicKey"` // public key of the Ed25519 signatures: whpk_ and base64
}

// A Redelivery is a request to deliver events again to a webhook.
type Redelivery struct {
	Number      int   `json:"number"`             // number of the redelivery, from 1
	Position    Count `json:"position,omitempty"` // position of the first event to deliver again; 0 for dead letters only
	DeadLetters bool  `json:"deadLetters,omitempty"`
}

// An EventFile is the range of log positions that a file with events covers.
type EventFile struct {
	First   uint64 `json:"first"`   // position after that of the last event in the previous file
	Last    uint64 `json:"last"`    // position of the last event in the file
	EventID string `json:"eventId"` // ID of the last event in the file
	Events  int    `json:"events"`
}

// Subscription is the state of one subscription.
type Subscription struct {
	SubscriptionSpec
	State     string `json:"state"`
	Status    Status `json:"status"`
	CreatedBy string `json:"createdBy"`
	// secret that signs the requests to a webhook; nil for files
	Signing    *SigningSecret `json:"signing,omitempty"`
	Previous   *SigningSecret `json:"previous,omitempty"`   // rotated secret, which also signs until PreviousExpireTime
	Redelivery Redelivery     `json:"redelivery"`           // newest requested redelivery; its Number is 0 without one
	Redelivers bool           `json:"redelivers,omitempty"` // Redelivery is requested and has not started yet
	File       *EventFile     `json:"file,omitempty"`       // range of the newest event file; nil before the first

	PreviousExpireTime *time.Time `json:"previousExpireTime,omitempty"`
}

// Exists implements State.
func (s Subscription) Exists() bool { return s.State != "" }

// StateName implements StateNamer.
func (s Subscription) StateName() string { return s.State }

// References implements Referrer. It returns the secret with the credentials of the object store.
func (s Subscription) References(Name) []string {
	if s.Files == nil {
		return nil
	}
	return []string{s.Files.CredentialsSecret}
}

// lastFile returns the position of the last event in the newest file; 0 before the first file.
func (s Subscription) lastFile() uint64 {
	if s.File == nil {
		return 0
	}
	return s.File.Last
}

type SubscriptionCreated struct {
	SubscriptionSpec
	CreatedBy string         `json:"createdBy"`
	Signing   *SigningSecret `json:"signing,omitempty"`
}

func (e SubscriptionCreated) Evolve(s *Subscription) {
	*s = Subscription{SubscriptionSpec: e.SubscriptionSpec, State: SubscriptionActive, Status: StatusOf(nil),
		CreatedBy: e.CreatedBy, Signing: e.Signing}
}

type SubscriptionUpdated struct {
	DisplayName string      `json:"displayName,omitempty"`
	Webhook     *Webhook    `json:"webhook,omitempty"`
	Files       *EventFiles `json:"files,omitempty"`
}

func (e SubscriptionUpdated) Evolve(s *Subscription) {
	s.DisplayName, s.Webhook, s.Files = e.DisplayName, e.Webhook, e.Files
}

type SubscriptionPaused struct{}

func (SubscriptionPaused) Evolve(s *Subscription) {
	s.State, s.Status = SubscriptionPausedState, StatusOf(nil)
}

type SubscriptionDisabled struct {
	Status Status `json:"status"`
}

func (e SubscriptionDisabled) Evolve(s *Subscription) {
	s.State, s.Status = SubscriptionDisabledState, e.Status
}

type SubscriptionResumed struct{}

func (SubscriptionResumed) Evolve(s *Subscription) {
	s.State, s.Status = SubscriptionActive, StatusOf(nil)
}

type SubscriptionSecretRotated struct {
	Signing            SigningSecret `json:"signing"`
	PreviousExpireTime time.Time     `json:"previousExpireTime"`
}

func (e SubscriptionSecretRotated) Evolve(s *Subscription) {
	s.Previous, s.PreviousExpireTime, s.Signing = s.Signing, &e.PreviousExpireTime, &e.Signing
}

type SubscriptionRedeliveryRequested struct{ Redelivery }

func (e SubscriptionRedeliveryRequested) Evolve(s *Subscription) {
	s.Redelivery, s.Redelivers = e.Redelivery, true
}

type SubscriptionRedeliveryStarted struct {
	Number int `json:"number"`
}

func (SubscriptionRedeliveryStarted) Evolve(s *Subscription) { s.Redelivers = false }

type SubscriptionFileRecorded struct{ EventFile }

func (e SubscriptionFileRecorded) Evolve(s *Subscription) { s.File = &e.EventFile }

type SubscriptionDeleted struct{}

func (SubscriptionDeleted) Evolve(s *Subscription) { *s = Subscription{} }

// check adds the violations of the spec to v. now is the current time.
func (s *SubscriptionSpec) check(v *Violations, now time.Time) {
	checkText(v, s.DisplayName, "")
	for field, patterns := range map[string][]string{"eventTypes": s.EventTypes, "resources": s.Resources} {
		v.Require(len(patterns) <= MaxEventPatterns, field, "must have at most %d entries, not %d", MaxEventPatterns,
			len(patterns))
		for i, pattern := range patterns {
			v.Require(pattern != "" && len(pattern) <= maxEventPattern && !strings.Contains(pattern[:len(pattern)-1], "*") &&
				!strings.ContainsFunc(pattern, isControl), indexed(field, i),
				"must have 1 to %d characters, with a * only at the end, such as %s", maxEventPattern,
				map[string]string{"eventTypes": "dataset.*", "resources": "accounts/ACCOUNT/datasets/*"}[field])
		}
	}
	v.Require(s.StartPosition == nil || *s.StartPosition >= 0, "startPosition", "must be the position of an event, or 0")
	v.Require(s.StartPosition == nil || s.StartTime == nil, "startTime", "excludes startPosition: give only one"+
		" of them")
	v.Require(s.StartEventID == "" || s.StartPosition != nil && *s.StartPosition > 0, "startEventId",
		"requires the startPosition of the event")
	v.Require(s.StartTime == nil || !s.StartTime.After(now), "startTime", "must not be in the future")
	v.Require((s.Webhook == nil) != (s.Files == nil), "webhook", "give either webhook or files")
	s.checkTarget(v)
}

// checkSelection adds a violation to v for each pattern that can match no event, so that the
// subscription would silently deliver nothing.
func (s *SubscriptionSpec) checkSelection(v *Violations) {
	for i, pattern := range s.EventTypes {
		var types, heads []string
		for _, kind := range Kinds {
			for eventType := range kind.EventTypes() {
				types = append(types, eventType)
				head, _, _ := strings.Cut(eventType, ".")
				heads = append(heads, head+".*")
			}
		}
		heads = slices.Compact(heads)
		v.Require(slices.ContainsFunc(types, func(known string) bool { return MatchesPattern(pattern, known) }),
			indexed("eventTypes", i), "%.64q selects no type of event%s", pattern,
			UnknownName(pattern, "types begin with ", heads))
	}
	for i, pattern := range s.Resources {
		collection := Name(pattern).part(2)
		v.Require(collection == "" || strings.Contains(collection, "*") || KindOf(collection) != nil, indexed("resources", i),
			"there is no collection %.64q%s", collection, UnknownName(collection, "the collections are ", Collections()))
	}
}

func (s *SubscriptionSpec) checkTarget(v *Violations) {
	if s.Webhook != nil {
		u, err := url.Parse(s.Webhook.URL)
		v.Require(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil &&
			u.Fragment == "" && len(s.Webhook.URL) <= maxWebhookURL && !strings.ContainsFunc(s.Webhook.URL, isControl),
			"webhook.url", "must be a URL of at most %d characters that begins with https:// or http:// and has no user "+
				"and no fragment", maxWebhookURL)
	}
	if s.Files != nil {
		at, ok := ParseObjectURL(s.Files.ExternalURL)
		v.Require(ok && at.Directory(), "files.externalUrl", "must be s3://BUCKET/DIRECTORY/, with the parameters "+
			"region=REGION and endpoint=https://HOST if needed")
		_, ok = ParseName(s.Files.CredentialsSecret, Secrets.Collection)
		v.Require(ok, "files.credentialsSecret", "must be the resource name of a secret, like accounts/ACCOUNT/secrets/ID")
		v.Require(slices.Contains([]string{"", EventFilesJSONL, EventFilesParquet}, s.Files.Format), "files.format",
			"must be %s or %s", EventFilesJSONL, EventFilesParquet)
	}
}
