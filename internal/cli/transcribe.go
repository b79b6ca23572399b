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
	var asked recording
	c := &cobra.Command{Use: "transcribe FILE|URL", Short: "Write down what is said in a recording; - reads it from standard input", Args: arguments(1, 1),
		Example: "  anneal transcribe interview.mp3\n  anneal transcribe talk.wav --format srt > talk.srt",
		Long: `Sends a recording to a speech model and prints what is said, while the model listens. How far it
has got is told on standard error.`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			return asked.transcribe(c, client, args[0])
		}}
	f := c.Flags()
	f.StringVarP(&asked.model, "model", "m", "speech-v3", "speech model, its deployment as accounts/A/deployments/D, or a name that the operator gave to one")
	bindFlag(c, "model", "model", modelNamesHint+"; `anneal complete` completes prompts")
	f.StringVar(&asked.format, "format", "text", "text, srt, vtt, json or verbose_json; with -o json or --words it is verbose_json")
	f.BoolVar(&asked.words, "words", false, "tell when each word was said")
	f.BoolVar(&asked.translate, "translate", false, "write it down in English")
	bindFlag(c, "format", "response_format")
	bindFlag(c, "translate", "task")
	f.StringVar(&asked.language, "language", "", "code of the language that is spoken, such as en (default: it is detected)")
	f.StringVar(&asked.prompt, "prompt", "", "what was said before, or words as they are to be written")
	f.StringVar(&asked.temperature, "temperature", "", "0 to 1, or several to try in rising steps of 0.2, such as 0.0,0.2,0.4")
	f.StringVar(&asked.vad, "vad-model", "", "what finds where somebody speaks: silero, speechx-pyannet")
	f.StringVar(&asked.alignment, "alignment-model", "", "what finds where words are: mms_fa, tdnn_ffn")
	f.StringVar(&asked.preprocessing, "preprocessing", "", "what is done to the sound before: none, dynamic, soft_dynamic, bass_dynamic")
	f.BoolVar(&asked.diarize, "diarize", false, "tell speakers apart")
	f.IntVar(&asked.least, "min-speakers", 0, "speakers that there are at least")
	f.IntVar(&asked.most, "max-speakers", 0, "speakers that there are at most")
	return c
}

// A recording is what is asked of a speech model, beside the sound.
type recording struct {
	model, format, language, prompt, temperature, vad, alignment, preprocessing string
	words, translate, diarize                                                   bool
	least, most                                                                 int
}

// fields are those of the form that are given.
func (r recording) fields(client *client, c *cobra.Command) (map[string]string, error) {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return nil, err
	}
	if inJSON && !strings.Contains(r.format, "json") && c.Flags().Changed("format") {
		return nil, usage.Errorf("-o json prints JSON, and --format %s does not: leave out one of the two", r.format)
	}
	if (r.words || r.diarize) && r.format != "verbose_json" && c.Flags().Changed("format") {
		return nil, usage.Errorf("--format %s tells neither words' times nor speakers: leave it out, or --words and --diarize", r.format)
	}
	if !c.Flags().Changed("format") && (inJSON || r.words || r.diarize) {
		r.format = "verbose_json"
	}
	model, err := client.askable(c, r.model)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{"model": model, "response_format": r.format, "stream": "true", "language": r.language, "prompt": r.prompt,
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
	for name, n := range map[string]int{"min_speakers": r.least, "max_speakers": r.most} {
		if n != 0 {
			fields[name] = strconv.Itoa(n)
		}
	}
	return fields, nil
}

// transcribe sends a recording, and prints what comes back.
func (r recording) transcribe(c *cobra.Command, client *client, from string) error {
	var sound io.Reader
	switch {
	case strings.HasPrefix(from, "http://"), strings.HasPrefix(from, "https://"):
	case strings.Contains(from, "://"):
		return usage.Errorf("a URL must begin with http:// or https://, which %s does not: download it, and name the file", from)
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
	shown := &listening{out: c.OutOrStdout(), progress: c.ErrOrStderr(), terminal: onTerminal(c.ErrOrStderr()), asJSON: strings.Contains(fields["response_format"], "json")}
	err = readStream(answer.Body, shown.event)
	shown.clear()
	return errors.Join(err, shown.endLine()) // a fault has a line of its own
}

// listening shows a streamed transcript: text on one side as it comes, JSON
// when it is whole, and on the other how far listening has got.
type listening struct {
	out, progress    io.Writer
	terminal, asJSON bool
	shown            bool
	ends             string // how the text that was printed ends
	told             float64
}

type transcriptEvent struct {
	Type, Delta, Text string
	Seconds           float64
	Usage             struct{ Seconds float64 }
	Transcript        json.RawMessage
	Error             *struct{ Message string }
}

// tellAgain is how many seconds of sound lie between two lines of progress
// where nobody watches.
const tellAgain = 60

func (l *listening) event(data []byte) error {
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
		l.ends = e.Delta
		_, err := io.WriteString(l.out, e.Delta)
		return err
	case e.Type == "transcript.progress":
		l.tell(e.Seconds)
	case e.Type == "transcript.text.done":
		l.clear()
		if err := l.end(e); err != nil {
			return err
		}
		fmt.Fprintf(l.progress, "listened to %s of sound\n", inTime(e.Usage.Seconds))
	}
	return nil
}

// end prints what has not been printed yet.
func (l *listening) end(e transcriptEvent) error {
	switch {
	case !l.asJSON && l.ends == "": // nothing came before
		l.ends = e.Text
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

// endLine ends the line of text that was begun, if one was.
func (l *listening) endLine() error {
	if l.ends == "" || strings.HasSuffix(l.ends, "\n") {
		return nil
	}
	l.ends = "\n"
	_, err := fmt.Fprintln(l.out)
	return err
}

// tell shows how far listening has got: a line that is written again and again
// on a terminal, else one for each minute.
func (l *listening) tell(seconds float64) {
	switch {
	case l.terminal && (l.ends == "" || strings.HasSuffix(l.ends, "\n")): // not within a line of text
		redraw(l.progress, "listened to "+inTime(seconds))
		l.shown = true
	case !l.terminal && seconds >= l.told+tellAgain:
		l.told = seconds
		fmt.Fprintf(l.progress, "listened to %s\n", inTime(seconds))
	}
}

// clear takes the line of progress away.
func (l *listening) clear() {
	if l.shown {
		redraw(l.progress, "")
		l.shown = false
	}
}

// inTime is a length of sound as people read it: 1h2m3.4s.
func inTime(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
}
