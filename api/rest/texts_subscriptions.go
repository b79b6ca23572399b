package rest

import (
	"anneal/api/wire"
	"anneal/domain"
)

// subscriptionRules constrains the values of fields of subscriptions.
var subscriptionRules = map[string]wire.Rule{
	"Subscription.state": wire.OneOf(domain.SubscriptionActive, domain.SubscriptionPausedState,
		domain.SubscriptionDisabledState),
	"EventFiles.format":          wire.OneOf(domain.EventFilesJSONL, domain.EventFilesParquet),
	"Subscription.startPosition": {Pattern: wire.CountPattern},
	"Subscription.eventTypes":    {MaxItems: domain.MaxEventPatterns},
	"Subscription.resources":     {MaxItems: domain.MaxEventPatterns},
	"Redelivery.position":        {Pattern: wire.CountPattern},
	"Delivery.position":          {Pattern: wire.CountPattern},
	"Delivery.delivered":         {Pattern: wire.CountPattern},
	"DeadLetter.position":        {Pattern: wire.CountPattern},
}

// subscriptionTexts describes the fields of subscriptions in the API reference.
var subscriptionTexts = map[string]string{
	"subscription":   "The subscription to create.",
	"subscriptionId": "ID of the new subscription. The server generates one by default.",
	"subscriptions":  "The subscriptions of this page.",
	"deadLetters":    "The dead letters of this page.",
	"eventTypes": "Types of the events to deliver, such as dataset.created.v1. An entry that ends " +
		"in * selects all types that begin with the text before it. An empty list selects all types. The field cannot be " +
		"changed after creation.",
	"Subscription.resources": "Names of the resources whose events to deliver, such as " +
		"accounts/lumen-outdoor/datasets/support-chats. An entry that ends in * selects all names that begin with the " +
		"text before it. An empty list selects all resources. The field cannot be changed after creation.",
	"startPosition": "Log position after which the deliveries begin; 0 delivers all events. By " +
		"default, the events after the creation of the subscription are delivered.",
	"startEventId": "ID of the event at startPosition. The create is rejected if the log has another " +
		"event there.",
	"Subscription.startTime": "Time of the first event to deliver, which may be in the past. It cannot be " +
		"combined with startPosition.",
	"webhook": "URL that receives each event in an HTTP request. A subscription has either " +
		"webhook or files.",
	"files": "Directory of an object store into which files with events are written. A " +
		"subscription has either webhook or files.",
	"Webhook.url": "URL to which events are sent with POST. The server follows no redirects. The URL " +
		"must not contain secrets, because responses show it and the log records it.",
	"EventFiles.externalUrl": "Directory in an S3-compatible object store: s3://BUCKET/DIRECTORY/. Append " +
		"?region=REGION&endpoint=https://HOST if needed.",
	"EventFiles.format":            "Format of the files: JSONL (the default) or PARQUET.",
	"EventFiles.credentialsSecret": "Resource name of the secret with the credentials for the object store.",
	"Subscription.state": "ACTIVE; PAUSED, by a user; or DISABLED, because the receiver responded that it " +
		"wants no more events, or because a user must resolve a problem, which status describes.",
	"Subscription.status": "Why the subscription is DISABLED.",
	"signingSecret": "Secret with which the receiver verifies the signatures v1 (HMAC-SHA256) " +
		"according to Standard Webhooks. Only this response contains it.",
	"Subscription.publicKey": "Public key with which the receiver verifies the signatures v1a (Ed25519) " +
		"according to Standard Webhooks.",
	"previousSecretExpireTime": "Time until which deliveries are also signed with the previous secret.",

	"Rotation.overlap": "Duration for which deliveries are signed with both the old and the new secret, at most " +
		"604800s. The default is 86400s.",
	"Redelivery.position":    "Log position of the first event to deliver again.",
	"Redelivery.deadLetters": "Whether to deliver the dead letters again.",

	"Delivery.position": "Log position up to which the subscription has processed events: each is delivered, is " +
		"being retried, or is a dead letter.",
	"Delivery.eventId": "ID of the event at the field position.",
	"pendingEvents":    "Number of selected events that are not delivered yet; 1000 means 1000 or more.",
	"oldestTime":       "Time since which the oldest pending event waits for its delivery.",
	"retrying": "Number of events whose delivery has failed and is retried, and of later events of the " +
		"same resources, which wait for them.",
	"Delivery.deadLetters": "Number of dead letters: events that could not be delivered for three days.",
	"delivered": "Number of successful deliveries to the webhook; an event that was delivered twice counts " +
		"twice.",
	"lastDeliveryTime": "Time of the last successful delivery to the webhook.",
	"lastError":        "Error of the last delivery that failed.",
	"lastErrorTime":    "Time of the last failed delivery.",

	"DeadLetter.position": "Position of the event in the log.",
	"DeadLetter.eventId":  "ID of the event.",
	"DeadLetter.type":     "Type of the event.",
	"DeadLetter.resource": "Name of the resource to which the event belongs.",
	"DeadLetter.attempts": "Number of failed attempts to deliver the event.",
	"firstAttemptTime":    "Time of the first attempt to deliver the event.",
	"lastAttemptTime":     "Time of the last attempt to deliver the event.",
	"DeadLetter.error":    "Why the last attempt failed.",
}

// subscriptionTypeTexts describes the types of subscriptions in the API reference.
var subscriptionTypeTexts = map[string]string{
	"Subscription": "Delivers events of its account to a webhook, or to files in an object store.",
	"Webhook":      "URL that receives events according to Standard Webhooks.",
	"EventFiles":   "Directory of an object store into which files with events are written.",
	"Delivery":     "Progress of a subscription: how many events it has delivered, which events wait, and the last error.",
	"DeadLetter":   "Event that a subscription could not deliver for three days.",
	"Rotation":     "Settings of the rotation of a signing secret.",
	"Redelivery":   "Which events to deliver again: those from a position on, the dead letters, or both.",
}
