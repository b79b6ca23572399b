package request

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	"github.com/google/uuid"

	"anneal/domain"
	"anneal/eventlog"
)

// deriveKey returns a 32-byte key for a purpose: the HMAC-SHA-256, keyed with pepper, of the
// purpose and the parts, each prefixed with its length.
func deriveKey(pepper []byte, purpose string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, pepper)
	for _, part := range append([][]byte{[]byte("anneal " + purpose)}, parts...) {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// derivationLabel is the purpose with which unguessable derives bytes from the seed of an
// idempotency key. It must not change, because the IDs of recorded commands and resources were
// derived with it.
const derivationLabel = "made up"

// unguessable returns 32 bytes for a purpose within the call. They are random or, if the request
// has an idempotency key, derived from its seed, so that each attempt of the request gets the same
// bytes.
func (c *Call) unguessable(purpose string) []byte {
	if c.seed != nil {
		return deriveKey(c.Pepper, derivationLabel, c.seed, []byte(purpose))
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // Read of crypto/rand never returns an error
	return random
}

// NewUUID returns a UUID for a purpose within the call. If the request has an idempotency key, each
// attempt of the request gets the same UUID.
func (c *Call) NewUUID(purpose string) string {
	id := uuid.UUID(c.unguessable("uuid of " + purpose)[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, RFC 9562
	return id.String()
}

// nextCommand returns the ID of the call's next command; "" without an idempotency key, so that the
// log generates the ID.
func (c *Call) nextCommand() string {
	if c.seed == nil {
		return ""
	}
	return c.NewUUID("command " + strconv.Itoa(c.commands))
}

// Recorded returns the change of the resource name that an earlier attempt of the request recorded
// with the ID of the call's next command. The position of the change is 0 if there is none.
func (c *Call) Recorded(name domain.Name) (eventlog.Change, error) {
	if !c.repeated {
		return eventlog.Change{}, nil
	}
	ctx, cancel := c.Detached()
	defer cancel()
	change, err := eventlog.Recorded(ctx, c.Log, c.World, c.nextCommand(), name)
	if err == nil && change.Position() > 0 {
		err = c.World.WaitFor(ctx, change.Position())
		c.view = nil
	}
	if err != nil {
		return eventlog.Change{}, unrecorded{err}
	}
	return change, nil
}

// NewSecret returns 32 unguessable bytes for a purpose within the call. If the request has an
// idempotency key, each attempt of the request gets the same bytes.
func NewSecret(c *Call, purpose string) []byte { return c.unguessable("secret of " + purpose) }
