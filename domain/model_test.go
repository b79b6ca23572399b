package domain_test

import (
	"testing"

	"anneal/domain"
)

func TestModel(t *testing.T) {
	type D = decision[domain.Model]
	f := events[domain.Model]
	made := domain.ModelCreated{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}}
	files := func(prefix string) domain.Files {
		return domain.Files{Prefix: prefix, Sizes: map[string]int64{"config.json": 10}}
	}
	first := domain.ModelUploaded{Upload: 1, Files: files("models/acme/m/1/")}
	second := domain.ModelUploaded{Upload: 2, Files: files("models/acme/m/2/")}
	accepted := domain.ModelAccepted{Upload: 1, ModelMetadata: domain.ModelMetadata{ModelType: "llama"},
		Note: "it is slow"}
	accept := domain.AcceptModel{Upload: 1, ModelMetadata: accepted.ModelMetadata, Note: "it is slow"}
	rejected := domain.ModelRejected{Upload: 1,
		Status:     domain.Status{Code: "INVALID_ARGUMENT", Message: "config.json: not JSON"},
		Violations: []domain.Violation{{Field: "config.json", Description: "not JSON"}}}
	adapter := domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: "accounts/acme/models/base"}
	registered := domain.ModelRegistered{ModelSpec: adapter, Files: files("models/acme/m/1/"),
		SourceJob: "accounts/acme/supervisedFineTuningJobs/j"}
	public := domain.ModelSpec{Kind: domain.BaseModel, Public: true}
	decide(t, domain.Models, []D{
		{name: "create", when: domain.CreateModel(made), then: made},
		{name: "create twice", given: f(made), when: domain.CreateModel(made), fault: "ALREADY_EXISTS"},
		{name: "create without a kind", when: domain.CreateModel{}, fault: "INVALID_FIELDS",
			says: "kind: must be one of HF_BASE_MODEL, HF_PEFT_ADDON, SPEECH_MODEL"},
		{name: "create an addon without its base",
			when: domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon}}, fault: "INVALID_FIELDS",
			says: "baseModel: is required for an addon: name its base model"},
		{name: "upload", given: f(made), when: domain.UploadModel(first), then: first},
		{name: "upload twice", given: f(made, first), when: domain.UploadModel(first)},
		{name: "upload during a validation", given: f(made, first), when: domain.UploadModel(second), fault: "UPLOAD_PENDING",
			says: "wait for the result"},
		{name: "upload after a rejection", given: f(made, first, rejected), when: domain.UploadModel(second), then: second},
		{name: "upload with a wrong number", given: f(made), when: domain.UploadModel(second), fault: "UPLOAD_SUPERSEDED"},
		{name: "upload no files", given: f(made), when: domain.UploadModel{Upload: 1}, fault: "NOTHING_UPLOADED"},
		{name: "upload to a READY model", given: f(made, first, accepted), when: domain.UploadModel(second),
			fault: "MODEL_READY", says: "create another"},
		{name: "upload to a missing model", when: domain.UploadModel(first), fault: "NOT_FOUND"},
		{name: "accept", given: f(made, first), when: accept, then: accepted},
		{name: "accept twice", given: f(made, first, accepted), when: accept},
		{name: "accept without an upload", given: f(made), when: domain.AcceptModel{}, fault: "NOTHING_UPLOADED"},
		{name: "accept a replaced upload", given: f(made, first, rejected, second), when: domain.AcceptModel{Upload: 3},
			fault: "UPLOAD_SUPERSEDED"},
		{name: "accept a missing model", when: accept, fault: "NOT_FOUND"},
		{name: "reject", given: f(made, first), when: domain.RejectModel(rejected), then: rejected},
		{name: "reject twice", given: f(made, first, rejected), when: domain.RejectModel(rejected)},
		{name: "accept a rejected upload", given: f(made, first, rejected), when: accept, fault: "UPLOAD_JUDGED"},
		{name: "reject a READY model", given: f(made, first, accepted), when: domain.RejectModel(rejected),
			fault: "UPLOAD_JUDGED"},
		{name: "register", when: domain.RegisterModel(registered), then: registered},
		{name: "register twice", given: f(registered), when: domain.RegisterModel(registered)},
		{name: "register under a used name", given: f(made), when: domain.RegisterModel(registered), fault: "ALREADY_EXISTS"},
		{name: "update", given: f(made), when: domain.UpdateModel{ModelSpec: public},
			then: domain.ModelUpdated{ModelSpec: public}},
		{name: "update to the same", given: f(made), when: domain.UpdateModel{ModelSpec: made.ModelSpec}},
		{name: "update the kind", given: f(made), when: domain.UpdateModel{ModelSpec: adapter}, fault: "INVALID_FIELDS",
			says: "kind: cannot change: create another model; baseModel: cannot change: create another model"},
		{name: "delete without a deletion request", given: f(made),
			when: domain.DeleteModel{}, fault: domain.ReasonNotRequested,
			says: "try again"},
		{name: "delete", given: reserved(domain.Models, f(made)), when: domain.DeleteModel{}, then: domain.ModelDeleted{}},
		{name: "delete a missing model", when: domain.DeleteModel{}, fault: "NOT_FOUND"},
	})
}

