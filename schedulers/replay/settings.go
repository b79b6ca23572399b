package replay

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
)

// Settings are the settings of one variant: other weights, quotas, priorities, placement strategy
// and nodes than were recorded.
type Settings struct {
	Name      string
	intents   []domain.Intent // commands, decided at the start and again when an input changes their resource
	names     map[domain.Name]string
	placement string // placementStrategy of all deployments; "" keeps the recorded ones
	nodes     []nodeChange
	removed   map[domain.Name]bool // nodes of the period that the settings remove
}

// A nodeChange adds or removes nodes.
type nodeChange struct {
	count int    // number of nodes to add; negative to remove nodes
	kind  string // which nodes: an accelerator type, CPU, or the ID of a node
}

// SettingsHelp lists the possible settings, for help texts.
var SettingsHelp = []string{
	"weight:ACCOUNT=N",
	"quota:ACCOUNT.accelerators=N (or none)",
	"quota:ACCOUNT.guaranteed-accelerators=N (or none)",
	"priority:ACCOUNT/COLLECTION/JOB=" + strings.Join(domain.JobPriorities, "|"),
	"placement=" + domain.PlacementPack + "|" + domain.PlacementSpread + "|DEFAULT",
	"nodes=+NxTYPE or -NxTYPE, where TYPE is an accelerator type, " + cpus + " or the ID of a node",
}

// ParseSettings parses the settings of a variant, which are separated by commas.
func ParseSettings(text string) (Settings, error) {
	s := Settings{Name: text, names: map[domain.Name]string{}, removed: map[domain.Name]bool{}}
	for one := range strings.SplitSeq(text, ",") {
		if err := s.parse(strings.TrimSpace(one)); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Settings) parse(text string) error {
	setting, value, found := strings.Cut(text, "=")
	kind, of, _ := strings.Cut(setting, ":")
	switch {
	case !found:
	case kind == "weight" && domain.ValidID(of):
		weight, err := strconv.Atoi(value)
		if err != nil || weight < 1 || weight > domain.MaxQueueWeight {
			return fmt.Errorf("setting %s: the weight must be a number from 1 to %d", text, domain.MaxQueueWeight)
		}
		name := domain.NewName("", domain.Accounts.Collection, of)
		s.add(of, domain.Intend(domain.Accounts, name, domain.Command[domain.Account](domain.SetQueueWeight{
			QueueWeight: weight})))
		return nil
	case kind == "quota":
		return s.parseQuota(text, of, value)
	case kind == "priority":
		account, rest, _ := strings.Cut(of, "/")
		collection, id, _ := strings.Cut(rest, "/")
		if !domain.ValidID(account) || !isJob(collection) || !domain.ValidID(id) {
			return fmt.Errorf("setting %s: give the job as ACCOUNT/COLLECTION/JOB, where COLLECTION is one of %s", text,
				strings.Join(jobCollections, ", "))
		}
		if !slices.Contains(domain.JobPriorities, value) {
			return fmt.Errorf("setting %s: the priority %s", text, domain.OneOfRule(value, domain.JobPriorities))
		}
		s.add(account, domain.IntendJob(domain.NewName(account, collection, id),
			domain.SetJobPriority{Priority: domain.JobPriority(value)}))
		return nil
	case setting == "placement":
		strategies := []string{domain.PlacementPack, domain.PlacementSpread, "DEFAULT"}
		if !slices.Contains(strategies, value) {
			return fmt.Errorf("setting %s: the placement %s", text, domain.OneOfRule(value, strategies))
		}
		s.placement = value
		return nil
	case setting == "nodes":
		return s.parseNodes(text, value)
	}
	return fmt.Errorf("unknown setting %q; the settings are:\n  %s", text, strings.Join(SettingsHelp, "\n  "))
}

func (s *Settings) add(account string, intent domain.Intent) {
	s.intents = append(s.intents, intent)
	s.names[intent.Name] = account
}

func (s *Settings) parseQuota(text, of, value string) error {
	account, id, _ := strings.Cut(of, ".")
	ids := []string{domain.QuotaAccelerators, domain.QuotaGuaranteed}
	if !domain.ValidID(account) || !slices.Contains(ids, id) {
		return fmt.Errorf("setting %s: only the quotas %s have an effect on schedulers: write quota:ACCOUNT.QUOTA=N", text,
			strings.Join(ids, " and "))
	}
	name := domain.NewName(account, domain.Quotas.Collection, id)
	var cmd domain.Command[domain.Quota] = domain.LiftQuota{}
	if value != "none" {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 || n > domain.MaxQuota {
			return fmt.Errorf("setting %s: the quota must be a number from 0 to %d, or none", text, int64(domain.MaxQuota))
		}
		cmd = domain.SetQuota{MaxValue: domain.Count(n)}
	}
	s.add(account, domain.Intend(domain.Quotas, name, cmd))
	return nil
}

func (s *Settings) parseNodes(text, value string) error {
	number, kind, _ := strings.Cut(value, "x")
	n, err := strconv.Atoi(number)
	if err != nil || n == 0 || kind == "" || number[0] != '+' && number[0] != '-' {
		return fmt.Errorf("setting %s: give the nodes as +NxTYPE or -NxTYPE, such as +2x%s", text, cpus)
	}
	s.nodes = append(s.nodes, nodeChange{n, kind})
	return nil
}

// check returns an error for an account, a job or a node that the period does not have.
func (s Settings) check(p *period) error {
	v := p.base.View()
	created := func(name domain.Name) bool {
		return slices.ContainsFunc(p.inputs, func(in input) bool { return in.event.Name == name })
	}
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		account := domain.NewName("", domain.Accounts.Collection, s.names[name])
		if _, ok := v.Accounts.Get(account); !ok && !created(account) {
			return domain.Errorf(domain.NotFound, "setting %s: account %q does not exist in the period", s.Name, s.names[name])
		}
		if _, ok := v.Job(name); isJob(name.Collection()) && !ok && !created(name) {
			return domain.Errorf(domain.NotFound, "setting %s: job %s does not exist in the period", s.Name, name)
		}
	}
	for _, change := range s.nodes {
		if _, known := p.specs[change.kind]; !known {
			return domain.Errorf(domain.NotFound, "setting %s: the period has no node %q, but nodes of %s", s.Name, change.kind,
				strings.Join(slices.Sorted(maps.Keys(p.specs)), ", "))
		}
	}
	return nil
}

