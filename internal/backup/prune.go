package backup

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/transparency"
)

// Retention selects the backups that Prune keeps. It always keeps the newest one.
type Retention struct {
	Newest int       // keep this number of the newest backups
	Since  time.Time // also keep backups whose state is of this time or later; the zero time adds none
}

// Pruned reports what Prune has kept and removed.
type Pruned struct {
	Kept    []string `json:"kept"`    // IDs of the kept backups
	Removed []string `json:"removed"` // IDs of the removed backups
	Objects int      `json:"objects"` // number of deleted objects
	Bytes   int64    `json:"bytes"`   // total size of the deleted objects in bytes
}

// A pruning is the state of one call of Prune.
type pruning struct {
	target *blobs.Store
	from   Source
	all    map[string]*Manifest
	ids    []string // IDs of all backups, oldest first
	kept   map[string]bool
	used   map[string]bool // keys of the objects that kept backups refer to
	result Pruned
}

// Prune removes backups, and the objects that no other backup refers to.
//
// A backup needs the events of its parents. If Prune removes the parent of a kept backup, it first
// replaces the manifest of the kept backup by one that lists the segments of all its parents. Then
// it deletes the manifests of the removed backups, and then objects. So all kept backups can be
// restored after each step, and an interrupted Prune can be repeated. No backup to the target may
// run at the same time. Prune does not delete objects whose ID is later than the newest backup's:
// they belong to a backup in progress.
//
// Prune does not replace a manifest without a signature, but keeps the parents of its backup. If
// any backup has a signature, those without one do not count toward Retention.Newest.
func Prune(ctx context.Context, target *blobs.Store, from Source, keep Retention) (Pruned, error) {
	p := &pruning{target: target, from: from, all: map[string]*Manifest{}, kept: map[string]bool{}}
	if err := p.readManifests(ctx); err != nil || len(p.ids) == 0 {
		return p.result, advise(err, pruneAdvice)
	}
	if err := p.choose(keep); err != nil {
		return p.result, err
	}
	if err := p.replaceManifests(ctx); err != nil {
		return p.result, advise(err, pruneAdvice)
	}
	if err := p.deleteManifests(ctx); err != nil {
		return p.result, err
	}
	return p.result, p.deleteObjects(ctx)
}

// deleteManifests deletes the manifests of the removed backups, newest first. So a remaining backup
// always has its parents, and after an interruption a Prune can keep more of the backups.
func (p *pruning) deleteManifests(ctx context.Context) error {
	for _, id := range p.ids {
		if p.kept[id] {
			p.result.Kept = append(p.result.Kept, id)
		}
	}
	for _, id := range slices.Backward(p.ids) {
		if p.kept[id] {
			continue
		}
		if err := p.target.Delete(ctx, manifestPrefix+id+manifestSuffix); err != nil {
			return err
		}
		p.result.Removed = slices.Insert(p.result.Removed, 0, id)
	}
	return nil
}

func (p *pruning) readManifests(ctx context.Context) (err error) {
	if p.ids, err = IDs(ctx, p.target); err != nil {
		return err
	}
	key, err := transparency.ParseKey(p.from.Signer.Key())
	if err != nil {
		return err
	}
	first, err := p.from.Log.At(ctx, 1)
	if err != nil {
		return err
	}
	for _, id := range p.ids {
		m, err := readManifest(ctx, p.target, id)
		if err == nil {
			err = m.checkLog(first.ID)
		}
		if err == nil {
			err = m.verify(key)
		}
		if err != nil && !isUnsigned(err) {
			return err
		}
		p.all[id] = &m
	}
	return nil
}

// counted returns the IDs of the backups that count toward Retention.Newest, oldest first: those
// with a signature, because a program that can write to the target can add backups without one. If
// no backup has a signature, counted returns all.
func (p *pruning) counted() ([]string, error) {
	signed := slices.DeleteFunc(slices.Clone(p.ids), func(id string) bool { return len(p.all[id].signature) == 0 })
	if len(signed) == 0 {
		return p.ids, nil
	}
	if newest := p.ids[len(p.ids)-1]; newest != signed[len(signed)-1] {
		return nil, domain.Errorf(domain.FailedPrecondition, "the manifest of backup %s is not signed, but the "+
			"manifest of the earlier backup %s is: create a backup, or move %s out of the target, and try again",
			newest, signed[len(signed)-1],
			manifestPrefix+newest+manifestSuffix)
	}
	return signed, nil
}

