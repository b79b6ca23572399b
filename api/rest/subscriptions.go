package rest

import (
	"reflect"
	"time"

	"anneal/api/events"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/blobs/delivery"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// Subscription is the wire type of a subscription. Only the responses to its creation and to a
// rotation contain SigningSecret.
type Subscription struct {
	Name string `json:"name" api:"output"`
	domain.SubscriptionSpec
	CreateTime               *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime               *time.Time    `json:"updateTime,omitempty" api:"output"`
	CreatedBy                string        `json:"createdBy,omitempty" api:"output"`
	State                    string        `json:"state" api:"output"`
	Status                   domain.Status `json:"status" api:"output"`
	SigningSecret            string        `json:"signingSecret,omitempty" api:"output" query:"-"`
	PublicKey                string        `json:"publicKey,omitempty" api:"output" query:"-"`
	PreviousSecretExpireTime *time.Time    `json:"previousSecretExpireTime,omitempty" api:"output" query:"-"`
}

// Delivery is the progress of a subscription: how far it has delivered the selected events.
type Delivery struct {
	Position         domain.Count `json:"position"`
	EventID          string       `json:"eventId,omitempty"`
	PendingEvents    int          `json:"pendingEvents"`
	OldestTime       *time.Time   `json:"oldestTime,omitempty"`
	Retrying         int          `json:"retrying"`
	DeadLetters      int          `json:"deadLetters"`
	Delivered        domain.Count `json:"delivered"`
	LastDeliveryTime *time.Time   `json:"lastDeliveryTime,omitempty"`
	LastError        string       `json:"lastError,omitempty"`
	LastErrorTime    *time.Time   `json:"lastErrorTime,omitempty"`
}

// maxPending is the maximum number of pending events that a response counts.
const maxPending = 1000

var subscriptions = &resource[domain.Subscription, Subscription]{
	kind: domain.Subscriptions, noun: "subscription", wrapper: "subscription", idParam: "subscriptionId",
	reads: request.Read, writes: request.ManageSecrets,
	fields: storedFieldsOf[domain.Subscription, Subscription]("name", "displayName", "createTime", "updateTime", "state",
		"status"),
	creator:   func(s *domain.Subscription) string { return s.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.Subscription]) bool{},
	render: func(v *projections.View, row *projections.Row[domain.Subscription], out *Subscription) {
		s := &row.State
		*out = Subscription{Name: string(row.Name), SubscriptionSpec: s.SubscriptionSpec,
			CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			CreatedBy: creatorOf(v, s.CreatedBy), State: s.State, Status: s.Status}
		if s.Signing != nil {
			out.PublicKey, out.PreviousSecretExpireTime = s.Signing.PublicKey, s.PreviousExpireTime
		}
	},
	create: func(c *call, q *creation[Subscription]) (plan[domain.Subscription, Subscription], error) {
		v := &q.p.Violations
		spec := q.given.SubscriptionSpec
		if err := checkStart(c, v, &spec); err != nil {
			return plan[domain.Subscription, Subscription]{}, err
		}
		if err := requireTarget(c, v, "subscription.", &spec); err != nil {
			return plan[domain.Subscription, Subscription]{}, err
		}
		command := domain.CreateSubscription{SubscriptionSpec: spec, CreatedBy: string(c.Principal.Key)}
		if spec.Webhook == nil {
			return plan[domain.Subscription, Subscription]{command: command}, requireSubscriptionCapacity(c)
		}
		keys, signing, err := newSigningSecret(c, v, q.name)
		if err != nil {
			return plan[domain.Subscription, Subscription]{}, err
		}
		command.Signing = signing
		return plan[domain.Subscription, Subscription]{command, func(out *Subscription) {
			out.SigningSecret = keys.Shared()
		}}, requireSubscriptionCapacity(c)
	},
	update: func(c *call, q *update[domain.Subscription, Subscription]) (plan[domain.Subscription, Subscription], error) {
		err := requireTarget(c, &q.p.Violations, "", &q.given.SubscriptionSpec)
		return plan[domain.Subscription, Subscription]{
			command: domain.UpdateSubscription{SubscriptionSpec: q.merged.SubscriptionSpec}}, err
	},
	remove: func(*call, *projections.Row[domain.Subscription], *request.Params) (domain.Command[domain.Subscription],
		error) {
		return domain.DeleteSubscription{}, nil
	},
}

