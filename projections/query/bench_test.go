package query

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/toytest"
)

const (
	benchRows = 100_000
)

// benchWorld returns a world with benchRows deployments.
func benchWorld(b *testing.B) *projections.World {
	w := projections.NewWorld()
	for i := range benchRows {
		e := toytest.DeploymentEvent(b, 3*i).Event
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

var wireDeployments = StoredFieldsOf[domain.Deployment, wireDeployment]("name", "createTime", "displayName",
	"description",
	"state", "acceleratorCount", "autoscalingPolicy")

func renderDeployment(row *projections.Row[domain.Deployment], d *wireDeployment) {
	d.Name, d.CreateTime, d.UpdateTime = string(row.Name), row.CreateTime, &row.UpdateTime
	d.DeploymentSpec, d.State, d.Status = row.State.DeploymentSpec, row.State.State, &row.State.Status
}

func BenchmarkList(b *testing.B) {
	v := benchWorld(b).View()
	render := Rendering[domain.Deployment, wireDeployment]{All: renderDeployment}
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
				page, err := ListIn(v.Deployments, "acme", nil, render, wireDeployments, c.query)
				require.NoError(b, err)
				if c.name != "nothing" {
					require.Len(b, page.Items, 50)
				}
			}
		})
	}
}

// BenchmarkRowFilter measures filters on a dataset row that is a chat of about 1 KB.
func BenchmarkRowFilter(b *testing.B) {
	row := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("words and ", 50) +
		`"},{"role":"assistant","content":"` + strings.Repeat("answers to ", 45) + `"}],"score":0.75}`)
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
