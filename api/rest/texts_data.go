package rest

var modelTexts = map[string]string{
	"kind":   "Kind of the model: HF_BASE_MODEL; HF_PEFT_ADDON, a LoRA adapter; or SPEECH_MODEL, for transcription.",
	"speech": "Settings of a speech model.",
	"defaultDraftTokenCount": "Value of draftTokenCount for new deployments of the base model, unless they or their " +
		"shapes have settings of speculative decoding.",
	"defaultNgramSpeculationLength": "Value of ngramSpeculationLength for new deployments of the base model, unless " +
		"they or their shapes have settings of speculative decoding.",
	"SpeechSettings.format": "Format of the model files, which decides the engine: pocketsphinx (CMU Sphinx), " +
		"faster-whisper (CTranslate2), whisper.cpp (GGML or GGUF), openai (files for an OpenAI-compatible server) or " +
		"simulated (tests).",
	"languages": "Language codes that the model supports; absent if they are unknown.",
	"vadModels": "Names of the models for voice activity detection (VAD) at the speech server, by the names that " +
		"requests use: silero, speechx-pyannet.",
	"alignmentModels": "Names of the models for word alignment at the speech server, by the names that requests use: " +
		"mms_fa, tdnn_ffn.",
	"diarizationModel": "Name of the model for speaker diarization at the speech server.",
	"aliases": "Names under which API keys of all accounts may use the deployment, such as speech-v3. Only the " +
		"operator may change them.",
	"speechFormat": "Format of the speech model that the deployment serves; absent if it serves a text model.",
	"baseModel":    "Resource name of the model to train, such as accounts/default/models/anneal-base.",
	"Model.baseModel": "Resource name of the base model: for an addon, the model to which it belongs; for a " +
		"fine-tuned model, the model that was trained.",
	"Deployment.baseModel":     "Resource name of the model that the deployment serves.",
	"public":                   "Whether all accounts may read and use the model.",
	"CreateModelRequest.model": "The model to create.",
	"modelType":                "Architecture of the model, such as llama.",
	"parameterCount":           "Number of parameters of the model.",
	"contextLength":            "Maximum context length of the model, in tokens.",
	"loraRank":                 "Rank of the LoRA adapter to train, a power of two; 0 trains all parameters.",
	"Model.loraRank":           "Rank of the LoRA adapter; absent if the model is not an addon.",
	"loraTargetModules":        "Names of the modules that the LoRA adapter changes.",
	"sourceJob":                "Resource name of the job that trained the model.",
	"sizeBytes":                "Total size of the model's files, in bytes.",
	"modelId":                  "ID of the new model. The server generates one by default.",
	"embedding":                "Whether the model is an embedding model.",
	"supportsImageInput": "Whether the model accepts images: its config.json describes an image encoder, or it has a " +
		"file for one (mmproj).",
	"copies":                "Copies of the model in other precisions.",
	"Model.precision":       "Number format of most of the model's parameters, as they are stored.",
	"ModelCopy.precision":   "Number format of the copy's parameters.",
	"Preparation.precision": "Number format of the copy to create.",
	"readMask":              "The fields to return.",
}

const exportURLText = "Where to write the files in an S3-compatible object store: s3://BUCKET/KEY, or " +
	"s3://BUCKET/DIRECTORY/ to write each file of the dataset into a directory. Append " +
	"?region=REGION&endpoint=https://HOST if needed."

