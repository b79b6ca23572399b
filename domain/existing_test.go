package domain_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

// TestExistingResourcesAreNamed checks for every kind that the error of a create whose ID is in use
// states the kind, the ID and what to do. Nodes, quotas and
// usage roll-ups have no create that can fail in this way.
func TestExistingResourcesAreNamed(t *testing.T) {
	covered := map[string]string{
		"nodes":  "an agent enrolls a node, and the error of a name in use is of the enrollment",
		"quotas": "a quota is set, and may exist",

		"usageRollups": "the server records them, and no user creates one",
	}
	takenID(t, covered, domain.Accounts, randomAccountCommand)
	takenID(t, covered, domain.APIKeys, func(t *rapid.T, _ domain.APIKey) domain.Command[domain.APIKey] {
		return domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleAdmin},
			Hash: []byte{pick[byte](t, "hash", 1, 2)}} // the same hash is a repeated request
	})
	takenID(t, covered, domain.Secrets, randomSecretCommand)
	takenID(t, covered, domain.Models, randomModelCommand)
	takenID(t, covered, domain.Datasets, randomDatasetCommand)
	takenID(t, covered, domain.Evaluators, randomEvaluatorCommand)
	takenID(t, covered, domain.SupervisedJobs, randomSupervisedJobCommand)
	takenID(t, covered, domain.DPOJobs, randomDPOJobCommand)
	takenID(t, covered, domain.ReinforcementJobs, randomReinforcementJobCommand)
	takenID(t, covered, domain.TrainerJobs, randomTrainerJobCommand)
	takenID(t, covered, domain.DeploymentShapes, randomDeploymentShapeCommand)
	takenID(t, covered, domain.Deployments, randomDeploymentCommand)
	takenID(t, covered, domain.DeployedModels, randomDeployedModelCommand)
	takenID(t, covered, domain.BatchFiles, randomBatchFileCommand)
	takenID(t, covered, domain.Batches, randomBatchCommand)
	takenID(t, covered, domain.Subscriptions, randomSubscriptionCommand)
	takenID(t, covered, domain.TrainingSessions, randomTrainingSessionCommand)
	takenID(t, covered, domain.TrainingRuns, randomTrainingRunCommand)
	for _, kind := range domain.Kinds {
		require.NotEmpty(t, covered[kind.CollectionID()], "add %s to this test", kind.CollectionID())
	}
}

// takenID sends random commands to one resource until a create is refused, and checks its message.
func takenID[S domain.State](t *testing.T, covered map[string]string, kind *domain.Kind[S],
	random func(*rapid.T, S) domain.Command[S]) {
	var state S
	name := domain.NewName("acme", kind.Collection, "mine")
	for seed := range 2000 {
		before := state
		command := rapid.Custom(func(t *rapid.T) domain.Command[S] { return random(t, before) }).Example(seed)
		record, err := domain.Intend(kind, name, command).Decide(stateOrNil(state), noon)
		if err == nil && record.Type != "" {
			require.NoError(t, kind.Fold(&state, record))
		}
		var refused *domain.Error
		if !errors.As(err, &refused) || refused.Reason != "ALREADY_EXISTS" {
			continue
		}
		require.Regexp(t, `^an? [a-zA-Z -]+ with the ID "mine" already exists: choose another ID, or see the existing one `+
			fmt.Sprintf("with GET /v1/%s", name), refused.Message)
		covered[kind.Collection] = refused.Message
		return
	}
	t.Errorf("no create of %s was refused", kind.Collection)
}

// stateOrNil returns the state, or nil if the resource does not exist.
func stateOrNil[S domain.State](state S) any {
	if !state.Exists() {
		return nil
	}
	return state
}

// TestDeletedDeploymentsAreNamed checks that the error of a create says that a deployment with the ID
// is deleted, and how to free the ID.
func TestDeletedDeploymentsAreNamed(t *testing.T) {
	deleted := domain.Deployment{State: domain.DeploymentDeletedState}
	create := domain.CreateDeployment{}
	_, err := domain.Intend(domain.Deployments, "accounts/acme/deployments/d", create).Decide(deleted, noon)
	require.ErrorContains(t, err, `a deleted deployment with the ID "d" already exists`)
	require.ErrorContains(t, err, "choose another ID, undelete it, free its ID with a delete that has hard, or see "+
		"the existing one")
}
