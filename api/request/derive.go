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

// deriveKey returns HMAC-SHA-256 under the pepper of a use and of length-prefixed parts: a separate
// key of 32 bytes.
func deriveKey(pepper []byte, use string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, pepper)
	for _, part := range append([][]byte{[]byte("anneal " + use)}, parts...) {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// unguessable returns 32 bytes for one use in a call: random ones or, with an idempotency key, the
// same ones in each attempt.
func (c *Call) unguessable(use string) []byte {
	if c.seed != nil {
		return deriveKey(c.Pepper, "made up", c.seed, []byte(use))
	}
	made := make([]byte, 32)
	_, _ = rand.Read(made) // never fails
	return made
}

// NewUUID returns a UUID for one use in a call: the same one in each attempt.
func (c *Call) NewUUID(use string) string {
	id := uuid.UUID(c.unguessable("uuid of " + use)[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, RFC 9562
	return id.String()
}

// nextCommand returns the ID of the call's next command; "" lets the log generate one.
func (c *Call) nextCommand() string {
	if c.seed == nil {
		return ""
	}
	return c.NewUUID("command " + strconv.Itoa(c.commands))
}

// Recorded returns what an earlier attempt of the request recorded on a resource as its next
// command; the position is 0 when it recorded nothing.
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