// choose selects the backups to keep: those of the Retention, and the parents that they need.
func (p *pruning) choose(keep Retention) error {
	counted, err := p.counted()
	if err != nil {
		return err
	}
	for n, id := range counted {
		if newer := len(counted) - 1 - n; newer == 0 || newer < keep.Newest {
			p.kept[id] = true
		}
	}
	for _, id := range p.ids {
		if !keep.Since.IsZero() && !p.all[id].stateTime().Before(keep.Since) {
			p.kept[id] = true
		}
	}
	for _, id := range p.ids {
		if !p.kept[id] {
			continue
		}
		chain, err := p.chain(p.all[id])
		if err != nil {
			return err
		}
		if slices.ContainsFunc(chain, func(m *Manifest) bool { return len(m.signature) == 0 }) {
			for _, m := range chain {
				p.kept[m.ID] = true
			}
		}
	}
	return nil
}

// chain returns a backup and its parents, newest first.
func (p *pruning) chain(m *Manifest) (all []*Manifest, err error) {
	all = []*Manifest{m}
	for m.Parent != "" {
		parent := p.all[m.Parent]
		if parent == nil || len(all) > len(p.ids) {
			return nil, advise(damaged(m.ID, "backup %s has the events after those of backup %s, whose manifest is missing",
				m.ID, m.Parent), pruneAdvice)
		}
		m = parent
		all = append(all, m)
	}
	return all, nil
}

// replaceManifests replaces the manifests of kept backups whose parents are removed. It first signs
// all of them, which also checks their sizes, and reads the lists of files: an error then changes
// nothing.
func (p *pruning) replaceManifests(ctx context.Context) error {
	contents := map[string][]byte{}
	for _, id := range p.ids {
		m := p.all[id]
		if !p.kept[id] || m.Parent == "" || p.kept[m.Parent] {
			continue
		}
		err := p.makeFull(m)
		if err == nil {
			contents[id], err = signManifest(p.from.Signer, p.all[id])
		}
		if err != nil {
			return err
		}
	}
	var err error
	if p.used, err = p.usedObjects(ctx); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(contents)) {
		if err := storeManifest(ctx, p.target, id, contents[id]); err != nil {
			return err
		}
	}
	return nil
}

// makeFull replaces a manifest in p.all by one that also lists the segments of its parents.
func (p *pruning) makeFull(m *Manifest) error {
	chain, err := p.chain(m)
	if err != nil {
		return err
	}
	full := *m
	full.Parent, full.Events = "", nil
	var manifests []Manifest
	for _, one := range chain {
		manifests = append(manifests, *one)
	}
	for _, one := range slices.Backward(manifests) {
		full.Events = append(full.Events, one.Events...)
	}
	full.Usage = usageOf(manifests)
	p.all[m.ID] = &full
	return nil
}

// objectPrefixes are the prefixes of the objects of backups, except manifests.
var objectPrefixes = []string{"events/", "usage/", "files/", "lists/", "secrets/", "answers/"}

// deleteObjects deletes the objects that no kept backup refers to.
func (p *pruning) deleteObjects(ctx context.Context) error {
	newest := p.ids[len(p.ids)-1]
	for _, prefix := range objectPrefixes {
		for f, err := range p.target.List(ctx, prefix) {
			if err != nil {
				return err
			}
			if id := objectID(f.Key); p.used[f.Key] || id == "" || id > newest {
				continue
			}
			if err := p.target.Delete(ctx, f.Key); err != nil {
				return err
			}
			p.result.Objects++
			p.result.Bytes += f.Size
		}
	}
	return nil
}

// usedObjects returns the keys of the objects that kept backups refer to.
func (p *pruning) usedObjects(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	for id := range p.kept {
		m := p.all[id]
		for _, s := range slices.Concat(m.Events, m.Usage) {
			used[s.Key] = true
		}
		used[m.Secrets.Key] = true
		if m.Answers != nil {
			used[m.Answers.Key] = true
		}
		if m.Files.List == nil || used[m.Files.List.Key] {
			continue
		}
		used[m.Files.List.Key] = true
		err := lines(ctx, p.target, *m.Files.List, func(line []byte) error {
			var f File
			err := json.Unmarshal(line, &f)
			used[f.Object.Key] = true
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the files of backup %s: %w", id, err)
		}
	}
	return used, nil
}

// objectID returns the ID of the backup that stored an object, which is a part of the object's key;
// "" if the key is not one of a backup.
func objectID(key string) string {
	prefix, rest, _ := strings.Cut(key, "/")
	switch prefix {
	case "files":
		rest, _, _ = strings.Cut(rest, "/")
	case "events", "usage":
		_, rest, _ = strings.Cut(strings.TrimSuffix(rest, ".zst"), "-")
	case "lists":
		rest = strings.TrimSuffix(rest, ".zst")
	case "secrets", "answers":
		rest = strings.TrimSuffix(rest, ".age")
	}
	if _, err := time.Parse(idLayout, rest); err != nil {
		return ""
	}
	return rest
}
