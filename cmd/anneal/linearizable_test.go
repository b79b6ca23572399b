package main_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"anneal/internal/testutil"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A register is a client's knowledge of one resource: whether it exists, and the value of one
// field that clients write. A register that is ending was deleted, and is shown until a scheduler
// has purged it. After the purge no client sees it again.
type register struct {
	exists, ending bool
	value          string
}

// A registerInput is one operation on a register: create, patch, get or delete. A list is a get of
// every register that it can show.
type registerInput struct {
	name, op, value string
	atOnce          bool // a delete removes the resource immediately, without a later purge
}

// A registerOutput is the response to an operation. Status 0 means that no response arrived: the
// operation may have been executed, may be executed later, or never.
type registerOutput struct {
	status int
	value  string
}

// apply returns the state of the register after an operation, and whether the response out is
// possible.
func (s register) apply(in registerInput, out registerOutput) (next register, possible bool) {
	lost := out.status == 0
	if s.ending && (out.status == http.StatusNotFound || in.op == "create" && (lost || out.status == http.StatusOK)) {
		s = register{} // the resource was purged before
	}
	if lost { // the request may have been executed; if not, it counts as executed after all others
		if in.op == "create" == s.exists || in.op == "patch" && s.ending {
			return s, true
		}
		out = registerOutput{http.StatusOK, in.value}
	}
	ok := out.status == http.StatusOK
	switch {
	case out.status == http.StatusBadRequest:
		return s, s.ending
	case s.exists && in.op == "create":
		return s, out.status == http.StatusConflict
	case !s.exists && in.op == "create":
		return register{exists: true, value: in.value}, ok && out.value == in.value
	case !s.exists:
		return s, out.status == http.StatusNotFound
	case in.op == "delete":
		return register{exists: !in.atOnce, ending: !in.atOnce, value: s.value}, ok
	case in.op == "patch" && s.ending:
		return s, false
	case in.op == "patch":
		return register{exists: true, value: in.value}, ok && out.value == in.value
	}
	return s, ok && out.value == s.value
}

// registers is the sequential specification: the model for porcupine.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byName := map[string][]porcupine.Operation{}
		for _, op := range history {
			name := op.Input.(registerInput).name
			byName[name] = append(byName[name], op)
		}
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		next, possible := state.(register).apply(input.(registerInput), output.(registerOutput))
		return possible, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// A registerKind defines how a collection is used as registers.
type registerKind struct {
	collection, field string
	create            func(id, value string) (path string, body object)
	remove            string // query of a delete request
	purged            bool   // a scheduler purges deleted resources
}

var registerKinds = []registerKind{
	{"datasets", "displayName", func(id, value string) (string, object) {
		return "/datasets", object{"datasetId": id, "dataset": object{"displayName": value}}
	}, "", false},
	{"secrets", "keyName", func(id, value string) (string, object) {
		return "/secrets", object{"name": id, "keyName": value, "value": "v" + value}
	}, "", false},
	{"deployments", "displayName", func(id, value string) (string, object) {
		return "/deployments?deploymentId=" + id,
			object{"baseModel": "accounts/default/models/anneal-base", "displayName": value}
	}, "?hard=true&ignoreChecks=true", true},
}

const registersPerKind = 24

// A workload runs clients against a control plane that restarts, and records their requests and
// responses.
type workload struct {
	t       *testing.T
	begin   time.Time
	pace    <-chan time.Time // a client sends an operation for each value; nil sends without pauses
	noLists bool             // a page does not show all registers
	epoch   atomic.Int64     // each epoch has its own registers
	left    atomic.Int64     // operations that are not yet sent
	written atomic.Int64     // number of values written, each of which is unique
	mu      sync.Mutex
	history []porcupine.Operation
	faults  []string // responses that no client should receive
}

func (h *workload) now() int64 { return int64(time.Since(h.begin)) }

