package pool

import "anneal/engines/embedded/kernel"

// Kernel returns the kernel of the pools that OpenTrainPool opens: see engines.TrainPool.Kernel.
func (Opener) Kernel() string { return kernel.Arithmetic() }