var _ = register(subscriptions.operations, subscriptionOperations)

// rotation is the request body of rotateSubscriptionSecret.
type rotation struct {
	Overlap string `json:"overlap,omitempty"`
}

// redelivery is the request body of redeliverSubscription.
type redelivery struct {
	Position    *domain.Count `json:"position,omitempty"`
	DeadLetters bool          `json:"deadLetters,omitempty"`
}

func subscriptionOperations(s *Service) []request.Operation {
	const one = request.CollectionPath + "subscriptions/{id}"
	operations := []request.Operation{
		{ID: "pauseSubscription", Path: one + ":pause", Summary: "Pause a subscription",
			Description: "No events are delivered until the subscription is resumed. Then it continues with the next event.",
			Body:        request.NoBody, ReleasesResources: true,
			Handle: s.handle(changeSubscription(domain.PauseSubscription{}))},
		{ID: "resumeSubscription", Path: one + ":resume", Summary: "Resume a subscription",
			Description: "A subscription that is PAUSED or DISABLED continues with the next event.",
			Body:        request.NoBody, Handle: s.handle(changeSubscription(domain.ResumeSubscription{}))},
		{ID: "rotateSubscriptionSecret", Path: one + ":rotateSecret", Summary: "Replace the signing secret of a webhook",
			Description: "The response has the new secret. For the duration overlap, deliveries are signed with both the " +
				"old and the new secret.",
			Body: reflect.TypeFor[rotation](), Handle: s.handle(rotateSecret)},
		{ID: "redeliverSubscription", Path: one + ":redeliver", Summary: "Deliver events to a webhook again",
			Description: "Delivers again the selected events from a log position on, the dead letters, or both.",
			Body:        reflect.TypeFor[redelivery](), Handle: s.handle(redeliver)},
		{ID: "getDelivery", Method: "GET", Path: one + "/delivery", Summary: "Read the delivery progress of a subscription",
			Permission: request.Read, Response: reflect.TypeFor[Delivery](),
			Handle: s.handle(subscriptions.verb(func(c *call, row *projections.Row[domain.Subscription]) (any, error) {
				return deliveryOf(c, row)
			}))},
		{ID: "listDeadLetters", Method: "GET", Path: one + "/deadLetters", Summary: "List the dead letters of a subscription",
			Description: "Dead letters are events that could not be delivered for three days. They are listed until they " +
				"are delivered again with :redeliver, or the subscription is deleted.",
			Permission: request.Read, Query: request.ListParameters,
			Response: request.PageType("deadLetters", reflect.TypeFor[DeadLetter]()), Handle: s.handle(listDeadLetters)},
	}
	for i := range operations {
		if op := &operations[i]; op.Method == "" {
			op.Method, op.Permission, op.BodyOptional = "POST", request.ManageSecrets, true
			op.Response = reflect.TypeFor[Subscription]()
		}
	}
	return withTag(domain.Subscriptions.Collection, operations)
}

// changeSubscription returns the handler of a custom verb without settings, which records the
// command.
func changeSubscription(command domain.Command[domain.Subscription]) handler {
	return subscriptions.verb(func(c *call, row *projections.Row[domain.Subscription]) (any, error) {
		return recordOnSubscription(c, row.Name, command, nil)
	})
}

func recordOnSubscription(c *call, name domain.Name, command domain.Command[domain.Subscription],
	respond func(*Subscription)) (any, error) {
	change, err := c.Do(domain.Intend(domain.Subscriptions, name, command))
	if err != nil {
		return nil, err
	}
	return subscriptions.respond(c, change, plan[domain.Subscription, Subscription]{respond: respond})
}

