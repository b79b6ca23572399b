package subscriptions

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/outbound"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
)

func count(n int) *domain.Count {
	c := domain.Count(n)
	return &c
}

// toWebhook is a subscription of all events that goes to an address.
func toWebhook(address string) domain.SubscriptionSpec {
	return domain.SubscriptionSpec{StartPosition: count(0), Webhook: &domain.Webhook{URL: address}}
}

// verifies reports whether a request has the signature of the keys, computed from the specification
// Standard Webhooks and the text forms of the keys alone.
func verifies(e received, secret, public string) (v1, v1a bool) {
	message := []byte(e.header.Get("webhook-id") + "." + e.header.Get("webhook-timestamp") + "." + string(e.body))
	shared, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(public, "whpk_"))
	for _, one := range strings.Fields(e.header.Get("webhook-signature")) {
		version, text, _ := strings.Cut(one, ",")
		signature, _ := base64.StdEncoding.DecodeString(text)
		mac := hmac.New(sha256.New, shared)
		mac.Write(message)
		v1 = v1 || version == "v1" && hmac.Equal(mac.Sum(nil), signature)
		v1a = v1a || version == "v1a" && ed25519.Verify(key, message, signature)
	}
	return v1, v1a
}

// TestWebhookReceivesSelectedEvents checks the filter, the body, which is the visible event, and
// the headers and signatures of Standard Webhooks.
func TestWebhookReceivesSelectedEvents(t *testing.T) {
	b, v := newHarness(t), newReceiver(t, nil)
	b.do(domain.Intend(domain.Secrets, secretName, domain.CreateSecret{KeyName: "K"}))
	b.record("a", 0)
	spec := toWebhook(v.URL)
	spec.EventTypes = []string{"dataset.*", "secret.*"}
	spec.Resources = []string{"accounts/acme/datasets/a*", string(secretName)}
	b.subscribe(spec)
	b.start()
	b.record("b", 0)
	last := b.record("a", 1)
	b.requireComplete(v, 0)
	all := v.events()
	require.Len(t, all, 2, "neither the secret, which readers do not see, nor the dataset b")
	for _, e := range all {
		require.Equal(t, e.ID, e.header.Get("webhook-id"))
		require.Equal(t, "application/cloudevents+json; charset=utf-8", e.header.Get("content-type"))
		v1, v1a := verifies(e, b.keys.Shared(), b.keys.PublicKey())
		require.True(t, v1)
		require.True(t, v1a)
		other := received{header: e.header, body: append([]byte(" "), e.body...)}
		v1, v1a = verifies(other, b.keys.Shared(), b.keys.PublicKey())
		require.False(t, v1 || v1a, "another body")
	}
	e, err := b.log.At(t.Context(), last)
	require.NoError(t, err)
	want := testutil.Marshal(t, eventlog.Structured(e))
	require.Equal(t, string(want), string(all[1].body))
}

// TestWebhookStarts checks where a subscription begins.
func TestWebhookStarts(t *testing.T) {
	for name, start := range map[string]func(b *harness, spec *domain.SubscriptionSpec) (after uint64){
		"after its creation": func(_ *harness, spec *domain.SubscriptionSpec) uint64 {
			spec.StartPosition = nil
			return 4
		},
		"after a position": func(_ *harness, spec *domain.SubscriptionSpec) uint64 {
			spec.StartPosition = count(2)
			return 2
		},
		"at a time": func(b *harness, spec *domain.SubscriptionSpec) uint64 {
			e, err := b.log.At(b.Context(), 2)
			require.NoError(b, err)
			spec.StartPosition, spec.StartTime = nil, &e.Time
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, v := newHarness(t), newReceiver(t, nil)
			for n := range 3 {
				b.record("a", n)
			}
			spec := toWebhook(v.URL)
			after := start(b, &spec)
			b.subscribe(spec)
			b.start()
			b.record("a", 3)
			b.requireComplete(v, after)
		})
	}
}

// TestWebhookRetriesInOrder checks that an event that fails delays the later events of its resource
// only, and that everything arrives.
func TestWebhookRetriesInOrder(t *testing.T) {
	var failures atomic.Int32
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, e received) bool {
		if strings.HasSuffix(e.Subject, "/bad") && failures.Load() < 5 {
			failures.Add(1)
			w.WriteHeader([]int{500, 503, 404, 429, 302}[failures.Load()-1])
			return true
		}
		return false
	})
	b := newHarness(t)
	b.policy.FirstBackoff = 20 * time.Millisecond
	b.subscribe(toWebhook(v.URL))
	b.record("bad", 0)
	b.record("good", 0)
	b.start()
	for n := range 30 {
		b.record("bad", n+1)
		b.record("good", n+1)
	}
	b.requireComplete(v, 0)
	b.idle()
	first := v.first()
	require.NotContains(t, first[0].Subject+first[1].Subject, "/bad", "the others do not wait")
	require.EqualValues(t, 5, failures.Load())
	require.Equal(t, "the webhook responds with the redirect status 302: redirects are not followed, so set the "+
		"final URL", b.delivery().LastError)
}

