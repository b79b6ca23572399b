package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/live"
)

const testCandidate domain.Name = "accounts/acme/deployments/d2"

// An answer is how a deployment answers a request. It emits its tokens.
type answer func(ctx context.Context, emit func(engines.Chunk) error) error

// A releaseTestbed is a Router with a deployment of one replica, and a release of it to a
// candidate.
type releaseTestbed struct {
	Replicas
	testing.TB
	core              *request.Core
	router            *Router
	stable, candidate answer
}

func newReleaseTestbed(t testing.TB, mode string) *releaseTestbed {
	world, position := projections.NewWorld(), uint64(0)
	g := &releaseTestbed{TB: t, core: request.NewCore(&request.Core{World: world, Logger: slog.New(slog.DiscardHandler),
		Now: time.Now, Limits: request.DefaultLimits, Busy: request.NewCounters(), Closing: t.Context()})}
	g.router = NewRouter(g, nil, prometheus.NewRegistry(), []byte("secret"))
	for _, name := range []domain.Name{deployment, testCandidate} {
		do := func(command domain.Command[domain.Deployment]) {
			position++
			intent := domain.Intend(domain.Deployments, name, command)
			state, _ := world.Row(name)
			record, err := intent.Decide(state, time.Now())
			require.NoError(t, err)
			require.NoError(t, world.Apply(eventlog.Event{Record: record, Position: position, ID: "x", Name: name,
				Time: time.Now()}))
		}
		one, node := 1, domain.NewName(domain.System, domain.Nodes.Collection, "of-"+name.ID())
		do(domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/acme/models/m",
			MinReplicaCount: 1, MaxReplicaCount: &one}, Operator: true})
		do(domain.PlaceReplica{ID: "r1", Node: node, Generation: 1})
		do(domain.AdvanceReplica{ID: "r1", State: domain.ReplicaReady, Node: node})
		do(domain.MarkDeploymentReady{Generation: 1})
		if name == deployment {
			do(domain.StartRelease{ReleaseSpec: domain.ReleaseSpec{Candidate: string(testCandidate), Mode: mode,
				Steps: []int{50}, MaxStepDuration: "2592000s"}})
		}
	}
	return g
}

// Complete implements Replicas.
func (g *releaseTestbed) Complete(ctx context.Context, name domain.Name, _ domain.Replica, _ engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	if name == testCandidate {
		return engines.Usage{CompletionTokens: 2}, g.candidate(ctx, emit)
	}
	return engines.Usage{CompletionTokens: 2}, g.stable(ctx, emit)
}

// generate sends a request whose client leaves after patience; 0 stands for never. selected states
// whether the release selects the request for the candidate. It returns the deployment that
// answered.
func (g *releaseTestbed) generate(selected bool, patience time.Duration, edit ...func(*Output)) (domain.Name, error) {
	g.Helper()
	ctx := g.Context()
	if patience > 0 {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ctx = limited
	}
	row, _ := g.core.World.View().Deployments.Get(deployment)
	c := &request.Call{Core: g.core, Request: httptest.NewRequest(http.MethodPost, "/v1/completions", nil), Ctx: ctx,
		Writer: httptest.NewRecorder(), Time: time.Now(), Principal: request.Principal{Account: "acme"}}
	s := &splitRequest{call: c, split: row.State.Release, step: stepOf(row)}
	for i := 0; c.ID == "" || s.selected() != selected; i++ {
		c.ID = fmt.Sprint("request-", i)
	}
	out := Output{Emit: func(engines.Chunk) error { return nil }, Restart: func() {}}
	for _, one := range edit {
		one(&out)
	}
	_, at, err := g.router.Generate(ctx, c, Target{Row: row, Choose: addonOfDeployment}, "",
		engines.CompletionRequest{Prompt: "a", MaxTokens: 2}, out)
	return at.Deployment, err
}

