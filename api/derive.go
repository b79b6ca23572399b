package api

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	"github.com/google/uuid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// deriveKey is HMAC-SHA-256 under the pepper of a use and of parts, each with
// its length before it: 32 bytes that are a key of their own.
func deriveKey(pepper []byte, use string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, pepper)
	for _, part := range append([][]byte{[]byte("anneal " + use)}, parts...) {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// unguessable is 32 bytes for one use in a call: random ones, or, when the call
// may repeat an earlier one, those that the earlier one had.
func (c *call) unguessable(use string) []byte {
	if c.seed != nil {
		return deriveKey(c.Pepper, "made up", c.seed, []byte(use))
	}
	made := make([]byte, 32)
	_, _ = rand.Read(made) // never fails
	return made
}

// uuid is a UUID for one use in a call: see unguessable.
func (c *call) uuid(use string) string {
	id := uuid.UUID(c.unguessable("uuid of " + use)[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, RFC 9562
	return id.String()
}

// nextCommand is the ID of the call's next command; "" lets the log make one.
func (c *call) nextCommand() string {
	if c.seed == nil {
		return ""
	}
	return c.uuid("command " + strconv.Itoa(c.commands))
}

// recorded returns what an earlier try of this very call recorded on a resource
// as its next command; its position is 0 when nothing was, or when there was no
// earlier try.
func (c *call) recorded(name domain.Name) (eventlog.Change, error) {
	if !c.repeated {
		return eventlog.Change{}, nil
	}
	ctx, cancel := c.lasting()
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

// tried returns the row as an earlier try of this very call left it, when that
// recorded what the call is about to record: it must not be recorded twice.
// Otherwise it returns nil.
func tried[S domain.State, R any](c *call, res *resource[S, R], name domain.Name) (*projections.Row[S], error) {
	change, err := c.recorded(name)
	if err != nil || change.Position() == 0 {
		return nil, err
	}
	return res.changed(c, change)
}
