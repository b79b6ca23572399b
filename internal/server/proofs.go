package server

import (
	"context"

	"anneal/eventlog"
	"anneal/eventlog/transparency"
	"anneal/internal/datadir"
)

// treeDir is the subdirectory of the data directory with the log's Merkle tree.
const treeDir = "tree"

// openProofs returns the step of Start that opens the publisher of the log's Merkle tree. It
// precedes the step that opens the world, which passes each event on to the tree. If the publisher
// fails, the server continues.
func openProofs(s *Server) func(context.Context) error {
	return func(ctx context.Context) error {
		signer, err := logSigner(s.dir)
		if err != nil {
			return err
		}
		vault, err := s.sealer(ctx)
		if err != nil {
			return err
		}
		witnesses, err := s.flags.parseWitnesses()
		if err != nil {
			return err
		}
		s.proofs = transparency.NewPublisher(transparency.Options{Dir: s.dir.Path(treeDir),
			Messages: eventlog.MessagesOf(s.events.Log()), Keys: vault.Salts(), Signer: signer, Witnesses: witnesses,
			Logger: s.logger.With("part", "proofs")})
		s.events.Log().Observe(s.proofs.Observe)
		s.services.start("proofs", func(ctx context.Context) error {
			select { // wait until the server is ready, because reading the tree of a large log takes time
			case <-s.started:
			case <-ctx.Done():
				return ctx.Err()
			}
			return s.proofs.Run(ctx)
		})
		return nil
	}
}

// logSigner returns the signer of the log's checkpoints, whose key is derived from a key that all
// control planes share.
func logSigner(dir datadir.Dir) (*transparency.Signer, error) {
	pepper, err := dir.Key("pepper")
	if err != nil {
		return nil, err
	}
	return transparency.NewSigner(pepper)
}

// LogKey returns the public key that verifies the checkpoints of the server with this data
// directory.
func LogKey(dir datadir.Dir) (string, error) {
	if err := dir.CheckExists(); err != nil {
		return "", err
	}
	signer, err := logSigner(dir)
	if err != nil {
		return "", err
	}
	return signer.Key(), nil
}

func (f Flags) parseWitnesses() (witnesses []transparency.Witness, err error) {
	for _, text := range f.witnesses {
		w, err := transparency.ParseWitness(text)
		if err != nil {
			return nil, err
		}
		witnesses = append(witnesses, w)
	}
	return witnesses, nil
}
