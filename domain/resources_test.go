package domain_test

import (
	"strings"
	"testing"
	"time"

	"anneal/domain"
)

func TestAccount(t *testing.T) {
	type D = decision[domain.Account]
	f := events[domain.Account]
	made := domain.AccountCreated{AccountSpec: domain.AccountSpec{Email: "a@example.org"}}
	suspended := domain.AccountSuspended{SuspendState: "CREDIT_DEPLETED", Reason: "no credit is left"}
	decide(t, domain.Accounts, []D{
		{name: "create", when: domain.CreateAccount(made), then: made},
		{name: "create twice", given: f(made), when: domain.CreateAccount(made), fault: "ALREADY_EXISTS",
			says: "choose another ID"},
		{name: "create with an unknown type",
			when: domain.CreateAccount{AccountSpec: domain.AccountSpec{AccountType: "HUGE"}}, fault: "INVALID_FIELDS",
			says: "accountType: must be one of"},
		{name: "update", given: f(made), when: domain.UpdateAccount{AccountSpec: domain.AccountSpec{Email: "b@example.org"}},
			then: domain.AccountUpdated{AccountSpec: domain.AccountSpec{Email: "b@example.org"}}},
		{name: "update to the same", given: f(made), when: domain.UpdateAccount{AccountSpec: made.AccountSpec}},
		{name: "update a missing account", when: domain.UpdateAccount{AccountSpec: made.AccountSpec}, fault: "NOT_FOUND"},
		{name: "suspend", given: f(made), when: domain.SuspendAccount(suspended), then: suspended},
		{name: "suspend twice", given: f(made, suspended), when: domain.SuspendAccount(suspended)},
		{name: "suspend with an unknown suspendState", given: f(made), when: domain.SuspendAccount{SuspendState: "TIRED"},
			fault: "INVALID_FIELDS", says: "suspendState"},
		{name: "suspend with UNSUSPENDED", given: f(made), when: domain.SuspendAccount{SuspendState: domain.Unsuspended},
			fault: "INVALID_FIELDS"},
		{name: "restore", given: f(made, suspended), when: domain.RestoreAccount{}, then: domain.AccountRestored{}},
		{name: "restore twice", given: f(made, suspended, domain.AccountRestored{}), when: domain.RestoreAccount{}},
		{name: "restore a missing account", when: domain.RestoreAccount{}, fault: "NOT_FOUND"},
	})
}

func TestAPIKey(t *testing.T) {
	type D = decision[domain.APIKey]
	f := events[domain.APIKey]
	made := domain.APIKeyCreated{APIKeySpec: domain.APIKeySpec{Role: domain.RoleUser, ExpireTime: later(time.Hour)},
		Hash: []byte{1}, Prefix: "k1"}
	decide(t, domain.APIKeys, []D{
		{name: "create", when: domain.CreateAPIKey(made), then: made},
		{name: "create twice", given: f(made), when: domain.CreateAPIKey(made)},
		{name: "create another", given: f(made),
			when: domain.CreateAPIKey{APIKeySpec: made.APIKeySpec, Hash: []byte{2}, Prefix: "k1"}, fault: "ALREADY_EXISTS"},
		{name: "create without a role", when: domain.CreateAPIKey{}, fault: "INVALID_FIELDS",
			says: "role: must be one of admin"},
		{name: "create with an expireTime in the past",
			when:  domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleUser, ExpireTime: later(0)}},
			fault: "INVALID_FIELDS", says: "expireTime: must be in the future"},
		{name: "create with a long name",
			when: domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleUser,
				DisplayName: strings.Repeat("é", 256)}}, fault: "INVALID_FIELDS", says: "displayName"},
		{name: "create with a long e-mail",
			when: domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleUser,
				Email: strings.Repeat("é", 255)}}, fault: "INVALID_FIELDS", says: "email: must have at most 254 characters"},
		{name: "delete", given: f(made), when: domain.DeleteAPIKey{}, then: domain.APIKeyDeleted{}},
		{name: "delete twice", given: f(made, domain.APIKeyDeleted{}), when: domain.DeleteAPIKey{}, fault: "NOT_FOUND"},
		{name: "create after delete", given: f(made, domain.APIKeyDeleted{}), when: domain.CreateAPIKey(made), then: made},
	})
}