// requireSamples requires what the gateway has counted so far.
func (g *releaseTestbed) requireSamples(stable, candidate domain.ArmSamples) {
	g.Helper()
	g.router.releases.mu.Lock()
	defer g.router.releases.mu.Unlock()
	row, _ := g.core.World.View().Deployments.Get(deployment)
	want, err := json.Marshal(domain.ReleaseSamples{Stable: stable, Candidate: candidate})
	require.NoError(g, err)
	found, err := json.Marshal(g.router.releases.samplesOf(stepOf(row)).samples)
	require.NoError(g, err)
	assert.JSONEq(g, string(want), string(found))
}

// answers emits two tokens, after the given times.
func answers(first, second time.Duration) answer {
	return func(ctx context.Context, emit func(engines.Chunk) error) error {
		for i, d := range []time.Duration{first, second} {
			if err := pause(ctx, d); err != nil {
				return err
			}
			if err := emit(engines.Chunk{Text: "a", Tokens: []int{i}}); err != nil {
				return err
			}
		}
		return nil
	}
}

func fails(err error) answer {
	return func(context.Context, func(engines.Chunk) error) error { return err }
}

// sampleOf returns the sample of one request; a time of 0 is missing.
func sampleOf(first, perToken time.Duration) domain.ArmSamples {
	one := domain.ArmSamples{Requests: 1}
	if first > 0 {
		one.FirstToken.Add(first)
	}
	if perToken > 0 {
		one.PerToken.Add(perToken)
	}
	return one
}

// TestWhatAttemptsCount checks for each way in which an attempt on the candidate or on the stable
// deployment ends what the release counts, and how long the client waits.
func TestWhatAttemptsCount(t *testing.T) {
	const s = time.Second
	hangs, good := answers(time.Hour, 0), answers(s, s)
	invalid := fails(domain.Errorf(domain.InvalidArgument, "no such field"))
	internal := fails(domain.Errorf(domain.Internal, "the engine failed"))
	lost := fails(&domain.Error{Code: domain.Unavailable, Reason: engines.ReplicaUnreachable, Message: "gone"})
	none, failed, one := domain.ArmSamples{}, domain.ArmSamples{Requests: 1, Errors: 1}, sampleOf(s, s)
	for _, test := range []struct {
		name              string
		mode              string
		stable, candidate answer
		unselected        bool
		patience          time.Duration // of the client
		takes             time.Duration // for the client
		ofStable          domain.ArmSamples
		ofCandidate       domain.ArmSamples
	}{
		{"both answer", "SHADOW", good, good, false, 0, 2 * s, one, one},
		{"only the candidate rejects it", "SHADOW", good, invalid, false, 0, 2 * s, one, failed},
		{"both reject it", "SHADOW", invalid, invalid, false, 0, 0, none, none},
		{"both fail", "SHADOW", internal, internal, false, 0, 0, failed, failed},
		{"the candidate fails", "SHADOW", good, internal, false, 0, 2 * s, one, failed},
		{"the candidate hangs", "SHADOW", good, hangs, false, 0, 2 * s, one, failed},
		{"the candidate takes 3 minutes", "SHADOW", good, answers(s, 179*s), false, 0, 2 * s, one, sampleOf(s, 119*s)},
		{"the client leaves both", "SHADOW", hangs, hangs, false, 5 * s, 5 * s, sampleOf(5*s, 0), sampleOf(5*s, 0)},
		{"the client leaves a good candidate", "SHADOW", hangs, good, false, 5 * s, 5 * s, sampleOf(5*s, 0), one},
		{"the client leaves a bad candidate", "SHADOW", hangs, invalid, false, 5 * s, 5 * s, sampleOf(5*s, 0), none},

		{"the candidate answers", "CANARY", good, good, false, 0, 2 * s, none, one},
		{"the stable deployment answers", "CANARY", good, good, true, 0, 2 * s, one, none},
		{"only the candidate rejects it", "CANARY", good, invalid, false, 0, 2 * s, none, failed},
		{"both reject it", "CANARY", invalid, invalid, false, 0, 0, none, none},
		{"the candidate hangs", "CANARY", good, hangs, false, 0, 32 * s, none, failed},
		{"the client leaves", "CANARY", good, hangs, false, 5 * s, 5 * s, none, sampleOf(5*s, 0)},
		{"the client leaves later", "CANARY", good, hangs, false, 31 * s, 31 * s, none, failed},
		{"the client leaves after a token", "CANARY", good, answers(s, time.Hour), false, 5 * s, 5 * s, none,
			sampleOf(s, 4*s)},
		{"the client leaves the stable deployment", "CANARY", hangs, good, true, 5 * s, 5 * s, sampleOf(5*s, 0), none},
		{"the client leaves it after a token", "CANARY", answers(s, time.Hour), good, true, 5 * s, 5 * s,
			sampleOf(s, 4*s), none},
		{"the stable deployment rejects it", "CANARY", invalid, good, true, 0, 0, none, none},
		{"the node of the candidate dies", "CANARY", good, lost, false, 0, 2 * s, none, failed},
	} {
		t.Run(test.mode+" "+test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newReleaseTestbed(t, test.mode)
				g.stable, g.candidate = test.stable, test.candidate
				begin := time.Now()
				_, _ = g.generate(!test.unselected, test.patience)
				assert.Equal(t, test.takes, time.Since(begin))
				time.Sleep(5 * time.Minute) // until the mirrored request has ended
				g.requireSamples(test.ofStable, test.ofCandidate)
				require.Zero(t, g.core.Busy.Of("copies of "+string(deployment)))
			})
		})
	}
}

