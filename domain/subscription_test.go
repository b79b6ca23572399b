package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

func randomSubscriptionCommand(t *rapid.T, s domain.Subscription) domain.Command[domain.Subscription] {
	position := domain.Count(3)
	spec := domain.SubscriptionSpec{DisplayName: pick(t, "name", "one", "two"), EventTypes: []string{"dataset.*"},
		StartPosition: &position}
	if pick(t, "target", "webhook", "files") == "webhook" {
		spec.Webhook = &domain.Webhook{URL: pick(t, "url", "https://a.example.com", "https://b.example.com", "ftp://c")}
	} else {
		spec.Files = &domain.EventFiles{ExternalURL: "s3://bucket/events/",
			CredentialsSecret: pick(t, "secret", "accounts/a/secrets/s", "accounts/a/secrets/t")}
	}
	changed := s.SubscriptionSpec
	changed.DisplayName = spec.DisplayName
	signing := domain.SigningSecret{Value: someSealed(t), PublicKey: pick(t, "public", "whpk_1", "whpk_2")}
	file := domain.RecordEventFile{EventFile: domain.EventFile{First: 4, Last: 9, EventID: "e", Events: 2}}
	if s.File != nil {
		file = domain.RecordEventFile{After: s.File.Last, EventFile: domain.EventFile{First: s.File.Last + 1,
			Last: s.File.Last + 5, EventID: "f", Events: 1}}
	}
	file.After += pick[uint64](t, "after", 0, 0, 0, 1)
	return pick[domain.Command[domain.Subscription]](t, "command",
		domain.CreateSubscription{SubscriptionSpec: spec, Signing: &signing},
		domain.UpdateSubscription{SubscriptionSpec: changed}, domain.UpdateSubscription{SubscriptionSpec: spec},
		domain.PauseSubscription{}, domain.ResumeSubscription{}, domain.DisableSubscription{Status: someStatus},
		domain.RotateSigningSecret{Signing: signing, Overlap: time.Hour},
		domain.RequestRedelivery{Position: pick[domain.Count](t, "position", 0, 5),
			DeadLetters: rapid.Bool().Draw(t, "dead")},
		domain.CompleteRedelivery{Number: s.Redelivery.Number}, file, file, domain.DeleteSubscription{})
}

// TestSubscriptionSelects checks which events a subscription selects.
func TestSubscriptionSelects(t *testing.T) {
	spec := domain.SubscriptionSpec{EventTypes: []string{"dataset.*", "model.deleted.v1"},
		Resources: []string{"accounts/a/*"}, StartTime: &noon}
	for _, one := range []struct {
		event    string
		resource domain.Name
		at       time.Time
		selected bool
	}{
		{"dataset.created.v1", "accounts/a/datasets/d", noon, true},
		{"model.deleted.v1", "accounts/a/models/m", noon.Add(1), true},
		{"model.deleted.v10", "accounts/a/models/m", noon, false},
		{"datasets.created.v1", "accounts/a/datasets/d", noon, false},
		{"dataset.created.v1", "accounts/b/datasets/d", noon, false},
		{"dataset.created.v1", "accounts/a/datasets/d", noon.Add(-1), false},
	} {
		require.Equal(t, one.selected, spec.Selects(one.event, one.resource, one.at), "%+v", one)
	}
	all := domain.SubscriptionSpec{}
	require.True(t, all.Selects("x.y.v1", "accounts/a/datasets/d", noon))
	require.False(t, all.Selects(domain.SubscriptionFileType, "accounts/a/subscriptions/s", noon),
		"a file must not cause the next one")
}

// TestInvalidSubscriptions checks the violations of a subscription.
func TestInvalidSubscriptions(t *testing.T) {
	negative, five := domain.Count(-1), domain.Count(5)
	later := noon.Add(time.Hour)
	hook := &domain.Webhook{URL: "https://example.com/hook?a=b"}
	const secret = "accounts/a/secrets/s"
	files := &domain.EventFiles{ExternalURL: "s3://bucket/dir/", CredentialsSecret: secret}
	for field, spec := range map[string]domain.SubscriptionSpec{
		"eventTypes[0]":           {Webhook: hook, EventTypes: []string{"*.created"}},
		"resources[1]":            {Webhook: hook, Resources: []string{"a", ""}},
		"startPosition":           {Webhook: hook, StartPosition: &negative},
		"startEventId":            {Webhook: hook, StartEventID: "e"},
		"startTime":               {Webhook: hook, StartTime: &later},
		"webhook":                 {Webhook: hook, Files: files},
		"webhook.url":             {Webhook: &domain.Webhook{URL: "https://user:pass@example.com"}},
		"files.externalUrl":       {Files: &domain.EventFiles{ExternalURL: "s3://bucket/object", CredentialsSecret: secret}},
		"files.credentialsSecret": {Files: &domain.EventFiles{ExternalURL: files.ExternalURL}},
	} {
		_, err := domain.CreateSubscription{SubscriptionSpec: spec}.Decide(domain.Subscription{}, noon)
		var fault *domain.Error
		require.ErrorAs(t, err, &fault, field)
		require.Equal(t, field, fault.Violations[0].Field)
	}
	_, err := domain.CreateSubscription{SubscriptionSpec: domain.SubscriptionSpec{Webhook: hook, StartPosition: &five,
		StartEventID: "e"}}.Decide(domain.Subscription{}, noon)
	require.NoError(t, err)
}

// TestSubscriptionsSelectEvents checks that a pattern that selects no event of any kind is refused with a
// suggestion, and that the kind of every event and every collection can be selected.
func TestSubscriptionsSelectEvents(t *testing.T) {
	create := func(eventType, resource string) error {
		spec := domain.SubscriptionSpec{Webhook: &domain.Webhook{URL: "https://example.com/hook"},
			EventTypes: []string{eventType}, Resources: []string{resource}}
		_, err := domain.CreateSubscription{SubscriptionSpec: spec}.Decide(domain.Subscription{}, noon)
		return err
	}
	require.ErrorContains(t, create("datset.*", "accounts/a/datasets/*"),
		`eventTypes[0]: "datset.*" selects no type of event: did you mean dataset.*? Types begin with `)
	require.ErrorContains(t, create("dataset.*", "accounts/a/datset/*"),
		`resources[0]: there is no collection "datset": did you mean datasets? The collections are `)
	for _, resource := range []string{"accounts/a/*", "accounts/a/data*", "accounts/*", "*"} {
		require.NoError(t, create("*", resource), resource)
	}
	for _, kind := range domain.Kinds {
		for eventType := range kind.EventTypes() {
			require.NoError(t, create(eventType, "accounts/a/"+kind.CollectionID()+"/*"))
		}
	}
}

// TestSigningKeys checks that keys keep their signatures as text, and that the private keys are
// redacted when they are printed.
func TestSigningKeys(t *testing.T) {
	keys := domain.NewSigningKeys(make([]byte, 32), append(make([]byte, 31), 1))
	again, ok := domain.ParseSigningKeys(keys.Text())
	require.True(t, ok)
	require.Equal(t, keys.Sign("id", noon, []byte("body")), again.Sign("id", noon, []byte("body")))
	require.Equal(t, "[redacted]", keys.Text().String())
	_, ok = domain.ParseSigningKeys("whsec_AAAA")
	require.False(t, ok)
}
