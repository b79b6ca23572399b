package query

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections/toytest"
)

type wireStatus struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type wireSpec struct {
	DisplayName  string  `json:"displayName"`
	LearningRate float64 `json:"learningRate,omitempty"`
	MaxReplicas  *int    `json:"maxReplicaCount,omitempty"`
	Hidden       string  `json:"hidden" query:"-"`
	Label        string  `json:"label"`
}

type wirePart struct {
	Step int               `json:"step"`
	Tags map[string]string `json:"tags"`
}

// wireToy is a wire type with a field of every shape.
type wireToy struct {
	Name       string     `json:"name"`
	CreateTime time.Time  `json:"createTime"`
	ExpireTime *time.Time `json:"expireTime,omitempty"`
	wireSpec
	*wireLink
	State        string             `json:"state"`
	Status       *wireStatus        `json:"status,omitempty"`
	ExampleCount domain.Count       `json:"exampleCount"`
	Bytes        int64              `json:"bytes,string"`
	Enabled      bool               `json:"enableAddons"`
	Tags         []string           `json:"tags"`
	Ranks        []int              `json:"ranks"`
	Parts        []wirePart         `json:"parts"`
	Notes        map[string]string  `json:"notes"`
	Targets      map[string]float64 `json:"loadTargets"`
	Window       string             `json:"scaleUpWindow" query:"duration"`
	Timeout      time.Duration      `json:"timeout"`
	Origin       *struct{}          `json:"userUploaded,omitempty"`
	Raw          []byte             `json:"raw"`
	Secret       string             `json:"-"`
	Label        int                `json:"label"` // shadows the label of the embedded wireSpec
}

type wireLink struct {
	Link string `json:"link"`
}

var wireToys = FieldsOf[wireToy]()

func aToy() *wireToy {
	three, expires := 3, toytest.Epoch.Add(24*time.Hour)
	return &wireToy{
		Name: "accounts/acme/toys/t-1", CreateTime: toytest.Epoch, ExpireTime: &expires,
		wireSpec: wireSpec{DisplayName: "My Ball", LearningRate: 1e-4, MaxReplicas: &three, Hidden: "secret"},
		State:    "JOB_STATE_RUNNING", Status: &wireStatus{"OK", "all is well"}, ExampleCount: 100, Bytes: 1 << 40,
		Enabled: true,
		Tags:    []string{"red", "round"}, Ranks: []int{8, 16},
		Parts: []wirePart{{Step: 5, Tags: map[string]string{"kind": "best"}}, {Step: 10}},
		Notes: map[string]string{"owner": "bob", "team-a": "x"}, Targets: map[string]float64{"default": 0.8},
		Window: "90s", Timeout: time.Minute, Origin: &struct{}{}, Secret: "canary", Label: 7,
	}
}

