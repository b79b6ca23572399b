package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

func transcribeCommand() *cobra.Command {
	var flags transcription
	c := &cobra.Command{Use: "transcribe FILE|URL",
		Short:   "Transcribe a recording; use - as FILE to read the recording from standard input",
		Args:    arguments(1, 1),
		Example: "  anneal transcribe interview.mp3\n  anneal transcribe talk.wav --format srt > talk.srt",
		Long: `Sends a recording to a speech model and prints the transcript while it is generated. The progress is
printed on standard error.`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			return flags.transcribe(c, client, args[0])
		}}
	f := c.Flags()
	f.StringVarP(&flags.model, "model", "m", "speech-v3",
		"speech model, deployment (accounts/A/deployments/D) or deployment alias")
	bindModel(c, modelNamesHint+"; `anneal complete` completes prompts")
	f.StringVar(&flags.format, "format", "text",
		"output format: text, srt, vtt, json or verbose_json "+
			"(default with -o json, --words or --diarize: verbose_json)")
	f.BoolVar(&flags.words, "words", false, "include the timestamps of words")
	f.BoolVar(&flags.translate, "translate", false, "translate to English")
	bindFlag(c, "format", "response_format")
	bindFlag(c, "translate", "task")
	f.StringVar(&flags.language, "language", "", "language code, such as en (default: detected)")
	f.StringVar(&flags.prompt, "prompt", "", "transcript of the preceding speech, or words to spell as given")
	f.StringVar(&flags.temperature, "temperature", "",
		"sampling temperature, or fallback temperatures in steps of 0.2, such as 0.0,0.2,0.4")
	f.StringVar(&flags.vad, "vad-model", "", "voice activity model: silero, speechx-pyannet")
	f.StringVar(&flags.alignment, "alignment-model", "", "alignment model: mms_fa, tdnn_ffn")
	f.StringVar(&flags.preprocessing, "preprocessing", "",
		"audio preprocessing: none, dynamic, soft_dynamic, bass_dynamic")
	f.BoolVar(&flags.diarize, "diarize", false, "identify speakers")
	f.IntVar(&flags.minSpeakers, "min-speakers", 0, "minimum number of speakers")
	f.IntVar(&flags.maxSpeakers, "max-speakers", 0, "maximum number of speakers")
	usage.SetSection(f, "Decoding", "language", "prompt", "temperature", "vad-model", "alignment-model", "preprocessing")
	usage.SetSection(f, "Speakers", "diarize", "min-speakers", "max-speakers")
	return c
}

// A transcription has the parameters of a request for a transcript.
type transcription struct {
	model, format, language, prompt, temperature, vad, alignment, preprocessing string
	words, translate, diarize                                                   bool
	minSpeakers, maxSpeakers                                                    int
}

// fields returns the form fields of the request. It returns a usage error if flags exclude each
// other.
func (r transcription) fields(client *client, c *cobra.Command) (map[string]string, error) {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return nil, err
	}
	if inJSON && !strings.Contains(r.format, "json") && c.Flags().Changed("format") {
		return nil, usage.Errorf("-o json requires a JSON format, not --format %s: omit -o or --format", r.format)
	}
	if (r.words || r.diarize) && r.format != "verbose_json" && c.Flags().Changed("format") {
		return nil, usage.Errorf(
			"--format %s contains neither timestamps of words nor speakers: omit --format, or omit --words and --diarize",
			r.format)
	}
	if !c.Flags().Changed("format") && (inJSON || r.words || r.diarize) {
		r.format = "verbose_json"
	}
	model, err := resolveModel(c.Context(), c, client, r.model)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{"model": model, "response_format": r.format, "stream": "true", "language": r.language,
		"prompt":      r.prompt,
		"temperature": r.temperature, "vad_model": r.vad, "alignment_model": r.alignment, "preprocessing": r.preprocessing}
	if r.words || r.diarize {
		fields["timestamp_granularities"] = "word,segment"
	}
	if r.translate {
		fields["task"] = "translate"
	}
	if r.diarize {
		fields["diarize"] = "true"
	}
	for name, n := range map[string]int{"min_speakers": r.minSpeakers, "max_speakers": r.maxSpeakers} {
		if n != 0 {
			fields[name] = strconv.Itoa(n)
		}
	}
	return fields, nil
}