func TestSecret(t *testing.T) {
	type D = decision[domain.Secret]
	f := events[domain.Secret]
	value := domain.Sealed{KeyID: "k", Ciphertext: []byte("sealed")}
	made := domain.SecretCreated{KeyName: "TOKEN", Value: value}
	other := domain.Sealed{KeyID: "k2", Ciphertext: []byte("another")}
	decide(t, domain.Secrets, []D{
		{name: "create", when: domain.CreateSecret(made), then: made},
		{name: "create twice", given: f(made), when: domain.CreateSecret(made), fault: "ALREADY_EXISTS"},
		{name: "update with several violations", when: domain.UpdateSecret{KeyName: "1x", Value: &domain.Sealed{KeyID: "k"}},
			given: f(made), fault: "INVALID_FIELDS", says: "; value: must not be empty"},
		{name: "create without a value", when: domain.CreateSecret{KeyName: "TOKEN"},
			then: domain.SecretCreated{KeyName: "TOKEN"}},
		{name: "rename without a value", given: f(domain.SecretCreated{KeyName: "TOKEN"}),
			when: domain.UpdateSecret{KeyName: "T2"}, then: domain.SecretUpdated{KeyName: "T2"}},
		{name: "update the value", given: f(made), when: domain.UpdateSecret{KeyName: "TOKEN", Value: &other},
			then: domain.SecretUpdated{KeyName: "TOKEN", Value: &other}},
		{name: "update both", given: f(made), when: domain.UpdateSecret{KeyName: "T2", Value: &other},
			then: domain.SecretUpdated{KeyName: "T2", Value: &other}},
		{name: "update only the name", given: f(made), when: domain.UpdateSecret{KeyName: "T2"},
			then: domain.SecretUpdated{KeyName: "T2"}},
		{name: "update the name with the old value", given: f(made), when: domain.UpdateSecret{KeyName: "T2", Value: &value},
			then: domain.SecretUpdated{KeyName: "T2"}},
		{name: "update to the same", given: f(made), when: domain.UpdateSecret{KeyName: "TOKEN", Value: &value}},
		{name: "update to an empty value", given: f(made),
			when: domain.UpdateSecret{KeyName: "TOKEN", Value: &domain.Sealed{KeyID: "k"}}, fault: "INVALID_FIELDS",
			says: "value: must not be empty"},
		{name: "update a missing secret", when: domain.UpdateSecret{KeyName: "TOKEN"}, fault: "NOT_FOUND"},
		{name: "delete without a deletion request", given: f(made),
			when: domain.DeleteSecret{}, fault: domain.ReasonNotRequested,
			says: "try again"},
		{name: "delete", given: reserved(domain.Secrets, f(made)), when: domain.DeleteSecret{}, then: domain.SecretDeleted{}},
		{name: "delete a missing secret", when: domain.DeleteSecret{}, fault: "NOT_FOUND"},
	})
}

