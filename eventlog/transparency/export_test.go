package transparency

import "context"

// RunOnce runs a publisher until its first failure.
func RunOnce(ctx context.Context, o Options) error { return NewPublisher(o).run(ctx) }
