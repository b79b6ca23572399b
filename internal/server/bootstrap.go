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

// newModelDir returns the key prefix of a new directory for files of a model that the server stores
// in an account. Each attempt to store them uses a new directory.
func newModelDir(account string) string {
	return blobs.ModelRoot + account + "/" + uuid.NewString() + "/"
}

// bootstrap creates the resources that every installation has: the accounts system and default, an
// admin key for each account, the base model and, if PocketSphinx is installed, a speech model. It
// runs at every start, and so completes an interrupted bootstrap.
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

// bootstrapDo executes a command on a resource. It ignores the error that the resource already
// exists.
func bootstrapDo[S any](ctx context.Context, s *Server, kind *domain.Kind[S], name domain.Name,
	cmd domain.Command[S]) error {
	request := eventlog.Request{Time: time.Now().UTC(), Actor: "bootstrap"}
	result, err := eventlog.Do(ctx, s.events.Log(), s.world, request, domain.Intend(kind, name, cmd))
	if err != nil && domain.CodeOf(err) != domain.AlreadyExists {
		return err
	}
	return s.world.WaitFor(ctx, result.Position())
}

// ensureKey creates an admin key for an account, and stores it in a context file, if the file
// cannot be read: at the first start, or because the file was lost. It also replaces the file if
// the log has no admin key, because the file then belongs to a log that was lost.
func (s *Server) ensureKey(ctx context.Context, file, account string) error {
	known := s.world.View().APIKeys.Version(domain.NewName(account, domain.APIKeys.Collection, "admin")) > 0
	if _, err := datadir.ReadContext(s.dir.Path(file)); err == nil && known {
		return nil
	}
	pepper, err := s.dir.Key("pepper")
	if err != nil {
		return err
	}
	// Record the key before the file is written: after a crash between the two, the next start
	// replaces the key. In the reverse order, the file would have a key that the server rejects.
	key, _, err := s.createKey(ctx, pepper, account, "admin",
		domain.APIKeySpec{DisplayName: "created at the first start", Role: domain.RoleAdmin})
	if err != nil {
		return err
	}
	context := s.context
	context.Account, context.APIKey = account, key.Text
	return s.dir.WriteContext(file, context)
}

// ensureBaseModel stores the base model, which is embedded in this program, as a public model.
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
	local, dir := os.DirFS(dir), newModelDir(defaultAccount)
	err = fs.WalkDir(local, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		f, err := local.Open(path)
		if err != nil {
			return err
		}
		_, err = s.blobs.Put(ctx, dir+path, f)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return err
	}
	files, err := s.blobs.Files(ctx, dir)
	if err != nil {
		return err
	}
	info := embedded.BaseInfo()
	return bootstrapDo(ctx, s, domain.Models, name, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: "The shipped base model",
			Description: "Follows ten kinds of short instructions; its model card is README.md in its directory.",
			Kind:        domain.BaseModel, Public: true},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", Precision: "BF16",
			ParameterCount: domain.Count(info.ParameterCount), ContextLength: info.ContextLength},
		Files: files, CreatedBy: "bootstrap"})
}

// baseTokens returns a function that counts the tokens of a text with the base model's tokenizer.
func baseTokens() func(text string) int {
	base := tokenizer.NewBytes()
	return func(text string) int { return len(base.Encode(text)) }
}
