package rest

import (
	"context"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// ModelDeletion is the response to the deletion of a model of the OpenAI API.
type ModelDeletion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

func compatibleModelOperations(s *Service) []request.Operation {
	return []request.Operation{
		{ID: "deleteFineTunedModel", Method: "DELETE", Path: "/v1/models/{model}", Slashes: true, Tag: "models",
			Gate: request.InOwnAccount, Permission: request.Write,
			Summary: "Delete a model of the caller's account (OpenAI-compatible)",
			Description: "The path names the model by its ID or its resource name. The model is first unloaded from the " +
				"deployments that have loaded it as an addon. A model that another resource uses cannot be deleted.",
			Response: reflect.TypeFor[ModelDeletion](), Handle: s.handle(deleteFineTunedModel)},
	}
}

var _ = register(compatibleModelOperations)

// unloadTime bounds how long the deletion of a model waits until no replica has it loaded.
const unloadTime = 30 * time.Second

// unload unloads a model from the deployments of its account, and waits until no replica has it
// loaded. That is needed because the model of a fine-tuning job is loaded when the job ends, but
// the OpenAI API has no request to unload it. A model that other resources use stays loaded,
// because its deletion will be rejected.
func unload(c *call, model domain.Name) error {
	ctx, cancel := context.WithTimeout(c.Ctx, unloadTime)
	defer cancel()
	for {
		c.Refresh()
		view := c.View()
		users := view.Referrers(model)
		for _, user := range users {
			if user.Collection() != domain.DeployedModels.Collection || user.Account() != model.Account() {
				return nil
			}
		}
		if len(users) == 0 {
			return nil
		}
		for _, user := range users {
			row, ok := view.DeployedModels.Get(user)
			if !ok || row.State.State == domain.ModelUndeployingState {
				continue
			}
			command := domain.Command[domain.DeployedModel](domain.UndeployModel{Reason: "its model is being deleted"})
			if _, err := c.Do(domain.Intend(domain.DeployedModels, user, command)); err != nil {
				return err
			}
		}
		select {
		case <-c.World.Changed(view.Position):
		case <-ctx.Done():
			return domain.Errorf(domain.Unavailable, "%s is still being unloaded from a deployment, and was not deleted: "+
				"try again", model)
		}
	}
}

func deleteFineTunedModel(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	given := c.PathValue("model")
	name, ok := domain.ParseName(given, domain.Models.Collection)
	if !ok {
		name = domain.NewName(c.Account, domain.Models.Collection, given)
	}
	row, exists := c.View().Models.Get(name)
	if !exists || name.Account() != c.Account {
		return nil, request.NotFoundReason("NOT_FOUND", "accounts/%s has no model %s: list the models with GET /v1/models",
			c.Account, wire.Quote(given))
	}
	if err := unload(c, name); err != nil {
		return nil, err
	}
	if err := models.deleteRow(c, row, domain.DeleteModel{}); err != nil {
		return nil, err
	}
	return ModelDeletion{given, "model", true}, nil
}
