package cli

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal reports whether a file is a terminal.
func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), getTermios)
	return err == nil
}

// readHidden reads a line from a terminal without showing what the user types. Before it returns,
// also because ctx is done, it restores the terminal's settings.
func readHidden(ctx context.Context, file *os.File) (line string, err error) {
	fd := int(file.Fd())
	shown, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return "", err
	}
	hidden := *shown
	hidden.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, setTermios, &hidden); err != nil {
		return "", err
	}
	defer func() { _ = unix.IoctlSetTermios(fd, setTermios, shown) }()
	type input struct {
		line string
		err  error
	}
	typed := make(chan input, 1)
	go func() {
		line, err := readLine(file)
		typed <- input{line, err}
	}()
	select {
	case got := <-typed:
		return got.line, got.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// columnsOf returns the width of a terminal in characters; 0 if it is unknown.
func columnsOf(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
