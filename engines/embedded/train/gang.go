package train

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

// maxParts is the maximum number of parts of a batch. First the gradients of the shards of each
// part are added, and then the sums of the parts, both in order. The parts depend only on the
// number of shards, so the result does not depend on the number of nodes that compute them.
const maxParts = 16

// parts returns the bounds of the parts of n shards: part i consists of the shards bounds[i] to
// bounds[i+1]-1.
func parts(n int) (bounds []int) {
	count := min(n, maxParts)
	for i := range count + 1 {
		bounds = append(bounds, i*n/max(count, 1))
	}
	return bounds
}

// A batchPart is a message that requests the gradients of consecutive parts of a batch from a node.
type batchPart struct {
	Steps       int     // number of optimizer steps that the leader has taken
	Scale       float32 // factor of the derivatives of the losses
	ReplayScale float32 // factor of the divergence of samples with Replay
	Temperature float64 // softmax temperature, see llama.Pass
	First       int     // index in the batch of the first shard in Shards
	Bounds      []int   // part i of the message is Shards[Bounds[i]:Bounds[i+1]]
	Shards      [][]*Sample
}

// A partSum is the response for one part. A second message has the gradient.
type partSum struct {
	Metrics []map[string][2]float64 // metrics of each shard: sum and weight, by name
}

// An updateOrder is a message that ends a step: the node applies the gradient, which is in a second
// message, to its copy of the parameters.
type updateOrder struct {
	Rate, Clip float64
}

// A helper is another node of the gang, which computes gradients for this node, the leader.
type helper struct {
	link engines.Link
	name string
}

// An order is a message of the leader to a helper. Exactly one field is set.
type order struct {
	Part   *batchPart
	Update *updateOrder
	End    bool
}

// A greeting is the first message of a helper. The leader uses only helpers whose greeting equals
// its own, because other arithmetic or other parameters would change the result.
type greeting struct {
	Version int
	Level   string // kernel.Arithmetic of the helper
	State   string // digest of the parameters and of the optimizer's moments
}

const gangVersion = 2

func (l *Loop) greeting() greeting {
	h := sha256.New()
	for _, v := range [][]float32{l.Net.Trained(), l.optimizer.Mean, l.optimizer.Variance} {
		h.Write(encodeFloats(v))
	}
	state := fmt.Sprintf("%d %s", l.optimizer.Steps, hex.EncodeToString(h.Sum(nil)))
	return greeting{gangVersion, kernel.Arithmetic(), state}
}

// enlist receives the greetings of the other nodes of the gang, and makes those nodes helpers that
// compute the same results as this node.
func (j *job) enlist(ctx context.Context) error {
	if j.request.Gang == nil {
		return nil
	}
	own := j.loop.greeting()
	for i, link := range j.request.Gang.Links {
		var theirs greeting
		if err := receiveInto(ctx, link, &theirs); err != nil {
			return err
		}
		name := fmt.Sprintf("node %d of the gang", i+2)
		if theirs != own {
			j.logf("%s does not help to train: its kernel level (%s, this node's is %s) or its parameters differ, so its "+
				"results would differ", name, theirs.Level, own.Level)
			if err := send(ctx, link, order{End: true}); err != nil {
				return err
			}
			continue
		}
		j.loop.helpers = append(j.loop.helpers, &helper{link, name})
	}
	j.logf("number of nodes that share each step: %d", 1+len(j.loop.helpers))
	return nil
}

// logf writes a line to the log of the job.
func (j *job) logf(format string, args ...any) {
	if j.request.Log != nil {
		fmt.Fprintf(j.request.Log, format+"\n", args...)
	}
}

// endHelpers tells the helpers that the training has ended.
func (l *Loop) endHelpers(ctx context.Context) {
	for _, h := range l.helpers {
		_ = send(ctx, h.link, order{End: true}) // if this fails, the helpers stop when the attempt ends
	}
	l.helpers = nil
}

