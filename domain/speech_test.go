package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestSpeechModels(t *testing.T) {
	type D = decision[domain.Model]
	f := events[domain.Model]
	spec := func(change func(*domain.SpeechSettings)) domain.ModelSpec {
		settings := domain.SpeechSettings{Format: domain.SpeechFasterWhisper,
			VADModels: map[string]string{"silero": "silero-v5"}}
		change(&settings)
		return domain.ModelSpec{Kind: domain.SpeechModel, Speech: &settings}
	}
	as := func(*domain.SpeechSettings) {}
	made := domain.ModelCreated{ModelSpec: spec(as)}
	mapped := spec(func(s *domain.SpeechSettings) { s.AlignmentModels = map[string]string{"mms_fa": "mms"} })
	wrong := spec(func(s *domain.SpeechSettings) {
		*s = domain.SpeechSettings{Format: "kaldi", Languages: []string{"en", "tlh"},
			VADModels: map[string]string{"webrtc": "w", "silero": ""}, AlignmentModels: map[string]string{"silero": "x"}}
	})
	decide(t, domain.Models, []D{
		{name: "create", when: domain.CreateModel(made), then: made},
		{name: "create without settings", when: domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.SpeechModel}},
			fault: "INVALID_FIELDS", says: "speech: is required for a speech model"},
		{name: "create without a format",
			when: domain.CreateModel{ModelSpec: spec(func(s *domain.SpeechSettings) { s.Format = "" })}, fault: "INVALID_FIELDS",
			says: "speech.format: is required: one of pocketsphinx, "},
		{name: "speech settings of a base model",
			when:  domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel, Speech: spec(as).Speech}},
			fault: "INVALID_FIELDS", says: "speech: is for models of kind SPEECH_MODEL"},
		{name: "create with several violations", when: domain.CreateModel{ModelSpec: wrong}, fault: "INVALID_FIELDS",
			says: `speech.format: must be one of pocketsphinx, faster-whisper, whisper.cpp, openai, simulated; speech.l` +
				`anguages: "tlh" is not a supported language code; ` +
				`speech.vadModels: "silero" must map to a name of 1 to 200 bytes, which the model server knows; ` +
				`speech.vadModels: "webrtc" is not a supported model: choose from silero, speechx-pyannet; ` +
				`speech.alignmentModels: "silero" is not a supported model: choose from mms_fa, tdnn_ffn`},
		{name: "update to the same", given: f(made), when: domain.UpdateModel{ModelSpec: spec(as)}},
		{name: "update names", given: f(made), when: domain.UpdateModel{ModelSpec: mapped},
			then: domain.ModelUpdated{ModelSpec: mapped}},
		{name: "update the format", given: f(made),
			when:  domain.UpdateModel{ModelSpec: spec(func(s *domain.SpeechSettings) { s.Format = domain.SpeechOpenAI })},
			fault: "INVALID_FIELDS", says: "speech.format: cannot change"},
		{name: "prepare a copy", given: f(made,
			domain.ModelUploaded{Upload: 1, Files: domain.Files{Sizes: map[string]int64{"x": 1}}},
			domain.ModelAccepted{Upload: 1}),
			when: domain.PrepareModel{Precision: "BF16"}, fault: "SPEECH_MODEL", says: "no copy is needed"},
	})
}

func TestSpeechDeployments(t *testing.T) {
	type D = decision[domain.Deployment]
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/ear", MaxReplicaCount: ptr(1),
		SpeechFormat: domain.SpeechPocketsphinx, Placement: &domain.Placement{MultiRegion: "GLOBAL"}}
	created := domain.DeploymentCreated{DeploymentSpec: spec, Time: noon}
	textual := spec
	textual.Precision, textual.EnableAddons, textual.NgramSpeculationLength, textual.MaxContextLength = "BF16", true, 3,
		100
	textual.AutoTune = &domain.AutoTune{LongPrompt: true}
	other := spec
	other.SpeechFormat = ""
	decide(t, domain.Deployments, []D{
		{name: "create", when: domain.CreateDeployment{DeploymentSpec: spec}, then: created},
		{name: "create with settings of text models", when: domain.CreateDeployment{DeploymentSpec: textual},
			fault: "INVALID_FIELDS",
			says: "precision: is for models that generate text, but the baseModel transcribes speech: leave it out; " +
				"enableAddons: is for"},
		{name: "another format", given: events[domain.Deployment](created),
			when: domain.UpdateDeployment{DeploymentSpec: other}, fault: "INVALID_FIELDS", says: "speechFormat: cannot change"},
	})
	need := spec.Need(domain.Hosted{})
	require.Equal(t, "transcribe:pocketsphinx", need.Engine)
	require.Equal(t, domain.Resources{CPUMilli: 100, MemoryMiB: 512}, need.Resources)
}

