package agent

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/workers/protocol"
)

// lossyLinks returns the two ends of a link over a connection that loses, repeats and delays frames
// according to a random source.
func lossyLinks(t *testing.T, random *rand.Rand) (a, b *gangLink) {
	block, err := aes.NewCipher(make([]byte, 32))
	require.NoError(t, err)
	seal, err := cipher.NewGCM(block)
	require.NoError(t, err)
	var mu sync.Mutex
	to := func(other **gangLink) func(string, []byte) error {
		frames := make(chan []byte, 10_000)
		go func() {
			for {
				select {
				case frame := <-frames:
					(*other).handle(&nats.Msg{Data: frame})
				case <-t.Context().Done():
					return
				}
			}
		}()
		var late []byte
		return func(_ string, frame []byte) error {
			mu.Lock()
			defer mu.Unlock()
			switch random.IntN(6) {
			case 0: // the frame is lost
			case 1:
				late = frame
			case 2:
				frames <- frame
				frames <- late
				fallthrough
			default:
				frames <- frame
			}
			return nil
		}
	}
	gang := func(rank int) *protocol.Gang {
		return &protocol.Gang{Rank: rank, Nodes: []string{"n1", "n2"}, ID: "g"}
	}
	a = newGangLink(to(&b), seal, gang(0), 1)
	b = newGangLink(to(&a), seal, gang(1), 0)
	return a, b
}

// TestGangLinkDeliversEveryMessageOnce sends messages of several frames both ways over a connection
// that loses, repeats and reorders frames, among them frames of another gang.
func TestGangLinkDeliversEveryMessageOnce(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := lossyLinks(t, rand.New(rand.NewPCG(seed, 1)))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go a.resend(ctx)
				go b.resend(ctx)
				var all sync.WaitGroup
				exchange := func(from, to *gangLink, key byte) {
					message := func(i int) []byte { return bytes.Repeat([]byte{key, byte(i)}, i*i*9000) }
					all.Go(func() {
						for i := range 12 {
							require.NoError(t, from.Send(ctx, message(i)))
						}
					})
					all.Go(func() {
						for i := range 12 {
							got, err := to.Receive(ctx)
							require.NoError(t, err)
							require.True(t, bytes.Equal(message(i), got), "message %d", i)
						}
					})
				}
				exchange(a, b, 'a')
				exchange(b, a, 'b')
				all.Wait()
				b.handle(&nats.Msg{Data: []byte("neither sealed nor long")})
				require.Empty(t, b.received)
			})
		})
	}
}

// TestGangLinkEndsWithItsContext checks that a node that waits for another one stops with its
// attempt.
func TestGangLinkEndsWithItsContext(t *testing.T) {
	a, _ := lossyLinks(t, rand.New(rand.NewPCG(1, 1)))
	a.publish = func(string, []byte) error { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := a.Receive(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, a.Send(ctx, make([]byte, (frameWindow+1)*frameBytes)), context.Canceled)
}
