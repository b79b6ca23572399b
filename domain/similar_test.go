package domain_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestSimilarValues checks which values a misspelt one suggests.
func TestSimilarValues(t *testing.T) {
	for value, want := range map[string]string{
		"H100":               "VENDOR_A_H100_80GB",
		"h100-80gb":          "VENDOR_A_H100_80GB",
		"A100":               "VENDOR_A_A100_80GB, VENDOR_A_A100_40GB",
		"vendor_a_h100_80gb": "VENDOR_A_H100_80GB",
		"VENDOR_A_H10_80GB":  "VENDOR_A_H100_80GB",
		"VENDOR_A_H100_08GB": "VENDOR_A_H100_80GB",
		"abacus":             "",
		"":                   "",
		"8":                  "",
	} {
		require.Equal(t, want, strings.Join(domain.Similar(value, domain.ShapeAcceleratorTypes), ", "), value)
	}
	require.Len(t, domain.Similar("VENDOR", domain.ShapeAcceleratorTypes), 3)
	require.Equal(t, []string{"low"}, domain.Similar("lo", []string{"low", "normal", "high"}))
	require.Empty(t, domain.Similar("urgent", []string{"low", "normal", "high"}))
}

// TestUnknownNames checks the end of a message about an unknown name.
func TestUnknownNames(t *testing.T) {
	known := []string{"name", "exampleCount", "state", "status"}
	for name, want := range map[string]string{
		"exampelCount":  ": did you mean exampleCount? The fields are name, exampleCount, state, status",
		"example_count": ": did you mean exampleCount? The fields are name, exampleCount, state, status",
		"stat":          ": did you mean state or status? The fields are name, exampleCount, state, status",
		"colour":        "; the fields are name, exampleCount, state, status",
	} {
		require.Equal(t, want, domain.UnknownName(name, "the fields are ", known), name)
	}
	require.Equal(t, "; the fields are none", domain.UnknownName("colour", "the fields are ", nil))
}

// TestMisspeltEnumerationsSuggest checks that a misspelt value of every enumeration of a command
// suggests the right one.
func TestMisspeltEnumerationsSuggest(t *testing.T) {
	job := func(config domain.TrainingConfig) domain.CreateSupervisedJob {
		return domain.CreateSupervisedJob{SupervisedSpec: domain.SupervisedSpec{TrainingConfig: config}}
	}
	deploy := func(spec domain.DeploymentSpec) domain.Intent {
		return domain.Intend(domain.Deployments, "accounts/a/deployments/d", domain.CreateDeployment{DeploymentSpec: spec})
	}
	model := func(spec domain.ModelSpec) domain.Intent {
		return domain.Intend(domain.Models, "accounts/a/models/m", domain.CreateModel{ModelSpec: spec})
	}
	for _, test := range []struct {
		field, value string
		intent       domain.Intent
		state        any
	}{
		{"acceleratorType", "VENDOR_A_H100_80GB", deploy(domain.DeploymentSpec{AcceleratorType: "H100"}), nil},
		{"precision", "NF4", deploy(domain.DeploymentSpec{Precision: "nf4"}), nil},
		{"directRouteType", "INTERNET", deploy(domain.DeploymentSpec{DirectRouteType: "internet"}), nil},
		{"hotLoadBucketType", "SERVICE_HOSTED", deploy(domain.DeploymentSpec{HotLoadBucketType: "HOSTED"}), nil},
		{"placementStrategy", "SPREAD", deploy(domain.DeploymentSpec{PlacementStrategy: "spread"}), nil},
		{"placement.region", "AP_TOKYO_1 or AP_TOKYO_2",
			deploy(domain.DeploymentSpec{Placement: &domain.Placement{Region: "tokyo"}}), nil},
		{"placement.multiRegion", "GLOBAL",
			deploy(domain.DeploymentSpec{Placement: &domain.Placement{MultiRegion: "global"}}), nil},
		{"autoscalingPolicy.loadTargets", "requests_per_second", deploy(domain.DeploymentSpec{
			AutoscalingPolicy: &domain.AutoscalingPolicy{LoadTargets: map[string]float64{"requests_per_seconds": 1}}}), nil},
		{"region", "EU_PARIS_1", domain.Intend(domain.SupervisedJobs, "accounts/a/supervisedFineTuningJobs/j",
			job(domain.TrainingConfig{Region: "Paris"})), nil},
		{"kind", domain.BaseModel, model(domain.ModelSpec{Kind: strings.ToLower(domain.BaseModel)}), nil},
		{"role", domain.RoleInference, domain.Intend(domain.APIKeys, "accounts/a/apiKeys/k",
			domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: "infer"}}), nil},
		{"format", domain.FormatChat, domain.Intend(domain.Datasets, "accounts/a/datasets/d",
			domain.CreateDataset{DatasetSpec: domain.DatasetSpec{Format: "chat"}}), nil},
		{"accountType", domain.Enterprise, domain.Intend(domain.Accounts, "accounts/a",
			domain.CreateAccount{AccountSpec: domain.AccountSpec{AccountType: "enterprize"}}), nil},
		{"lossConfig.method", "ORPO", domain.Intend(domain.DPOJobs, "accounts/a/dpoJobs/j",
			domain.CreateDPOJob{DPOSpec: domain.DPOSpec{LossConfig: &domain.LossConfig{Method: "orpo"}}}), nil},
		{"suspendState", "CREDIT_DEPLETED", domain.Intend(domain.Accounts, "accounts/a",
			domain.SuspendAccount{SuspendState: "credit"}), domain.Account{State: domain.AccountReady}},
	} {
		_, err := test.intent.Decide(test.state, noon)
		var refused *domain.Error
		require.ErrorAs(t, err, &refused, test.field)
		described := ""
		for _, v := range refused.Violations {
			if v.Field == test.field {
				described = v.Description
			}
		}
		require.True(t, strings.HasSuffix(described, fmt.Sprintf(": did you mean %s?", test.value)), "%s: %s", test.field,
			errors.Join(err, errors.New(described)))
	}
}
