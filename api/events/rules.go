package events

import (
	"anneal/api/wire"
)

// rules constrain the fields of this package's wire types: see openapi.Documentation.
var rules = map[string]wire.Rule{
	"Event.specversion": wire.OneOf("1.0"),
	"Event.position":    {Pattern: wire.CountPattern},
}

// typeTexts describe the types of this package.
var typeTexts = map[string]string{
	"Event": "CloudEvent 1.0 in structured JSON, with its position in the log.",
}

// fieldTexts describe the fields of this package's wire types.
var fieldTexts = map[string]string{
	"Event.source":       "Installation that recorded the event.",
	"Event.attempt":      "Number of the attempt of the job, for an event that belongs to one.",
	"Event.id":           "ID of the event.",
	"Event.type":         "Type and version of the event, such as dataset.created.v1.",
	"Event.controlplane": "ID of the control plane that decided the event; absent in events of earlier versions.",
	"Event.state":        "State of the resource after the event.",
}
