package sound

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// filters are ffmpeg's audio filters, by the value of preprocessing; "" for none.
var filters = map[string]string{
	"":                        "",
	engines.PreprocessNone:    "",
	engines.PreprocessDynamic: dynamic,
	// compression, and then slower normalization than dynamic
	engines.PreprocessSoftDynamic: "acompressor=threshold=-24dB:ratio=3:attack=20:release=250:makeup=2," +
		"dynaudnorm=f=500:g=31:p=0.9:m=15",
	engines.PreprocessBassDynamic: "bass=g=6:f=110:w=0.6," + dynamic,
}

const dynamic = "dynaudnorm=f=250:g=15:p=0.95:m=20"

// containers are the demuxers that ffmpeg may use. They do not include those of playlists,
// manifests and scripts, which open other files.
var containers = strings.Join([]string{
	"aac", "ac3", "eac3", "aiff", "amr", "amrnb", "amrwb", "ape", "asf", "au", "avi", "caf", "dts", "dtshd", "dsf",
	"flac", "flv",
	"gsm", "matroska,webm", "mov,mp4,m4a,3gp,3g2,mj2", "mp3", "mpc", "mpc8", "mpeg", "mpegts", "mxf", "nut", "ogg", "oma",
	"rm", "shn", "spdif", "tak", "truehd", "tta", "voc", "w64", "wav", "wv", "xwma",
}, ",")

const (
	ffmpeg        = "ffmpeg"
	installFFmpeg = "install it with `apt install ffmpeg`; without it only WAV files of 16 kHz, mono, 16 bits can be " +
		"transcribed, without preprocessing"
	readTimeout = time.Minute // maximum wait for the next samples of ffmpeg
	readAhead   = 64 << 10
)

// limits are several times what ffmpeg needs for a recording of 24 hours.
var limits = sandbox.Limits{Memory: 2 << 30, FileBytes: 1 << 20, Processes: 64, Files: 64, CPU: 2 * time.Hour}

// A decoder is an ffmpeg process that decodes a file. It is a reader of the samples.
type decoder struct {
	ctx     context.Context
	program *sandbox.Process
	pcm     *os.File
	ahead   *bufio.Reader
	unwatch func() bool // after its call, ctx no longer stops ffmpeg
	stop    func()      // kills ffmpeg's process group
}

// decode starts ffmpeg on a file, which the caller closes, and returns a reader of the decoded
// samples.
func decode(ctx context.Context, runner *sandbox.Runner, file *os.File, filter string) (io.ReadCloser, error) {
	program, err := process.Find(ffmpeg, installFFmpeg)
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, withoutPath(err)
	}
	pcm, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	d := &decoder{ctx: ctx, pcm: pcm, ahead: bufio.NewReaderSize(pcm, readAhead)}
	d.program, err = runner.Start(sandbox.Program{
		Args: arguments(program, filter), Env: process.Environment(nil), Files: []*os.File{file, out}, Limits: limits,
	})
	if err != nil {
		_ = pcm.Close() // the earlier error is returned instead
		return nil, err
	}
	d.stop = sync.OnceFunc(func() { d.program.Stop(context.Background(), 0) })
	d.unwatch = context.AfterFunc(ctx, d.stop)
	_ = out.Close() // the samples then end when ffmpeg exits
	if _, err := d.peek(); err != nil && !errors.Is(err, io.EOF) {
		_ = d.Close() // err, the earlier error, is returned instead
		return nil, err
	}
	return d, nil
}

// arguments returns ffmpeg's command line. ffmpeg reads the input from descriptor 3, so that it
// does not take a file name for a protocol, and writes samples to descriptor 4.
func arguments(program, filter string) []string {
	return []string{
		program, "-nostdin", "-hide_banner", "-loglevel", "error", "-max_alloc", "268435456", "-threads", "1",
		"-protocol_whitelist", "file,pipe", "-format_whitelist", containers, "-i", input,
		"-map", "0:a:0", "-vn", "-af", strings.TrimPrefix(filter+",aresample=16000", ","),
		"-ac", "1", "-ar", "16000", "-c:a", "pcm_s16le", "-f", "s16le", "pipe:4",
	}
}

const input = "file:/dev/fd/3"

func (d *decoder) peek() ([]byte, error) {
	_ = d.pcm.SetReadDeadline(time.Now().Add(readTimeout)) // cannot fail, because pipes support deadlines
	first, err := d.ahead.Peek(1)
	return first, d.explain(err)
}

func (d *decoder) Read(p []byte) (int, error) {
	_ = d.pcm.SetReadDeadline(time.Now().Add(readTimeout))
	n, err := d.ahead.Read(p)
	return n, d.explain(err)
}

// explain replaces err, the error of reading samples, by the reason why they ended.
func (d *decoder) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		d.stop()
		return invalidFile("takes too long to decode: ffmpeg returned no samples within %s: convert it to WAV or MP3",
			readTimeout)
	case !errors.Is(err, io.EOF):
		return err
	}
	<-d.program.Done()
	if ctxErr := d.ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if exitErr := d.program.Err(); exitErr != nil {
		return invalidFile("cannot be decoded: %s: send a format that ffmpeg reads, such as WAV, MP3, M4A, FLAC or Ogg",
			reason(exitErr.Error()))
	}
	return err
}

func (d *decoder) Close() error {
	d.unwatch()
	d.stop()
	return d.pcm.Close()
}

// noise matches parts of ffmpeg's messages that do not help users: the addresses of ffmpeg's
// components, and the name of the input.
var noise = regexp.MustCompile(`\[[^\]]*@ 0x[0-9a-f]+\] *|` + regexp.QuoteMeta(input) + `:? *`)

const maxReason = 200 // maximum number of characters of the text that reason returns

// reason returns why ffmpeg failed: a fixed text for common errors, otherwise the last line of its
// output, shortened.
func reason(message string) string {
	if _, output, found := strings.Cut(message, process.OutputMark); found {
		message = output
	}
	switch {
	case strings.Contains(message, "matches no streams"):
		return "the file has no audio stream"
	case strings.Contains(message, "not on whitelist"):
		return "the file is an image, a playlist or another file that is not a recording"
	}
	lines := strings.Split(strings.TrimSpace(noise.ReplaceAllString(message, "")), "\n")
	last := []rune(strings.TrimSpace(lines[len(lines)-1]))
	return strings.TrimSuffix(string(last[:min(len(last), maxReason)]), ".")
}
