package main_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// content downloads the files of a dataset as a user would, and returns their content.
func (c caller) content(dataset string) (text []byte) {
	c.t.Helper()
	links, _ := c.get("/datasets/" + dataset + ":getDownloadEndpoint")["filenameToSignedUrls"].(object)
	require.Len(c.t, links, 1)
	for _, link := range links {
		res, err := caller{http: c.http}.send(http.MethodGet, link.(string), nil)
		require.NoError(c.t, err)
		text = testutil.ReadAll(c.t, res.Body)
		require.NoError(c.t, res.Body.Close())
	}
	return text
}

// TestDerivedDatasets checks that filtering a dataset survives a crash of the server, and that the
// training and evaluation datasets of a job with evalAutoCarveout, which holds out rows, are
// derived datasets.
func TestDerivedDatasets(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--listen", freePort(t))
	user := s.user()
	user.dataset("all", 60)
	filtered := user.must(http.MethodPost, "/datasets",
		object{"datasetId": "some", "sourceDatasetId": "all", "filter": `packing OR "Which code"`})
	require.Equal(t, "UPLOADING", filtered["state"])
	carved := jobOn("all", 1)
	carved["evalAutoCarveout"] = true
	user.must(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId=carved", carved)
	s.kill()
	s.start()

	filtered = user.until("/datasets/some", "state", "READY")
	var want []byte
	for row := range bytes.Lines(exampleRows(t, 60)) {
		if lower := bytes.ToLower(row); bytes.Contains(lower, []byte("packing")) ||
			bytes.Contains(lower, []byte("which code")) {
			want = append(want, row...)
		}
	}
	require.NotEmpty(t, want)
	require.Equal(t, string(want), string(user.content("some")))
	require.Equal(t, "all", at(filtered, "transformed.sourceDatasetId"))

	job := user.until("/supervisedFineTuningJobs/carved", "state", "JOB_STATE_COMPLETED")
	require.Equal(t, "accounts/default/datasets/carved-train", at(job, "inputDatasets.train"))
	require.Equal(t, "accounts/default/datasets/carved-eval", at(job, "inputDatasets.evaluation"))
	for id, rows := range map[string]string{"carved-train": "54", "carved-eval": "6"} {
		made := user.get("/datasets/" + id)
		require.Equal(t, rows, made["exampleCount"])
		require.Equal(t, "accounts/default/supervisedFineTuningJobs/carved", made["sourceJobName"])
		require.Equal(t, "all", at(made, "splitted.sourceDatasetId"))
	}
	train, evaluation := user.content("carved-train"), user.content("carved-eval")
	for row := range bytes.Lines(exampleRows(t, 60)) {
		require.NotEqual(t, bytes.Contains(train, row), bytes.Contains(evaluation, row),
			"on one side of the split, not on both: %s", row)
	}
	curve := user.lossCurve("carved")
	require.Len(t, curve, 14, "54 rows, 4 a step")
	require.IsType(t, 0.0, curve[len(curve)-1]["eval/loss"], "%v", curve[len(curve)-1])
	require.Contains(t, kindsOf(user.list("/supervisedFineTuningJobs/carved/events", "events")),
		"supervisedFineTuningJob.preparing.v1")

	user.must(http.MethodDelete, "/supervisedFineTuningJobs/carved", nil)
	require.Equal(t, "READY", user.get("/datasets/carved-eval")["state"], "the datasets of a job remain after it")
	s.checkEvents()
	require.Zero(t, s.end())
	require.Contains(t, s.run("log", "verify").ok(t), "snapshot")
}

func kindsOf(events []object) (kinds []any) {
	for _, e := range events {
		kinds = append(kinds, e["type"])
	}
	return kinds
}