func TestAliases(t *testing.T) {
	type D = decision[domain.Deployment]
	plain := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MaxReplicaCount: ptr(1),
		Placement: &domain.Placement{MultiRegion: "GLOBAL"}}
	named := plain
	named.Aliases = []string{"speech-v3", "speech-v3-turbo"}
	wrong := plain
	wrong.Aliases = []string{"Speech", "a", "a"}
	renamed := named
	renamed.DisplayName = "ear"
	created := domain.DeploymentCreated{DeploymentSpec: named, Time: noon}
	given := events[domain.Deployment](created)
	decide(t, domain.Deployments, []D{
		{name: "create", when: domain.CreateDeployment{DeploymentSpec: named, Operator: true}, then: created},
		{name: "create without being the operator", when: domain.CreateDeployment{DeploymentSpec: named},
			fault: "INVALID_FIELDS", says: "aliases: are model names in every account, so only the operator may change them"},
		{name: "no names", when: domain.CreateDeployment{DeploymentSpec: wrong, Operator: true}, fault: "INVALID_FIELDS",
			says: `aliases: "Speech" must be 1 to 63 characters of a-z, 0-9 and -, begin with a letter and not end with` +
				` a hyphen; aliases: names "a" twice`},
		{name: "update without being the operator, aliases unchanged", given: given,
			when: domain.UpdateDeployment{DeploymentSpec: renamed},
			then: domain.DeploymentUpdated{DeploymentSpec: renamed, Time: noon}},
		{name: "remove the aliases without being the operator", given: given,
			when: domain.UpdateDeployment{DeploymentSpec: plain}, fault: "INVALID_FIELDS", says: "aliases: "},
		{name: "remove the aliases", given: given, when: domain.UpdateDeployment{DeploymentSpec: plain, Operator: true},
			then: domain.DeploymentUpdated{DeploymentSpec: plain, Time: noon}},
	})
}

func TestFilesOfSpeechModels(t *testing.T) {
	for name, one := range map[string]struct {
		format  string
		files   []string
		missing []string
	}{
		"pocketsphinx": {domain.SpeechPocketsphinx,
			[]string{"en-us/mdef", "en-us/means", "en-us/feat.params", "en-us.lm.bin", "cmudict-en-us.dict"}, nil},
		"pocketsphinx, flat": {domain.SpeechPocketsphinx,
			[]string{"mdef", "means", "feat.params", "en-us.lm.bin", "cmudict-en-us.dict"},
			[]string{"en-us/mdef", "en-us/means", "en-us/feat.params"}},
		"faster-whisper": {domain.SpeechFasterWhisper, []string{"model.bin", "config.json", "vocabulary.txt"}, nil},
		"faster-whisper, cut": {domain.SpeechFasterWhisper, []string{"model.safetensors"},
			[]string{"model.bin", "config.json"}},
		"whisper.cpp":        {domain.SpeechWhisperCPP, []string{"ggml-base.en.bin", "ggml-silero-vad.bin"}, nil},
		"whisper.cpp, GGUF":  {domain.SpeechWhisperCPP, []string{"base.gguf", "silero.onnx"}, nil},
		"whisper.cpp, two":   {domain.SpeechWhisperCPP, []string{"a.bin", "b.gguf"}, []string{"file"}},
		"whisper.cpp, below": {domain.SpeechWhisperCPP, []string{"deep/a.bin"}, []string{"file"}},
		"openai":             {domain.SpeechOpenAI, []string{"anything"}, nil},
	} {
		files := domain.Files{Sizes: map[string]int64{}}
		for _, file := range one.files {
			files.Sizes[file] = 1
		}
		var missing []string
		for _, v := range (&domain.SpeechSettings{Format: one.format}).CheckFiles(files) {
			missing = append(missing, v.Field)
		}
		require.Equal(t, one.missing, missing, name)
	}
}
