package eventlog

import "testing"

func TestMemory(t *testing.T) {
	for _, promise := range promises {
		t.Run(promise.Name, func(t *testing.T) { promise.Test(t, NewMemory()) })
	}
}

func TestJetStream(t *testing.T) {
	for _, promise := range promises {
		t.Run(promise.Name, func(t *testing.T) { promise.Test(t, startLog(t)) })
	}
}