// newSigningSecret returns the keys of a new signing secret, and the secret in encrypted form. If v
// has violations, the latter is a placeholder.
func newSigningSecret(c *call, v *domain.Violations, name domain.Name) (domain.SigningKeys, *domain.SigningSecret,
	error) {
	keys := domain.NewSigningKeys(request.NewSecret(c.Call, "shared key "+string(name)),
		request.NewSecret(c.Call, "private key "+string(name)))
	sealed := &sealedPlaceholder
	if len(*v) == 0 {
		var err error
		if sealed, err = c.seal(name, keys.Text().Reveal()); err != nil {
			return keys, nil, err
		}
	}
	return keys, &domain.SigningSecret{Value: *sealed, PublicKey: keys.PublicKey()}, nil
}

func rotateSecret(c *call) (any, error) {
	var body rotation
	p := c.Params()
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	overlap := domain.SecretOverlap
	if body.Overlap != "" {
		var err error
		overlap, err = time.ParseDuration(body.Overlap)
		p.Violations.Require(err == nil, "overlap", "must be a duration such as 86400s")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := subscriptions.row(c)
	if err != nil {
		return nil, err
	}
	keys, signing, err := newSigningSecret(c, &p.Violations, row.Name)
	if err != nil {
		return nil, err
	}
	return recordOnSubscription(c, row.Name, domain.RotateSigningSecret{Signing: *signing, Overlap: overlap},
		func(out *Subscription) { out.SigningSecret = keys.Shared() })
}

func redeliver(c *call) (any, error) {
	var body redelivery
	p := c.Params()
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	command := domain.RequestRedelivery{DeadLetters: body.DeadLetters}
	if body.Position != nil {
		command.Position = *body.Position
		p.Violations.Require(*body.Position > 0 && uint64(*body.Position) <= c.World.Position(), "position",
			"must be the position of an event, at least 1 and at most %d (the last event)", c.World.Position())
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := subscriptions.row(c)
	if err != nil {
		return nil, err
	}
	return recordOnSubscription(c, row.Name, command, nil)
}

// checkStart adds a violation if the log does not have the event at which the subscription starts.
func checkStart(c *call, v *domain.Violations, s *domain.SubscriptionSpec) error {
	if s.StartPosition == nil || *s.StartPosition <= 0 {
		return nil
	}
	e, err := c.Log.At(c.Ctx, uint64(*s.StartPosition))
	switch {
	case domain.CodeOf(err) == domain.NotFound:
		v.Add("subscription.startPosition", "must be the position of an event, at most %d (the last event), or 0 for all "+
			"events",
			c.World.Position())
	case err != nil:
		return err
	case s.StartEventID != "" && e.ID != s.StartEventID:
		v.Add("subscription.startEventId", "is not the ID of the event at position %d: the log was restored from a backup, "+
			"or the position belongs to another installation", *s.StartPosition)
	}
	return nil
}

// requireTarget adds a violation if the secret for the object store does not exist or has no
// credentials.
func requireTarget(c *call, v *domain.Violations, prefix string, s *domain.SubscriptionSpec) error {
	if s.Files == nil {
		return nil
	}
	return requireCredentials(c, v, prefix+"files.credentialsSecret", s.Files.CredentialsSecret)
}

// requireSubscriptionCapacity returns an error if the account has the maximum number of
// subscriptions. Concurrent requests may exceed the limit by their number.
func requireSubscriptionCapacity(c *call) error {
	c.Refresh()
	if n := c.View().Subscriptions.Count(c.Account); n >= domain.MaxSubscriptions {
		f := domain.Errorf(domain.ResourceExhausted, "accounts/%s has %d subscriptions, which is the limit: delete one "+
			"of them",
			c.Account, n)
		f.Reason = "TOO_MANY_SUBSCRIPTIONS"
		return f
	}
	return nil
}

// deliveryOf returns how far a subscription has delivered its events, and counts the events that
// are still pending.
func deliveryOf(c *call, row *projections.Row[domain.Subscription]) (*Delivery, error) {
	state, err := delivery.Load(c.Ctx, c.Uploads.Blobs, row.Name, row.CreateEvent)
	if err != nil {
		return nil, err
	}
	s := &row.State
	cursor := state.Cursor
	if s.File != nil {
		cursor = delivery.Cursor{Position: s.File.Last, EventID: s.File.EventID}
	}
	if cursor.Position == 0 && s.StartPosition != nil {
		cursor = delivery.Cursor{Position: uint64(*s.StartPosition), EventID: s.StartEventID}
	} else if cursor.Position == 0 && s.StartTime == nil {
		cursor = delivery.Cursor{Position: row.CreateVersion, EventID: row.CreateEvent}
	}
	out := &Delivery{Position: domain.Count(cursor.Position), EventID: cursor.EventID, Retrying: len(state.Retries),
		PendingEvents: len(state.Retries), DeadLetters: len(state.DeadLetters), Delivered: domain.Count(state.Delivered),
		LastDeliveryTime: wire.Timestamp(state.LastDelivery), LastError: state.LastError,
		LastErrorTime: wire.Timestamp(state.LastFailure)}
	for _, l := range state.Retries {
		if !l.Since.IsZero() && (out.OldestTime == nil || l.Since.Before(*out.OldestTime)) {
			out.OldestTime = wire.Timestamp(l.Since)
		}
	}
	for e, err := range c.Log.Read(c.Ctx, "events."+c.Account+".>", cursor.Position) {
		if err != nil {
			return nil, err
		}
		if !events.VisibleToReaders(e) || !s.Selects(e.Type, e.Name, e.Time) {
			continue
		}
		if out.OldestTime == nil || e.Time.Before(*out.OldestTime) {
			out.OldestTime = wire.Timestamp(e.Time)
		}
		if out.PendingEvents++; out.PendingEvents >= maxPending {
			break
		}
	}
	return out, nil
}

// DeadLetter is the wire type of an event that could not be delivered for three days.
type DeadLetter struct {
	Position         domain.Count `json:"position"`
	EventID          string       `json:"eventId"`
	Type             string       `json:"type"`
	Resource         string       `json:"resource"`
	Attempts         int          `json:"attempts"`
	FirstAttemptTime time.Time    `json:"firstAttemptTime"`
	LastAttemptTime  time.Time    `json:"lastAttemptTime"`
	Error            string       `json:"error"`
}

type deadLetterState struct{ delivery.Letter }

// Exists implements domain.State.
func (deadLetterState) Exists() bool { return true }

var deadLetterFields = fieldsOf[DeadLetter]()

func listDeadLetters(c *call) (any, error) {
	p := c.Params()
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[DeadLetter]())
	q.DefaultOrder = "position"
	row, err := subscriptions.row(c)
	if err != nil {
		return nil, err
	}
	state, err := delivery.Load(c.Ctx, c.Uploads.Blobs, row.Name, row.CreateEvent)
	if err != nil {
		return nil, err
	}
	rows := func(yield func(*projections.Row[deadLetterState]) bool) {
		for _, l := range state.DeadLetters {
			if !yield(&projections.Row[deadLetterState]{Name: domain.Name(l.EventID), State: deadLetterState{l}}) {
				return
			}
		}
	}
	render := func(row *projections.Row[deadLetterState], out *DeadLetter) {
		l := &row.State
		*out = DeadLetter{domain.Count(l.Position), l.EventID, l.Type, string(l.Resource), l.Attempts, l.Since.UTC(),
			l.Last.UTC(), l.Error}
	}
	page, err := query.List(rows, render, deadLetterFields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse("deadLetters", page.Items, page.NextPageToken, page.TotalSize, m)
}
