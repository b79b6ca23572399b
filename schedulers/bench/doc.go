// Package bench measures jobs from their creation to their completion, and compares them with
// River, a queue of jobs on PostgreSQL, on the same machine in the same run. It is a module of its
// own, so that anneal does not depend on River.
package bench