// distribute computes the gradient of a batch on this node and its helpers, and calls add for each
// part, in order.
func (l *Loop) distribute(
	ctx context.Context, work batchPart, shards [][]*Sample, add func([]means, []float32) error,
) error {
	bounds, nodes := parts(len(shards)), 1+len(l.helpers)
	count := len(bounds) - 1
	share := func(node int) batchPart {
		lo, hi := node*count/nodes, (node+1)*count/nodes
		part := work
		part.First, part.Shards = bounds[lo], shards[bounds[lo]:bounds[hi]]
		for _, bound := range bounds[lo : hi+1] {
			part.Bounds = append(part.Bounds, bound-bounds[lo])
		}
		return part
	}
	for i, h := range l.helpers {
		part := share(i + 1)
		if err := send(ctx, h.link, order{Part: &part}); err != nil {
			return err
		}
	}
	if err := l.compute(ctx, share(0), add); err != nil {
		return err
	}
	for i, h := range l.helpers {
		for range len(share(i+1).Bounds) - 1 {
			var sum partSum
			if err := receiveInto(ctx, h.link, &sum); err != nil {
				return err
			}
			gradient, err := receiveFloats(ctx, h.link, len(l.total.Flat))
			if err != nil {
				return err
			}
			if err := add(meansOf(sum.Metrics), gradient); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// compute computes the parts of a batch on this node. It calls add for each part, in order, with
// the metrics of each shard and the sum of the gradients, which is valid only during the call.
func (l *Loop) compute(ctx context.Context, part batchPart, add func([]means, []float32) error) error {
	var metrics []means
	var failed error
	at := 0
	l.each(ctx, part.Shards, func(i int, lane *lane) {
		seed := l.Seed + uint64(part.Steps)<<20 + uint64(part.First+i)
		clear(lane.grad.Flat)
		if part.Shards[i][0].Replay {
			lane.replay(part.Shards[i], part.ReplayScale, l.Dropout, seed)
			return
		}
		lane.loss(l.objective, part.Shards[i], lane.forward(part.Shards[i], l.Dropout, seed))
		kernel.Scale(part.Scale, lane.grads)
		lane.pass.Backward(lane.grads, lane.grad)
	}, func(i int, lane *lane) {
		sum := lane.grad.Flat
		first, last := i == part.Bounds[at], i+1 == part.Bounds[at+1]
		if !first || !last { // the part has several shards
			if l.part == nil {
				l.part = l.Net.NewGradient()
			}
			if first {
				clear(l.part.Flat)
			}
			kernel.Add(l.part.Flat, l.part.Flat, sum)
			sum = l.part.Flat
		}
		metrics = append(metrics, lane.metrics)
		if last {
			if failed == nil {
				failed = add(metrics, sum)
			}
			metrics, at = nil, at+1
		}
	})
	if failed != nil {
		return failed
	}
	return ctx.Err()
}

// share sends the gradient of a step to the helpers, which apply it as this node does.
func (l *Loop) share(ctx context.Context, rate, clip float64) error {
	for _, h := range l.helpers {
		if err := send(ctx, h.link, order{Update: &updateOrder{rate, clip}}); err != nil {
			return err
		}
		if err := h.link.Send(ctx, encodeFloats(l.total.Flat)); err != nil {
			return err
		}
	}
	return nil
}

// Assist implements engines.GangTrainer.
func (Trainer) Assist(ctx context.Context, request engines.TrainRequest) error {
	j, err := newHelper(request)
	if err != nil {
		return err
	}
	link, l := request.Gang.Links[0], j.loop
	if err := send(ctx, link, l.greeting()); err != nil {
		return err
	}
	for {
		var next order
		if err := receiveInto(ctx, link, &next); err != nil {
			return err
		}
		switch {
		case next.End:
			return nil
		case next.Part != nil:
			if next.Part.Steps != l.optimizer.Steps {
				return fmt.Errorf("this node has taken %d training steps, but the leader of its gang %d", l.optimizer.Steps,
					next.Part.Steps)
			}
			l.setTemperature(next.Part.Temperature)
			if err := l.reply(ctx, link, *next.Part); err != nil {
				return err
			}
		case next.Update != nil:
			gradient, err := receiveFloats(ctx, link, len(l.total.Flat))
			if err != nil {
				return err
			}
			copy(l.total.Flat, gradient)
			l.update(next.Update.Rate, next.Update.Clip)
		}
	}
}

// reply computes parts of a batch. It sends the sum of each part while it computes the next ones.
func (l *Loop) reply(ctx context.Context, link engines.Link, part batchPart) error {
	type result struct {
		sum      partSum
		gradient []byte
	}
	results, sent := make(chan result, maxParts), make(chan error, 1)
	go func() {
		var err error
		for one := range results {
			if err == nil {
				err = send(ctx, link, one.sum)
			}
			if err == nil {
				err = link.Send(ctx, one.gradient)
			}
		}
		sent <- err
	}()
	err := l.compute(ctx, part, func(metrics []means, sum []float32) error {
		// Never blocks, because there are at most maxParts results.
		results <- result{partSum{fieldsOf(metrics)}, encodeFloats(sum)}
		return nil
	})
	close(results)
	return cmp.Or(<-sent, err)
}

// newHelper loads the model, and the checkpoint from which the request resumes. A helper reads no
// rows, because the leader sends samples.
func newHelper(request engines.TrainRequest) (*job, error) {
	j, weights, err := loadModel(request, nil)
	if err != nil {
		return nil, err
	}
	if err := j.build(weights); err != nil {
		return nil, err
	}
	keepInitial(j)
	if request.ResumeDir == "" {
		return j, nil
	}
	saved, err := readState(request.ResumeDir)
	if err != nil {
		return nil, err
	}
	j.state = saved
	return j, j.restoreParameters(request.ResumeDir)
}

func send(ctx context.Context, link engines.Link, message any) error {
	var data bytes.Buffer
	if err := gob.NewEncoder(&data).Encode(message); err != nil {
		return err
	}
	return link.Send(ctx, data.Bytes())
}

func receiveInto(ctx context.Context, link engines.Link, message any) error {
	data, err := link.Receive(ctx)
	if err != nil {
		return err
	}
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(message); err != nil {
		return fmt.Errorf("decode a message of another node of the gang: %w", err)
	}
	return nil
}

func encodeFloats(v []float32) []byte {
	data := make([]byte, 0, 4*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return data
}

func receiveFloats(ctx context.Context, link engines.Link, n int) ([]float32, error) {
	data, err := link.Receive(ctx)
	if err != nil {
		return nil, err
	}
	if len(data) != 4*n {
		return nil, fmt.Errorf("another node of the gang sent %d bytes instead of %d parameters of 4 bytes", len(data), n)
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return v, nil
}

func fieldsOf(metrics []means) (out []map[string][2]float64) {
	for _, m := range metrics {
		fields := map[string][2]float64{}
		for name, one := range m {
			fields[name] = [2]float64{one.sum, one.weight}
		}
		out = append(out, fields)
	}
	return out
}

func meansOf(fields []map[string][2]float64) (metrics []means) {
	for _, f := range fields {
		m := means{}
		for name, one := range f {
			m[name] = mean{one[0], one[1]}
		}
		metrics = append(metrics, m)
	}
	return slices.Clip(metrics)
}
