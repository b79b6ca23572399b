package rest

import (
	"anneal/api/wire"
	"anneal/domain"
)

// subscriptionRules constrain the values of fields of subscriptions.
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

// subscriptionTexts describe the fields of subscriptions.
var subscriptionTexts = map[string]string{
	"subscription":   "The subscription.",
	"subscriptionId": "ID of the new subscription. The server generates one by default.",
	"subscriptions":  "The subscriptions of this page.",
	"deadLetters":    "The dead letters of this page.",
	"eventTypes": "Types of events to deliver, such as dataset.created.v1. An entry that ends in * selects all types " +
		"that begin with the text before it. Empty selects all. Fixed once the subscription is created.",
	"Subscription.resources": "Resources whose events to deliver, such as " +
		"accounts/lumen-outdoor/datasets/support-chats. " +
		"An entry that ends in * selects all names that begin with the text before it. Empty selects all. Fixed once the " +
		"subscription is created.",
	"startPosition": "Position after which the subscription begins; 0 delivers all events. By default, the subscription " +
		"begins with the events after its creation.",
	"startEventId": "ID of the event at startPosition. The request is refused if the log has another event there.",
	"Subscription.startTime": "Time from which on events are delivered, including those that are recorded already. " +
		"Excludes startPosition.",
	"webhook": "Address that receives each event by HTTP. A subscription has either webhook or files.",
	"files": "Directory of an object store in which files with the events are written. A subscription has either " +
		"webhook or files.",
	"Webhook.url": "URL to which events are sent with POST. Redirects are not followed. Do not put secrets into it: it " +
		"is shown, and recorded in the log.",
	"EventFiles.externalUrl": "Directory in an S3-compatible object store: s3://BUCKET/DIRECTORY/, with the parameters " +
		"region=REGION and endpoint=https://HOST if needed.",
	"EventFiles.format":            "Format of the files: JSONL (the default) or PARQUET.",
	"EventFiles.credentialsSecret": "Resource name of the secret with the credentials of the object store.",
	"Subscription.state": "ACTIVE, PAUSED by a user, or DISABLED because the target wants no more events or a user must " +
		"resolve a problem.",
	"Subscription.status": "Why the subscription is DISABLED.",
	"signingSecret": "Secret with which the receiver verifies the signatures v1 (HMAC-SHA256), by the specification " +
		"Standard Webhooks. It is shown only once.",
	"Subscription.publicKey":   "Public key with which the receiver verifies the signatures v1a (Ed25519).",
	"previousSecretExpireTime": "Time until which requests also have the signatures of the previous secret.",

	"Rotation.overlap": "Time for which requests have the signatures of the old and the new secret, at most 604800s. " +
		"The default is 86400s.",
	"Redelivery.position":    "Position of the first event to deliver again.",
	"Redelivery.deadLetters": "Whether to deliver the dead letters again.",

	"Delivery.position":    "Position of the cursor: all events up to it are delivered, retried, or dead letters.",
	"Delivery.eventId":     "ID of the event at the cursor.",
	"pendingEvents":        "Selected events that are not delivered; 1000 means at least 1000.",
	"oldestTime":           "Time since which the oldest of them waits.",
	"retrying":             "Events whose delivery has failed, or that wait for such an event of their resource.",
	"Delivery.deadLetters": "Events that could not be delivered for three days.",
	"delivered":            "Successful deliveries to the webhook, including repeated ones.",
	"lastDeliveryTime":     "Time of the newest successful delivery to the webhook.",
	"lastError":            "Why the newest failed attempt has failed.",
	"lastErrorTime":        "Time of the newest failed attempt.",

	"DeadLetter.position": "Position of the event.",
	"DeadLetter.eventId":  "ID of the event.",
	"DeadLetter.type":     "Type of the event.",
	"DeadLetter.resource": "Resource name to which the event belongs.",
	"DeadLetter.attempts": "Number of failed attempts.",
	"firstAttemptTime":    "Time of the first attempt.",
	"lastAttemptTime":     "Time of the last attempt.",
	"DeadLetter.error":    "Why the last attempt failed.",
}

// subscriptionTypeTexts describe the types of subscriptions.
var subscriptionTypeTexts = map[string]string{
	"Subscription": "Delivers the events of the account to a webhook, or to files in an object store.",
	"Webhook":      "Address that receives events, by the specification Standard Webhooks.",
	"EventFiles":   "Directory of an object store for files with events.",
	"Delivery":     "What the target of a subscription has received.",
	"DeadLetter":   "Event that could not be delivered.",
	"Rotation":     "Settings of the rotation of a signing secret.",
	"Redelivery":   "Events to deliver again: a position, deadLetters, or both.",
}
