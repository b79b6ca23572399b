package server

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
	"anneal/eventlog/natsserver"
	"anneal/internal/datadir"
)

// sharedReader is the NATS user that reads every account's events: the operator's.
const sharedReader = "reader"

// holdsSharedReader reports whether context.json contains the credentials that read every account's
// events, as older versions wrote it.
func holdsSharedReader(dir datadir.Dir) bool {
	file, err := datadir.ReadContext(dir.Path("context.json"))
	return err == nil && file.NATSUser == sharedReader
}

// verifyReader returns the reader with these NATS credentials, after the server has started.
func (s *Server) verifyReader(ctx context.Context, user, password string) (natsserver.Reader, bool) {
	select {
	case <-s.started:
	case <-ctx.Done():
		return natsserver.Reader{}, false
	}
	reader, ok := rest.ReaderOf(s.world, s.handler.Pepper, password, time.Now())
	if !ok || reader.User() != user {
		return natsserver.Reader{}, false
	}
	s.handler.ReaderConnected(reader)
	return reader, true
}

// sweepPause is how long a revoked reader can stay connected.
const sweepPause = time.Second

// sweepReaders closes the connections of readers whose key was deleted. After a key was created
// again under the same ID, it closes the connections that are older than the new key.
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
			s.logger.Error("cannot close the connections of revoked readers; retrying", "error", err)
		}
	}
}

// ensureReader sets the NATS credentials for context.json. They read only the events of account
// default. It keeps valid credentials of the existing file, and otherwise creates new ones.
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
	if reader, ok := rest.ReaderOf(s.world, pepper, kept.NATSPassword, time.Now()); ok &&
		reader.Account == defaultAccount {
		s.context.NATSUser, s.context.NATSPassword = reader.User(), kept.NATSPassword
		return nil
	}
	key, name, err := s.createKey(ctx, pepper, defaultAccount, "context-reader",
		domain.APIKeySpec{DisplayName: "created for context.json", Role: domain.RoleReader})
	if err != nil {
		return err
	}
	s.context.NATSUser, s.context.NATSPassword = natsserver.Reader{Account: name.Account(), ID: name.ID()}.User(), key.Text
	return nil
}

// createKey creates a key, and returns the key and its name. The ID of the key is the argument
// first or, if that ID is taken, the next free ID such as FIRST-2.
func (s *Server) createKey(
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
	return key, name, bootstrapDo(ctx, s, domain.APIKeys, name,
		domain.CreateAPIKey{APIKeySpec: spec, Hash: key.Hash, Prefix: key.Prefix, CreatedBy: "bootstrap"})
}

// operatorContext returns the operator's context file: its NATS credentials read the events of
// every account.
func (s *Server) operatorContext() datadir.Context {
	file := s.context
	file.Account = domain.System
	if s.nats == nil {
		file.NATSURL, file.NATSUser, file.NATSPassword = s.flags.natsURL, sharedReader,
			os.Getenv("ANNEAL_NATS_READER_PASSWORD")
		return file
	}
	file.NATSURL = s.nats.URL()
	file.NATSUser, file.NATSPassword = s.nats.ReaderCredentials()
	return file
}

// readerURL returns the URL for the readers of one account; "" when there is none.
func readerURL(embedded *natsserver.Server) string {
	if embedded == nil {
		return ""
	}
	return embedded.URL()
}