func TestFilterMatches(t *testing.T) {
	empty := &wireToy{}
	for _, c := range []struct {
		filter      string
		want, blank bool // whether the filter matches aToy, and the zero wireToy
	}{
		{"", true, true},
		{"  ", true, true},
		{`state = JOB_STATE_RUNNING`, true, false},
		{`state=JOB_STATE_RUNNING`, true, false},
		{`state = "JOB_STATE_RUNNING"`, true, false},
		{`state = job_state_running`, false, false},
		{`state != JOB_STATE_RUNNING`, false, true},
		{`state:running`, true, false},
		{`state = JOB_STATE_*`, true, false},
		{`state = (JOB_STATE_FAILED OR JOB_STATE_RUNNING)`, true, false},
		{`state = (JOB_STATE_FAILED OR "X")`, false, false},
		{`state = (JOB_* AND *_RUNNING)`, true, false},
		{`state = (NOT JOB_STATE_FAILED)`, true, true},
		{`displayName = "My Ball"`, true, false},
		{`display_name = "My Ball"`, true, false},
		{`display_name = 'My Ball'`, true, false},
		{`displayName = "My*"`, true, false},
		{`displayName = "*all"`, true, false},
		{`displayName = "*y B*"`, true, false},
		{`displayName = "M*B*l"`, true, false},
		{`displayName = "M*B*x*l"`, false, false},
		{`displayName = "*"`, true, true},
		{`displayName:*`, true, false},
		{`displayName:ball`, true, false},
		{`displayName:"y b"`, true, false},
		{`displayName:"m*ll"`, true, false},
		{`displayName:bat`, false, false},
		{`displayName = ""`, false, true},
		{`displayName < N`, true, true},
		{`displayName >= "My Ball"`, true, false},
		{`name = accounts/acme/toys/t-1`, true, false},
		{`name:t-1`, true, false},
		{`createTime = "2026-03-01T12:00:00Z"`, true, false},
		{`createTime > 2026-03-01T11:59:59.5Z`, true, false},
		{`create_time <= "2026-03-01T13:00:00+01:00"`, true, false},
		{`createTime < "2026-03-01T12:00:00Z"`, false, false},
		{`createTime > 2026-02-28`, true, false},
		{`createTime > timestamp("2026-02-28T00:00:00Z")`, true, false},
		{`createTime:*`, true, false},
		{`expireTime > "2026-03-02T00:00:00Z"`, true, false},
		{`expireTime:*`, true, false},
		{`NOT expireTime:*`, false, true},
		{`learningRate = 0.0001`, true, false},
		{`learningRate = 1e-4`, true, false},
		{`learning_rate > 1E-5 AND learningRate < .001`, true, false},
		{`learningRate >= -5`, true, true},
		{`maxReplicaCount = 3`, true, false},
		{`maxReplicaCount != 3`, false, true},
		{`maxReplicaCount > 2.5`, true, false},
		{`maxReplicaCount < 3`, false, false},
		{`exampleCount >= 100`, true, false},
		{`exampleCount = "100"`, true, false},
		{`example_count > 9`, true, false},
		{`bytes = 1099511627776`, true, false},
		{`enableAddons = true`, true, false},
		{`enableAddons = false`, false, true},
		{`-enable_addons = true`, false, true},
		{`NOT enableAddons = true`, false, true},
		{`enableAddons:*`, true, false},
		{`status.code = OK`, true, false},
		{`status.code != OK`, false, true},
		{`status.message:well`, true, false},
		{`status:*`, true, false},
		{`userUploaded:*`, true, false},
		{`raw:*`, false, false},
		{`tags:red`, true, false},
		{`tags:re`, false, false},
		{`tags:r*`, true, false},
		{`tags:*`, true, false},
		{`ranks:16`, true, false},
		{`ranks:9`, false, false},
		{`parts.step:10`, true, false},
		{`parts.step:11`, false, false},
		{`parts.tags.kind:best`, true, false},
		{`notes:owner`, true, false},
		{`notes:team-a`, true, false},
		{`notes:boss`, false, false},
		{`notes.owner = bob`, true, false},
		{`notes.owner:*`, true, false},
		{`notes."team-a" = x`, true, false},
		{`notes.boss = bob`, false, false},
		{`notes.boss != bob`, true, true},
		{`load_targets.default > 0.5`, true, false},
		{`scaleUpWindow > 30s`, true, false},
		{`scaleUpWindow = 1m30s`, true, false},
		{`scaleUpWindow < duration("600s")`, true, false},
		{`timeout = 60s`, true, false},
		{`label = 7`, true, false},
		{`state:RUNNING AND enableAddons = true`, true, false},
		{`state:RUNNING enableAddons = true`, true, false},
		{`state:FAILED OR enableAddons = true`, true, false},
		{`state:FAILED AND enableAddons = true`, false, false},
		{`enableAddons = true AND state:FAILED OR state:RUNNING`, true, false},
		{`enableAddons = false AND state:FAILED OR state:RUNNING`, false, false},
		{`(enableAddons = false AND state:FAILED) OR state:RUNNING`, true, false},
		{`NOT (enableAddons = true AND state:FAILED)`, true, true},
		{`ball`, true, false},
		{`"all is well"`, true, false},
		{`round`, true, false},
		{`-ball`, false, true},
		{`ball well`, true, false},
		{`ball bat`, false, false},
		{`canary OR secret`, false, false},
		{strings.Repeat("(", 64) + `state:x` + strings.Repeat(")", 64), false, false},
		{strings.TrimSuffix(strings.Repeat("state:run AND ", 290), "AND "), true, false},
		{strings.TrimSuffix(strings.Repeat("state:x OR ", 300), "OR "), false, false},
	} {
		t.Run(clip(c.filter), func(t *testing.T) {
			matches, err := wireToys.Filter(c.filter)
			require.NoError(t, err)
			require.Equal(t, c.want, matches(aToy()), "a toy")
			require.Equal(t, c.blank, matches(empty), "the zero toy")
		})
	}
}