func TestDataset(t *testing.T) {
	type D = decision[domain.Dataset]
	f := events[domain.Dataset]
	made := domain.DatasetCreated{DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat}}
	files := func(prefix string) domain.Files {
		return domain.Files{Prefix: prefix, Sizes: map[string]int64{"rows.jsonl": 3}}
	}
	first := domain.DatasetUploaded{Upload: 1, Files: files("d/1/")}
	second := domain.DatasetUploaded{Upload: 2, Files: files("d/2/")}
	accepted := domain.DatasetAccepted{Upload: 1,
		DatasetStats: domain.DatasetStats{Format: domain.FormatChat, Shape: domain.ShapeChat, ExampleCount: 3}}
	rejected := domain.DatasetRejected{Upload: 1,
		Status: domain.Status{Code: "INVALID_ARGUMENT", Message: "line 2: not JSON"}}
	create := domain.CreateDataset{DatasetSpec: made.DatasetSpec}
	decide(t, domain.Datasets, []D{
		{name: "create", when: create, then: made},
		{name: "create twice", given: f(made), when: create, fault: "ALREADY_EXISTS"},
		{name: "create with two origins",
			when:  domain.CreateDataset{DatasetSpec: domain.DatasetSpec{UserUploaded: &struct{}{}, EvalProtocol: &struct{}{}}},
			fault: "INVALID_FIELDS", says: "only one of"},
		{name: "upload", given: f(made), when: domain.UploadDataset(first), then: first},
		{name: "upload twice", given: f(made, first), when: domain.UploadDataset(first)},
		{name: "upload concurrently", given: f(made, first),
			when: domain.UploadDataset{Upload: 1, Files: files("d/other/")}, fault: "UPLOAD_SUPERSEDED"},
		{name: "upload again", given: f(made, first, rejected), when: domain.UploadDataset(second), then: second},
		{name: "upload no files", given: f(made), when: domain.UploadDataset{Upload: 1}, fault: "NOTHING_UPLOADED"},
		{name: "upload to a READY dataset", given: f(made, first, accepted), when: domain.UploadDataset(second),
			fault: "DATASET_READY"},
		{name: "upload to a missing dataset", when: domain.UploadDataset(first), fault: "NOT_FOUND"},
		{name: "accept", given: f(made, first), when: domain.AcceptDataset(accepted), then: accepted},
		{name: "accept twice", given: f(made, first, accepted), when: domain.AcceptDataset(accepted)},
		{name: "accept before an upload", given: f(made), when: domain.AcceptDataset{}, fault: "NOTHING_UPLOADED"},
		{name: "accept a replaced upload", given: f(made, first, second), when: domain.AcceptDataset(accepted),
			fault: "UPLOAD_SUPERSEDED"},
		{name: "accept a rejected upload", given: f(made, first, rejected), when: domain.AcceptDataset(accepted),
			fault: "UPLOAD_JUDGED"},
		{name: "reject", given: f(made, first), when: domain.RejectDataset(rejected), then: rejected},
		{name: "reject twice", given: f(made, first, rejected), when: domain.RejectDataset(rejected)},
		{name: "reject an accepted upload", given: f(made, first, accepted), when: domain.RejectDataset(rejected),
			fault: "UPLOAD_JUDGED"},
		{name: "update", given: f(made), when: domain.UpdateDataset{DatasetSpec: domain.DatasetSpec{DisplayName: "rows"}},
			then: domain.DatasetUpdated{DatasetSpec: domain.DatasetSpec{DisplayName: "rows"}}},
		{name: "update to the same", given: f(made), when: domain.UpdateDataset{DatasetSpec: made.DatasetSpec}},
		{name: "update the exampleCount of a READY dataset", given: f(made, first, accepted),
			when:  domain.UpdateDataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat, ExampleCount: 4}},
			fault: "DATASET_READY"},
		{name: "delete without a deletion request", given: f(made),
			when: domain.DeleteDataset{}, fault: domain.ReasonNotRequested,
			says: "try again"},
		{name: "delete", given: reserved(domain.Datasets, f(made)), when: domain.DeleteDataset{},
			then: domain.DatasetDeleted{}},
		{name: "delete a missing dataset", when: domain.DeleteDataset{}, fault: "NOT_FOUND"},
	})
}