// TestWebhookGone checks that status 410 disables a subscription, which continues without a gap
// when it is resumed.
func TestWebhookGone(t *testing.T) {
	var gone atomic.Bool
	gone.Store(true)
	var requests atomic.Int32
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ received) bool {
		requests.Add(1)
		if gone.Load() {
			w.WriteHeader(http.StatusGone)
		}
		return gone.Load()
	})
	b := newHarness(t)
	b.subscribe(toWebhook(v.URL))
	b.record("a", 0)
	b.start()
	b.eventually(func() bool { return b.subscription().State == domain.SubscriptionDisabledState })
	require.Contains(t, b.subscription().Status.Message, "410")
	before := requests.Load()
	b.record("a", 1)
	gone.Store(false)
	require.Equal(t, before, requests.Load())
	b.on(domain.ResumeSubscription{})
	b.requireComplete(v, 0)
}

// TestWebhookPauses checks that nothing is sent while a subscription is paused, and nothing is
// lost.
func TestWebhookPauses(t *testing.T) {
	b, v := newHarness(t), newReceiver(t, nil)
	b.subscribe(toWebhook(v.URL))
	b.record("a", 0)
	b.start()
	b.idle()
	b.on(domain.PauseSubscription{})
	for n := range 10 {
		b.record("a", n+1)
	}
	b.on(domain.ResumeSubscription{})
	b.requireComplete(v, 0)
}

// TestHostileReceivers checks receivers that break the protocol: each attempt ends within its time,
// is a failure unless its status is 2xx, and follows no redirect.
func TestHostileReceivers(t *testing.T) {
	inner := newReceiver(t, nil)
	release := make(chan struct{})
	for name, hostile := range map[string]struct {
		respond func(w http.ResponseWriter, r *http.Request)
		wrong   string // part of the expected error
	}{
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inner.URL, http.StatusTemporaryRedirect)
		}, "redirect status 307: redirects are not followed"},
		"never responds": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}, "does not respond"},
		"closes the connection": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}, "cannot be reached"},
		"speaks another protocol": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("SSH-2.0-content\r\n"))
				_ = conn.Close()
			}
		}, "cannot be reached"},
		"sends a damaged header": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\ncontent of a private page\r\n\r\n"))
				_ = conn.Close()
			}
		}, "cannot be reached"},
		"sends an endless error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, "status 500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newReceiver(t, func(w http.ResponseWriter, r *http.Request, _ received) bool {
				hostile.respond(w, r)
				return true
			})
			b := newHarness(t)
			b.client = outbound.KeepAliveClient(true, 200*time.Millisecond)
			b.subscribe(toWebhook(v.URL))
			b.start()
			b.eventually(func() bool { return b.delivery().LastError != "" })
			require.Contains(t, b.delivery().LastError, hostile.wrong)
			require.NotContains(t, b.delivery().LastError, "content", "users see nothing of the response but its status")
			require.Empty(t, inner.events())
		})
	}
	t.Cleanup(func() { close(release) })
}

// TestUnreachableWebhooks checks the errors of webhooks that cannot be reached: they have no
// address that this server uses, such as that of its name server.
func TestUnreachableWebhooks(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	closed := newReceiver(t, nil)
	closed.Close()
	for address, want := range map[string]string{
		secure.URL:              "its certificate cannot be verified",
		closed.URL:              "connection refused",
		"http://anneal.invalid": "its host name cannot be resolved",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, http.NoBody)
		require.NoError(t, err)
		_, err = outbound.KeepAliveClient(true, 10*time.Second).Do(request)
		require.Error(t, err)
		err = explain(err)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "127.0.0.1")
		require.NotContains(t, err.Error(), ":53")
	}
}

// TestPrivateAddress checks that nothing is sent to an address that is not public.
func TestPrivateAddress(t *testing.T) {
	var requests atomic.Int32
	v := newReceiver(t, func(http.ResponseWriter, *http.Request, received) bool {
		requests.Add(1)
		return false
	})
	b := newHarness(t)
	b.client = outbound.KeepAliveClient(false, time.Second)
	b.subscribe(toWebhook(v.URL))
	b.start()
	b.eventually(func() bool { return strings.Contains(b.delivery().LastError, "not public") })
	require.Zero(t, requests.Load())
}

