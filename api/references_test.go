package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// What live work uses is not deleted; the answer names the users.
func TestUsedShapesAndSecretsAreNotDeleted(t *testing.T) {
	s := newStage(t, Limits{})
	answer := s.call("POST", "/v1/accounts/acme/deploymentShapes", "user", `{"deploymentShapeId": "small", "deploymentShape": {"baseModel": "accounts/default/models/anneal-base"}}`)
	require.Equal(t, 200, answer.status, "%s", answer.body)
	s.do(domain.Intend(domain.Deployments, "accounts/acme/deployments/shaped", domain.Command[domain.Deployment](domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/default/models/anneal-base", DeploymentShape: "accounts/acme/deploymentShapes/small/versions/1"}})))
	s.do(domain.Intend(domain.Secrets, "accounts/acme/secrets/token", domain.Command[domain.Secret](domain.CreateSecret{KeyName: "TOKEN",
		Value: domain.Sealed{KeyID: "k", Ciphertext: []byte("sealed")}})))
	s.do(domain.Intend(domain.Evaluators, "accounts/acme/evaluators/exact", domain.Command[domain.Evaluator](domain.CreateEvaluator{
		EvaluatorSpec: domain.EvaluatorSpec{Secrets: []string{"accounts/acme/secrets/token"}}})))
	for used, user := range map[string]string{
		"accounts/acme/deploymentShapes/small": "accounts/acme/deployments/shaped",
		"accounts/acme/secrets/token":          "accounts/acme/evaluators/exact",
	} {
		answer := s.call("DELETE", "/v1/"+used, "admin", "")
		require.Equal(t, 400, answer.status, "%s: %s", used, answer.body)
		require.Contains(t, string(answer.body), user)
	}
}
