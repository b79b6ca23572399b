package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/internal/testutil"
)

// The examples of the document tell one story: a retailer trains and serves an assistant for its
// support team. The scripts in testdata/examples contain the requests of the story, in the order of
// the files' names:
//
//	! at 2026-03-02T08:30:00Z       an action of another part of the platform: see exampleStory.act
//	# Create a dataset for uploads  the summary of the example
//	> POST /v1/accounts/… training  a request with the API key of an ID
//	> {"datasetId": "support-chats"} its body
//
// Further words of a request:
//
//	upload=NAME       sends the file NAME of testdata/examples/files in a form
//	with=NAME=VALUE   adds a field to the form; + in the value stands for a space
//	header=NAME:VALUE adds a header
//	events=N          ends the response, a stream, after N events
//
// $nextPageToken in a path stands for the token of the previous page. A comment that is followed by
// an empty line is not a summary.
const exampleScripts = "testdata/examples/*.txt"

// exampleServer is the address of the server in the examples.
const exampleServer = "https://anneal.example.com"

// An exampleStep is an action or a request of the story.
type exampleStep struct {
	at      string // file and line
	action  []string
	summary string
	request scripted
	headers map[string]string
	fields  map[string][]string // fields of the form besides the file
	events  int
}

// readStory returns the steps of all scripts.
func readStory(t testing.TB) (steps []exampleStep) {
	files := testutil.Glob(t, exampleScripts)
	require.NotEmpty(t, files)
	for _, file := range files {
		text := testutil.ReadFile(t, file)
		steps = append(steps, parseStory(t, filepath.Base(file), string(text))...)
	}
	return steps
}

func parseStory(t testing.TB, file, text string) (steps []exampleStep) {
	var summary string
	var lines []string
	for i, line := range strings.Split(text+"\n\n", "\n") {
		marked, isRequest := strings.CutPrefix(line, "> ")
		if isRequest {
			lines = append(lines, marked)
			continue
		}
		if len(lines) > 0 {
			at := fmt.Sprintf("%s:%d", file, i)
			require.NotEmpty(t, summary, "%s: a request needs a summary in the line above it", at)
			steps = append(steps, parseExample(at, summary, lines))
			summary, lines = "", nil
		}
		switch {
		case strings.HasPrefix(line, "# "):
			summary = line[2:]
		case strings.HasPrefix(line, "! "):
			steps = append(steps, exampleStep{at: fmt.Sprintf("%s:%d", file, i+1), action: strings.Fields(line[2:])})
		case line == "":
			summary = ""
		default:
			require.Fail(t, "not a line of a script", "%s:%d: %s", file, i+1, line)
		}
	}
	return steps
}

func parseExample(at, summary string, lines []string) exampleStep {
	step := exampleStep{at: at, summary: summary, headers: map[string]string{}, fields: map[string][]string{}}
	var kept []string
	for _, word := range strings.Fields(lines[0]) {
		if header, ok := strings.CutPrefix(word, "header="); ok {
			name, value, _ := strings.Cut(header, ":")
			step.headers[name] = value
		} else if n, ok := strings.CutPrefix(word, "events="); ok {
			step.events, _ = strconv.Atoi(n)
		} else {
			kept = append(kept, word)
		}
	}
	step.request = parseRequest(strings.Join(append([]string{strings.Join(kept, " ")}, lines[1:]...), "\n"))
	for _, field := range step.request.fields {
		name, value, _ := strings.Cut(field, "=")
		step.fields[name] = append(step.fields[name], strings.ReplaceAll(value, "+", " "))
	}
	return step
}

// exampleFile returns the content of a file that the story uploads.
func exampleFile(t testing.TB, name string) []byte {
	t.Helper()
	if made, ok := madeFiles[name]; ok {
		return made()
	}
	data := testutil.ReadFile(t, filepath.Join("testdata", "examples", "files", name))
	return data
}