var datasetTexts = map[string]string{
	"dataset":                      "Resource name of the training dataset.",
	"CreateDatasetRequest.dataset": "The dataset to create.",
	"datasetId":                    "ID of the new dataset. The server generates one by default.",
	"sourceDatasetId":              "ID of the dataset from which the rows of the new dataset are copied.",
	"filter":                       "Which rows to copy: an AIP-160 filter over the fields of the rows.",
	"exampleCount":                 "Number of rows of the dataset.",
	"estimatedTokenCount":          "Estimated number of tokens in all rows.",
	"averageTurnCount":             "Average number of messages in a row.",
	"format":                       "Format of the dataset's rows.",
	"rowShape": "Fields that all rows have. rowShape is more specific than format: rows with the rowShape preference " +
		"have the format CHAT, and those with samples have the format RL. Absent until the rows are validated.",
	"originalFormat": "Format of the rows before they were transformed.",
	"sourceJobName":  "Resource name of the job that wrote the dataset.",
	"externalUrl": "Where the rows are in an S3-compatible object store: s3://BUCKET/KEY, or s3://BUCKET/DIRECTORY/ " +
		"for all objects directly in a directory. Append ?region=REGION&endpoint=https://HOST if needed. A dataset that " +
		"is created with an externalUrl imports its rows from there.",
	"ExportBody.externalUrl":    exportURLText,
	"DatasetExport.externalUrl": exportURLText,
	"ImportBody.externalUrl": "Where the rows are in an S3-compatible object store, as in the externalUrl of a " +
		"dataset, which is the default.",
	"ImportBody.credentialsSecret": "Resource name of the secret with the credentials for the object store. If the " +
		"request has no externalUrl, the default is the dataset's credentialsSecret.",
	"Dataset.credentialsSecret": "Resource name of the secret with the credentials for externalUrl: a JSON object " +
		"with access_key_id, secret_access_key and, for temporary credentials, session_token. Without a secret, requests " +
		"to the object store are anonymous.",
	"export":           "The newest export of the dataset's files to an object store.",
	"userUploaded":     "Present if the rows were uploaded.",
	"evaluationResult": "Present if an evaluation wrote the dataset.",
	"evaluationJobId":  "ID of the evaluation that wrote the dataset.",
	"transformed":      "Present if the dataset is a filtered or complete copy of another dataset.",
	"splitted":         "Present if the dataset is one part of a split of another dataset.",
	"evalProtocol":     "Present if the dataset belongs to an evaluation protocol.",
	"fraction": "Fraction of the rows that the split holds out, above 0 and below 1. By default it holds out as many " +
		"rows as evalAutoCarveout: one in ten, at least one and at most 1,000.",
	"rest": "Whether this dataset has the rows that the split does not hold out; otherwise it has the held-out rows.",

	"DatasetSplitted.seed": "Random seed with which the held-out rows are chosen.",
	"filenameToSize": "Size of each file in bytes, by file name. A file of a speech model may be in a directory: " +
		"DIRECTORY/NAME.",
	"filenameToSignedUrls": "Signed URL of each file, by file name. Requests to a signed URL need no API key.",
	"signedUrl":            "Signed URL of the file. Requests to it need no API key.",
	"buildLogSignedUri":    "Signed URL of the build log. Requests to it need no API key.",
	"examples":             "Rows of the page. A row that is not valid JSON is a string with its text.",
	"totalCount":           "Number of rows in the dataset.",
	"file":                 "File to upload.",
}

var evaluatorTexts = map[string]string{
	"evaluator":                        "Resource name of the evaluator that scores responses.",
	"CreateEvaluatorRequest.evaluator": "The evaluator to create.",
	"evaluatorId":                      "ID of the new evaluator. The server generates one by default.",
	"revision":                         "Number of the newest revision of the code, from 1.",
	"activeRevision":                   "Number of the revision that new jobs use; 0 before the first successful build.",
	"revisions":                        "Revisions that were built, oldest first; at most 16.",
	"EvaluatorRevision.revision":       "Number of the revision, from 1.",
	"defaultDataset":                   "Dataset with chat rows. A preview without sampleData scores its first rows.",
	"PreviewedEvaluator.secrets": "Secrets whose values the code gets in environment variables named by keyName. The " +
		"caller must have permission to manage secrets.",
	"PreviewedEvaluator.name": "Resource name of an evaluator. If there are no criteria, the preview runs its active " +
		"revision.",
	"Evaluator.secrets": "Secrets whose values the code gets in environment variables named by keyName. To change an " +
		"evaluator with secrets, the caller must have permission to manage secrets.",
	"sampleData": "Rows to score, at most 100: JSON objects, or strings that contain one. The last message of a row " +
		"is the response that is scored. By default, the first rows of the defaultDataset are scored.",
	"maxSamples": "How many rows to score, from the first on; 0 means all rows of sampleData, or the first 10 of the " +
		"defaultDataset.",
	"results":              "Results of the rows, in the order of the rows.",
	"success":              "Whether the code returned a valid score.",
	"score":                "Score of the response from 0 to 1; 0 if it is invalid.",
	"perMetricEvals":       "Further metrics of the response that the code returned, by name.",
	"PreviewResult.reason": "Explanation of the score that the code returned, or why the score is invalid.",
	"totalSamples":         "Number of rows that were scored.",
	"totalRuntimeMs":       "Duration of the preview in milliseconds.",
	"stdout":               "Standard output of the code, one string for each row.",
	"stderr":               "Standard error of the code, one string for each row.",
	"criteria":             "Criteria with the code that scores responses.",
	"requirements":         "Python packages that the code needs, in the format of requirements.txt.",
	"entryPoint":           "File and function that score a response, such as main.py::evaluate.",
	"commitHash":           "Git commit of the code, for information. The evaluator and its revisions show it.",
	"source":               "Where the code comes from, for information: the server does not read it from there.",
	"Criterion.type":       "Type of the criterion, always CODE_SNIPPETS.",
	"EvaluatorSource.type": "How the code was provided, for information.",
	"codeHostRepositoryName": "Name of the code's repository, for information. The server does not read the code from " +
		"there: upload it, or put it into criteria.",
	"codeSnippets":   "Code of the criterion.",
	"language":       "Programming language of the code.",
	"fileContents":   "Content of each code file, by file name.",
	"entryFile":      "Name of the file that contains entryFunc.",
	"entryFunc":      "Name of the function that scores a response.",
	"Criterion.name": "Name of the criterion.",

	"PreviewQuestion.evaluator": "The evaluator to run: the name of a stored one, or its code.",
}
