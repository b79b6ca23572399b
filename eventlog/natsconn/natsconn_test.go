package natsconn_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/natsconn"
)

// TestHungServersAreLeft checks that a client of a server that hangs connects to the next server of
// its list within NoticeTime, while it is idle and while it sends, and that a request then
// succeeds.
func TestHungServersAreLeft(t *testing.T) {
	for name, send := range map[string]bool{"idle": false, "sending": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := start(t)
			hanging, healthy := listen(t, backend), listen(t, backend)
			left := make(chan time.Time, 1)
			nc, err := natsconn.Connect(strings.Join([]string{hanging.url(), healthy.url()}, ","), nats.DontRandomize(),
				nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
				nats.DisconnectErrHandler(func(*nats.Conn, error) { left <- time.Now() }))
			require.NoError(t, err)
			defer nc.Close()
			require.Equal(t, hanging.url(), nc.ConnectedUrl())

			hung := time.Now()
			hanging.hang(t)
			over := make(chan struct{})
			if send {
				go func() {
					message := make([]byte, 64<<10)
					for nc.Publish("anywhere", message) == nil && nc.Flush() == nil {
					}
					close(over)
				}()
			} else {
				close(over)
			}
			require.LessOrEqual(t, (<-left).Sub(hung), natsconn.NoticeTime+time.Second)
			require.Eventually(t, func() bool { return nc.ConnectedUrl() == healthy.url() }, natsconn.NoticeTime,
				10*time.Millisecond)
			require.NoError(t, nc.FlushTimeout(5*time.Second))
			nc.Close()
			<-over
		})
	}
}

func start(t *testing.T) *server.Server {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	require.NoError(t, err)
	go s.Start()
	require.True(t, s.ReadyForConnections(10*time.Second))
	t.Cleanup(s.Shutdown)
	return s
}

// A proxy forwards TCP connections to a server until hang is called. Then it keeps them open and
// forwards nothing more.
type proxy struct {
	net.Listener
	mu sync.RWMutex // held for writing from hang to the end of the test
}

func listen(t *testing.T, backend *server.Server) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", backend.Addr().String())
			if err != nil {
				client.Close()
				continue
			}
			t.Cleanup(func() { client.Close(); to.Close() })
			go p.forward(client, to)
			go p.forward(to, client)
		}
	}()
	return p
}

func (p *proxy) url() string { return "nats://" + p.Addr().String() }

func (p *proxy) hang(t *testing.T) {
	p.mu.Lock()
	t.Cleanup(p.mu.Unlock)
}

func (p *proxy) forward(to io.WriteCloser, from io.Reader) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.RLock()
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		p.mu.RUnlock()
		if err != nil {
			return
		}
	}
}
