package pack

import "time"

// The lease of a worker is the time that it may run its tasks without a line from the coordinator. It
// begins anew with each line. When it has ended, the worker ends its tasks (worker.go); the coordinator
// gives the tasks to others after the longer expiry (coordinator.go), so no task runs twice at once.

// leaseVariable sets the lease, for example to 2m.
const leaseVariable = "HPCC_PACK_LEASE"

// leaseFrom returns the lease in an environment, at least a second, or the default.
func leaseFrom(getenv func(string) string) time.Duration {
	d, err := time.ParseDuration(getenv(leaseVariable))
	if err != nil || d < time.Second {
		return 30 * time.Second
	}
	return d
}

// expiry returns the time after which a worker without a coordinator has ended, with its tasks.
func (p *Plan) expiry() time.Duration { return p.Lease + p.Lease/2 }
