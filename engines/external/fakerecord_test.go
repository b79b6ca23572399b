package external

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
)

// programs maps the file names under which the test binary is a fake server that records what it
// receives, to the presets whose default command lines start these programs. Tests of the whole
// program use them: see cmd/anneal.
var programs = map[string]string{"vllm": VLLM, "llama-server": LlamaCpp}

// recordingFile is the file in $HOME in which a fake server records, one JSON object a line, its
// arguments and then its requests.
const recordingFile = "recording.jsonl"

// A recorder writes to the recording file. Its zero value records nothing.
type recorder struct {
	mu   sync.Mutex
	file *os.File
}

// newRecorder returns a recorder that has recorded the arguments of this process.
func newRecorder() (*recorder, error) {
	file, err := os.OpenFile(filepath.Join(os.Getenv("HOME"), recordingFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	r := &recorder{file: file}
	return r, r.write(body{"args": os.Args[1:]})
}

func (r *recorder) write(b body) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err = r.file.Write(append(data, '\n'))
	return err
}

// record records a request with a body before it is served.
func (r *recorder) record(req *http.Request) error {
	if r.file == nil || req.Method != http.MethodPost {
		return nil
	}
	data, err := io.ReadAll(req.Body)
	if err != nil {
		return err
	}
	req.Body = io.NopCloser(bytes.NewReader(data))
	return r.write(body{"path": req.URL.Path, "traceparent": req.Header.Get("traceparent"),
		"tracestate": req.Header.Get("tracestate"), "body": json.RawMessage(data)})
}