// transcribe sends a recording, which is a file, "-" for standard input, or a URL, and prints the
// transcript.
func (r transcription) transcribe(c *cobra.Command, client *client, from string) error {
	var sound io.Reader
	switch {
	case strings.HasPrefix(from, "http://"), strings.HasPrefix(from, "https://"):
	case strings.Contains(from, "://"):
		return usage.Errorf("URL %s must begin with http:// or https://: download the recording, and give the file", from)
	case from == "-":
		sound = c.InOrStdin()
	default:
		if err := isFile(from); err != nil {
			return err
		}
		file, err := os.Open(from)
		if err != nil {
			return err
		}
		defer file.Close()
		sound = file
	}
	fields, err := r.fields(client, c)
	if err != nil {
		return err
	}
	if sound == nil {
		fields["url"] = from
	}
	body, err := newForm(fields, from, sound)
	if err != nil {
		return err
	}
	answer, err := client.request(c.Context(), http.MethodPost, "/v1/audio/transcriptions", nil, body.contentType, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	shown := &transcript{out: c.OutOrStdout(), progress: c.ErrOrStderr(), terminal: onTerminal(c.ErrOrStderr()),
		asJSON: strings.Contains(fields["response_format"], "json")}
	err = readStream(answer.Body, shown.event)
	shown.clear()
	return errors.Join(err, shown.endLine()) // an error is printed on its own line
}

// A transcript prints a streamed transcript: text as it arrives, or JSON when the transcript is
// complete. It prints the progress to another writer.
type transcript struct {
	out, progress    io.Writer
	terminal, asJSON bool
	shown            bool
	printed          string // the part of the transcript that was printed last
	reported         float64
}

type transcriptEvent struct {
	Type, Delta, Text string
	Seconds           float64
	Usage             struct{ Seconds float64 }
	Transcript        json.RawMessage
	Error             *struct{ Message string }
}

// progressSeconds is the duration of audio between two printed lines of progress, if they are not
// printed to a terminal.
const progressSeconds = 60

func (l *transcript) event(data []byte) error {
	var e transcriptEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	switch {
	case e.Error != nil:
		l.clear()
		return errors.New(e.Error.Message)
	case e.Delta != "" && !l.asJSON:
		l.clear()
		l.printed = e.Delta
		_, err := io.WriteString(l.out, e.Delta)
		return err
	case e.Type == "transcript.progress":
		l.report(e.Seconds)
	case e.Type == "transcript.text.done":
		l.clear()
		if err := l.end(e); err != nil {
			return err
		}
		fmt.Fprintf(l.progress, "transcribed %s of audio\n", audioTime(e.Usage.Seconds))
	}
	return nil
}

// end handles the last event, e: it prints the transcript, unless its text was already printed
// while it arrived.
func (l *transcript) end(e transcriptEvent) error {
	switch {
	case !l.asJSON && l.printed == "": // print the whole text: the server has sent no part of it before
		l.printed = e.Text
		if _, err := io.WriteString(l.out, e.Text); err != nil {
			return err
		}
		return l.endLine()
	case !l.asJSON:
		return l.endLine()
	case e.Transcript == nil:
		return printJSON(l.out, map[string]any{"text": e.Text})
	}
	var whole bytes.Buffer
	if err := json.Indent(&whole, e.Transcript, "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(l.out, whole.String())
	return err
}

// endLine ends the line of a text that does not end with a newline.
func (l *transcript) endLine() error {
	if l.printed == "" || strings.HasSuffix(l.printed, "\n") {
		return nil
	}
	l.printed = "\n"
	_, err := fmt.Fprintln(l.out)
	return err
}

// report shows that a duration of audio is transcribed. On a terminal it redraws a line; otherwise
// it prints a line for each minute of audio.
func (l *transcript) report(seconds float64) {
	switch {
	// redraw only when the cursor is not within a line of the transcript
	case l.terminal && (l.printed == "" || strings.HasSuffix(l.printed, "\n")):
		redraw(l.progress, "transcribed "+audioTime(seconds))
		l.shown = true
	case !l.terminal && seconds >= l.reported+progressSeconds:
		l.reported = seconds
		fmt.Fprintf(l.progress, "transcribed %s\n", audioTime(seconds))
	}
}

// clear removes the line of progress from the terminal.
func (l *transcript) clear() {
	if l.shown {
		redraw(l.progress, "")
		l.shown = false
	}
}

// audioTime formats a duration of audio in seconds, such as 1h2m3.4s.
func audioTime(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}
