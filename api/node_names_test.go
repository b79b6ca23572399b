package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/events"
	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/audit"
)

// nodeOfTests matches the names of the nodes that almost all tests use, as responses would show them.
var nodeOfTests = regexp.MustCompile(`nodes?[ /](?:n[1-9]|gpu-0[1-9])\b`)

// requireNoNode fails the test if a response that is not the operator's names a node. It leaves out
// responses to requests that name a node, and documents without an API key, which have examples.
func (s *harness) requireNoNode(r *http.Request, a response) {
	s.Helper()
	if key, ok := s.keys["operator"]; ok && strings.HasSuffix(r.Header.Get("Authorization"), key) ||
		strings.Contains(r.URL.Path, "nodes/") || slices.Contains([]string{"/openapi.json", "/docs"}, r.URL.Path) {
		return
	}
	require.Empty(s, nodeOfTests.FindString(string(a.body)), "%s %s", r.Method, r.URL)
	require.NotRegexp(s, `^(n[1-9]|gpu-0[1-9])$`, a.header.Get("anneal-backend-host"))
}

// secretNode is the name of the node in the tests of this file.
const secretNode = domain.Name("accounts/system/nodes/node-secret-7")

// doAs executes an intent with an actor.
func (s *harness) doAs(actor string, intent domain.Intent) eventlog.Change {
	s.Helper()
	change, err := eventlog.Do(s.Context(), s.log, s.world, eventlog.Request{Time: s.clock.tick(), Actor: actor}, intent)
	require.NoError(s, err)
	require.NoError(s, s.world.WaitFor(s.Context(), change.Position()))
	return change
}

