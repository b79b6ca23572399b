package blobs

import (
	"context"
	"path"
	"strconv"
	"strings"
	"time"
)

// Directories of a job in which each attempt stores its own file, DIRECTORY/ATTEMPT/FILE, because the
// agent of an earlier attempt may still write to its file. The file of an attempt begins with the
// lines of earlier attempts that are still valid, so only the file of the newest attempt is used.
const (
	rolloutsDir = "rollouts"
	logsDir     = "logs"
)

// SupersededTime is how long the file of an attempt is kept after a newer attempt has stored its own,
// so that clients can still read the older file with signed URLs that they have received.
const SupersededTime = time.Hour

// NewestOfAttempts returns the key of the file that the newest attempt has stored below root, which is
// a RolloutsRoot or LogRoot; "" when there is none. It ignores attempts after the attempt last.
func (s *Store) NewestOfAttempts(ctx context.Context, root string, last int) (key string, err error) {
	newest := 0
	for file, err := range s.List(ctx, root) {
		if err != nil {
			return "", err
		}
		if attempt := attemptOf(file.Key); attempt > newest && attempt <= last {
			key, newest = file.Key, attempt
		}
	}
	return key, nil
}

// Superseded returns the keys of the files of attempts in listed for which listed also has a file of a
// newer attempt.
func Superseded(listed []File) map[string]bool {
	newest, superseded := map[string]int{}, map[string]bool{}
	root := func(key string) string { return path.Dir(path.Dir(key)) }
	for _, file := range listed {
		newest[root(file.Key)] = max(newest[root(file.Key)], attemptOf(file.Key))
	}
	for _, file := range listed {
		if attempt := attemptOf(file.Key); attempt > 0 && attempt < newest[root(file.Key)] {
			superseded[file.Key] = true
		}
	}
	return superseded
}

// attemptOf returns the attempt of a file JOBS/ACCOUNT/EVENT/DIRECTORY/ATTEMPT/FILE; 0 for other keys.
func attemptOf(key string) int {
	parts := strings.Split(key, "/")
	if len(parts) != 6 || parts[0]+"/" != JobRoot || parts[3] != rolloutsDir && parts[3] != logsDir {
		return 0
	}
	attempt, err := strconv.Atoi(parts[4])
	if err != nil || attempt < 1 {
		return 0
	}
	return attempt
}