// TestDeadLetters checks that an event that cannot be delivered in time is kept, does not block its
// resource any longer, and can be delivered again; and that too many dead letters disable the
// subscription without losing one.
func TestDeadLetters(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, e received) bool {
		bad := broken.Load() && strings.HasSuffix(e.Subject, "/bad")
		if bad {
			w.WriteHeader(http.StatusBadRequest)
		}
		return bad
	})
	b := newHarness(t)
	b.policy.GiveUp, b.policy.DeadLetters = 5*time.Millisecond, 3
	b.subscribe(toWebhook(v.URL))
	b.start()
	for n := range 3 {
		b.record("bad", n)
	}
	b.eventually(func() bool { return len(b.delivery().DeadLetters) == 3 })
	require.Equal(t, "dataset.created.v1", b.delivery().DeadLetters[0].Type)
	require.Greater(t, b.delivery().DeadLetters[0].Attempts, 1)
	b.record("good", 0)
	b.eventually(func() bool { return len(v.first()) == 2 }) // together with the event that creates the subscription
	b.record("bad", 3)
	b.eventually(func() bool { return b.subscription().State == domain.SubscriptionDisabledState })
	require.Len(t, b.delivery().DeadLetters, 3)

	broken.Store(false)
	b.on(domain.RequestRedelivery{DeadLetters: true})
	b.on(domain.ResumeSubscription{})
	b.eventually(func() bool { return !b.subscription().Redelivers })
	b.requireComplete(v, 0)
	b.idle()
	require.Empty(t, b.delivery().DeadLetters)
}

// TestRotation checks that requests have the signatures of both secrets during the overlap, and of
// the new one only afterwards.
func TestRotation(t *testing.T) {
	b, v := newHarness(t), newReceiver(t, nil)
	b.subscribe(toWebhook(v.URL))
	b.start()
	n := 0
	// signed records events until the newest one that is delivered has, or lacks, the signatures of
	// keys.
	signed := func(with, without domain.SigningKeys) {
		t.Helper()
		b.eventually(func() bool {
			b.record("a", n)
			n++
			b.idle()
			all := v.events()
			v1, v1a := verifies(all[len(all)-1], with.Shared(), with.PublicKey())
			old, oldA := verifies(all[len(all)-1], without.Shared(), without.PublicKey())
			return v1 && v1a && !old && !oldA
		})
	}
	first, second, third := b.keys, keysOf("second"), keysOf("third")
	signed(first, second)
	b.on(domain.RotateSigningSecret{Signing: *b.seal(second), Overlap: time.Hour})
	signed(second, third)
	signed(first, third)
	b.on(domain.RotateSigningSecret{Signing: *b.seal(third)})
	signed(third, second)
}

// TestTwoRunners checks that nothing is lost when two runners deliver the events of a subscription
// concurrently, and each stores its state over that of the other.
func TestTwoRunners(t *testing.T) {
	var n atomic.Int32
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ received) bool {
		fails := n.Add(1)%3 == 0
		if fails {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return fails
	})
	b := newHarness(t)
	b.subscribe(toWebhook(v.URL))
	stops := []func(){b.start(), b.start()}
	for n := range 200 {
		b.record(fmt.Sprint("d", n%5), n/5)
		if n%20 == 10 {
			stops[n/20%2]()
			stops[n/20%2] = b.start()
		}
	}
	want := b.selected(0)
	b.eventually(func() bool { return len(v.first()) == len(want) })
}

// TestRestarts stops the runner again and again during deliveries.
func TestRestarts(t *testing.T) {
	b, v := newHarness(t), newReceiver(t, nil)
	b.subscribe(toWebhook(v.URL))
	for n := range 150 {
		b.record(fmt.Sprint("d", n%3), n/3)
	}
	for round := range 20 {
		stop := b.start()
		b.eventually(func() bool { return len(v.events()) > round*5 })
		stop()
	}
	b.start()
	b.requireComplete(v, 0)
}

// TestFaultsAtEveryEffect injects a fault at each effect of deliveries: stored states, events of
// redeliveries and of disabled subscriptions. After a restart, everything is delivered.
func TestFaultsAtEveryEffect(t *testing.T) {
	faults.AtEveryEffect(t, 4, deliverWithFault)
}

func deliverWithFault(t *testing.T, plan *faults.Plan, at int) {
	b := newHarness(t)
	var requests atomic.Int32
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ received) bool {
		gone := requests.Add(1) == 2 && b.plan.Load() != nil
		if gone {
			w.WriteHeader(http.StatusGone)
		}
		return gone
	})
	b.subscribe(toWebhook(v.URL))
	b.record("a", 0)
	b.record("a", 1)
	b.on(domain.RequestRedelivery{Position: 1})
	b.plan.Store(plan)
	stop := b.start()
	if at == 0 {
		b.eventually(func() bool { return b.subscription().State == domain.SubscriptionDisabledState })
	} else {
		b.eventually(func() bool { return len(plan.Steps()) >= at })
	}
	stop()
	b.plan.Store(nil)
	last, err := b.log.Last(t.Context())
	require.NoError(t, err)
	require.NoError(t, b.world.WaitFor(t.Context(), last.Position)) // the crash may have disabled the subscription
	b.on(domain.ResumeSubscription{})
	b.start()
	b.requireComplete(v, 0)
	b.eventually(func() bool { return !b.subscription().Redelivers })
}