func TestFilterErrors(t *testing.T) {
	for _, c := range []struct{ filter, says string }{
		{`colour = red`, `there is no field "colour"; the fields are name, createTime, expireTime`},
		{`status.colour = red`, `there is no field "status.colour"; the fields are code, message`},
		{`hidden = x`, `there is no field "hidden"`},
		{`Secret = x`, `there is no field "Secret"`},
		{`state.code = x`, `state is text and has no field "code"`},
		{`status = OK`, `status is an object: compare one of its fields, code, message`},
		{`tags = red`, `tags is a list: use tags:VALUE`},
		{`parts:best`, `parts is a list of objects: compare one of their fields, step, tags, as in parts.step:VALUE`},
		{`parts.step = 5`, `parts.step is in a list: use parts.step:VALUE`},
		{`notes = x`, `notes is a map: use notes:KEY`},
		{`raw = x`, `raw cannot be compared: use raw:*`},
		{`enableAddons = maybe`, `enableAddons is true or false: compare it with one of these, not with "maybe"`},
		{`enableAddons > true`, `enableAddons is true or false: compare it with = or !=`},
		{`exampleCount = many`, `exampleCount is a whole number: it cannot be compared with "many"`},
		{`learningRate < NaN`, `learningRate is a number: it cannot be compared with "NaN"`},
		{`createTime > yesterday`,
			`createTime is a time: compare it with one like "2026-03-01T00:00:00Z", not with "yesterday"`},
		{`timeout > soon`, `timeout is a duration: compare it with one like 30s, not with "soon"`},
		{`state`, `state is a field: compare it, as in state = VALUE`},
		{`state =`, `has a syntax error`},
		{`= x`, `has a syntax error`},
		{`state = "x`, `has a syntax error at character 9: unterminated string`},
		{`(state = x`, `has a syntax error`},
		{`state = x)`, `has a syntax error`},
		{`state = x AND`, `has a syntax error`},
		{`state == x`, `has a syntax error`},
		{`"state" = x`, `the left side of = must be a field`},
		{`5 = 5`, `the left side of = must be a field`},
		{`now() > 5`, `the left side of > must be a field`},
		{`state = now()`, `state can be compared only with a value, not with the expression "now"`},
		{`exists(state)`, `unknown function "exists"`},
		{`AND(state)`, `AND is an operator, not a function`},
		{`state = OR(a)`, `OR is an operator, not a function`},
		{`createTime > timestamp()`, `timestamp takes one value`},
		{"state = \"\xff\"", `has a syntax error at character 9: invalid UTF-8`},
		{strings.Repeat("(", 65) + `state:x` + strings.Repeat(")", 65), `is nested deeper than 64 parentheses`},
		{`state = "` + strings.Repeat("x", MaxFilter) + `"`, `bytes: at most 4096 are allowed`},
		{`state.` + strings.Repeat("a.", 1000) + `b = x`, `state is text and has no field "a"`},
	} {
		t.Run(clip(c.filter), func(t *testing.T) {
			_, err := wireToys.Filter(c.filter)
			require.ErrorContains(t, err, c.says)
			var f *domain.Error
			require.ErrorAs(t, err, &f)
			require.Equal(t, domain.InvalidArgument, f.Code)
			require.Equal(t, "filter", f.Violations[0].Field)
			require.Less(t, len(err.Error()), 600)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// TestFiltersKnowValues checks that Filter rejects =, != and : with a value that is not in the
// field's list of allowed values, and accepts any text in other comparisons.
func TestFiltersKnowValues(t *testing.T) {
	known := FieldsOf[wireToy]().WithValues(func(in reflect.Type, field string) []string {
		return map[string][]string{"wireToy.state": {"JOB_STATE_IDLE", "JOB_STATE_RUNNING"}, "wireToy.tags": {"red", "blue"},
			"wireStatus.code": {"OK", "UNKNOWN"}, "wirePart.tags": {"best"}}[in.Name()+"."+field]
	})
	for _, c := range []struct {
		filter string
		says   string // part of the error; "" means that the filter is valid and matches aToy
	}{
		{`state = JOB_STATE_RUNNING`, ""},
		{`state = *_RUNNING AND state:running AND state:*`, ""},
		{`state != JOB_STATE_IDLE AND state != ""`, ""},
		{`state = (JOB_STATE_IDLE OR JOB_STATE_RUNNING)`, ""},
		{`state > A`, ""},
		{`tags:red AND NOT tags:blue`, ""},
		{`parts.tags.kind:best`, ""},
		{`displayName = *`, ""},
		{`state = BOGUS`, `state has no value "BOGUS"; it is one of JOB_STATE_IDLE, JOB_STATE_RUNNING`},
		{`state = job_state_running`, `state has no value "job_state_running"`},
		{`enableAddons = true OR NOT state = RUNNING`, `state has no value "RUNNING"`},
		{`state != BOGUS`, `state has no value "BOGUS"`},
		{`state = X*`, `state has no value "X*"`},
		{`state:bogus`, `state has no value "bogus"`},
		{`state = (JOB_STATE_IDLE OR X)`, `state has no value "X"`},
		{`tags:green`, `tags has no value "green"; it is one of red, blue`},
		{`status.code = FINE`, `status.code has no value "FINE"`},
		{`parts.tags.kind:worst`, `parts.tags.kind has no value "worst"`},
	} {
		t.Run(c.filter, func(t *testing.T) {
			matches, err := known.Filter(c.filter)
			if c.says == "" {
				require.NoError(t, err)
				require.True(t, matches(aToy()))
				return
			}
			require.ErrorContains(t, err, c.says)
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		})
	}
}

func TestQuoteArguments(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{`a = b-c`, `a = "b-c"`},
		{`a:b:c d`, `a:"b:c" d`},
		{`a = "b c" AND d=e`, `a = "b c" AND d="e"`},
		{`a = (b-1 OR NOT 2c) AND d-e`, `a = ("b-1" OR NOT "2c") AND d-e`},
		{`a = -5`, `a = "-5"`},
		{`a = f(x)`, `a = f(x)`},
		{`a = b\n`, `a = "b\\n"`},
		{`a = 'it\'s' b`, `a = 'it\'s' b`},
		{`a <= 1e-4`, `a <= "1e-4"`},
	} {
		got, _, err := quoteArguments(c.in)
		require.NoError(t, err)
		require.Equal(t, c.out, got, c.in)
	}
}

func FuzzFilter(f *testing.F) {
	for _, seed := range []string{`state = READY AND -tags:red`, `a.b.c:*`, `((x`, `notes."k" != 5`,
		`createTime > 2026-03-01T00:00:00Z OR timeout < 5s`, `AND(AN)`, `state = OR(a)`, `NOT()`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, filter string) {
		matches, err := wireToys.Filter(filter)
		if err != nil {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.NotEmpty(t, err.Error())
			return
		}
		// The negation of a valid filter is valid and has the opposite result.
		not, err := wireToys.Filter(fmt.Sprintf("NOT (%s)", filter))
		if strings.TrimSpace(filter) == "" || err != nil {
			return
		}
		for _, toy := range []*wireToy{aToy(), {}} {
			if matches(toy) == not(toy) {
				t.Errorf("%q and its negation agree", filter)
			}
		}
	})
}

// TestFiltersAreCheapToRefuse checks that invalid filters with many parts or levels cost few
// allocations. A parser that builds an error message for each level of nesting would take quadratic
// time.
func TestFiltersAreCheapToRefuse(t *testing.T) {
	for _, part := range []string{"(", "-(", "a=(b ", "(a OR ", "a=f(", "a(", "f((", "NOT ", "-", "a.", "a OR ", "a AND ",
		"a ", "x<", "0x"} {
		filter := strings.Repeat(part, MaxFilterDepth-1)
		allocations := testing.AllocsPerRun(1, func() { _, _ = wireToys.Filter(filter) })
		require.Less(t, allocations, 20_000.0, part)
	}
}
