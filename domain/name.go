package domain

import (
	"regexp"
	"strings"
)

// A Name is a resource name: accounts/acme, or accounts/acme/deployments/d1.
type Name string

// System is the account that owns nodes and the operator's own keys.
const System = "system"

// NewName names a resource of a collection. An account is its own parent.
func NewName(account, collection, id string) Name {
	if collection == "accounts" {
		return Name("accounts/" + id)
	}
	return Name("accounts/" + account + "/" + collection + "/" + id)
}

// Account is the account that owns the resource.
func (n Name) Account() string { return n.part(1) }

// Collection is the resource's collection.
func (n Name) Collection() string {
	if c := n.part(2); c != "" {
		return c
	}
	return "accounts"
}

// ID is the last part of the name.
func (n Name) ID() string { return string(n[strings.LastIndexByte(string(n), '/')+1:]) }

func (n Name) part(i int) string {
	rest := string(n)
	for ; i > 0; i-- {
		_, after, found := strings.Cut(rest, "/")
		if !found {
			return ""
		}
		rest = after
	}
	head, _, _ := strings.Cut(rest, "/")
	return head
}

// Subject is where the log keeps the resource's history: always four tokens.
func (n Name) Subject() string {
	return "events." + n.Account() + "." + n.Collection() + "." + n.ID()
}

// NameOf is the resource whose history a subject holds; "" when it is none.
func NameOf(subject string) Name {
	parts := strings.Split(subject, ".")
	if len(parts) != 4 || parts[0] != "events" {
		return ""
	}
	return NewName(parts[1], parts[2], parts[3])
}

var idPattern = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// IDRule is what ValidID demands, in words.
const IDRule = "must be 1 to 63 characters of a-z, 0-9 and -, begin with a letter and not end with a hyphen"

// ValidID reports whether id may be the last part of a name.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// ParseName reads a name of the given collection; its account and id are checked.
func ParseName(s, collection string) (Name, bool) {
	parts := strings.Split(s, "/")
	if collection == "accounts" {
		return Name(s), len(parts) == 2 && parts[0] == "accounts" && ValidID(parts[1])
	}
	ok := len(parts) == 4 && parts[0] == "accounts" && ValidID(parts[1]) && parts[2] == collection && ValidID(parts[3])
	return Name(s), ok
}
