package backup_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var errKilled = errors.New("killed")

// A cutter imitates kill -9 of a process after one of its effects: a change of a bucket, or of a
// stream of a NATS server, to which the process connects through the cutter.
type cutter struct {
	left int    // number of effects until the process is killed
	last string // description of the last effect

	mu     sync.Mutex
	killed func()
	listen net.Listener
	conns  []net.Conn
	wait   sync.WaitGroup
}

// begin returns the URL of a proxy to a NATS server. kill is called after the last effect.
func (c *cutter) begin(t testing.TB, server string, kill func()) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c.listen, c.killed = l, kill
	c.wait.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				return
			}
			c.mu.Lock()
			c.conns = append(c.conns, client, to)
			c.mu.Unlock()
			c.wait.Go(func() { _, _ = io.Copy(client, to); client.Close() })
			c.wait.Go(func() { c.forward(to, bufio.NewReader(client)); to.Close() })
		}
	})
	return fmt.Sprint("nats://", l.Addr())
}

func (c *cutter) end() {
	c.close()
	c.wait.Wait()
}

func (c *cutter) close() {
	c.listen.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

// forward forwards the client's commands. After the last effect, it closes all connections.
func (c *cutter) forward(to io.Writer, from *bufio.Reader) {
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return
		}
		message := []byte(line)
		words, effect := strings.Fields(line), ""
		if len(words) > 2 && (words[0] == "PUB" || words[0] == "HPUB") {
			size, _ := strconv.Atoi(words[len(words)-1])
			payload := make([]byte, size+2)
			if _, err := io.ReadFull(from, payload); err != nil {
				return
			}
			message = append(message, payload...)
			effect = words[1]
		}
		if !c.do(effect, func() error { _, err := to.Write(message); return err }) {
			return
		}
	}
}

// do makes a change, unless the process is killed. It kills the process after the last effect.
func (c *cutter) do(effect string, change func() error) bool {
	counts := effect != "" && (!strings.HasPrefix(effect, "$JS.") || strings.HasPrefix(effect, "$JS.API.STREAM.CREATE.") ||
		strings.HasPrefix(effect, "$JS.API.STREAM.UPDATE.")) && !strings.HasPrefix(effect, "$SYS.")
	c.mu.Lock()
	if counts && c.left == 0 {
		c.mu.Unlock()
		return false
	}
	err := change()
	if !counts || err != nil {
		c.mu.Unlock()
		return err == nil
	}
	c.left--
	c.last = effect
	kill := c.left == 0
	c.mu.Unlock()
	if kill {
		c.killed()
		c.close()
	}
	return !kill
}

// intercept counts the changes of a bucket: see blobs.Options.Intercept.
func (c *cutter) intercept(change, key string, do func() error) (err error) {
	if !c.do(change+" "+key, func() error { err = do(); return err }) {
		return errors.Join(err, errKilled, context.Canceled)
	}
	return err
}
