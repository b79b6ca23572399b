package rest

var modelTexts = map[string]string{
	"kind":   "HF_BASE_MODEL, HF_PEFT_ADDON for a LoRA adapter, or SPEECH_MODEL for transcription.",
	"speech": "Settings of a speech model.",
	"defaultDraftTokenCount": "draftTokenCount of new deployments of the base model, unless they or their shapes have " +
		"settings of speculative decoding.",
	"defaultNgramSpeculationLength": "ngramSpeculationLength of new deployments of the base model, unless they or " +
		"their shapes have settings of speculative decoding.",
	"SpeechSettings.format": "Format, which decides the engine: pocketsphinx (CMU Sphinx), faster-whisper " +
		"(CTranslate2), whisper.cpp (GGML or GGUF), openai (files for an OpenAI-compatible server) or simulated (tests).",
	"languages": "Languages that the model supports; unknown when absent.",
	"vadModels": "Model names at the speech server for voice activity detection, by the names that requests use: " +
		"silero, speechx-pyannet.",
	"alignmentModels": "Model names at the speech server for word alignment, by the names that requests use: " +
		"mms_fa, tdnn_ffn.",
	"diarizationModel": "Model name at the speech server for speaker diarization.",
	"aliases": "Names that requests with keys of any account may use for the deployment, such as speech-v3. Only the " +
		"operator may change them.",
	"speechFormat":         "Format of the speech model that is deployed.",
	"baseModel":            "Resource name of the model to train, such as accounts/default/models/anneal-base.",
	"Model.baseModel":      "For an addon, its base model; for a fine-tuned model, the model that was trained.",
	"Deployment.baseModel": "Resource name of the served model.",
	"public":               "Whether every account may read and use the model.",
	"modelType":            "Architecture of the model, such as llama.",
	"parameterCount":       "Number of parameters.",
	"contextLength":        "Maximum context length in tokens.",
	"loraRank":             "Rank of the adapter, a power of two; 0 trains all parameters.",
	"Model.loraRank":       "Rank of an addon.",
	"loraTargetModules":    "Modules that the adapter changes.",
	"sourceJob":            "Resource name of the job that trained the model.",
	"sizeBytes":            "Total size of the files in bytes.",
	"modelId":              "ID of the new model. The server generates one by default.",
	"embedding":            "Whether the model is an embedding model.",
	"supportsImageInput": "Whether the model accepts images: its config.json describes an image encoder, or it has an " +
		"mmproj file.",
	"copies":                "Copies in other precisions.",
	"Model.precision":       "Number format of most stored parameters.",
	"ModelCopy.precision":   "Number format of the copy.",
	"Preparation.precision": "Number format of the copy to create.",
	"readMask":              "The fields to return.",
}

const exportURLText = "Address in an S3-compatible object store to write to: s3://BUCKET/KEY, or " +
	"s3://BUCKET/DIRECTORY/ for the files of the dataset in a directory, with the parameters region=REGION and " +
	"endpoint=https://HOST if needed."