// begin applies the settings to a simulation at the start of the period.
func (s *Settings) begin(sim *simulation) error {
	for _, intent := range s.intents {
		s.try(sim, intent)
	}
	if s.placement != "" {
		for row := range sim.world.View().Deployments.All() {
			spec := row.State.DeploymentSpec
			spec.PlacementStrategy = s.strategy()
			record, err := domain.Deployments.Encode(domain.DeploymentUpdated{DeploymentSpec: spec,
				DirectKeys: row.State.DirectKeys, Time: sim.now})
			if err != nil {
				return err
			}
			if err := sim.apply(row.Name, record); err != nil {
				return err
			}
		}
	}
	for i, change := range s.nodes {
		if err := s.changeNodes(sim, i, change); err != nil {
			return err
		}
	}
	return nil
}

// try decides an intent of the settings. It ignores a refusal, because a job may have ended, and an
// account may be created later: see repeat.
func (s *Settings) try(sim *simulation, intent domain.Intent) {
	if sim.world.Lookup(intent.Name).State != nil || intent.Name.Collection() == domain.Quotas.Collection {
		_, _ = sim.try(intent)
	}
}

// strategy returns the value of placementStrategy that the settings set; "" if they set none.
func (s *Settings) strategy() string {
	if s.placement == "DEFAULT" {
		return ""
	}
	return s.placement
}

// changeNodes adds copies of a node, or removes nodes. number is the index of the change.
func (s *Settings) changeNodes(sim *simulation, number int, change nodeChange) error {
	for i := range max(0, change.count) {
		name := domain.NewName(domain.System, domain.Nodes.Collection, fmt.Sprintf("added-%d-%d", number+1, i+1))
		record, err := domain.Nodes.Encode(domain.NodeRegistered{NodeSpec: sim.specs[change.kind], Time: sim.now})
		if err == nil {
			err = sim.apply(name, record)
		}
		if err != nil {
			return err
		}
	}
	if change.count > 0 {
		return nil
	}
	var names []domain.Name
	for _, name := range slices.Sorted(maps.Keys(sim.kinds)) {
		if !s.removed[name] && (sim.kinds[name] == change.kind || name.ID() == change.kind) {
			names = append(names, name)
		}
	}
	if len(names) < -change.count {
		return domain.Errorf(domain.InvalidArgument, "setting nodes=%dx%s: the period has only %d such nodes", change.count,
			change.kind, len(names))
	}
	for _, name := range names[len(names)+change.count:] {
		if sim.world.Lookup(name).State != nil {
			if err := removeNode(sim, name); err != nil {
				return err
			}
		}
		s.removed[name] = true
	}
	return nil
}

func removeNode(sim *simulation, name domain.Name) error {
	for _, cmd := range []domain.Command[domain.Node]{domain.LoseNode{Reason: "removed by the settings of the variant"},
		domain.RemoveNode{}} {
		if _, err := sim.try(domain.Intend(domain.Nodes, name, cmd)); err != nil {
			return err
		}
	}
	return nil
}

// drops reports whether an input is left out, because the settings remove its node.
func (s *Settings) drops(in input) bool { return s.removed[in.event.Name] }

// change returns the record of an input, changed as the settings require.
func (s *Settings) change(r domain.Record) domain.Record {
	if s.placement == "" || r.Type != "deployment.created.v1" && r.Type != "deployment.updated.v1" {
		return r
	}
	var fields map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(r.Data)))
	decoder.UseNumber()
	if decoder.Decode(&fields) != nil {
		return r
	}
	fields["placementStrategy"] = s.strategy()
	r.Data, _ = json.Marshal(fields)
	return r
}

// repeat decides the commands of the settings again for a resource that an input has changed, or
// for the resources of an account that an input has changed.
func (s *Settings) repeat(sim *simulation, name domain.Name) {
	for _, intent := range s.intents {
		if intent.Name == name {
			s.try(sim, intent)
		}
	}
}