func (h *workload) note(client int, in registerInput, call int64, out registerOutput) {
	end := h.now()
	if out.status == 0 {
		if in.op == "get" {
			return // a get without a response has no information
		}
		end = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history = append(h.history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

// client sends requests until no operation is left.
func (h *workload) client(number int, user caller) {
	rng := rand.New(rand.NewPCG(7, uint64(number)))
	for h.left.Add(-1) >= 0 {
		if h.pace != nil {
			<-h.pace
		}
		kind := registerKinds[rng.IntN(len(registerKinds))]
		if !h.noLists && rng.IntN(40) == 0 {
			h.list(number, user, kind)
			continue
		}
		in := registerInput{op: []string{"create", "patch", "get", "get", "patch", "delete"}[rng.IntN(6)]}
		id := h.register(rng.IntN(registersPerKind))
		in.name, in.atOnce = kind.collection+"/"+id, !kind.purged
		if in.op == "create" || in.op == "patch" {
			in.value = fmt.Sprintf("K%d", h.written.Add(1))
		}
		call := h.now()
		status, answer, err := h.do(user, kind, in, id)
		h.recordResponse(number, kind, in, call, status, answer, err)
	}
}

// register returns the ID of a register of the current epoch.
func (h *workload) register(i int) string { return fmt.Sprintf("r%d-%d", h.epoch.Load(), i) }

func (h *workload) do(user caller, kind registerKind, in registerInput, id string) (int, object, error) {
	path := "/" + in.name
	switch in.op {
	case "create":
		path, body := kind.create(id, in.value)
		return user.do(http.MethodPost, path, body)
	case "patch":
		return user.do(http.MethodPatch, path, object{"name": "accounts/" + user.account + path, kind.field: in.value})
	case "delete":
		return user.do(http.MethodDelete, path+kind.remove, nil)
	}
	return user.do(http.MethodGet, path, nil)
}

func (h *workload) recordResponse(client int, kind registerKind, in registerInput, call int64, status int,
	answer object, err error) {
	out := registerOutput{status: status}
	if value, ok := answer[kind.field].(string); ok {
		out.value = value
	}
	text := fmt.Sprint(answer)
	switch {
	case err != nil && strings.Contains(err.Error(), "connection refused"):
		return // the server is down: it did not receive the request
	case err != nil, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		out = registerOutput{}
	case status == http.StatusConflict && strings.Contains(text, "try again"):
		return // an aborted request has recorded no event, whatever the state of the resource
	case status == http.StatusBadRequest && strings.Contains(text, "is DELETING"):
	case status != http.StatusOK && status != http.StatusConflict && status != http.StatusNotFound:
		h.mu.Lock()
		h.faults = append(h.faults, fmt.Sprintf("%+v: %d %s", in, status, text))
		h.mu.Unlock()
		return
	}
	h.note(client, in, call, out)
}

func (h *workload) list(client int, user caller, kind registerKind) {
	call := h.now()
	status, answer, err := user.do(http.MethodGet, "/"+kind.collection+"?pageSize=200", nil)
	if err != nil || status != http.StatusOK {
		return
	}
	shown := map[string]string{}
	items, _ := answer[kind.collection].([]any)
	for _, item := range items {
		name := item.(object)["name"].(string)
		shown[name[strings.LastIndexByte(name, '/')+1:]] = item.(object)[kind.field].(string)
	}
	for i := range registersPerKind {
		id := h.register(i)
		out := registerOutput{status: http.StatusNotFound}
		if value, ok := shown[id]; ok {
			out = registerOutput{http.StatusOK, value}
		}
		h.note(client, registerInput{name: kind.collection + "/" + id, op: "get"}, call, out)
	}
}

// TestOperationsAreLinearizable has clients create, change, read, list and delete the same few
// resources while the control plane is killed and restarted, and checks that one order of all
// operations explains every response. ANNEAL_OPERATIONS is the number of operations; `make
// linearizable` uses 100,000.
func TestOperationsAreLinearizable(t *testing.T) {
	t.Parallel()
	operations, restarts := int64(testutil.Variable(t, "ANNEAL_OPERATIONS", 3000)), int64(2)
	if operations > 3000 {
		restarts = 5
	}
	address := freePort(t)
	s := serve(t, t.TempDir(), "--listen", address, "--worker=false", "--speech", "none")
	h := &workload{t: t, begin: time.Now()}
	h.left.Store(operations)
	user := s.user()
	user.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}, Timeout: time.Minute}
	var clients sync.WaitGroup
	for number := range 12 {
		clients.Go(func() { h.client(number, user) })
	}
	for n := restarts; n > 0; n-- {
		eventually(t, "the clients continue", func() bool { return h.left.Load() < operations*n/(restarts+1) })
		s.kill()
		s.start()
	}
	clients.Wait()
	require.Empty(t, h.faults)
	require.Zero(t, s.end())

	result, info := porcupine.CheckOperationsVerbose(registers, h.history, 5*time.Minute)
	if !assert.Equal(t, porcupine.Ok, result, "the history of %d operations is not linearizable", len(h.history)) {
		path := filepath.Join(os.TempDir(), "anneal-linearizable.html")
		require.NoError(t, porcupine.VisualizePath(registers, info, path))
		t.Logf("see %s", path)
	}
	t.Logf("%d operations, %d restarts: linearizable", len(h.history), restarts)
}