func TestModelCopies(t *testing.T) {
	type D = decision[domain.Model]
	f := events[domain.Model]
	files := domain.Files{Prefix: "prepared/acme/m/BF16/", Sizes: map[string]int64{"config.json": 10}}
	made := domain.ModelRegistered{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
		ModelMetadata: domain.ModelMetadata{Precision: "FP32"}}
	preparing := domain.ModelPreparing{Precision: "BF16", Attempt: 1, Time: noon}
	prepared := domain.ModelPrepared{Precision: "BF16", Attempt: 1, Files: files, Time: noon}
	failed := domain.ModelPreparationFailed{Precision: "BF16", Attempt: 1, Status: someStatus, Time: noon}
	again := domain.ModelPreparing{Precision: "BF16", Attempt: 2, Time: noon}
	prepare := domain.PrepareModel{Precision: "BF16"}
	finish := domain.FinishCopy{Precision: "BF16", Attempt: 1, Files: files}
	fail := domain.FailCopy{Precision: "BF16", Attempt: 1, Status: someStatus}
	decide(t, domain.Models, []D{
		{name: "prepare", given: f(made), when: prepare, then: preparing},
		{name: "prepare twice", given: f(made, preparing), when: prepare},
		{name: "prepare a READY copy", given: f(made, preparing, prepared), when: prepare},
		{name: "prepare in the model's own precision", when: prepare,
			given: f(domain.ModelRegistered{ModelMetadata: domain.ModelMetadata{Precision: "BF16"}})},
		{name: "prepare after a failure", given: f(made, preparing, failed), when: prepare, then: again},
		{name: "prepare a second precision", given: f(made, preparing), when: domain.PrepareModel{Precision: "FP16"},
			then: domain.ModelPreparing{Precision: "FP16", Attempt: 1, Time: noon}},
		{name: "prepare an UPLOADING model", given: f(domain.ModelCreated{}), when: prepare,
			fault: "MODEL_NOT_READY"},
		{name: "prepare in an unsupported precision", given: f(made), when: domain.PrepareModel{Precision: "NF4"},
			fault: "NOT_OFFERED", says: "one of BF16, FP16"},
		{name: "prepare without a precision", given: f(made), when: domain.PrepareModel{}, fault: "INVALID_FIELDS",
			says: "precision: must be one of BF16, FP16"},
		{name: "prepare a missing model", when: prepare, fault: "NOT_FOUND"},
		{name: "finish", given: f(made, preparing), when: finish, then: prepared},
		{name: "finish twice", given: f(made, preparing, prepared), when: finish},
		{name: "finish a copy of another attempt", given: f(made, preparing, prepared),
			when: domain.FinishCopy{Precision: "BF16", Attempt: 1}, fault: "COPY_SETTLED"},
		{name: "finish an old attempt", given: f(made, preparing, failed, again), when: finish, fault: "COPY_SUPERSEDED"},
		{name: "finish without an attempt", given: f(made), when: finish, fault: "COPY_SUPERSEDED"},
		{name: "finish for a missing model", when: finish, fault: "NOT_FOUND"},
		{name: "fail", given: f(made, preparing), when: fail, then: failed},
		{name: "fail twice", given: f(made, preparing, failed), when: fail},
		{name: "fail a READY copy", given: f(made, preparing, prepared), when: fail, fault: "COPY_SETTLED"},
	})
}
