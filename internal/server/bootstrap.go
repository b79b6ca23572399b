package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/google/uuid"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines/embedded"
	"anneal/engines/embedded/tokenizer"
	"anneal/eventlog"
	"anneal/internal/datadir"
)

// newModelFolder is a folder for the files of a model that the platform itself
// stores in an account. Each try to store them has its own.
func newModelFolder(account string) string {
	return blobs.ModelRoot + account + "/" + uuid.NewString() + "/"
}

// bootstrap makes what every installation has: the accounts system and
// default, an admin key for each, the base model and, where its engine is
// installed, a speech model. It is the same on every
// start, so one that was interrupted is completed by the next.
func (s *Server) bootstrap(ctx context.Context) error {
	for _, one := range []struct{ account, displayName, file string }{
		{domain.System, "The operator", "operator.json"}, {defaultAccount, "Default", "context.json"},
	} {
		name := domain.NewName("", "accounts", one.account)
		spec := domain.AccountSpec{DisplayName: one.displayName, AccountType: domain.Enterprise}
		if err := bootstrapDo(ctx, s, domain.Accounts, name, domain.CreateAccount{AccountSpec: spec}); err != nil {
			return err
		}
		if err := s.ensureKey(ctx, one.file, one.account); err != nil {
			return err
		}
	}
	return errors.Join(s.ensureBaseModel(ctx), s.ensureSpeech(ctx))
}

// bootstrapDo carries a command out; that the resource is already there is what it
// wants.
func bootstrapDo[S any](ctx context.Context, s *Server, kind *domain.Kind[S], name domain.Name, cmd domain.Command[S]) error {
	request := eventlog.Request{Time: time.Now().UTC(), Actor: "bootstrap"}
	result, err := eventlog.Do(ctx, s.events.Log(), s.world, request, domain.Intend(kind, name, cmd))
	if err != nil && domain.CodeOf(err) != domain.AlreadyExists {
		return err
	}
	return s.world.WaitFor(ctx, result.Position())
}

// ensureKey makes an admin key when no file holds one: at the first start, and
// after the file was lost, since a key cannot be read back. A file is of no use
// when the log has never seen an admin key: it belongs to a log that was lost.
func (s *Server) ensureKey(ctx context.Context, file, account string) error {
	known := s.world.View().APIKeys.Version(domain.NewName(account, domain.APIKeys.Collection, "admin")) > 0
	if _, err := datadir.ReadContext(s.dir.Path(file)); err == nil && known {
		return nil
	}
	pepper, err := s.dir.Key("pepper")
	if err != nil {
		return err
	}
	// The event comes first: a file with a key that nobody recorded would lock
	// its owner out, a key without a file is only replaced at the next start.
	key, _, err := s.mintKey(ctx, pepper, account, "admin", domain.APIKeySpec{DisplayName: "made at the first start", Role: domain.RoleAdmin})
	if err != nil {
		return err
	}
	context := s.context
	context.Account, context.APIKey = account, key.Text
	return s.dir.WriteContext(file, context)
}

// ensureBaseModel stores the shipped model where every account sees it.
func (s *Server) ensureBaseModel(ctx context.Context) error {
	name := domain.Name(domain.DefaultBaseModel)
	if row, ok := s.world.View().Models.Get(name); ok && row.State.State == domain.ModelReady {
		return nil
	}
	dir, err := os.MkdirTemp("", "anneal-base-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := embedded.WriteBase(dir); err != nil {
		return err
	}
	local, folder := os.DirFS(dir), newModelFolder(defaultAccount)
	err = fs.WalkDir(local, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		f, err := local.Open(path)
		if err != nil {
			return err
		}
		_, err = s.blobs.Put(ctx, folder+path, f)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return err
	}
	files, err := s.blobs.Files(ctx, folder)
	if err != nil {
		return err
	}
	info := embedded.BaseInfo()
	return bootstrapDo(ctx, s, domain.Models, name, domain.RegisterModel{
		ModelSpec:  domain.ModelSpec{DisplayName: "The shipped base model", Description: "Follows ten kinds of short instructions; its card is README.md beside its weights.", Kind: domain.BaseModel, Public: true},
		ModelFacts: domain.ModelFacts{ModelType: "llama", Precision: "BF16", ParameterCount: domain.Count(info.ParameterCount), ContextLength: info.ContextLength},
		Files:      files, CreatedBy: "bootstrap"})
}

// baseTokens counts the tokens that the shipped model makes of a text.
func baseTokens() func(text string) int {
	base := tokenizer.NewBytes()
	return func(text string) int { return len(base.Encode(text)) }
}
