package weights

import (
	"strings"

	"anneal/domain"
)

// AdapterConfigFile is the file that a directory contains if its weights are an adapter.
const AdapterConfigFile = "adapter_config.json"

// TrainedMetadata returns the metadata of the weights in f, which an engine wrote. adapter reports
// whether they are an adapter. Fields that the files do not determine are those of trained, the
// model that was trained. The error has the code DataLoss when the files are invalid.
func TrainedMetadata(f Directory, adapter bool, trained domain.ModelMetadata) (domain.ModelMetadata, error) {
	metadata := domain.ModelMetadata{ModelType: trained.ModelType, ParameterCount: trained.ParameterCount,
		ContextLength: trained.ContextLength, Embedding: trained.Embedding, Vision: trained.Vision,
		Attention: trained.Attention}
	read := trainedModel
	if adapter {
		read = trainedAdapter
	}
	err := read(f, &metadata)
	return metadata, err
}

// trainedAdapter sets the fields of metadata that adapter_config.json and the headers of the
// weights determine.
func trainedAdapter(f Directory, metadata *domain.ModelMetadata) error {
	config, err := f.ReadAdapterConfig()
	if err != nil {
		return writtenInvalid(AdapterConfigFile, err)
	}
	metadata.LoraRank, metadata.LoraTargets = config.Rank, config.TargetModules()
	report, err := CheckAdapter(f, Config{}, *metadata)
	metadata.Precision = report.Precision
	return err
}

// trainedModel sets the fields of metadata that config.json and the headers of the weights
// determine.
func trainedModel(f Directory, metadata *domain.ModelMetadata) error {
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
	metadata.Precision, metadata.Vision = report.Precision, report.Vision
	if report.ModelType != "" {
		metadata.ModelType = report.ModelType
	}
	if report.ContextLength > 0 {
		metadata.ContextLength = report.ContextLength
	}
	if report.ParameterCount > 0 {
		metadata.ParameterCount = report.ParameterCount
	}
	return nil
}

// writtenInvalid returns the error for a file that the engine wrote and whose content is invalid,
// as err says.
func writtenInvalid(file string, err error) error {
	if IsInvalid(err) {
		return domain.Errorf(domain.DataLoss, "the engine wrote an invalid model: %s %s", file, err)
	}
	return err
}