// tellOfNode records events of account acme with the name of secretNode in all places in which this
// and earlier versions record it. It returns the position of an event of an earlier version whose
// actor is the node, and that of an event with the name in its data.
func (s *harness) tellOfNode() (actor, data uint64) {
	s.Helper()
	nodes := []domain.Name{secretNode}
	s.do(domain.Intend(domain.Nodes, secretNode, domain.RegisterNode{NodeSpec: domain.NodeSpec{
		Engines: []string{"train", "complete"}, Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}))
	s.call("POST", acme+"/secrets", "admin", `{"name": "accounts/acme/secrets/key", "value": "v"}`)
	s.audit.Record(audit.Record{Time: time.Now(), Kind: audit.SecretRead, Account: "acme", Actor: string(secretNode),
		Node: secretNode.ID(), Secret: "accounts/acme/secrets/key"})
	job := s.queueIn("acme", "j")
	start := func(attempt int) {
		s.do(domain.IntendJob(job, domain.StartJob{Attempt: attempt, Nodes: nodes}))
	}
	for i, reason := range []string{"node " + string(secretNode) + " was lost", "node " + secretNode.ID() + " was lost",
		"the agent on node " + secretNode.ID() + " was restarted"} {
		start(i + 1)
		s.doAs(string(secretNode), domain.IntendJob(job, domain.RequeueJob{Attempt: i + 1, Reason: reason, Preempted: true}))
		s.seeNothing("GET", "/v1/"+string(job))
		s.do(domain.IntendJob(job, domain.QueueJob{}))
	}
	start(4)
	failed := domain.StatusOf(domain.Errorf(domain.Unavailable, "node %s did not start the attempt: full", secretNode))
	s.doAs("agent", domain.IntendJob(job, domain.FailJob{Attempt: 4, Status: failed}))
	deployment := s.deploy("d1", 0)
	place := func(id, replaces, reason string) uint64 {
		return s.doAs("scheduler/replicas", domain.Intend(domain.Deployments, deployment, domain.Command[domain.Deployment](
			domain.PlaceReplica{ID: id, Node: secretNode, Generation: 1, Replaces: replaces, Reason: reason}))).Position()
	}
	s.deployment(deployment, domain.ScaleDeployment{Replicas: 1})
	data = place("r1", "", "")
	actor = s.doAs(string(secretNode), domain.Intend(domain.Deployments, deployment, domain.Command[domain.Deployment](
		domain.AdvanceReplica{ID: "r1", State: domain.ReplicaReady, Node: secretNode}))).Position()
	place("r2", "r1", "replica r1 shares node "+string(secretNode)+" with another replica of the deployment, and node "+
		string(secretNode)+" has none")
	s.deployment(deployment, domain.RemoveReplica{ID: "r1", Reason: "moved to node " + string(secretNode)})
	s.deployment(deployment, domain.AdvanceReplica{ID: "r2", State: domain.ReplicaInitializing, Node: secretNode})
	s.deployment(deployment, domain.RemoveReplica{ID: "r2", Failed: true,
		Reason: "the agent on node " + string(secretNode) + " was restarted"})
	s.seeNothing("GET", "/v1/"+string(deployment))
	place("r3", "", "")
	s.deployment(deployment, domain.AdvanceReplica{ID: "r3", State: domain.ReplicaReady, Node: secretNode})
	return actor, data
}

// seeNothing sends a request of a tenant, and checks that the response does not name secretNode.
func (s *harness) seeNothing(method, path string) response {
	s.Helper()
	a := s.call(method, path, "admin", "")
	s.requireHidden(path, a)
	return a
}

func (s *harness) requireHidden(path string, a response) {
	s.Helper()
	require.NotContains(s, string(a.body), secretNode.ID(), path)
	require.NotContains(s, fmt.Sprint(a.header), secretNode.ID(), path)
}

// TestNodeNamesAreTheOperators checks that no response to a tenant contains the name of a node: those
// of all operations that read, for all resources of the account, and events in each form in which they
// are listed, streamed, filtered, proven and delivered. The operator sees the names.
func TestNodeNamesAreTheOperators(t *testing.T) {
	s := newHarness(t, request.Limits{})
	actor, data := s.tellOfNode()
	s.readEverything()

	const all = acme + "/events"
	for _, query := range []string{"", "?orderBy=position%20desc", "?orderBy=type", "?filter=" +
		url.QueryEscape(`actor != ""`), "?filter=" + url.QueryEscape(`subject = "accounts/acme/deployments/d1"`),
		"?readMask=data,actor"} {
		require.Contains(t, string(s.seeNothing("GET", all+query).body), "accounts/system/nodes/node-", query)
		require.Contains(t, string(s.call("GET", all+query, "operator", "").body), secretNode.ID(), query)
	}
	for filter, visible := range map[string]int{`actor = "accounts/system/nodes/node-s*"`: 0,
		`actor = "` + string(secretNode) + `"`: 0, `actor = "accounts/system/nodes/node-*"`: 4} {
		a := s.call("GET", all+"?filter="+url.QueryEscape(filter), "admin", "").json(t)
		require.EqualValues(t, visible, a["totalSize"], "a filter must not find out the name: %s", filter)
	}
	stream, _ := s.listen(all, "admin", "Last-Event-ID", "0")
	for position := uint64(0); position < data; {
		event := stream.next()
		text, err := json.Marshal(event)
		require.NoError(t, err)
		require.NotContains(t, string(text), secretNode.ID())
		_, err = fmt.Sscan(event["position"].(string), &position)
		require.NoError(t, err)
	}

	prove := func(position uint64, alias string) response {
		return s.call("GET", fmt.Sprintf("%s/%d:prove", all, position), alias, "")
	}
	require.NotContains(t, prove(data, "admin").json(t)["event"], "payload", "the proof has a commitment")
	require.Contains(t, prove(data, "operator").json(t)["event"], "payload")
	require.Equal(t, http.StatusBadRequest, prove(actor, "admin").status)
	require.Contains(t, string(prove(actor, "admin").body), "EVENT_NAMES_NODE")
	require.Equal(t, http.StatusOK, prove(actor, "operator").status)

	deliver := events.ForReaders(domain.NodeMask{Key: pepper})
	for e, err := range s.log.Read(t.Context(), "events.acme.>", 0) {
		require.NoError(t, err)
		if shown, visible := deliver(e); visible {
			text, err := json.Marshal(eventlog.Structured(shown))
			require.NoError(t, err)
			require.NotContains(t, string(text), secretNode.ID(), "a subscription delivers it")
		}
		if e.Position == s.last().Position {
			break
		}
	}
	require.Contains(t, fmt.Sprint(s.records(allRecords, "operator", "")), secretNode.ID())
}

// TestNodeNamesInResponsesOfModels checks that a tenant sees the label of a node where the operator
// sees its name, and no name in errors.
func TestNodeNamesInResponsesOfModels(t *testing.T) {
	s := newHarness(t, request.Limits{Wake: 20 * time.Millisecond})
	s.tellOfNode()
	const body = `{"model": "accounts/acme/deployments/d1", "prompt": "one", "perf_metrics_in_response": true}`
	a := s.call("POST", "/inference/v1/completions", "user", body)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	s.requireHidden("completions", a)
	label := domain.NodeMask{Key: pepper}.Label(secretNode.ID())
	require.Equal(t, label, a.header.Get("anneal-backend-host"))
	require.Equal(t, label, a.json(t)["perf_metrics"].(map[string]any)["backend-host"])
	require.Equal(t, secretNode.ID(), s.call("POST", "/inference/v1/completions", "operator", body).header.
		Get("anneal-backend-host"))
	s.deployment("accounts/acme/deployments/d1", domain.RemoveReplica{ID: "r3", Failed: true,
		Reason: "the agent on node " + string(secretNode) + " was restarted"})
	a = s.call("POST", "/inference/v1/completions", "user", body)
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Contains(t, string(a.body), "the agent on a node was restarted")
	s.requireHidden("completions", a)
}

// readEverything sends, as a tenant, the requests of all operations with the method GET for all
// resources of account acme.
func (s *harness) readEverything() {
	s.Helper()
	var paths []string
	last := fmt.Sprint(s.last().Position)
	ids := map[string][]string{}
	for _, e := range s.eventsOf("events.acme.>") {
		ids[e.Name.Collection()] = append(ids[e.Name.Collection()], e.Name.ID())
	}
	in := regexp.MustCompile(`\{[a-zA-Z]+\}`)
	operations := (&Server{}).operations()
	for i := range operations {
		op := &operations[i]
		if op.Method != http.MethodGet {
			continue
		}
		path := strings.ReplaceAll(op.Path, "{account}", "acme")
		collection := regexp.MustCompile(`/accounts/acme/([A-Za-z]+)/\{`).FindStringSubmatch(path)
		if collection == nil || len(ids[collection[1]]) == 0 {
			paths = append(paths, in.ReplaceAllString(path, last))
			continue
		}
		for _, id := range ids[collection[1]] {
			paths = append(paths, in.ReplaceAllString(path, id))
		}
	}
	found := 0
	for _, path := range paths {
		if a := s.seeNothing("GET", path); a.status == http.StatusOK {
			found++
		}
	}
	require.Greater(s, found, 30, "of %d", len(paths))
}

func (s *harness) eventsOf(subject string) (all []eventlog.Event) {
	s.Helper()
	last := s.last().Position
	for e, err := range s.log.Read(s.Context(), subject, 0) {
		require.NoError(s, err)
		if all = append(all, e); e.Position >= last {
			break
		}
	}
	return all
}
