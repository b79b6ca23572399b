//go:build !linux || !(amd64 || arm64)

package sandbox

import "os"

const (
	codeDir    = "/code"
	socketFile = 3
)

func (v view) args(int) ([]string, error) { return nil, errNotLinux() }

func (s *Sandbox) inside(string) ([]string, *os.File, error) { return nil, nil, errNotLinux() }

func filterOf(calls) (*os.File, error) { return nil, errNotLinux() }

func memoryFile([]byte) (*os.File, error) { return nil, errNotLinux() }

func errNotLinux() error {
	return unavailable("bubblewrap works on Linux only: run the worker there")
}

func linkOpen(*os.File, string) error { return errNotLinux() }
