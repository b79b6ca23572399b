package api

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"anneal/domain"
)

// unoffered are the operations of the interface that this version does not
// have yet, below /v1/accounts/{account}: each is refused by its name, with
// what to do instead, to whoever would be allowed to use it.
var unoffered = []struct {
	method, path string
	who          permission
	what         string // begins a sentence, in the singular
	instead      string
}{
	{"POST", "/models", toWrite, "creating a model", "train one: a job's outputModel appears here"},
	{"POST", "/models/{id}:upload", toWrite, "uploading weights", "train a model: a job's outputModel appears here"},
	{"POST", "/models/{id}:getUploadEndpoint", toWrite, "uploading weights", "train a model: a job's outputModel appears here"},
	{"POST", "/models/{id}:validateUpload", toWrite, "uploading weights", "train a model: a job's outputModel appears here"},
	{"GET", "/models/{id}:getDownloadEndpoint", toRead, "downloading weights", "deploy the model and ask it at /inference/v1/completions"},
	{"POST", "/models/{id}:prepare", toWrite, "preparing a model in another precision", "deploy it as it is"},
	{"POST", "/supervisedFineTuningJobs:estimateCost", toRead, "estimating a job's cost", "create the job: its acceleratorSeconds say what it took"},
	{"POST", "/rlorTrainerJobs/{id}:executeTrainStep", toWrite, "executing a single train step", "create an rlorTrainerJob for each dataset, with the model of the one before as warmStartFrom"},
	{"GET", "/quotas", toRead, "listing quotas", "plan without them: none is enforced"},
	{"GET", "/quotas/{id}", toRead, "reading a quota", "plan without it: none is enforced"},
	{"PATCH", "/quotas/{id}", toOperate, "changing a quota", "suspend an account that takes too much with :suspend"},
	{"GET", "/deployedModels", toRead, "listing loaded addons", "look at the deployments: each serves its baseModel, which may be an addon"},
	{"POST", "/deployedModels", toWrite, "loading an addon into a deployment", "create a deployment with the addon as its baseModel"},
	{"GET", "/deployedModels/{id}", toRead, "reading a loaded addon", "look at the deployments: each serves its baseModel, which may be an addon"},
	{"PATCH", "/deployedModels/{id}", toWrite, "changing a loaded addon", "create a deployment with the addon as its baseModel"},
	{"DELETE", "/deployedModels/{id}", toWrite, "unloading an addon", "delete the deployment that serves it"},
	{"POST", "/evaluators:previewEvaluator", toWrite, "previewing an evaluator", "try the code on your own machine: this installation has no sandbox to run it in"},
}

// unofferedInference are those of the inference and audio paths.
var unofferedInference = []struct{ method, path, what, instead string }{
	{"POST", "/inference/v1/chat/completions", "chat completion", "write the messages into one prompt for POST /inference/v1/completions"},
	{"POST", "/v1/audio/transcriptions", "transcription of audio", "no engine here takes audio"},
	{"POST", "/v1/audio/translations", "translation of audio", "no engine here takes audio"},
}

func (s *Server) routeUnoffered(r chi.Router) {
	for _, one := range unoffered {
		r.Method(one.method, "/v1/accounts/{account}"+one.path, s.manage(one.who, func(*call) (any, error) {
			return nil, notOffered(one.what, one.instead)
		}))
	}
	for _, one := range unofferedInference {
		r.Method(one.method, one.path, s.answer(true, s.infer(func(*call) (any, error) {
			return nil, notOffered(one.what, one.instead)
		})))
	}
	r.Get("/openapi.json", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, notOffered("the machine-readable description of the interface", "every refusal names the fields and values that it expected"), requestID(r), false)
	})
}

func notOffered(what, instead string) *domain.Fault {
	f := domain.Faultf(domain.Unimplemented, "%s is not offered yet: %s", what, instead)
	f.Reason = "NOT_OFFERED"
	return f
}

// isInference tells whether the path is one whose errors have the inference
// shape.
func isInference(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/inference/") || isAudio(r)
}

// isAudio tells whether the path is one that takes a key without a scheme word.
func isAudio(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/audio/") }
