// Package sessions runs a goroutine (session) for each resource of a kind that needs one, such as
// each batch that has not ended.
package sessions

import (
	"context"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/projections"
)

// A Group runs the sessions for the resources of one kind. A resource has at most one session at a
// time.
type Group[S domain.State] struct {
	World *projections.World
	Kind  *domain.Kind[S]
	// Needs reports whether a resource needs a session. It may depend only on the tables of Kind and
	// of Others, because it is called when they have changed and when a session has ended.
	Needs  func(*projections.View, *projections.Row[S]) bool
	Others []domain.AnyKind
	// Session does the work for a resource. It must return when ctx is canceled, because the
	// resource needs no session any more or Run ends.
	Session func(ctx context.Context, row *projections.Row[S])
}

// Run runs sessions until ctx is done, and returns when all have ended.
func (g *Group[S]) Run(ctx context.Context) error {
	// by ID of the event that created the resource: cancels its session
	running, ended := map[string]context.CancelFunc{}, make(chan string)
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var seen []any
	for {
		view := g.World.View()
		if versions := g.versions(view); !slices.Equal(versions, seen) {
			seen = versions
			for _, row := range g.change(view, running) {
				session, stop := context.WithCancel(ctx)
				running[row.CreateEvent] = stop
				all.Go(func() {
					defer stop()
					g.Session(session, row)
					select {
					case ended <- row.CreateEvent:
					case <-ctx.Done():
					}
				})
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-g.World.Changed(view.Position):
		case event := <-ended:
			delete(running, event)
			seen = nil // look at all resources again: the one whose session has ended may need another
		}
	}
}

// change cancels the running sessions that are no longer needed. It returns the resources that need
// a session but have none.
func (g *Group[S]) change(view *projections.View, running map[string]context.CancelFunc) (
	missing []*projections.Row[S]) {
	needed := map[string]bool{}
	for row := range projections.TableOf(view, g.Kind).All() {
		if !g.Needs(view, row) {
			continue
		}
		needed[row.CreateEvent] = true
		if running[row.CreateEvent] == nil {
			missing = append(missing, row)
		}
	}
	for event, stop := range running {
		if !needed[event] {
			stop()
		}
	}
	return missing
}

// versions returns the versions of the tables on which Needs depends, to notice changes.
func (g *Group[S]) versions(view *projections.View) (all []any) {
	for _, kind := range append([]domain.AnyKind{g.Kind}, g.Others...) {
		all = append(all, view.TableVersion(kind))
	}
	return all
}
