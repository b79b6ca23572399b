package api

import (
	"strconv"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// recordUsage records requests to a deployment, and the time of its accelerators, in the previous hour.
func recordUsage(s *harness, deployment domain.Name, requests int64) {
	s.Helper()
	hour := s.clock.now.UTC().Truncate(time.Hour).Add(-time.Hour)
	account := deployment.Account()
	s.do(domain.Intend(domain.UsageRollups, domain.UsageMonth(account, hour), domain.Command[domain.UsageRollup](
		domain.RollUpUsage{UsagePart: domain.UsagePart{Window: 1, Part: 1, Parts: 1, FromSequence: 10, ToSequence: 40,
			Records: []domain.UsageRecords{{Source: "cp-1", From: 11, To: 37, Count: requests}},
			Rows: []domain.UsageRow{
				{Hour: hour, Key: domain.NewName(account, "apiKeys", "training"), Model: string(deployment),
					Deployment: deployment, UsageAmounts: domain.UsageAmounts{Requests: requests, PromptTokens: 120 * requests,
						CachedPromptTokens: 60 * requests, CompletionTokens: 30 * requests}},
				{Hour: hour, Deployment: deployment, Accelerator: "VENDOR_A_H100_80GB",
					UsageAmounts: domain.UsageAmounts{AcceleratorMicroseconds: 3_600_000_000}}}}})))
}

func (s *exampleStory) useModel(name domain.Name, words []string) {
	s.Helper()
	requests, err := strconv.ParseInt(words[0], 10, 64)
	require.NoError(s, err)
	recordUsage(s.harness, name, requests)
}

func usageRows() []row {
	used := func(s *harness) { recordUsage(s, "accounts/acme/deployments/d1", 3) }
	return []row{
		{id: "listUsage", prepare: used, request: "GET /v1/accounts/acme/usage?groupBy=hour,model user"},
		{id: "listAllUsage", prepare: used, request: "GET /v1/usage?groupBy=account operator"},
	}
}
