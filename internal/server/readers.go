package server

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"anneal/api"
	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/natsserver"
	"anneal/internal/datadir"
)

// sharedReader is the NATS user that reads every account's events: the operator's.
const sharedReader = "reader"

// holdsSharedReader tells whether context.json, as older versions wrote it, holds
// the credentials that read every account's events.
func (s *Server) holdsSharedReader() bool {
	file, err := datadir.ReadContext(s.dir.Path("context.json"))
	return err == nil && file.NATSUser == sharedReader
}

// verifyReader answers whose NATS credentials these are, once the server has
// started.
func (s *Server) verifyReader(ctx context.Context, user, password string) (natsserver.Reader, bool) {
	select {
	case <-s.started:
	case <-ctx.Done():
		return natsserver.Reader{}, false
	}
	reader, ok := api.ReaderOf(s.world, s.handler.Pepper, password, time.Now())
	if !ok || reader.User() != user {
		return natsserver.Reader{}, false
	}
	s.handler.ReaderConnected(reader)
	return reader, true
}

// sweepPause is how long a revoked reader may stay connected.
const sweepPause = time.Second

// sweepReaders closes the connections of readers whose key was deleted. Those of
// a key that was made again under the same ID are older than the key.
func (s *Server) sweepReaders(ctx context.Context) error {
	for {
		if err := sleep(ctx, sweepPause); err != nil {
			return err
		}
		keys := s.world.View().APIKeys
		err := s.nats.SweepReaders(func(user string, since time.Time) bool {
			account, id, _ := strings.Cut(user, ".")
			row, ok := keys.Get(domain.NewName(account, domain.APIKeys.Collection, id))
			return ok && row.State.Role == domain.RoleReader && !row.CreateTime.After(since)
		})
		if err != nil {
			s.logger.Error("connections of revoked readers cannot be closed; trying again", "error", err)
		}
	}
}

// ensureReader puts credentials into context.json that read the events of its
// account alone: those that it holds, or new ones.
func (s *Server) ensureReader(ctx context.Context) error {
	if s.nats == nil {
		return nil // a cluster has no readers of one account
	}
	pepper, err := s.dir.Key("pepper")
	if err != nil {
		return err
	}
	s.context.NATSURL = s.nats.URL()
	kept, _ := datadir.ReadContext(s.dir.Path("context.json"))
	if reader, ok := api.ReaderOf(s.world, pepper, kept.NATSPassword, time.Now()); ok && reader.Account == defaultAccount {
		s.context.NATSUser, s.context.NATSPassword = reader.User(), kept.NATSPassword
		return nil
	}
	key, name, err := s.mintKey(ctx, pepper, defaultAccount, "context-reader", domain.APIKeySpec{DisplayName: "made for context.json", Role: domain.RoleReader})
	if err != nil {
		return err
	}
	s.context.NATSUser, s.context.NATSPassword = natsserver.Reader{Account: name.Account(), ID: name.ID()}.User(), key.Text
	return nil
}

// mintKey makes a key under an ID, or the next one that is free.
func (s *Server) mintKey(
	ctx context.Context, pepper []byte, account, first string, spec domain.APIKeySpec,
) (request.Key, domain.Name, error) {
	id := first
	for n := 2; ; n++ {
		if _, taken := s.world.View().APIKeys.Get(domain.NewName(account, domain.APIKeys.Collection, id)); !taken {
			break
		}
		id = fmt.Sprintf("%s-%d", first, n)
	}
	name := domain.NewName(account, domain.APIKeys.Collection, id)
	key, err := request.MintKey(pepper, name)
	if err != nil {
		return request.Key{}, "", err
	}
	return key, name, bootstrapDo(ctx, s, domain.APIKeys, name, domain.CreateAPIKey{APIKeySpec: spec, Hash: key.Hash, Prefix: key.Prefix, CreatedBy: "bootstrap"})
}

// operatorContext is the operator's context file: its NATS credentials read the
// events of every account.
func (s *Server) operatorContext() datadir.Context {
	file := s.context
	file.Account = domain.System
	if s.nats == nil {
		file.NATSURL, file.NATSUser, file.NATSPassword = s.flags.natsURL, sharedReader, os.Getenv("ANNEAL_NATS_READER_PASSWORD")
		return file
	}
	file.NATSURL = s.nats.URL()
	file.NATSUser, file.NATSPassword = s.nats.ReaderCredentials()
	return file
}

// readerURL is where the readers of one account connect; "" when they cannot.
func (s *Server) readerURL() string {
	if s.nats == nil {
		return ""
	}
	return s.nats.URL()
}
