//go:build !linux || !(amd64 || arm64)

package sandbox

import "os"

const (
	codeDir    = "/code"
	socketFile = 3
)

func (v confinement) args(int) ([]string, error) { return nil, errNotLinux() }

func (s *Sandbox) bwrapArgs(string) ([]string, *os.File, error) { return nil, nil, errNotLinux() }

func filterFileOf(extraCalls) (*os.File, error) { return nil, errNotLinux() }

func memoryFile([]byte) (*os.File, error) { return nil, errNotLinux() }

func errNotLinux() error {
	return unavailable("sandboxes require Linux on amd64 or arm64: run the node there")
}

func linkFile(*os.File, string) error { return errNotLinux() }