// madeFiles are the binary files that the story uploads.
var madeFiles = map[string]func() []byte{
	"model.safetensors": func() []byte { // one tensor of 32,768 × 64 numbers
		const rows, columns = 32768, 64
		header := fmt.Sprintf(`{"model.embeddings.tok_embeddings.weight":{"dtype":"BF16",`+
			`"shape":[%d,%d],"data_offsets":[0,%d]}}`, rows, columns, 2*rows*columns)
		header += strings.Repeat(" ", (8-len(header)%8)%8)
		out := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
		return append(out, make([]byte, 2*rows*columns)...)
	},
	"ticket-4182.wav": func() []byte { // 0.1 s of silence
		const rate, samples = 16000, 1600
		out := []byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00" +
			"\x02\x00\x10\x00data\x80\x0c\x00\x00")
		out[4], out[5] = byte((36+2*samples)&0xff), byte((36+2*samples)>>8)
		return append(out, make([]byte, 2*samples)...)
	},
}

// An exampleStory is the server on which the story takes place.
type exampleStory struct {
	*harness
	last  response // response to the latest request
	proxy string   // host and port of a proxy to the server; "" without one
}

func newExampleStory(t testing.TB) *exampleStory {
	begin := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	s := &exampleStory{harness: startHarness(t, begin, request.Limits{}, func(o *Options) {
		o.Scorer, o.ReaderURL = resolutionScorer{}, "nats://anneal.example.com:4222"
	})}
	s.actor, s.replicas.respond, s.replicas.transcribe, s.replicas.embed = "scheduler",
		completeReply, transcribeCall, embedText
	s.validateModels()
	s.publish()
	return s
}

// exchange sends a request of the story, and returns the response. When the response contains an API
// key, exchange stores the key in s.keys.
func (s *exampleStory) exchange(r *http.Request, events int) response {
	s.Helper()
	if events > 0 {
		s.last = s.tail(r, events)
	} else {
		s.last = s.harness.send(r)
	}
	var created struct {
		Name   string
		Key    string
		APIKey struct{ Name string }
	}
	if json.Unmarshal(s.last.body, &created) == nil && created.Key != "" {
		if created.APIKey.Name != "" {
			created.Name = created.APIKey.Name
		}
		s.keys[created.Name[strings.LastIndex(created.Name, "/")+1:]] = created.Key
	}
	return s.last
}

// tail sends a request, and returns the response up to the given number of events. It validates the
// response like send.
func (s *exampleStory) tail(r *http.Request, events int) response {
	s.Helper()
	ctx, stop := context.WithTimeout(s.Context(), patience)
	defer stop()
	received, err := http.DefaultClient.Do(r.Clone(ctx))
	require.NoError(s, err)
	defer received.Body.Close()
	var text bytes.Buffer
	for lines := bufio.NewReader(received.Body); events > 0; {
		line, err := lines.ReadString('\n')
		require.NoError(s, err, "%s", text.String())
		text.WriteString(line)
		if line == "\n" && strings.Contains(text.String(), "data:") {
			events--
		}
	}
	a := response{received.StatusCode, received.Header, text.Bytes()}
	s.validate(r, nil, a)
	return a
}

// mediaOf returns the media type of a response without parameters.
func mediaOf(a response) string {
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	return media
}

// pseudonyms replaces the parts of texts that differ from run to run by constants of the same
// format. Equal parts have equal pseudonyms.
type pseudonyms struct {
	address string // URL of the server
	known   map[string]string
	count   map[string]int
}

// of returns the pseudonym of a text. made formats hexadecimal digits as a pseudonym of the kind.
func (p *pseudonyms) of(kind, text string, made func(digits string) string) string {
	if known, ok := p.known[text]; ok {
		return known
	}
	p.count[kind]++
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", kind, p.count[kind]))
	digits := hex.EncodeToString(sum[:])
	p.known[text] = made(digits)
	return p.known[text]
}

// A volatile is a pattern of parts that differ from run to run. The first group of the pattern is
// the part.
type volatile struct {
	pattern *regexp.Regexp
	kind    string
	made    func(digits string) string
}