var datasetTexts = map[string]string{
	"dataset":                      "Resource name of the training dataset.",
	"CreateDatasetRequest.dataset": "The dataset.",
	"datasetId":                    "ID of the new dataset. The server generates one by default.",
	"sourceDatasetId":              "ID of the dataset from which the new dataset is derived.",
	"filter":                       "Rows to select: an AIP-160 filter over the fields of the rows.",
	"exampleCount":                 "Number of rows.",
	"estimatedTokenCount":          "Estimated number of tokens of all rows.",
	"averageTurnCount":             "Average number of messages per row.",
	"format":                       "Format of the rows.",
	"rowShape": "Shape that all rows have. It is more specific than the format: preference is also CHAT, and samples " +
		"is also RL. Absent until the rows are validated.",
	"originalFormat": "Format of the rows before the transformation.",
	"sourceJobName":  "Resource name of the job that produced the dataset.",
	"externalUrl": "Address in an S3-compatible object store: s3://BUCKET/KEY, or s3://BUCKET/DIRECTORY/ for the " +
		"objects directly in a directory, with the parameters region=REGION and endpoint=https://HOST if needed. A dataset " +
		"that is created with an externalUrl imports its rows from there.",
	"ExportBody.externalUrl":    exportURLText,
	"DatasetExport.externalUrl": exportURLText,
	"ImportBody.externalUrl": "Address in an S3-compatible object store, as for the externalUrl of a dataset. Default: " +
		"the externalUrl of the dataset.",
	"ImportBody.credentialsSecret": "Resource name of the secret with the credentials. Without externalUrl in the " +
		"request, it defaults to the credentialsSecret of the dataset.",
	"Dataset.credentialsSecret": "Resource name of the secret with the credentials for externalUrl, as JSON: " +
		"access_key_id, secret_access_key and, for temporary credentials, session_token. Without a secret, requests are " +
		"anonymous.",
	"export":           "The newest export of the files.",
	"userUploaded":     "Present when the rows were uploaded.",
	"evaluationResult": "Present when an evaluation wrote the dataset.",
	"evaluationJobId":  "ID of the evaluation that wrote the dataset.",
	"transformed":      "Present when the dataset is a filtered or complete copy of another dataset.",
	"splitted":         "Present when the dataset is one part of a split.",
	"evalProtocol":     "Present when the dataset belongs to an evaluation protocol.",
	"fraction": "Fraction of the rows that is held out: above 0 and below 1. By default, as many rows are " +
		"held out as for evalAutoCarveout: one in ten, at least one and at most 1,000.",
	"rest": "Whether the dataset has the rows that are not held out.",

	"DatasetSplitted.seed": "Seed of the random choice of rows.",
	"filenameToSize": "Size of each file in bytes, by name. A file of a speech model may be in a directory: " +
		"DIRECTORY/NAME.",
	"filenameToSignedUrls": "Signed URL of each file, by name. A request to a signed URL needs no API key.",
	"signedUrl":            "The signed URL. A request to the URL needs no API key.",
	"buildLogSignedUri":    "The signed URL. A request to the URL needs no API key.",
	"examples":             "The rows. A row that is not valid JSON is a string.",
	"totalCount":           "Number of rows in the dataset.",
	"file":                 "The file.",
}

var evaluatorTexts = map[string]string{
	"evaluator":                        "Resource name of the evaluator that scores responses.",
	"CreateEvaluatorRequest.evaluator": "The evaluator.",
	"evaluatorId":                      "ID of the new evaluator. The server generates one by default.",
	"revision":                         "Current revision of the code, from 1.",
	"activeRevision":                   "Revision that new jobs use; 0 before the first successful build.",
	"revisions":                        "Built revisions, oldest first, at most 16.",
	"EvaluatorRevision.revision":       "Number of the revision.",
	"defaultDataset":                   "Dataset of chat rows whose first rows a preview without sampleData scores.",
	"PreviewedEvaluator.secrets": "Secrets that the code gets as environment variables, named by their keyName. The " +
		"caller needs permission to manage secrets.",
	"PreviewedEvaluator.name": "Resource name of an evaluator. Without criteria, the preview runs its active revision.",
	"Evaluator.secrets": "Secrets that the code gets as environment variables, named by their keyName. Changing an " +
		"evaluator with secrets needs permission to manage secrets.",
	"sampleData": "Rows to score, at most 100: JSON objects, or strings that contain one. By default the first rows of " +
		"the defaultDataset. The last message of a row is " +
		"the response that is scored.",
	"maxSamples": "Number of rows to score, from the first; 0 scores all rows of sampleData, or the first " +
		"10 of a dataset.",
	"results":              "Result of each row, in the order of the rows.",
	"success":              "Whether the score is valid.",
	"score":                "Score from 0 to 1; 0 when the score is invalid.",
	"perMetricEvals":       "Further metrics that the code returned, by name.",
	"PreviewResult.reason": "Reason of the score that the code returned, or why the score is invalid.",
	"totalSamples":         "Number of rows in the preview.",
	"totalRuntimeMs":       "Duration in milliseconds.",
	"stdout":               "Standard output of the code, one string per row.",
	"stderr":               "Standard error of the code, one string per row.",
	"criteria":             "Criteria that contain the code.",
	"requirements":         "Packages that the code needs, in the format of requirements.txt.",
	"entryPoint":           "File and function to call, such as main.py::evaluate.",
	"commitHash":           "Commit of the code, shown with the evaluator and with each revision.",
	"source":               "Origin of the code, for information: the server does not read from it.",
	"Criterion.type":       "Type of the criterion: CODE_SNIPPETS.",
	"EvaluatorSource.type": "How the code was provided, for information.",
	"codeHostRepositoryName": "Repository of the code. The server does not read from it: upload the code, or put it " +
		"in the " +
		"criteria.",
	"codeSnippets":   "The code.",
	"language":       "Programming language of the code.",
	"fileContents":   "Content of each file, by name.",
	"entryFile":      "File that contains entryFunc.",
	"entryFunc":      "Function to call.",
	"Criterion.name": "Name of the criterion.",

	"PreviewQuestion.evaluator": "The evaluator to run.",
}
