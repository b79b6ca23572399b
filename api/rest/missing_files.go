package rest

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// missingFiles returns the error for the client after opening a file of a resource has failed with
// err. used are the files that the resource had in the view of the request; current returns those
// that it has in a later view.
//
// The reconciler deletes files within seconds after an event removed the reference to them, and the
// view of the request may be older than that event. So missingFiles compares used with the files at
// the end of the log: if they differ, the client can try again; if not, the file is lost.
func (c *call) missingFiles(err error, noun string, name domain.Name, used domain.Files,
	current func(*projections.View, domain.Name) (files domain.Files, exists bool)) error {
	if domain.CodeOf(err) != domain.NotFound {
		return err
	}
	last, err := c.Log.Last(c.Ctx)
	if err == nil {
		err = c.World.WaitFor(c.Ctx, last.Position)
	}
	if err != nil {
		return err
	}
	c.Refresh()
	files, exists := current(c.View(), name)
	switch {
	case !exists:
		return request.NotFound(noun, name)
	case files.Prefix != used.Prefix:
		return domain.Errorf(domain.Aborted, "%s was changed or deleted during the request: try again", name)
	}
	return &domain.Error{Code: domain.DataLoss, Reason: "FILE_MISSING",
		Message: string(name) + ": a file is missing in the file store: ask the operator to restore it from a backup, or " +
			"delete the " + noun + " and create it again"}
}
