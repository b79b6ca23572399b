package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/delivery"
	"anneal/domain"
)

const (
	aSubscriptionBody = `{"subscriptionId": "ledger", "subscription": {"displayName": "Ledger", ` +
		`"eventTypes": ["dataset.*"], "startPosition": "0", "webhook": {"url": "https://ledger.example.com/events"}}}`
	aSubscription = "> POST /v1/accounts/acme/subscriptions admin\n> " + aSubscriptionBody + "\n\n"
)

const ledgerName = domain.Name("accounts/acme/subscriptions/ledger")

// hasDeadLetter stores a state of deliveries with a dead letter and a retry, as a runner does.
func hasDeadLetter(s *harness) {
	s.set(aSubscription)
	row, ok := s.world.View().Subscriptions.Get(ledgerName)
	require.True(s, ok)
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	letter := delivery.Letter{Cursor: delivery.Cursor{Position: 5, EventID: "event-5"}, Type: "dataset.created.v1",
		Resource: "accounts/acme/datasets/rows", Attempts: 24, Since: at, Last: at.Add(72 * time.Hour),
		Error: "the webhook responds with status 500"}
	state := delivery.State{Cursor: delivery.Cursor{Position: row.Version, EventID: row.CreateEvent},
		DeadLetters: []delivery.Letter{letter}, Delivered: 3, LastDelivery: at, LastError: letter.Error, LastFailure: at}
	require.NoError(s, delivery.Save(s.Context(), s.store, ledgerName, row.CreateEvent, &state))
}

func subscriptionRows() []row {
	const all, one = "/v1/accounts/acme/subscriptions", "/v1/accounts/acme/subscriptions/ledger"
	verb := func(id, verb, body string) row {
		return row{id: id, scene: aSubscription, request: strings.TrimSuffix(fmt.Sprintf("POST %s:%s admin\n%s", one, verb,
			body), "\n")}
	}
	return []row{
		{id: "createSubscription", request: unmarked(aSubscription)},
		{id: "listSubscriptions", scene: aSubscription, request: "GET " + all + " user"},
		{id: "getSubscription", scene: aSubscription, request: "GET " + one + " user"},
		{id: "getDelivery", prepare: hasDeadLetter, request: "GET " + one + "/delivery user"},
		{id: "listSubscriptionEvents", scene: aSubscription, request: "GET " + one + "/events" + briefly + " user"},
		{id: "updateSubscription", scene: aSubscription, request: "PATCH " + one + " admin\n" +
			"{\"displayName\": \"Second ledger\", \"webhook\": {\"url\": \"https://ledger2.example.com\"}}"},
		verb("pauseSubscription", "pause", ""),
		{id: "resumeSubscription", scene: aSubscription + marked("POST "+one+":pause admin"),
			request: "POST " + one + ":resume admin"},
		verb("rotateSubscriptionSecret", "rotateSecret", "{\"overlap\": \"3600s\"}"),
		verb("redeliverSubscription", "redeliver", "{\"position\": \"1\", \"deadLetters\": true}"),
		{id: "listDeadLetters", prepare: hasDeadLetter, request: "GET " + one + "/deadLetters user"},
		{id: "deleteSubscription", scene: aSubscription, request: "DELETE " + one + " admin"},
	}
}
