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

// sharedReader is the NATS user that can read the events of all accounts. Only the operator has its
// password.
const sharedReader = "reader"

// holdsSharedReader reports whether context.json contains the credentials of sharedReader, which
// older versions wrote there.
func holdsSharedReader(dir datadir.Dir) bool {
	file, err := datadir.ReadContext(dir.Path("context.json"))
	return err == nil && file.NATSUser == sharedReader
}

// verifyReader returns the reader with a NATS user and password; false if the password is not the
// API key of a reader. It waits until the server has started.
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

// revocationInterval is the maximum time that a revoked reader remains connected.
const revocationInterval = time.Second

// closeRevokedReaders closes the NATS connections of readers whose API key was deleted. If a key
// with the same ID exists again, it closes the connections that are older than the new key. It
// returns when ctx is done.
func (s *Server) closeRevokedReaders(ctx context.Context) error {
	for {
		if err := sleep(ctx, revocationInterval); err != nil {
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

// ensureReader sets the NATS credentials for context.json, which can read only the events of the
// account default. It keeps the credentials in the existing file if they are valid, and otherwise
// creates an API key for new ones.
func (s *Server) ensureReader(ctx context.Context) error {
	if s.nats == nil {
		return nil // a NATS cluster has no credentials for a single account
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

// createKey creates an API key in an account, and returns the key and its resource name. The ID of
// the key is first or, if that ID is taken, the next free one, such as FIRST-2.
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

// operatorContext returns the content of the operator's context file, whose NATS credentials can
// read the events of all accounts.
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

// readerURL returns the NATS URL for readers of a single account; "" if the log is in a NATS
// cluster.
func readerURL(embedded *natsserver.Server) string {
	if embedded == nil {
		return ""
	}
	return embedded.URL()
}
