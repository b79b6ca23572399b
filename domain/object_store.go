package domain

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// An ObjectURL is the address of an object, or of a directory of objects, in an S3-compatible
// object store: s3://BUCKET/KEY?region=REGION&endpoint=https://HOST.
type ObjectURL struct {
	Bucket   string
	Key      string // key of the object; for a directory, "" or a prefix that ends in a slash
	Region   string // region of the bucket; "" stands for the default of the object store
	Endpoint string // URL of the server; "" stands for Amazon S3
}

// ObjectURLRule is the rule that addresses of object stores follow.
const ObjectURLRule = "must be s3://BUCKET/KEY, or s3://BUCKET/DIRECTORY/, with the parameters region=REGION and " +
	"endpoint=https://HOST if needed"

var (
	bucketPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	regionPattern = regexp.MustCompile(`^[a-z0-9-]{0,40}$`)
)

// maxObjectKey is the maximum length of the key of an object in bytes.
const maxObjectKey = 1024

// ParseObjectURL parses text as an ObjectURL. It returns false if text does not follow
// ObjectURLRule.
func ParseObjectURL(text string) (at ObjectURL, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "s3" || u.User != nil || u.Fragment != "" || len(text) > maxExternalURL {
		return ObjectURL{}, false
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return ObjectURL{}, false
	}
	for name, values := range query {
		if name != "region" && name != "endpoint" || len(values) != 1 {
			return ObjectURL{}, false
		}
	}
	at = ObjectURL{Bucket: u.Host, Key: strings.TrimPrefix(u.Path, "/"), Region: query.Get("region"),
		Endpoint: query.Get("endpoint")}
	ok = bucketPattern.MatchString(at.Bucket) && regionPattern.MatchString(at.Region) && len(at.Key) <= maxObjectKey &&
		!strings.ContainsFunc(at.Key, isControl) && (at.Endpoint == "" || isEndpoint(at.Endpoint))
	return at, ok
}

// isEndpoint reports whether text is the URL of a server without a path.
func isEndpoint(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil &&
		strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}

// Directory reports whether the address is that of a directory, instead of one object.
func (u ObjectURL) Directory() bool { return u.Key == "" || strings.HasSuffix(u.Key, "/") }

// StoreCredentials are the credentials of an S3-compatible object store.
type StoreCredentials struct {
	AccessKeyID     SecretValue
	SecretAccessKey SecretValue
	SessionToken    SecretValue // token of temporary credentials; "" for permanent ones
}

// StoreCredentialsRule is the rule that the values of secrets with StoreCredentials follow.
const StoreCredentialsRule = `must be JSON like {"access_key_id": "…", "secret_access_key": "…"}, with a ` +
	`session_token for temporary credentials`

const maxCredential = 8 << 10 // maximum bytes of one field of StoreCredentials

// ParseStoreCredentials parses the value of a secret, a JSON object, as credentials. The field
// names may have the prefix aws_. wrong says which rules the value violates, without any part of
// the value; nil if it is valid.
func ParseStoreCredentials(value SecretValue) (c StoreCredentials, wrong []string) {
	var fields map[string]any
	if json.Unmarshal([]byte(value.Reveal()), &fields) != nil || fields == nil {
		return StoreCredentials{}, []string{"the value is not a JSON object"}
	}
	known := 0
	read := func(name string, required bool) SecretValue {
		for _, key := range []string{name, "aws_" + name} {
			given, ok := fields[key]
			if !ok {
				continue
			}
			known++
			text, _ := given.(string)
			if !isCredential(text) {
				wrong = append(wrong, key+" must be text of 1 to 8192 ASCII characters without spaces")
			}
			return SecretValue(text)
		}
		if required {
			wrong = append(wrong, name+" is missing")
		}
		return ""
	}
	c = StoreCredentials{read("access_key_id", true), read("secret_access_key", true), read("session_token", false)}
	if len(fields) > known {
		wrong = append(wrong, "the object has a field other than access_key_id, secret_access_key and session_token")
	}
	slices.Sort(wrong)
	return c, wrong
}

// isCredential reports whether text can be part of an HTTP header.
func isCredential(text string) bool {
	return text != "" && len(text) <= maxCredential &&
		!strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 127 })
}
