package weights

import (
	"strings"

	"anneal/domain"
)

// AdapterConfigFile is the file that a directory contains if its weights are an adapter.
const AdapterConfigFile = "adapter_config.json"

// TrainedMetadata returns the metadata of weights that an engine wrote. Fields that the files do not
// determine are those of trained, the model that was trained. The error is DataLoss when the files
// are invalid.
func TrainedMetadata(f Directory, adapter bool, trained domain.ModelMetadata) (domain.ModelMetadata, error) {
	facts := domain.ModelMetadata{ModelType: trained.ModelType, ParameterCount: trained.ParameterCount,
		ContextLength: trained.ContextLength, Embedding: trained.Embedding, Vision: trained.Vision,
		Attention: trained.Attention}
	read := trainedModel
	if adapter {
		read = trainedAdapter
	}
	err := read(f, &facts)
	return facts, err
}

// trainedAdapter sets the fields of facts that adapter_config.json and the headers of the weights
// contain.
func trainedAdapter(f Directory, facts *domain.ModelMetadata) error {
	config, err := f.ReadAdapterConfig()
	if err != nil {
		return writtenInvalid(AdapterConfigFile, err)
	}
	facts.LoraRank, facts.LoraTargets = config.Rank, config.TargetModules()
	report, err := CheckAdapter(f, Config{}, *facts)
	facts.Precision = report.Precision
	return err
}

// trainedModel sets the fields of facts that config.json and the headers of the weights contain.
func trainedModel(f Directory, facts *domain.ModelMetadata) error {
	if _, err := f.ReadConfig(); err != nil {
		return writtenInvalid("config.json", err)
	}
	report, err := Check(f)
	if err != nil {
		return err
	}
	for _, v := range report.Violations {
		if strings.HasSuffix(v.Field, ".safetensors") {
			return domain.Errorf(domain.DataLoss, "the engine wrote an invalid model: %s %s", v.Field, v.Description)
		}
	}
	facts.Precision, facts.Vision = report.Precision, report.Vision
	if report.ModelType != "" {
		facts.ModelType = report.ModelType
	}
	if report.ContextLength > 0 {
		facts.ContextLength = report.ContextLength
	}
	if report.ParameterCount > 0 {
		facts.ParameterCount = report.ParameterCount
	}
	return nil
}

// writtenInvalid returns the error for a file that the engine wrote and that is not valid in a
// model.
func writtenInvalid(file string, err error) error {
	if IsInvalid(err) {
		return domain.Errorf(domain.DataLoss, "the engine wrote an invalid model: %s %s", file, err)
	}
	return err
}
