package server

import (
	"context"
	"time"

	"anneal/domain"
	"anneal/eventlog/audit"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
)

// openAudit returns the step of Start that opens the audit stream, to which s.audit records.
func openAudit(s *Server) func(context.Context) error {
	return func(context.Context) error {
		store, err := audit.OpenStream(s.events.Control(), s.logSpace())
		if err != nil {
			return err
		}
		recorder := audit.NewRecorder(audit.Options{Store: store, ID: s.id, Addresses: s.flags.clientAddresses,
			Now: time.Now, Logger: s.logger, Metrics: s.metrics})
		s.services.start("audit", recorder.Run)
		s.audit.Store(recorder)
		return nil
	}
}

// observed returns the vault for code that reads secrets, which records each read in the audit
// stream.
func observed(s *Server, vault *secrets.Vault) secrets.ObservedVault {
	return secrets.ObservedVault{Vault: vault, Observe: func(_ context.Context, read secrets.Read) {
		s.audit.Load().Record(recordOfRead(read))
	}}
}

func recordOfRead(read secrets.Read) audit.Record {
	record := audit.Record{Kind: audit.SecretRead, Account: read.Name.Account(), Secret: string(read.Name),
		Reader: string(read.By.Resource), Purpose: string(read.By.Purpose), Node: string(read.By.Node),
		Actor: controlPlaneActor, APIKey: string(read.By.Key), RequestID: read.By.Request, ClientAddress: read.By.Address}
	switch {
	case read.By.Key != "":
		record.Actor = string(read.By.Key)
	case read.By.Node != "":
		record.Actor = string(read.By.Node)
	}
	if read.Err != nil {
		record.Reason = domain.CodeOf(read.Err).String()
	}
	return record
}

// controlPlaneActor is the actor in audit records of the control plane itself, whose ID is in the
// field controlPlane.
const controlPlaneActor = "control-plane"

// recordLogins returns the function that records each login of a node or a reader that NATS accepts
// or refuses.
func recordLogins(s *Server) func(natsserver.Login) {
	return func(login natsserver.Login) { s.audit.Load().Record(recordOfLogin(login)) }
}

func recordOfLogin(login natsserver.Login) audit.Record {
	record := audit.Record{Kind: audit.LoginAccepted, ClientAddress: login.Address}
	if login.Err != nil {
		record.Kind = audit.LoginRefused
	}
	if login.IsReader {
		record.Operation = "connectReader"
		record.APIKey = login.User
		if account, id, ok := natsserver.ParseReader(login.User); ok {
			record.APIKey = string(domain.NewName(account, domain.APIKeys.Collection, id))
			if login.Err == nil {
				record.Account, record.Actor = account, record.APIKey
			}
		}
	} else {
		record.Operation = "connectNode"
		record.Actor = string(domain.NewName(domain.System, domain.Nodes.Collection, login.User))
		if login.Err == nil {
			record.Account = domain.System
		}
	}
	if login.Err != nil {
		record.Reason = audit.LoginRefused // the error's message can contain text of the client
	}
	return record
}
