package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"anneal/domain"
	"anneal/internal/datadir"
	"anneal/internal/metrics"
)

// identityFile is the name of the file with the generated ID of a control plane that was started
// without --name.
const identityFile = "control-plane"

// identify returns the step of Start that sets the control plane's ID in events: --name, or a
// random ID that is the same at every start. Readers of events see the ID, so by default it does
// not contain the name of the host.
func identify(s *Server) func(context.Context) error {
	return func(context.Context) (err error) {
		id := s.flags.name
		if id == "" {
			id, err = storedIdentity(s.dir.Path(identityFile))
		}
		if err != nil {
			return err
		}
		s.id = id
		s.events.Log().DecideAs(id)
		s.events.Log().Measure = metrics.Appends(s.metrics)
		s.logger.Info("events that this control plane records will contain its ID", "controlplane", id)
		return nil
	}
}

// storedIdentity returns the ID in the file at path. If the file does not exist, it creates it with
// a random ID.
func storedIdentity(path string) (id string, err error) {
	content, err := os.ReadFile(path)
	if id = strings.TrimSpace(string(content)); err == nil && domain.ValidID(id) {
		return id, nil
	}
	if err == nil {
		return "", fmt.Errorf("%s does not contain an ID: delete the file, so that the server creates another ID", path)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // crypto/rand never returns an error
	id = "cp-" + hex.EncodeToString(random)
	return id, datadir.WritePrivate(path, []byte(id+"\n"))
}
