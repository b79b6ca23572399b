package cli

import (
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelNamesAreResolved checks for every command with a model that a name without a slash is a
// model of the account, or else an alias or the ID of a deployment, which the server resolves.
func TestModelNamesAreResolved(t *testing.T) {
	const listed = `{"data": [{"id": "accounts/a/models/polite"}, {"id": "accounts/a/models/smart"}, 
		{"id": "smart", "deployment": "accounts/system/deployments/d"},
		{"id": "clever", "deployment": "accounts/system/deployments/d"}]}`
	asked, refused := "", false
	server := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case refused:
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error": {"message": "the key is invalid"}}`)
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, listed)
		default:
			asked = modelOf(r)
			if slices.Contains([]string{"accounts/a/models/clever",
				"accounts/a/models/speech-v3", "accounts/a/models/base"}, asked) {
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"error": {"message": "there is no model", "code": "MODEL_NOT_FOUND"}}`)
				return
			}
			_, _ = io.WriteString(w, `data: {"type": "transcript.text.done"}`+"\n\ndata: [DONE]\n\n")
		}
	}
	sound := filepath.Join(t.TempDir(), "sound.wav")
	require.NoError(t, os.WriteFile(sound, []byte("sound"), 0o600))
	for _, command := range [][]string{{"complete", "hello"}, {"chat", "hello"}, {"transcribe", sound}} {
		for name, want := range map[string]string{"polite": "accounts/a/models/polite", "smart": "accounts/a/models/smart",
			"clever": "clever", "base": "base",
			"speech-v3": "speech-v3", "accounts/b/models/m": "accounts/b/models/m", "b/m#b/d": "b/m#b/d"} {
			_, output, err := runOutput(t, server, append(command, "--model", name)...)
			require.NoError(t, err)
			require.Equal(t, want, asked, "%v --model %s", command, name)
			if name == "clever" {
				require.Contains(t, output, "clever is an alias of the deployment accounts/system/deployments/d\n")
			} else {
				require.NotContains(t, output, " is an alias of ")
			}
		}
		refused = true
		_, _, err := runOutput(t, server, append(command, "--model", "polite")...)
		require.ErrorContains(t, err, "the key is invalid")
		refused = false
	}
}

// modelOf returns the model of a request, in JSON or in a form.
func modelOf(r *http.Request) string {
	kind, parameters, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		var body struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		return body.Model
	}
	form, err := multipart.NewReader(r.Body, parameters["boundary"]).ReadForm(1 << 20)
	if err != nil {
		return err.Error()
	}
	return form.Value["model"][0]
}
