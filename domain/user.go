package domain

import (
	"net/url"
	"strings"
)

// usersCollection is the collection in the names of users. Users are not resources: an identity
// provider has them, and their names are only recorded as actors and creators.
const usersCollection = "users"

// UserName returns the name under which the user of an identity provider acts in an account, such as
// accounts/acme/users/alice@example.com. Characters that a URL path must escape are escaped.
func UserName(account, user string) Name {
	return NewName(account, usersCollection, url.PathEscape(user))
}

// UserOf returns the user in a name that UserName has made. It returns false for other names.
func UserOf(name Name) (user string, ok bool) {
	if name.Collection() != usersCollection || strings.Count(string(name), "/") != 3 {
		return "", false
	}
	user, err := url.PathUnescape(name.ID())
	return user, err == nil && user != ""
}

// IsCaller reports whether an actor is a caller of the API, an API key or a user, and not a part of
// the platform.
func IsCaller(actor Name) bool {
	_, isUser := UserOf(actor)
	return isUser || actor.Collection() == APIKeys.Collection
}