var volatiles = []volatile{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "uuid", func(d string) string {
		return "0195564a-" + d[:4] + "-7" + d[4:7] + "-9" + d[7:10] + "-" + d[10:22]
	}},
	{regexp.MustCompile(`"(?:file|ftjob|batch)-([0-9a-f]{32})"`), "compatible", func(d string) string { return d[:32] }},
	{regexp.MustCompile(`wh(?:sec|pk)_([0-9A-Za-z+/]{43}=)`), "signing key", func(d string) string {
		return base64.StdEncoding.EncodeToString([]byte(d[:32]))
	}},
	{regexp.MustCompile(`ank_[a-z0-9-]+_[a-z0-9-]+_([0-9a-f]{72})`), "key", func(d string) string {
		return d[:4] + d[8:] + d[:12]
	}},
	// Two URLs of a file have equal signatures only if they were signed within the same second.
	{regexp.MustCompile(`signature=([A-Za-z0-9_-]+)`), "signature", func(string) string {
		return "ZTYxMDJjY2M4OWVmZDE5ZjQ2YWJkODZlMWE4YzdjYTA"
	}},
	{regexp.MustCompile(`until=([0-9]+)`), "until", func(string) string { return "1772445600" }},
	{regexp.MustCompile(`/[0-9]+-([0-9a-f]{8})/`), "folder", func(d string) string { return d[:8] }},
	{regexp.MustCompile(`"nextPageToken": ?"([^"]+)"`), "token", func(d string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(d)[:48])
	}},
	{regexp.MustCompile(`"server-[a-z-]+": ?([0-9.e-]+)`), "seconds", func(string) string { return "0.084" }},
	{regexp.MustCompile(`"sha256": ?"([0-9a-f]{64})"`), "sum", func(d string) string { return d }},
}

// replace returns the text with pseudonyms.
func (p *pseudonyms) replace(text string) string {
	text = strings.ReplaceAll(text, p.address, exampleServer)
	for _, v := range volatiles {
		text = replaceGroups(v.pattern, text, func(part string) string { return p.of(v.kind, part, v.made) })
	}
	return prefixOfKey.ReplaceAllStringFunc(text, func(found string) string {
		for secret, pseudonym := range p.known { // the prefix ends with the first digits of a key
			if len(secret) == keyDigits && strings.HasSuffix(strings.TrimSuffix(found, `"`), "_"+secret[:4]) {
				return strings.TrimSuffix(found, secret[:4]+`"`) + pseudonym[:4] + `"`
			}
		}
		return found
	})
}

// keyDigits is the number of hexadecimal digits of an API key.
const keyDigits = 72

var prefixOfKey = regexp.MustCompile(`ank_[a-z0-9-]+_[a-z0-9-]+_[0-9a-f]{4}"`)

// replaceGroups replaces the first group of each match, or the whole match of a pattern without
// groups.
func replaceGroups(pattern *regexp.Regexp, text string, replacement func(string) string) string {
	var out strings.Builder
	end := 0
	for _, at := range pattern.FindAllStringSubmatchIndex(text, -1) {
		from, to := at[len(at)-2], at[len(at)-1]
		out.WriteString(text[end:from] + replacement(text[from:to]))
		end = to
	}
	return out.String() + text[end:]
}

// putSigned sends a file to its signed URL in the latest response.
func (s *exampleStory) putSigned(name string) {
	s.Helper()
	var urls struct{ FilenameToSignedURLs map[string]string }
	require.NoError(s, json.Unmarshal(s.last.body, &urls))
	require.Contains(s, urls.FilenameToSignedURLs, name)
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPut, urls.FilenameToSignedURLs[name],
		bytes.NewReader(exampleFile(s, name)))
	require.NoError(s, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(s, err)
	defer response.Body.Close()
	message := testutil.ReadAll(s, response.Body)
	require.Equal(s, http.StatusOK, response.StatusCode, "%s", message)
}
