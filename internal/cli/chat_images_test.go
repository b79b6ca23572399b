package cli

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const pngHeader = "\x89PNG\r\n\x1a\n"

func writeImage(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a picture.png")
	require.NoError(t, os.WriteFile(path, []byte(pngHeader), 0o600))
	require.NoError(t, os.Truncate(path, size))
	return path
}

// TestImagesOfAChat checks that the first message of a conversation has the images of the flags.
func TestImagesOfAChat(t *testing.T) {
	s := &chatServer{}
	path := writeImage(t, 20)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	_, _, err = converse(t, s.ServeHTTP, "one\ntwo\n/clear\nthree\n", "--image", path,
		"--image", "https://example.com/a,b.jpg")
	require.NoError(t, err)
	part := func(url string) any {
		return map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}}
	}
	want := func(text string) []any {
		return []any{map[string]any{"type": "text", "text": text},
			part("data:image/png;base64," + base64.StdEncoding.EncodeToString(content)), part("https://example.com/a,b.jpg")}
	}
	contents := func(body map[string]any) (all []any) {
		for _, message := range body["messages"].([]any) {
			all = append(all, message.(map[string]any)["content"])
		}
		return all
	}
	require.Len(t, s.bodies, 3)
	require.Equal(t, []any{want("one")}, contents(s.bodies[0]))
	require.Equal(t, []any{want("one"), "seen 1", "two"}, contents(s.bodies[1]))
	require.Equal(t, []any{want("three")}, contents(s.bodies[2]), "a new conversation has them again")

	s.bodies = nil
	const inline = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
	_, _, err = runOutput(t, s.ServeHTTP, "chat", "-m", "a/b", "--image", inline, "hi")
	require.NoError(t, err)
	require.Equal(t, part(inline), contents(s.bodies[0])[0].([]any)[1])
}

// TestInvalidImagesAreNotSent checks that files which the server would refuse are reported before
// anything is sent.
func TestInvalidImagesAreNotSent(t *testing.T) {
	s := &chatServer{}
	text := filepath.Join(t.TempDir(), "notes.png")
	require.NoError(t, os.WriteFile(text, []byte("a text"), 0o600))
	empty := filepath.Join(t.TempDir(), "empty.png")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	full, half := writeImage(t, maxImageFiles), writeImage(t, maxImageFiles/2+1)
	large := writeImage(t, maxImageFiles+1)
	for want, images := range map[string][]string{
		text + " is not a PNG, JPEG, WebP or GIF image: convert it": {text},
		large + " is too large: all images of a request together may have at most 2880 KiB; scale it down, or give " +
			"an http or " +
			"https URL": {large},
		empty + " is empty: give a PNG, JPEG, WebP or GIF image": {empty},
		half + " is too large":             {half, half},
		"no such file":                     {text + "x"},
		"is a directory":                   {t.TempDir()},
		"ftp://example.com/a.png: no such": {"ftp://example.com/a.png"},
	} {
		args := []string{"chat", "-m", "a/b"}
		for _, image := range images {
			args = append(args, "--image", image)
		}
		_, _, err := runOutput(t, s.ServeHTTP, append(args, "hello")...)
		require.ErrorContains(t, err, "--image: ")
		require.ErrorContains(t, err, want)
	}
	require.Zero(t, s.requests.Load())
	_, _, err := runOutput(t, s.ServeHTTP, "chat", "-m", "a/b", "--image", full, "hello")
	require.NoError(t, err)
	require.EqualValues(t, 1, s.requests.Load())
}

// TestImagesAreCompletedWithFiles checks the completion of --image.
func TestImagesAreCompletedWithFiles(t *testing.T) {
	c, _, err := NewRoot("test").Find([]string{"chat"})
	require.NoError(t, err)
	complete, found := c.GetFlagCompletionFunc("image")
	require.True(t, found)
	words, directive := complete(c, nil, "")
	require.Empty(t, words)
	require.Equal(t, cobra.ShellCompDirectiveDefault, directive)
}