// TestRequestsDoNotWaitForTheCandidate checks that requests do not wait for a candidate whose node
// cannot be reached, or whose replicas are busy, that the stable deployment answers them, and that
// they are no samples.
func TestRequestsDoNotWaitForTheCandidate(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*releaseTestbed)
		takes   time.Duration
	}{
		"its node is unreachable": {func(g *releaseTestbed) {
			row, _ := g.core.World.View().Deployments.Get(testCandidate)
			g.core.World.Live().MarkNode(row.State.Replicas["r1"].Node, time.Now())
		}, time.Second},
		"its replica is busy": {func(g *releaseTestbed) {
			g.core.World.Live().Load(testCandidate, "r1", live.ReplicaLoad{Ready: true, Slots: 1, Time: time.Now()})
			c := &request.Call{Core: g.core, Writer: httptest.NewRecorder(), Principal: request.Principal{Account: "acme"}}
			go func() {
				_, _ = g.router.Send(g.Context(), c, Request{Deployment: testCandidate,
					Send: func(ctx context.Context, _ *Attempt) (bool, error) { return true, pause(ctx, time.Hour) }})
			}()
			synctest.Wait()
		}, 3 * time.Second},
	} {
		for _, mode := range []string{domain.ReleaseCanary, domain.ReleaseShadow} {
			t.Run(mode+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newReleaseTestbed(t, mode)
					g.stable, g.candidate = answers(time.Second, 0), fails(domain.Errorf(domain.Internal, "must get no request"))
					test.prepare(g)
					begin, takes, counted := time.Now(), test.takes, domain.ArmSamples{}
					if mode == domain.ReleaseShadow {
						takes, counted = time.Second, sampleOf(time.Second, time.Nanosecond)
					}
					by, err := g.generate(true, 0)
					require.NoError(t, err)
					require.Equal(t, deployment, by)
					require.Equal(t, takes, time.Since(begin))
					time.Sleep(2 * time.Hour)
					g.requireSamples(counted, domain.ArmSamples{})
				})
			})
		}
	}
}

// TestUnsplitRequests checks that the stable deployment generates an unsplit continuation, which is
// no sample.
func TestUnsplitRequests(t *testing.T) {
	for _, mode := range []string{domain.ReleaseCanary, domain.ReleaseShadow} {
		synctest.Test(t, func(t *testing.T) {
			g := newReleaseTestbed(t, mode)
			g.stable, g.candidate = answers(0, 0), fails(domain.Errorf(domain.Internal, "must get no request"))
			_, err := g.generate(true, 0, func(out *Output) { out.Unsplit = true })
			require.NoError(t, err)
			g.requireSamples(domain.ArmSamples{}, domain.ArmSamples{})
		})
	}
}
