package rest

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/projections/query"
)

// worldWithKeys returns a world with accounts and API keys, with and without e-mails.
func worldWithKeys(t *testing.T) *projections.View {
	world, log := projections.NewWorld(), eventlog.NewMemory()
	do := func(intent domain.Intent) {
		change, err := eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Unix(1e9, 0)}, intent)
		require.NoError(t, err)
		require.NoError(t, world.Apply(change.Event))
	}
	for account, email := range map[string]string{"acme": "acme@example.com", "silent": ""} {
		do(domain.Intend(domain.Accounts, domain.NewName(account, "accounts", account), domain.Command[domain.Account](
			domain.CreateAccount{AccountSpec: domain.AccountSpec{Email: email}})))
		for id, email := range map[string]string{"kim": "kim@example.com", "robot": "", "gone": "gone@example.com"} {
			name := domain.NewName(account, "apiKeys", id)
			do(domain.Intend(domain.APIKeys, name, domain.Command[domain.APIKey](domain.CreateAPIKey{
				APIKeySpec: domain.APIKeySpec{Email: email, Role: domain.RoleUser}, Hash: []byte(name)})))
		}
		do(domain.Intend(domain.APIKeys, domain.NewName(account, "apiKeys", "gone"),
			domain.Command[domain.APIKey](domain.DeleteAPIKey{})))
	}
	return world.View()
}

// creators are values of createdBy in events, and what responses show for them.
var creators = []struct{ stored, shown string }{
	{"accounts/acme/apiKeys/kim", "kim@example.com"},
	{"accounts/acme/apiKeys/robot", "acme@example.com"},
	{"accounts/acme/apiKeys/gone", "acme@example.com"},
	{"accounts/silent/apiKeys/kim", "kim@example.com"},
	{"accounts/silent/apiKeys/robot", "accounts/silent/apiKeys/robot"},
	{"accounts/silent/apiKeys/gone", "accounts/silent/apiKeys/gone"},
	{"accounts/system/apiKeys/operator", "accounts/system/apiKeys/operator"},
	{"bootstrap", "bootstrap"},
	{"", ""},
}

// TestCreatedByIsAnEmail checks for every kind with createdBy that responses show the e-mail of the
// key or of its account, and that filters and orderBy compare the value that responses show.
func TestCreatedByIsAnEmail(t *testing.T) {
	checks := map[reflect.Type]func(*testing.T){}
	add := func(wireType any, check func(*testing.T)) { checks[reflect.TypeOf(wireType)] = check }
	add(APIKey{}, checkCreators(apiKeys))
	add(Model{}, checkCreators(models))
	add(Dataset{}, checkCreators(datasets))
	add(Evaluator{}, checkCreators(evaluators))
	add(SupervisedJob{}, checkCreators(supervisedJobs))
	add(DPOJob{}, checkCreators(dpoJobs))
	add(ReinforcementJob{}, checkCreators(reinforcementJobs))
	add(TrainerJob{}, checkCreators(trainerJobs))
	add(Deployment{}, checkCreators(deployments))
	add(DeployedModel{}, checkCreators(deployedModels))
	add(Subscription{}, checkCreators(subscriptions))
	add(TrainingSession{}, checkCreators(trainingSessions))
	add(TrainingRun{}, checkCreators(trainingRuns))
	for _, op := range NewService(Options{}).Operations() {
		if op.Method != http.MethodGet || op.Response == nil || wire.KindOf(op.Response) != wire.Object {
			continue
		}
		if shown := wire.Deref(op.Response); slices.ContainsFunc(wire.StructOf(shown).Fields,
			func(f wire.Field) bool { return f.Name == "createdBy" }) {
			require.Contains(t, checks, shown, "%s shows createdBy", op.ID)
		}
	}
	for shown, check := range checks {
		t.Run(shown.Name(), check)
	}
}

func checkCreators[S domain.State, R any](res *resource[S, R]) func(*testing.T) {
	return func(t *testing.T) {
		view := worldWithKeys(t)
		render := func(row *projections.Row[S], out *R) { res.render(view, row, out) }
		var rows []*projections.Row[S]
		for i, one := range creators {
			row := &projections.Row[S]{Name: domain.NewName("acme", res.kind.Collection, string(rune('a'+i)))}
			state := reflect.ValueOf(&row.State).Elem()
			require.True(t, state.FieldByName("CreatedBy").IsValid(), "%T", row.State)
			state.FieldByName("CreatedBy").SetString(one.stored)
			rows = append(rows, row)
		}
		list := func(q query.Query) (shown []string) {
			q.PageSize = len(rows)
			page, err := query.List(slices.Values(rows), render, res.fields, q)
			require.NoError(t, err)
			for _, item := range page.Items {
				shown = append(shown, createdByOf(t, item))
			}
			return shown
		}
		for i, one := range creators {
			var out R
			render(rows[i], &out)
			require.Equal(t, one.shown, createdByOf(t, out), one.stored)
			if one.stored == "" {
				continue
			}
			found := list(query.Query{Filter: `createdBy = "` + one.shown + `"`})
			require.Contains(t, found, one.shown)
			require.Len(t, slices.Compact(found), 1)
			if one.shown != one.stored {
				require.Empty(t, list(query.Query{Filter: `createdBy = "` + one.stored + `"`}))
			}
		}
		ordered := list(query.Query{OrderBy: "createdBy"})
		require.Len(t, ordered, len(rows))
		require.True(t, slices.IsSortedFunc(ordered, strings.Compare), "%v", ordered)
	}
}

func createdByOf(t *testing.T, resource any) string {
	data := testutil.Marshal(t, resource)
	var shown struct{ CreatedBy string }
	require.NoError(t, json.Unmarshal(data, &shown))
	return shown.CreatedBy
}
