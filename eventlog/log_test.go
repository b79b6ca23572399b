package eventlog_test

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/servertest"
	"testing"
)

func TestMemory(t *testing.T) {
	for _, promise := range logtest.Promises {
		t.Run(promise.Name, func(t *testing.T) { promise.Test(t, eventlog.NewMemory()) })
	}
}

func TestJetStream(t *testing.T) {
	for _, promise := range logtest.Promises {
		t.Run(promise.Name, func(t *testing.T) { promise.Test(t, servertest.StartLog(t)) })
	}
}
