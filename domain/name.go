package domain

import (
	"regexp"
	"strings"
)

// A Name is a resource name: accounts/acme, or accounts/acme/deployments/d1.
type Name string

// System is the account that owns the nodes and the operator's API keys.
const System = "system"

// NewName returns the name of a resource in a collection. The name of an account is accounts/ID.
func NewName(account, collection, id string) Name {
	if collection == "accounts" {
		return Name("accounts/" + id)
	}
	return Name("accounts/" + account + "/" + collection + "/" + id)
}

// Account returns the ID of the account that owns the resource.
func (n Name) Account() string { return n.part(1) }

// Collection returns the resource's collection.
func (n Name) Collection() string {
	if c := n.part(2); c != "" {
		return c
	}
	return "accounts"
}

// ID returns the last part of the name.
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

// Subject returns the subject of the resource's events in the log: always four tokens.
func (n Name) Subject() string {
	return "events." + n.Account() + "." + n.Collection() + "." + n.ID()
}

// NameOf returns the resource name whose Subject is the given subject; "" when there is none.
func NameOf(subject string) Name {
	parts := strings.Split(subject, ".")
	if len(parts) != 4 || parts[0] != "events" {
		return ""
	}
	return NewName(parts[1], parts[2], parts[3])
}

var idPattern = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// IDRule describes what ValidID requires.
const IDRule = "must be 1 to 63 characters of a-z, 0-9 and -, begin with a letter and not end with a hyphen"

// ValidID reports whether id may be the last part of a name.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// ParseName returns s as a resource name. It returns false if s is not a name in the collection
// with a valid account and a valid ID.
func ParseName(s, collection string) (Name, bool) {
	parts := strings.Split(s, "/")
	if collection == "accounts" {
		return Name(s), len(parts) == 2 && parts[0] == "accounts" && ValidID(parts[1])
	}
	ok := len(parts) == 4 && parts[0] == "accounts" && ValidID(parts[1]) && parts[2] == collection && ValidID(parts[3])
	return Name(s), ok
}
