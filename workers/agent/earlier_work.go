package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// releaseTimeout is how long an attempt waits for earlier attempts of its job to end on its node,
// and then for other work to release its devices. Work that is stopped ends within minutes, but a
// program that waits for a failed device may never end.
const releaseTimeout = 5 * time.Minute

// reasonNotReleased is the reason in the error of an attempt for which other work did not end
// within releaseTimeout. The failure does not count toward the job's maximum number of failures.
const reasonNotReleased = "NOT_RELEASED"

// awaitEarlier waits until the earlier attempts of the job have ended on this node, or this attempt
// is stopped. It returns an error after releaseTimeout.
func (t *attempt) awaitEarlier(before []*attempt) error {
	limit := time.NewTimer(releaseTimeout)
	defer limit.Stop()
	for _, earlier := range before {
		select {
		case <-earlier.done:
		case <-t.work.Done():
			return nil
		case <-limit.C:
			return t.notReleased("attempt %d of the same job did not end within %s", earlier.assignment.Attempt,
				releaseTimeout)
		}
	}
	return nil
}

// acquireDevices acquires the accelerators of the attempt. It returns an error when other work has
// not released them after releaseTimeout. release is never nil.
func (t *attempt) acquireDevices() (acquired []engines.Device, release func(), err error) {
	ctx, cancel := context.WithTimeout(t.work, releaseTimeout)
	defer cancel()
	d := t.agent.devices
	acquired, release, err = d.acquire(ctx, t.assignment.Accelerators)
	if err != nil && t.work.Err() == nil {
		t.log.Error("an attempt fails, because other work does not release its "+
			"accelerators", "timeout", releaseTimeout, "users", d.users())
		err = t.notReleased("earlier work did not release the accelerators within %s (%s)", releaseTimeout,
			d.free(t.assignment.Accelerators))
	}
	return acquired, release, err
}

// notReleased returns the error of an attempt for which other work did not end within
// releaseTimeout. format describes that work.
func (t *attempt) notReleased(format string, args ...any) error {
	return &domain.Error{Code: domain.Unavailable, Reason: reasonNotReleased,
		Message: fmt.Sprintf("the node did not start the attempt: %s; if this repeats, cordon the node and restart it",
			fmt.Sprintf(format, args...))}
}

func isNotReleased(err error) bool {
	var failure *domain.Error
	return errors.As(err, &failure) && failure.Reason == reasonNotReleased
}

// users returns the IDs of the allocations that use a device.
func (d *devices) users() (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		s := d.state[one]
		if s.used && len(s.users) == 0 && !slices.Contains(ids, "unknown") {
			ids = append(ids, "unknown")
		}
		for _, user := range s.users {
			if !slices.Contains(ids, user.id) {
				ids = append(ids, user.id)
			}
		}
	}
	return ids
}

// free returns a text which says how many of the wanted devices of each type are free.
func (d *devices) free(wanted map[string]int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[string]int{}
	for _, one := range d.all {
		if s := d.state[one]; !s.used && s.failure == "" {
			counts[one.Type]++
		}
	}
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(wanted)) {
		list = append(list, fmt.Sprintf("%s: %d requested, %d free", kind, wanted[kind], counts[kind]))
	}
	return strings.Join(list, ", ")
}
