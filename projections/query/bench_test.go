package query

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

const (
	benchRows = 100_000
)

func benchName(i int) domain.Name {
	return domain.NewName("acme", "deployments", fmt.Sprintf("d-%06d", i))
}

// benchEvent is the i-th of a life of deployments: each is created, settles,
// and is scaled.
func benchEvent(t testing.TB, i int) eventlog.Write {
	fact := domain.Event[domain.Deployment](domain.DeploymentSettled{Generation: 1, Time: epoch})
	if i%3 == 0 {
		fact = domain.DeploymentCreated{CreatedBy: "accounts/acme/apiKeys/ci", Time: epoch, DeploymentSpec: domain.DeploymentSpec{
			BaseModel: "accounts/public/models/base-8b", DisplayName: fmt.Sprintf("Deployment %d", i), Description: "serves the tests",
			AcceleratorType: "VENDOR_A_H100_80GB", AcceleratorCount: 1 + i%4, MinReplicaCount: i % 5,
			AutoscalingPolicy: &domain.AutoscalingPolicy{ScaleUpWindow: "30s", LoadTargets: map[string]float64{"default": 0.8}},
			Placement:         &domain.Placement{MultiRegion: "GLOBAL"}}}
	}
	record, err := domain.Deployments.Encode(fact)
	require.NoError(t, err)
	return eventlog.Write{Event: eventlog.Event{Record: record, ID: "event-" + strconv.Itoa(i), Name: benchName(i / 3),
		Time: epoch.Add(time.Duration(i) * time.Millisecond), Actor: "accounts/acme/apiKeys/ci", Command: "command-" + strconv.Itoa(i)}}
}

// benchWorld holds benchRows deployments.
func benchWorld(b *testing.B) *projections.World {
	w := projections.NewWorld()
	for i := range benchRows {
		e := benchEvent(b, 3*i).Event
		e.Position = uint64(i + 1)
		require.NoError(b, w.Apply(e))
	}
	return w
}

type wireDeployment struct {
	Name       string     `json:"name"`
	CreateTime time.Time  `json:"createTime"`
	UpdateTime *time.Time `json:"updateTime"`
	domain.DeploymentSpec
	State  string         `json:"state"`
	Status *domain.Status `json:"status"`
}

var wireDeployments = StoredFieldsOf[domain.Deployment, wireDeployment]("name", "createTime", "displayName", "description",
	"state", "acceleratorCount", "autoscalingPolicy")

func renderDeployment(row *projections.Row[domain.Deployment], d *wireDeployment) {
	d.Name, d.CreateTime, d.UpdateTime = string(row.Name), row.CreateTime, &row.UpdateTime
	d.DeploymentSpec, d.State, d.Status = row.State.DeploymentSpec, row.State.State, &row.State.Status
}

func BenchmarkList(b *testing.B) {
	v := benchWorld(b).View()
	for _, c := range []struct {
		name  string
		query Query
	}{
		{"by name", Query{}},
		{"by createTime", Query{OrderBy: "createTime desc"}},
		{"by displayName", Query{OrderBy: "displayName"}},
		{"state", Query{Filter: "state = CREATING AND acceleratorCount > 2"}},
		{"text", Query{Filter: `displayName:"ment 12" OR description = "*tests*"`}},
		{"nothing", Query{Filter: `autoscalingPolicy.loadTargets.default > 0.9`}},
		{"rendered", Query{Filter: `status:* AND acceleratorCount > 2`}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				page, err := ListIn(v.Deployments, "acme", nil, renderDeployment, wireDeployments, c.query)
				require.NoError(b, err)
				if c.name != "nothing" {
					require.Len(b, page.Items, 50)
				}
			}
		})
	}
}

// BenchmarkRowFilter measures a filter over rows of datasets, a chat of 1 KB.
func BenchmarkRowFilter(b *testing.B) {
	row := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("words and ", 50) + `"},{"role":"assistant","content":"` + strings.Repeat("answers to ", 45) + `"}],"score":0.75}`)
	matches, err := CompileRowFilter(`score > 0.5 AND messages.role:assistant`)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(row)))
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := matches(row); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
