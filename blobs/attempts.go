package blobs

import (
	"context"
	"path"
	"strconv"
	"strings"
	"time"

	"anneal/domain"
)

// Directories of a job in which each attempt stores a file of its own, DIRECTORY/ATTEMPT/FILE,
// because the agent of an earlier attempt may still be writing its file. The file of an attempt
// begins with the lines of earlier attempts that are still valid, so only the file of the newest
// attempt is used.
//
// Logs are stored as trainer-ATTEMPT.log directly in the job's directory; earlier versions stored
// them as logs/ATTEMPT/trainer.log.
const (
	rolloutsDir = "rollouts"
	logsDir     = "logs"
	trainerLog  = "trainer-"
	logSuffix   = ".log"
)

// SupersededTime is how long the file of an attempt is kept after a newer attempt has stored its
// file, so that clients can still read the older file with signed URLs that they have received.
const SupersededTime = time.Hour

// NewestOfAttempts returns the key of the file that the newest attempt, up to the attempt last, has
// stored below root; "" when there is none. root is the result of RolloutsRoot or LogRoot.
func (s *Store) NewestOfAttempts(ctx context.Context, root string, last int) (key string, err error) {
	if base, ok := strings.CutSuffix(root, logsDir+"/"); ok {
		for attempt := last; attempt > 0; attempt-- { // trying each number is faster than listing the job's directory
			key := base + trainerLog + strconv.Itoa(attempt) + logSuffix
			if _, err := s.Size(ctx, key); err == nil {
				return key, nil
			} else if domain.CodeOf(err) != domain.NotFound {
				return "", err
			}
		}
	}
	newest := 0
	for file, err := range s.List(ctx, root) {
		if err != nil {
			return "", err
		}
		if of, attempt := attemptOf(file.Key); of == root && attempt >= max(newest, 1) && attempt <= last {
			key, newest = file.Key, attempt
		}
	}
	return key, nil
}

// Superseded returns the keys of those rollouts and logs in listed for which listed also has the
// file of a newer attempt of the same job.
func Superseded(listed []File) map[string]bool {
	newest, superseded := map[string]int{}, map[string]bool{}
	for _, file := range listed {
		root, attempt := attemptOf(file.Key)
		newest[root] = max(newest[root], attempt)
	}
	for _, file := range listed {
		if root, attempt := attemptOf(file.Key); attempt > 0 && attempt < newest[root] {
			superseded[file.Key] = true
		}
	}
	return superseded
}

// attemptOf returns the number of the attempt that stored the rollouts or log under key, and the
// RolloutsRoot or LogRoot of this file. For other keys, attempt is 0.
func attemptOf(key string) (root string, attempt int) {
	parts := strings.Split(key, "/")
	if len(parts) < 4 || parts[0]+"/" != JobRoot {
		return "", 0
	}
	number, kind := "", logsDir
	if name, ok := strings.CutPrefix(parts[3], trainerLog); ok && len(parts) == 4 {
		number, _ = strings.CutSuffix(name, logSuffix)
	} else if len(parts) == 6 && (parts[3] == rolloutsDir || parts[3] == logsDir) {
		kind, number = parts[3], parts[4]
	}
	attempt, err := strconv.Atoi(number)
	if err != nil || attempt < 1 {
		return "", 0
	}
	return path.Join(parts[0], parts[1], parts[2], kind) + "/", attempt
}