func TestNode(t *testing.T) {
	type D = decision[domain.Node]
	f := events[domain.Node]
	spec := domain.NodeSpec{Pool: domain.PoolTraining, Engines: []string{"train"}, Version: "v1",
		Capacity: domain.Resources{CPUMilli: 2000, MemoryMiB: 1024, Accelerators: map[string]int{"VENDOR_A_L4_24GB": 1}}}
	here := domain.NodeRegistered{NodeSpec: spec, Time: noon}
	register := domain.RegisterNode{NodeSpec: spec}
	lost, lose := domain.NodeLost{Reason: "silent"}, domain.LoseNode{Reason: "silent"}
	one := domain.Resources{CPUMilli: 1500, MemoryMiB: 512}
	placed := domain.AllocationPlaced{Allocation: domain.Allocation{ID: "j@1",
		For: "accounts/a/supervisedFineTuningJobs/j", Attempt: 1, Resources: one, Since: noon}}
	other := domain.AllocationPlaced{Allocation: domain.Allocation{ID: "k@1", For: "accounts/a/supervisedFineTuningJobs/k",
		Attempt: 1, Resources: one, Since: noon}}
	clash := placed.Allocation
	clash.Resources = domain.Resources{CPUMilli: 1}
	released := domain.AllocationReleased{ID: "j@1", Reason: "attempt 1 is over"}
	smaller := spec
	smaller.Capacity = domain.Resources{CPUMilli: 1000}
	wrong := domain.NodeSpec{Pool: "garden",
		Capacity: domain.Resources{MemoryMiB: -1, Accelerators: map[string]int{"X": -1}}}
	enroll, enrolled := domain.EnrollNode{PublicKey: oneKey, JoinToken: "t1"},
		domain.NodeEnrolled{PublicKey: oneKey, JoinToken: "t1", Time: noon}
	local := domain.NodeEnrolled{PublicKey: oneKey, JoinToken: domain.LocalJoinToken, Time: noon}
	revoked := domain.NodeAccessRevoked{Reason: "stolen", Time: noon}
	decide(t, domain.Nodes, []D{
		{name: "register", when: register, then: here},
		{name: "register twice", given: f(here), when: register},
		{name: "register with less capacity", given: f(here, placed), when: domain.RegisterNode{NodeSpec: smaller},
			then: domain.NodeRegistered{NodeSpec: smaller, Time: noon}},
		{name: "register a LOST node", given: f(here, lost), when: register, then: here},
		{name: "register with invalid fields", when: domain.RegisterNode{NodeSpec: wrong}, fault: "INVALID_FIELDS",
			says: "pool: must be one of training, inference; capacity.cpuMilli: must be positive; capacity.memoryMib: must " +
				"not be negative; capacity.accelerators.X: must not be negative"},
		{name: "lose", given: f(here), when: lose, then: lost},
		{name: "lose twice", given: f(here, lost), when: lose},
		{name: "lose a node that has registered again", given: f(here, lost, here), fault: "NODE_BACK",
			when: domain.LoseNode{Reason: "silent", Registered: noon.Add(-time.Minute)}},
		{name: "lose a node without heartbeats since it registered", given: f(here),
			when: domain.LoseNode{Reason: "silent", Registered: noon}, then: lost},
		{name: "lose a missing node", when: lose, fault: "NOT_FOUND"},
		{name: "place", given: f(here), when: domain.PlaceAllocation{Allocation: placed.Allocation}, then: placed},
		{name: "place twice", given: f(here, placed), when: domain.PlaceAllocation{Allocation: placed.Allocation}},
		{name: "place another allocation with the same ID", given: f(here, placed),
			when: domain.PlaceAllocation{Allocation: clash}, fault: "ALLOCATION_EXISTS"},
		{name: "place more than the free capacity", given: f(here, placed),
			when: domain.PlaceAllocation{Allocation: other.Allocation}, fault: "NODE_FULL"},
		{name: "place again after release", given: f(here, placed, released),
			when: domain.PlaceAllocation{Allocation: other.Allocation}, then: other},
		{name: "place on a lost node", given: f(here, lost), when: domain.PlaceAllocation{Allocation: placed.Allocation},
			fault: "NODE_NOT_READY", says: "LOST"},
		{name: "place on a missing node", when: domain.PlaceAllocation{Allocation: placed.Allocation}, fault: "NOT_FOUND"},
		{name: "a lost node has no allocations", given: f(here, placed, lost), when: domain.ReleaseAllocation(released)},
		{name: "release", given: f(here, placed), when: domain.ReleaseAllocation(released), then: released},
		{name: "release twice", given: f(here, placed, released), when: domain.ReleaseAllocation(released)},
		{name: "remove", given: f(here), when: domain.RemoveNode{}, then: domain.NodeRemoved{}},
		{name: "remove a node with allocations", given: f(here, placed), when: domain.RemoveNode{}, fault: "NODE_IN_USE"},
		{name: "remove a missing node", when: domain.RemoveNode{}, fault: "NOT_FOUND"},
		{name: "remove a LOST node with Lost", given: f(here, domain.NodeLost{Reason: "silent"}),
			when: domain.RemoveNode{Lost: true},
			then: domain.NodeRemoved{}},
		{name: "enroll", when: enroll, then: enrolled},
		{name: "enroll again with the same key", given: f(enrolled, here), when: enroll},
		{name: "enroll a node that registered before enrollment existed", given: f(here), when: enroll, then: enrolled},
		{name: "enroll with another key", given: f(enrolled, here, lost),
			when: domain.EnrollNode{PublicKey: otherKey, JoinToken: "t2"}, fault: "NODE_ENROLLED"},
		{name: "enroll without a key", when: domain.EnrollNode{JoinToken: "t1"}, fault: "INVALID_FIELDS"},
		{name: "register an enrolled node", given: f(enrolled), when: domain.RegisterNode{NodeSpec: spec, Enrolled: true},
			then: here},
		{name: "register a node that has not enrolled", when: domain.RegisterNode{NodeSpec: spec, Enrolled: true},
			fault: "NODE_NOT_ENROLLED"},
		{name: "place on a node that has only enrolled", given: f(enrolled),
			when: domain.PlaceAllocation{Allocation: placed.Allocation}, fault: "NODE_NOT_READY"},
		{name: "revoke", given: f(enrolled, here, placed), when: domain.RevokeNode{Reason: "stolen"}, then: revoked},
		{name: "revoke twice", given: f(enrolled, here, revoked), when: domain.RevokeNode{Reason: "stolen"}},
		{name: "revoke a local worker", given: f(local, here), when: domain.RevokeNode{Reason: "stolen"}, fault: "LOCAL_NODE",
			says: "start that server with --worker=false"},
		{name: "revoke a missing node", when: domain.RevokeNode{}, fault: "NOT_FOUND"},
		{name: "a revoked node has no allocations", given: f(enrolled, here, placed, revoked),
			when: domain.ReleaseAllocation(released)},
		{name: "register a revoked node", given: f(enrolled, here, revoked), when: register, fault: "NODE_NOT_ENROLLED"},
		{name: "lose a revoked node", given: f(enrolled, here, revoked), when: lose},
		{name: "enroll a revoked node with the same token", given: f(enrolled, here, revoked),
			when: domain.EnrollNode{PublicKey: otherKey, JoinToken: "t1"}, fault: "JOIN_TOKEN_REVOKED"},
		{name: "enroll a revoked node with a legacy token", given: f(here, revoked),
			when: domain.EnrollNode{PublicKey: otherKey, JoinToken: domain.LegacyJoinToken}, fault: "JOIN_TOKEN_REVOKED"},
		{name: "enroll a revoked node with another token", given: f(enrolled, here, revoked),
			when: domain.EnrollNode{PublicKey: oneKey, JoinToken: "t2"},
			then: domain.NodeEnrolled{PublicKey: oneKey, JoinToken: "t2", Time: noon}},
		{name: "remove a revoked node", given: f(enrolled, here, revoked), when: domain.RemoveNode{},
			fault: "NODE_REVOKED"},
		{name: "remove a READY node with Lost", given: f(here), when: domain.RemoveNode{Lost: true}, fault: "NODE_BACK"},
	})
}
